"""Products summed over shared dimensions: general matrix products and Einstein sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from stormdrop.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import Expr
from stormdrop.ir.tensor import Tensor, axis, compute, reduce_axis
from stormdrop.ops.broadcast import axes_for, broadcast_shape, read


def matmul_nd(x: Tensor, w: Tensor, transpose_x: bool = False, transpose_w: bool = False, name: str = "Y") -> Tensor:
    """`Y[b…, n, m] = Σ_k X[b…, n, k] · W[b…, k, m]`, the leading dimensions broadcasting; either matrix may be stored
    transposed.
    """
    if len(x.shape) < 2 or len(w.shape) < 2:
        raise UserError(f"matmul: {x!r} and {w!r} must be matrices")
    rows, inner = x.shape[-2:] if not transpose_x else x.shape[:-3:-1]
    below, columns = w.shape[-2:] if not transpose_w else w.shape[:-3:-1]
    if inner != below:
        raise UserError(f"matmul: {x!r} and {w!r} share no inner dimension: {inner} and {below}")
    lead = axes_for(broadcast_shape(x.shape[:-2], w.shape[:-2]))
    n, m, k = axis(rows, "n"), axis(columns, "m"), reduce_axis(inner, "k")
    left = _factor(x, [*lead, k, n] if transpose_x else [*lead, n, k])
    right = _factor(w, [*lead, m, k] if transpose_w else [*lead, k, m])
    return compute(name, (*lead, n, m), build.sum(left * right, k))


def _factor(x: Tensor, axes: Sequence[Expr]) -> Expr:
    """An element of `x` as it is multiplied: products of bf16 are exact in f32, and summed there."""
    element = read(x, axes)
    return build.cast(element, "f32") if x.dtype == "bf16" else element


def einsum(labels: Sequence[str], result: str, operands: Sequence[Tensor], name: str = "Y") -> Tensor:
    """`Y[result] = Σ over the other labels of the product of all operands`; a label of extent 1 broadcasts.

    Raises UserError where labels and shapes do not fit.
    """
    extents: dict[str, int] = {}
    for text, x in zip(labels, operands):
        if len(text) != len(x.shape):
            raise UserError(f"einsum: {x!r} has not the {len(text)} dimensions of {text!r}")
        for label, n in zip(text, x.shape):
            if extents.setdefault(label, n) != n and 1 not in (n, extents[label]):
                raise UserError(f"einsum: {label} is {extents[label]} and {n}")
            extents[label] = max(extents[label], n)
    if set(result) - set(extents) or len(set(result)) != len(result):
        raise UserError(f"einsum: the result {result!r} has labels that are unknown or come twice")
    axes = {label: axis(extents[label], label) for label in result}
    over = {label: reduce_axis(n, label) for label, n in extents.items() if label not in axes}
    at = {**axes, **over}
    product = reduce(Expr.__mul__, [_factor(x, [at[label] for label in text]) for text, x in zip(labels, operands)])
    return compute(name, [axes[label] for label in result], build.sum(product, *over.values()) if over else product)
