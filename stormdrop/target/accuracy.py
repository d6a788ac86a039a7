"""Error bounds: the largest accepted distance of a task's outputs from exact arithmetic, on a target."""

from __future__ import annotations

from stormdrop.ir.tensor import Variant
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target
from stormdrop.target.microkernels import MATRIX_KERNELS

EPS = 2.0**-23
NETWORK_ERRORS = 16.0
"""The bound of a network's error as a multiple of one product's error. The random errors of a hundred layers add up to
about ten times the error of a single layer."""


def error_bound(variant: Variant, target: Target) -> float:
    """Returns the bound of a variant, in units of eps · Σ|a·b|, at the precision of the target's products.

    Rounding both factors with a relative error u each changes their product by up to 2 u + u², relatively. Each sum of
    a variant may multiply the results of the sum before, so the bound grows with the number of sums.
    """
    kernel = target.matrix_kernel if isinstance(target, Gpu) else None
    if kernel is None:
        return variant.error_bound
    sums = sum(t.compute is not None and t.compute.combiner == "sum" for t in variant.stages)
    u = kernel.roundoff
    return variant.error_bound + max(1, sums) * (2.0 * u + u * u) / EPS


def network_tolerance(precision: str) -> float:
    """Returns the error of outputs, relative to the largest, that the products' precision explains; 0 for f32."""
    return max((NETWORK_ERRORS * 2.0 * k.roundoff for p, k in MATRIX_KERNELS.items() if p == precision), default=0.0)
