"""How far a task's outputs may be from those of exact arithmetic, on a target."""

from __future__ import annotations

from stormdrop.ir.tensor import Variant
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

EPS = 2.0**-23


def error_bound(variant: Variant, target: Target) -> float:
    """The bound of a variant, in units of eps · Σ|a·b|, at the precision of the target's products.

    A product of factors that are rounded by a relative error u each is off by 2 u + u². Of a chain of n sums, where
    each may multiply the results of the one before, the errors add up.
    """
    kernel = target.matrix_kernel if isinstance(target, Gpu) else None
    if kernel is None:
        return variant.error_bound
    sums = sum(t.compute is not None and t.compute.combiner == "sum" for t in variant.stages)
    u = kernel.roundoff
    return variant.error_bound + max(1, sums) * (2.0 * u + u * u) / EPS
