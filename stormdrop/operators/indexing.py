"""Operators with indices as data: gather, scatter, ordering.

A negative index counts from the end. Every index is then clamped to its dimension, so no input can read or write
outside a tensor. (Importers refuse constant indices that are out of range.) Scatter and ordering compare every
candidate, so their work is the product of both sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import FLOATS, Axis, Combiner, Const, Expr, binary, call, compare, identity_of, select
from stormdrop.ir.tensor import Tensor, compute, reduce_axis
from stormdrop.operators.broadcast import axes_for, put
from stormdrop.operators.node import (
    Array,
    Node,
    Operator,
    OperatorKind,
    Shape,
    dims_of,
    positions,
    reduced,
    same_dims,
    shape_of_first,
    shown,
    with_extent,
)

SCATTERED = ("none", "add", "mul", "max", "min")
"""The modes in which a Scatter combines an update with the previous element."""


def wrapped(index: Expr, extent: int) -> Expr:
    """Returns an index as data, i64; a negative index counts from the end."""
    i = build.cast(index, "i64")
    return select(compare("lt", i, 0), i + extent, i)


def clamped(index: Expr, extent: int) -> Expr:
    return binary("max", binary("min", index, extent - 1), 0)


def _gather(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[a…, i…, b…] = X[a…, I[i…], b…]`."""
    (x, indices), along = inputs, node.integer("axis")
    shape = (*x.shape[:along], *indices.shape, *x.shape[along + 1 :])
    i = axes_for(shape)
    at = i[along : along + len(indices.shape)]
    chosen = clamped(wrapped(indices[tuple(at)], x.shape[along]), x.shape[along])
    return compute("Y", i, x[(*i[:along], chosen, *i[along + len(at) :])])


