"""Tensor expressions by position, parts of operators: broadcasting, transposing, joining, padding, repeating.

Every function reads each input element by a plain index expression, so a reader can compute it in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.dtypes import HALVES
from stormdrop.ir.expr import Axis, Const, Expr, Load, Scalar, binary, select
from stormdrop.ir.shape import matching_runs
from stormdrop.ir.tensor import Tensor, axis, compute


def axes_for(shape: Sequence[int]) -> list[Axis]:
    return [axis(n, f"i{d}") for d, n in enumerate(shape)]


def put(items: Sequence[Any], along: int, item: Any) -> tuple[Any, ...]:
    """Returns the items with `item` in dimension `along`: extents, axes or indices."""
    return (*items[:along], item, *items[along + 1 :])


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape by NumPy's rule. Raises UserError if the shapes do not fit."""
    rank = max(map(len, shapes), default=0)
    result: list[int] = []
    for d in range(rank):
        extents = {s[len(s) - rank + d] for s in shapes if len(s) - rank + d >= 0} - {1}
        if len(extents) > 1:
            raise UserError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        result.append(extents.pop() if extents else 1)
    return tuple(result)


def read(x: Tensor, axes: Sequence[Expr]) -> Load:
    """Returns an element of `x` broadcast to the axes.

    Missing leading dimensions are skipped; a dimension is read at 0 if only its own extent is 1.
    """
    own = zip(list(axes)[len(axes) - len(x.shape) :], x.shape)
    return x[tuple(a if n != 1 or (isinstance(a, Axis) and a.extent == 1) else Const(0, "i64") for a, n in own)]


def elementwise(function: Callable[[Sequence[Expr]], Expr], operands: Sequence[Tensor], name: str = "Y") -> Tensor:
    """Returns `Y[i] = function(A[i], B[i], …)`, broadcasting as NumPy does."""
    i = axes_for(broadcast_shape(*(x.shape for x in operands)))
    return compute(name, i, function([read(x, i) for x in operands]))


def transpose(x: Tensor, order: Sequence[int], name: str = "Y") -> Tensor:
    """Reorders dimensions, as `numpy.transpose`: dimension d of the result is dimension order[d] of x.

        Y[j, i] = X[i, j]     for order (1, 0)

    Raises UserError if `order` is no permutation.
    """
    if sorted(order) != list(range(len(x.shape))):
        raise UserError(f"transpose: {tuple(order)} is no permutation of the dimensions of {x!r}")
    axes = axes_for([x.shape[d] for d in order])
    source = [axes[list(order).index(d)] for d in range(len(x.shape))]
    return compute(name, axes, x[tuple(source)])


def reshaped_indices(source: Sequence[int], axes: Sequence[Axis]) -> list[Expr]:
    """Returns the source's indices for the element at `axes` of the reshaped tensor."""
    if 0 in source:
        empty = next(a for a in axes if a.extent == 0)
        return [empty if n == 0 else Const(0, "i64") for n in source]
    indices: list[Expr] = [Const(0, "i64")] * len(source)
    for held, wanted in matching_runs(source, [a.extent for a in axes]):
        flat: Expr = axes[wanted[0]]
        for t in wanted[1:]:
            flat = flat * axes[t].extent + axes[t]
        stride = 1
        for d in reversed(held):
            index = flat if stride == 1 else binary("floordiv", flat, stride)
            indices[d] = index if d == held[0] else binary("mod", index, source[d])
            stride *= source[d]
    return indices


def concat(parts: Sequence[Tensor], along: int, name: str = "Y") -> Tensor:
    """Returns `Y[…, i, …] = where(i < a, A[…, i, …], B[…, i - a, …])`, for any number of parts."""
    i = axes_for(put(parts[0].shape, along, sum(p.shape[along] for p in parts)))
    held = [p for p in parts if p.shape[along] > 0] or list(parts[:1])
    starts = [sum(p.shape[along] for p in held[:k]) for k in range(len(held))]

    def element(k: int) -> Expr:
        return held[k][put(i, along, binary("sub", i[along], starts[k]))]

    body: Expr = element(len(held) - 1)
    for k in reversed(range(len(held) - 1)):
        body = select(i[along] < starts[k + 1], element(k), body)
    return compute(name, i, body)


def pad_constant(
    x: Tensor,
    before: Sequence[int],
    after: Sequence[int],
    value: Scalar | Expr,
    dims: Sequence[int] | None = None,
    name: str = "P",
) -> Tensor:
    """Returns `P[i] = where(i is inside, X[i - before], value)`; `dims` are compared even without padding."""
    axes = axes_for([b + n + a for b, n, a in zip(before, x.shape, after)])
    wanted = [d for d in range(len(axes)) if before[d] or after[d]] if dims is None else list(dims)
    sides = [c for d in wanted for c in (axes[d] >= before[d], axes[d] < x.shape[d] + before[d])]
    element = x[tuple(binary("sub", a, b) for a, b in zip(axes, before))]
    return compute(name, axes, select(reduce(Expr.__and__, sides), element, value) if sides else element)


def widened(x: Tensor) -> Tensor:
    """Returns a tensor of halves as f32, in a stage of its own: one conversion instead of one per product."""
    if x.dtype not in HALVES:
        return x
    axes = axes_for(x.shape)
    return compute("X", axes, build.cast(x[tuple(axes)], "f32"))


def repeat(x: Tensor, along: int, times: int, name: str = "Y") -> Tensor:
    """Returns `Y[…, i, …] = X[…, i // times, …]`, a nearest-neighbour enlargement."""
    i = axes_for(put(x.shape, along, x.shape[along] * times))
    return compute(name, i, x[put(i, along, binary("floordiv", i[along], times))])
