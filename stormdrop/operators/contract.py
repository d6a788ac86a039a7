"""Products summed over shared dimensions: general matrix products and Einstein sums."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.dtypes import ACCUMULATOR
from stormdrop.ir.expr import Expr
from stormdrop.ir.tensor import Tensor, axis, compute, reduce_axis
from stormdrop.operators.broadcast import axes_for, broadcast_shape, read, widened
from stormdrop.operators.node import Array, Node, Operator, OperatorKind, Shape


def matmul_extents(
    x: Sequence[int], w: Sequence[int], transpose_x: bool, transpose_w: bool
) -> tuple[tuple[int, ...], int, int, int]:
    """Returns leading dimensions, rows, inner dimension and columns of a matrix product, each perhaps transposed."""
    if len(x) < 2 or len(w) < 2:
        raise UserError(f"matmul: {list(x)} and {list(w)} must be matrices")
    rows, inner = x[:-3:-1] if transpose_x else x[-2:]
    below, columns = w[:-3:-1] if transpose_w else w[-2:]
    if inner != below:
        raise UserError(f"matmul: {list(x)} and {list(w)} share no inner dimension: {inner} and {below}")
    return broadcast_shape(tuple(x[:-2]), tuple(w[:-2])), rows, inner, columns


def matmul_nd(x: Tensor, w: Tensor, transpose_x: bool = False, transpose_w: bool = False, name: str = "Y") -> Tensor:
    """Returns `Y[b…, n, m] = Σ_k X[b…, n, k] · W[b…, k, m]`; leading dimensions broadcast.

    Each factor may be given transposed.
    """
    leading, rows, inner, columns = matmul_extents(x.shape, w.shape, transpose_x, transpose_w)
    lead, n, m, k = axes_for(leading), axis(rows, "n"), axis(columns, "m"), reduce_axis(inner, "k")
    if x.dtype != "bf16":  # pairs of bf16 may be multiplied without widening
        x, w = widened(x), widened(w)
    left = _factor(x, [*lead, k, n] if transpose_x else [*lead, n, k])
    right = _factor(w, [*lead, m, k] if transpose_w else [*lead, k, m])
    return compute(name, (*lead, n, m), build.sum(left * right, k))


def _factor(x: Tensor, axes: Sequence[Expr]) -> Expr:
    """Returns an element of `x` as a factor, in the type in which products of a narrow type are exact and summed."""
    return build.cast(read(x, axes), ACCUMULATOR.get(x.dtype, x.dtype))


def einsum_extents(labels: Sequence[str], result: str, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Returns the extent of each label; extents of 1 broadcast. Raises UserError if labels and shapes do not fit."""
    extents: dict[str, int] = {}
    for text, shape in zip(labels, shapes):
        if len(text) != len(shape):
            raise UserError(f"einsum: {list(shape)} has not the {len(text)} dimensions of {text!r}")
        for label, n in zip(text, shape):
            known = extents.get(label, 1)
            if n != known and 1 not in (n, known):
                raise UserError(f"einsum: {label} is {known} and {n}")
            extents[label] = n if known == 1 else known
    if set(result) - set(extents) or len(set(result)) != len(result):
        raise UserError(f"einsum: the result {result!r} has labels that are unknown or come twice")
    return extents


def einsum(labels: Sequence[str], result: str, operands: Sequence[Tensor], name: str = "Y") -> Tensor:
    """Returns `Y[result] = Σ over the other labels of the product of all operands`; a label of extent 1 broadcasts.

    Raises UserError if labels and shapes do not fit.
    """
    extents = einsum_extents(labels, result, [x.shape for x in operands])
    axes = {label: axis(extents[label], label) for label in result}
    over = {label: reduce_axis(n, label) for label, n in extents.items() if label not in axes}
    at = {**axes, **over}
    product = reduce(Expr.__mul__, [_factor(x, [at[label] for label in text]) for text, x in zip(labels, operands)])
    return compute(name, [axes[label] for label in result], build.sum(product, *over.values()) if over else product)


# ---- Shapes, and records of the operators


def _matmul_shape(n: Node) -> Shape:
    a, b = n.inputs
    if a.dtype != b.dtype:
        raise UserError(f"{a} and {b} are no matrices to multiply")
    lead, rows, _, columns = matmul_extents(a.shape, b.shape, n.flag("transpose_a", 0), n.flag("transpose_b", 0))
    return (*lead, rows, columns)


def _matmul(n: Node, x: Sequence[Tensor]) -> Tensor:
    return matmul_nd(x[0], x[1], n.flag("transpose_a", 0), n.flag("transpose_b", 0))


def _matmul_array(n: Node, x: Sequence[Array]) -> Array:
    a = np.swapaxes(x[0], -1, -2) if n.integer("transpose_a", 0) else x[0]
    b = np.swapaxes(x[1], -1, -2) if n.integer("transpose_b", 0) else x[1]
    return np.matmul(a, b)


def _einsum_shape(n: Node) -> Shape:
    labels, _, result = n.text("equation").partition("->")
    extents = einsum_extents(labels.split(","), result, [v.shape for v in n.inputs])
    return tuple(extents[label] for label in result)


def _einsum(n: Node, x: Sequence[Tensor]) -> Tensor:
    labels, _, result = n.text("equation").partition("->")
    return einsum(labels.split(","), result, x)


PRODUCTS = (
    Operator(
        "MatMul",
        _matmul_shape,
        _matmul,
        kind=OperatorKind.PRODUCT,
        combiner="sum",
        accumulates=True,
        numpy=_matmul_array,
    ),
    Operator("Einsum", _einsum_shape, _einsum, kind=OperatorKind.PRODUCT, combiner="sum", accumulates=True),
)