def _gather_elements(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[…, i, …] = X[…, I[…, i, …], …]`."""
    (x, indices), along = inputs, node.integer("axis")
    i = axes_for(indices.shape)
    return compute("Y", i, x[put(i, along, clamped(wrapped(indices[tuple(i)], x.shape[along]), x.shape[along]))])


def _gather_nd(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[b…, i…, r…] = X[b…, I[b…, i…, 0], I[b…, i…, 1], …, r…]`."""
    (x, indices), batch = inputs, node.integer("batch_dims")
    depth, lead = indices.shape[-1], len(indices.shape) - 1
    i = axes_for((*indices.shape[:-1], *x.shape[batch + depth :]))
    chosen = [clamped(wrapped(indices[(*i[:lead], k)], x.shape[batch + k]), x.shape[batch + k]) for k in range(depth)]
    return compute("Y", i, x[(*i[:batch], *chosen, *i[lead:])])


def _reverse_sequence(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[t, b] = X[L[b] - 1 - t, b]` for t < L[b], else `X[t, b]`. No length is larger than the dimension."""
    (x, lengths), time, batch = inputs, node.integer("time_axis"), node.integer("batch_axis")
    i = axes_for(x.shape)
    length, t = binary("min", build.cast(lengths[i[batch]], "i64"), x.shape[time]), i[time]
    source = clamped(select(compare("lt", t, length), length - 1 - t, t), x.shape[time])
    return compute("Y", i, x[put(i, time, source)])


def _interpolate(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y[…, o, …] = Σ_k W[o, k] · X[…, T[o, k], …]`, a resampling along one dimension."""
    (x, taps, weights), along = inputs, node.integer("axis")
    i, k = axes_for(put(x.shape, along, taps.shape[0])), reduce_axis(taps.shape[1], "k")
    tap = clamped(build.cast(taps[i[along], k], "i64"), x.shape[along])
    return compute("Y", i, build.sum(weights[i[along], k] * x[put(i, along, tap)], k))


_COMBINE: dict[str, tuple[Combiner, str]] = {
    "add": ("sum", "add"),
    "mul": ("prod", "mul"),
    "max": ("max", "max"),
    "min": ("min", "min"),
}


def _scatter_elements(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y = X; Y[…, I[…, j, …], …] = U[…, j, …]` for all j.

    With reduction "none" the last update wins; other reductions combine updates with the previous element:

        K[…, i, …] = max_j where(I[…, j, …] == i, j, -1);   Y[…, i, …] = where(K >= 0, U[…, K, …], X[…, i, …])
        C[…, i, …] = Σ_j where(I[…, j, …] == i, U[…, j, …], 0);   Y = X + C                    (likewise mul, max, min)
    """
    (x, indices, updates), along, reduction = inputs, node.integer("axis"), node.text("reduction")

    def inside(axes: Sequence[Axis], element: Expr, otherwise: Expr) -> Expr:
        bounds = [a < n for d, (a, n, m) in enumerate(zip(axes, updates.shape, x.shape)) if d != along and n != m]
        return select(reduce(Expr.__and__, bounds), element, otherwise) if bounds else element

    i, j = axes_for(x.shape), reduce_axis(updates.shape[along], "j")
    at = put(i, along, j)
    hit = compare("eq", wrapped(indices[at], x.shape[along]), i[along])
    if reduction != "none":
        nothing = _identity(x, reduction)
        return _combined(x, reduction, i, inside(i, select(hit, updates[at], nothing), nothing), j)
    none = Const(-1, "i64")
    last = compute("K", i, build.reduce_max(inside(i, select(hit, j, none), none), j))
    i = axes_for(x.shape)
    chosen, old = last[tuple(i)], x[tuple(i)]
    source = updates[put(i, along, clamped(chosen, updates.shape[along]))]
    return compute("Y", i, inside(i, select(compare("ge", chosen, 0), source, old), old))


def _scatter_nd(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y = X; Y[I[k, 0], I[k, 1], …, r…] = U[k, r…]` for all k, as in `scatter_elements`; I is [k, depth]."""
    (x, indices, updates), reduction = inputs, node.text("reduction")
    count, depth = indices.shape
    i, k = axes_for(x.shape), reduce_axis(count, "k")
    hits = [compare("eq", wrapped(indices[k, d], x.shape[d]), i[d]) for d in range(depth)]
    hit = reduce(Expr.__and__, hits) if hits else compare("ge", k, 0)
    if reduction != "none":
        element = select(hit, updates[(k, *i[depth:])], _identity(x, reduction))
        return _combined(x, reduction, i, element, k)
    last = compute("K", i[:depth], build.reduce_max(select(hit, k, Const(-1, "i64")), k))
    i = axes_for(x.shape)
    chosen = last[tuple(i[:depth])]
    source = updates[(clamped(chosen, count), *i[depth:])]
    return compute("Y", i, select(compare("ge", chosen, 0), source, x[tuple(i)]))


def _identity(x: Tensor, reduction: str) -> Expr:
    return Const(identity_of(_COMBINE[reduction][0], x.dtype), x.dtype)


def _combined(x: Tensor, reduction: str, axes: Sequence[Axis], element: Expr, over: Axis) -> Tensor:
    """Returns x combined with all updates of each position."""
    combiner, op = _COMBINE[reduction]
    updates = compute("C", axes, build.reduce(combiner, element, over))
    i = axes_for(x.shape)
    return compute("Y", i, binary(op, x[tuple(i)], updates[tuple(i)]))


def _extremum(name: str, largest: bool) -> Operator:
    """Returns ArgMax or ArgMin: the first (or last) position of the extreme value; NaN counts as extreme.

    M = max_k X[k];   Y = min_k where(X[k] == M or X[k] is NaN, k, n)
    """
    extreme_of = build.reduce_max if largest else build.reduce_min

    def express(node: Node, inputs: Sequence[Tensor]) -> Tensor:
        (x,), along = inputs, node.integer("axis")
        shape = put(x.shape, along, 1)
        i, k = axes_for(shape), reduce_axis(x.shape[along], "k")
        extreme = compute("M", i, extreme_of(x[put(i, along, k)], k))
        i, k = axes_for(shape), reduce_axis(x.shape[along], "k")
        value = x[put(i, along, k)]
        hit = compare("eq", value, extreme[tuple(i)])
        if x.dtype in FLOATS:
            hit = hit | compare("ne", value, value)
        if node.flag("last", 0):
            return compute("Y", i, build.reduce_max(select(hit, k, Const(0, "i64")), k))
        return compute("Y", i, build.reduce_min(select(hit, k, Const(x.shape[along] - 1, "i64")), k))

    return Operator(name, reduced, express, dtype=positions, followers=1)


def _top_k_indices(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns the positions of the `count` largest (or smallest) values in order; equal values keep their order.

        R[i] = Σ_j (X[j] > X[i] or (not X[i] > X[j] and j < i));   Y[r] = Σ_i where(R[i] == r, i, 0)

    NaN counts as larger than any number, so that ranks are a permutation for all values.
    """
    (x,), along, count, largest = inputs, node.integer("axis"), node.integer("k"), node.flag("largest")

    def precedes(a: Expr, b: Expr) -> Expr:
        """Returns whether a precedes b at any positions; "not less or equal" is also true if either is NaN."""
        if x.dtype not in FLOATS:
            return compare("gt" if largest else "lt", a, b)
        real = b if largest else a
        return call("not", compare("le" if largest else "ge", a, b)) & compare("eq", real, real)

    i, j = axes_for(x.shape), reduce_axis(x.shape[along], "j")
    mine, other = x[tuple(i)], x[put(i, along, j)]
    first = precedes(other, mine) | (call("not", precedes(mine, other)) & compare("lt", j, i[along]))
    rank = compute("R", i, build.sum(select(first, Const(1, "i64"), Const(0, "i64")), j))
    i, k = axes_for(put(x.shape, along, count)), reduce_axis(x.shape[along], "k")
    return compute("Y", i, build.sum(select(compare("eq", rank[put(i, along, k)], i[along]), k, Const(0, "i64")), k))


def _cumulative(name: str, combiner: Combiner) -> Operator:
    """Returns `Y[i] = Σ_{k <= i} X[k]`; exclusive: k < i; reverse: from the end. A product likewise."""

    def express(node: Node, inputs: Sequence[Tensor]) -> Tensor:
        (x,), along = inputs, node.integer("axis")
        i, k = axes_for(x.shape), reduce_axis(x.shape[along], "k")
        order = "gt" if node.flag("reverse", 0) else "lt"
        if not node.flag("exclusive", 0):
            order = "ge" if order == "gt" else "le"
        nothing = Const(identity_of(combiner, x.dtype), x.dtype)
        element = select(compare(order, k, i[along]), x[put(i, along, k)], nothing)
        return compute("Y", i, build.reduce(combiner, element, k))

    return Operator(name, same_dims, express, followers=1)


def _write_at(node: Node, inputs: Sequence[Tensor]) -> Tensor:
    """Returns `Y = X; Y[b, …, s[b] + j, …] = U[b, …, j, …]` for all j: every batch entry has its own start.

    Elements beyond the end are dropped or, if circular, written from the beginning.
    """
    (x, updates, starts), along = inputs, node.integer("axis")
    i = axes_for(x.shape)
    j = binary("sub", i[along], build.cast(starts[i[0]], "i64"))
    j = binary("mod", j, x.shape[along]) if node.flag("circular") else j
    hit = compare("ge", j, 0) & compare("lt", j, updates.shape[along])
    source = updates[put(i, along, clamped(j, updates.shape[along]))]
    return compute("Y", i, select(hit, source, x[tuple(i)]))


# ---- Shapes, and records of the operators


def _gathered(n: Node) -> Shape:
    x, indices = n.inputs
    (along,) = dims_of(n)
    return (*x.shape[:along], *indices.shape, *x.shape[along + 1 :])


def _gathered_array(n: Node, x: Sequence[Array]) -> Array:
    extent = x[0].shape[n.integer("axis")]
    indices = np.where(x[1] < 0, x[1] + extent, x[1])
    return np.take(x[0], np.clip(indices, 0, extent - 1), axis=n.integer("axis"))


def _gathered_nd(n: Node) -> Shape:
    x, indices = n.inputs
    batch = n.integer("batch_dims")
    fits = 0 <= batch < min(x.rank, indices.rank)
    if not fits or batch + indices.shape[-1] > x.rank or indices.shape[:batch] != x.shape[:batch]:
        raise UserError(f"indices {indices} do not fit {x}")
    return (*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :])


def _gathered_elements(n: Node) -> Shape:
    x, indices = n.inputs[:2]
    (along,) = dims_of(n)
    if indices.rank != x.rank or any(i > e for d, (i, e) in enumerate(zip(indices.shape, x.shape)) if d != along):
        raise UserError(f"indices {indices} do not fit {x} along dimension {along}")
    return indices.shape


def _check_reduction(n: Node) -> None:
    if n.text("reduction") not in SCATTERED:
        raise UserError(f"unknown reduction {shown(n.text('reduction'))}")


def _scattered_elements(n: Node) -> Shape:
    x, indices, updates = n.inputs
    _gathered_elements(n)
    _check_reduction(n)
    if updates.shape != indices.shape:
        raise UserError(f"updates {updates} and indices {indices} have different shapes")
    return x.shape


def _scattered_nd(n: Node) -> Shape:
    x, indices, updates = n.inputs
    _check_reduction(n)
    fits = indices.rank == 2 and indices.shape[1] <= x.rank
    if not fits or updates.shape != (indices.shape[0], *x.shape[indices.shape[1] :]):
        raise UserError(f"updates {updates} and indices {indices} do not fit {x}")
    return x.shape


def _written(n: Node) -> Shape:
    x, updates, starts = n.inputs
    (along,) = dims_of(n)
    alike = updates.rank == x.rank and put(updates.shape, along, x.shape[along]) == x.shape
    if not alike or updates.shape[along] > x.shape[along] or along == 0 or starts.shape != x.shape[:1]:
        raise UserError(f"updates {updates} at {starts} do not fit {x} along dimension {along}")
    return x.shape


INDEXING = (
    Operator("Gather", _gathered, _gather, kind=OperatorKind.MOVEMENT, followers=1, numpy=_gathered_array),
    Operator("GatherElements", _gathered_elements, _gather_elements, followers=None),
    Operator("GatherND", _gathered_nd, _gather_nd),
    Operator("ScatterElements", _scattered_elements, _scatter_elements, followers=None),
    Operator("ScatterND", _scattered_nd, _scatter_nd),
    Operator("WriteAt", _written, _write_at),
    Operator("ReverseSequence", shape_of_first, _reverse_sequence, followers=1),
    Operator("Interpolate", lambda n: with_extent(n, n.inputs[1].shape[0]), _interpolate, followers=1),
    Operator("TopKIndices", lambda n: with_extent(n, n.integer("k")), _top_k_indices, dtype=positions, followers=1),
    _extremum("ArgMax", True),
    _extremum("ArgMin", False),
    _cumulative("CumSum", "sum"),
    _cumulative("CumProd", "prod"),
)
