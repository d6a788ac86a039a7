"""Operators that move elements without computing.

Every operator reads each input element by a plain index expression, so a reader can compute it in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import Const, Expr, binary
from stormdrop.ir.tensor import Tensor, compute
from stormdrop.operators.broadcast import (
    axes_for,
    broadcast_shape,
    concat,
    pad_constant,
    put,
    read,
    repeat,
    reshaped_indices,
    transpose,
)
from stormdrop.operators.node import Array, Node, Operator, OperatorKind, Shape, with_extent


def _reshaped(n: Node) -> Shape:
    shape = n.integers("shape")
    if prod(shape) != n.inputs[0].size:
        raise UserError(f"{n.inputs[0]} cannot be reshaped to {list(shape)}")
    return shape


def _transposed(n: Node) -> Shape:
    order = n.integers("perm")
    if sorted(order) != list(range(n.inputs[0].rank)):
        raise UserError(f"{order} is no permutation of the dimensions of {n.inputs[0]}")
    return tuple(n.inputs[0].shape[d] for d in order)


def _expanded(n: Node) -> Shape:
    shape = n.integers("shape")
    if broadcast_shape(n.inputs[0].shape, shape) != shape:
        raise UserError(f"{n.inputs[0]} cannot be expanded to {list(shape)}")
    return shape


def _joined(n: Node) -> Shape:
    along, first = n.integer("axis"), n.inputs[0]
    for v in n.inputs:
        alike = v.rank == first.rank and all(a == b for d, (a, b) in enumerate(zip(v.shape, first.shape)) if d != along)
        if not alike or v.dtype != first.dtype or not 0 <= along < first.rank:
            raise UserError(f"{first} and {v} cannot be joined along dimension {along}")
    return put(first.shape, along, sum(v.shape[along] for v in n.inputs))


def _cut(n: Node) -> Shape:
    starts, steps, shape = n.integers("starts"), n.integers("steps"), n.integers("shape")
    for start, step, count, extent in zip(starts, steps, shape, n.inputs[0].shape):
        last = start + (count - 1) * step
        if count and not (0 <= start < extent and 0 <= last < extent):
            raise UserError(f"a slice from {start} to {last} leaves {n.inputs[0]}")
    return shape


def _padded(n: Node) -> Shape:
    before, after = n.integers("before"), n.integers("after")
    mode = n.text("mode")
    for b, a, e in zip(before, after, n.inputs[0].shape):
        if b < 0 or a < 0 or (mode != "constant" and e == 0 and b + a):
            raise UserError(f"pads {before} and {after} do not fit {n.inputs[0]}")
    return tuple(b + e + a for b, e, a in zip(before, n.inputs[0].shape, after))


def _matrices(n: Node) -> Shape:
    if n.inputs[0].rank < 2:
        raise UserError(f"{n.inputs[0]} is no matrix")
    return n.inputs[0].shape


def _sliced_array(n: Node, x: Sequence[Array]) -> Array:
    ranges = zip(n.integers("starts"), n.integers("steps"), n.integers("shape"))
    grid = [start + step * np.arange(count) for start, step, count in ranges]
    return x[0][np.ix_(*grid)] if grid else x[0]


def _reshape(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns the same elements in row-major order under another shape.

        Y[h, w] = X[(h·W + w) // C, (h·W + w) % C]

    Runs of dimensions with equally many elements on both sides are matched first. So an unchanged dimension is read
    directly, and a dimension that only splits or joins needs the fewest divisions.
    """
    (x,) = inputs
    i = axes_for(node.integers("shape"))
    return compute("Y", i, x[tuple(reshaped_indices(x.shape, i))])


