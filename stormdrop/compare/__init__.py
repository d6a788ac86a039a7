"""Comparison of models with other runtimes: the same results, and a fair clock.

The default tolerances are here, without NumPy, since the command line prints them.
"""

TOLERANCE = 1e-3
"""The largest error, as a share of the largest expected magnitude."""
ABSOLUTE = 1e-8
"""The error that is allowed in outputs of any magnitude, as in `numpy.allclose`."""
