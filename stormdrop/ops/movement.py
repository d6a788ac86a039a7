"""Moving elements: padding and transposition.

Both keep their structure at any size, so all shapes of an operator share a class key: a pad of zero still compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import chain

from stormdrop.errors import UserError
from stormdrop.ir.expr import Expr, Scalar, select
from stormdrop.ir.tensor import Tensor, axis, compute

Pad = int | tuple[int, int]


def before_after(pad: Pad) -> tuple[int, int]:
    """A pad as (before, after); one number is both."""
    return (pad, pad) if isinstance(pad, int) else pad


def pad(x: Tensor, pads: Sequence[Pad], value: Scalar = 0, name: str = "P") -> Tensor:
    """Pad the dimensions that follow the first one; the others are copied.

        P[n, h, w, c] = where(h >= p and h < H + p and w >= p and w < W + p, X[n, h - p, w - p, c], value)

    Raises UserError where a pad is negative or nothing is left to pad.
    """
    if not 0 < len(pads) < len(x.shape):
        raise UserError(f"pad: {x!r} has no {len(pads)} dimensions after the first")
    amounts = [(0, 0), *(before_after(p) for p in pads)]
    amounts += [(0, 0)] * (len(x.shape) - len(amounts))
    if any(a < 0 or b < 0 for a, b in amounts):
        raise UserError(f"pad: a pad cannot be negative, but {x!r} is padded by {list(pads)}")
    axes = [axis(n + a + b, f"i{d}") for d, (n, (a, b)) in enumerate(zip(x.shape, amounts))]
    sides = [(axes[d] >= amounts[d][0], axes[d] < x.shape[d] + amounts[d][0]) for d in range(1, 1 + len(pads))]
    inside = reduce(Expr.__and__, chain(*sides))
    element = x[tuple(i - a for i, (a, _) in zip(axes, amounts))]
    return compute(name, axes, select(inside, element, value))


def transpose(x: Tensor, order: Sequence[int], name: str = "T") -> Tensor:
    """Reorder dimensions, as `numpy.transpose`: dimension d of the result is dimension order[d] of x.

        T[j, i] = X[i, j]     for order (1, 0)

    Raises UserError where `order` is no permutation.
    """
    if sorted(order) != list(range(len(x.shape))):
        raise UserError(f"transpose: {tuple(order)} is no permutation of the dimensions of {x!r}")
    axes = [axis(x.shape[d], f"i{d}") for d in order]
    source = [axes[list(order).index(d)] for d in range(len(x.shape))]
    return compute(name, axes, x[tuple(source)])