def _expand(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[i] = X[i]`, broadcast to a shape."""
    i = axes_for(node.integers("shape"))
    return compute("Y", i, read(inputs[0], i))


def _slice(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[i] = X[start + i·step]` in every dimension; a step may be negative."""
    (x,), starts, steps = inputs, node.integers("starts"), node.integers("steps")
    i = axes_for(node.integers("shape"))
    at = [binary("add", binary("mul", a, step), start) for a, start, step in zip(i, starts, steps)]
    return compute("Y", i, x[tuple(at)])


def _tile(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[i] = X[i mod n]` in every dimension."""
    (x,), times = inputs, node.integers("times")
    i = axes_for([n * k for n, k in zip(x.shape, times)])
    each = zip(i, x.shape, times)
    indices = [a if k == 1 else Const(0, "i64") if n == 1 else binary("mod", a, n) for a, n, k in each]
    return compute("Y", i, x[tuple(indices)])


def _triangle(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns the upper triangle (j - i >= k) or the lower (j - i <= k) of the last two dimensions, zero elsewhere."""
    (x,), k = inputs, node.integer("k")
    i = axes_for(x.shape)
    gap = i[-1] - i[-2]
    inside = gap >= k if node.flag("upper") else gap <= k
    return compute("Y", i, build.where(inside, x[tuple(i)], Const(0, x.dtype)))


def _pad_reflected(x: Tensor, before: Sequence[int], after: Sequence[int], mode: str) -> Tensor:
    """Returns x padded by mode: edge (repeats the border), reflect (mirrors without it) or wrap (the other side)."""
    axes = axes_for([b + n + a for b, n, a in zip(before, x.shape, after)])
    indices: list[Expr] = []
    for a, b, behind, n in zip(axes, before, after, x.shape):
        i = binary("sub", a, b)
        if not b and not behind:
            indices.append(a)
        elif mode == "edge" or n == 1:
            indices.append(binary("min", binary("max", i, 0), n - 1))
        elif mode == "wrap":
            indices.append(binary("mod", i, n))
        elif mode == "reflect":
            turn = binary("mod", i, 2 * (n - 1))
            indices.append(binary("min", turn, binary("sub", Const(2 * (n - 1), "i64"), turn)))
        else:
            raise UserError(f"pad: unknown mode {mode!r}")
    return compute("P", axes, x[tuple(indices)])


def _pad(n: Node, x: Sequence[Tensor]) -> Tensor:
    before, after, mode = n.integers("before"), n.integers("after"), n.text("mode")
    if mode != "constant":
        return _pad_reflected(x[0], before, after, mode)
    return pad_constant(x[0], before, after, x[1][()] if len(x) > 1 else n.constant("value", x[0].dtype))


RESHAPE = Operator(
    "Reshape",
    _reshaped,
    _reshape,
    kind=OperatorKind.VIEW,
    moves="all",
    followers=1,
    numpy=lambda n, x: x[0].reshape(n.integers("shape")),
)
TRANSPOSE = Operator(
    "Transpose",
    _transposed,
    lambda n, x: transpose(x[0], n.integers("perm")),
    kind=OperatorKind.MOVEMENT,
    moves="all",
    followers=1,
    numpy=lambda n, x: np.transpose(x[0], n.integers("perm")),
)
MOVEMENT = (
    RESHAPE,
    TRANSPOSE,
    Operator(
        "Expand",
        _expanded,
        _expand,
        kind=OperatorKind.MOVEMENT,
        moves="some",
        numpy=lambda n, x: np.broadcast_to(x[0], n.integers("shape")),
    ),
    Operator(
        "Concat",
        _joined,
        lambda n, x: concat(x, n.integer("axis")),
        followers=None,
        numpy=lambda n, x: np.concatenate(x, n.integer("axis")),
    ),
    Operator(
        "Slice",
        _cut,
        _slice,
        kind=OperatorKind.MOVEMENT,
        moves="some",
        followers=1,
        by_dimension=("starts", "steps", "shape"),
        numpy=_sliced_array,
    ),
    Operator("Pad", _padded, _pad, kind=OperatorKind.MOVEMENT, followers=1, by_dimension=("before", "after")),
    Operator(
        "Repeat",
        lambda n: with_extent(n, n.inputs[0].shape[n.integer("axis")] * n.integer("times")),
        lambda n, x: repeat(x[0], n.integer("axis"), n.integer("times")),
        kind=OperatorKind.MOVEMENT,
        followers=1,
    ),
    Operator(
        "Tile",
        lambda n: tuple(e * k for e, k in zip(n.inputs[0].shape, n.integers("times"))),
        _tile,
        kind=OperatorKind.MOVEMENT,
        moves="some",
        followers=1,
        by_dimension=("times",),
        numpy=lambda n, x: np.tile(x[0], n.integers("times")),
    ),
    Operator("Trilu", _matrices, _triangle, kind=OperatorKind.MOVEMENT),
)
