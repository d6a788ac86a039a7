"""Operators with indices as data: gather, scatter, ordering.

A negative index counts from the end. Every index is then clamped to its dimension, so no input can read or write
outside a tensor. (Importers refuse constant indices that are out of range.) Scatter and ordering compare every
candidate, so their work is the product of both sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from stormdrop.base.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import FLOATS, Axis, Combiner, Const, Expr, binary, call, compare, identity_of, select
from stormdrop.ir.tensor import Tensor, compute, reduce_axis
from stormdrop.operators.broadcast import axes_for, put


def wrapped(index: Expr, extent: int) -> Expr:
    """Returns an index as data, i64; a negative index counts from the end."""
    i = build.cast(index, "i64")
    return select(compare("lt", i, 0), i + extent, i)


def clamped(index: Expr, extent: int) -> Expr:
    return binary("max", binary("min", index, extent - 1), 0)


def gather(x: Tensor, indices: Tensor, along: int, name: str = "Y") -> Tensor:
    """Returns `Y[a…, i…, b…] = X[a…, I[i…], b…]`."""
    shape = (*x.shape[:along], *indices.shape, *x.shape[along + 1 :])
    i = axes_for(shape)
    at = i[along : along + len(indices.shape)]
    chosen = clamped(wrapped(indices[tuple(at)], x.shape[along]), x.shape[along])
    return compute(name, i, x[(*i[:along], chosen, *i[along + len(at) :])])


def gather_elements(x: Tensor, indices: Tensor, along: int, name: str = "Y") -> Tensor:
    """Returns `Y[…, i, …] = X[…, I[…, i, …], …]`."""
    i = axes_for(indices.shape)
    return compute(name, i, x[put(i, along, clamped(wrapped(indices[tuple(i)], x.shape[along]), x.shape[along]))])


def gather_nd(x: Tensor, indices: Tensor, batch: int, name: str = "Y") -> Tensor:
    """Returns `Y[b…, i…, r…] = X[b…, I[b…, i…, 0], I[b…, i…, 1], …, r…]`."""
    depth, lead = indices.shape[-1], len(indices.shape) - 1
    i = axes_for((*indices.shape[:-1], *x.shape[batch + depth :]))
    chosen = [clamped(wrapped(indices[(*i[:lead], k)], x.shape[batch + k]), x.shape[batch + k]) for k in range(depth)]
    return compute(name, i, x[(*i[:batch], *chosen, *i[lead:])])


def reverse_sequence(x: Tensor, lengths: Tensor, time: int, batch: int, name: str = "Y") -> Tensor:
    """Returns `Y[t, b] = X[L[b] - 1 - t, b]` for t < L[b], else `X[t, b]`. No length is larger than the dimension."""
    i = axes_for(x.shape)
    length, t = binary("min", build.cast(lengths[i[batch]], "i64"), x.shape[time]), i[time]
    source = clamped(select(compare("lt", t, length), length - 1 - t, t), x.shape[time])
    return compute(name, i, x[put(i, time, source)])


def interpolate(x: Tensor, taps: Tensor, weights: Tensor, along: int, name: str = "Y") -> Tensor:
    """Returns `Y[…, o, …] = Σ_k W[o, k] · X[…, T[o, k], …]`, a resampling along one dimension."""
    i, k = axes_for(put(x.shape, along, taps.shape[0])), reduce_axis(taps.shape[1], "k")
    tap = clamped(build.cast(taps[i[along], k], "i64"), x.shape[along])
    return compute(name, i, build.sum(weights[i[along], k] * x[put(i, along, tap)], k))


_COMBINE: dict[str, tuple[Combiner, str]] = {
    "add": ("sum", "add"),
    "mul": ("prod", "mul"),
    "max": ("max", "max"),
    "min": ("min", "min"),
}


def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, along: int, reduction: str, name: str = "Y"
) -> Tensor:
    """Returns `Y = X; Y[…, I[…, j, …], …] = U[…, j, …]` for all j.

    With reduction "none" the last update wins; other reductions combine updates with the previous element:

        K[…, i, …] = max_j where(I[…, j, …] == i, j, -1);   Y[…, i, …] = where(K >= 0, U[…, K, …], X[…, i, …])
        C[…, i, …] = Σ_j where(I[…, j, …] == i, U[…, j, …], 0);   Y = X + C                    (likewise mul, max, min)
    """

    def inside(axes: Sequence[Axis], element: Expr, otherwise: Expr) -> Expr:
        bounds = [a < n for d, (a, n, m) in enumerate(zip(axes, updates.shape, x.shape)) if d != along and n != m]
        return select(reduce(Expr.__and__, bounds), element, otherwise) if bounds else element

    i, j = axes_for(x.shape), reduce_axis(updates.shape[along], "j")
    at = put(i, along, j)
    hit = compare("eq", wrapped(indices[at], x.shape[along]), i[along])
    if reduction != "none":
        nothing = _identity(x, reduction)
        return _combined(x, reduction, i, inside(i, select(hit, updates[at], nothing), nothing), j, name)
    none = Const(-1, "i64")
    last = compute("K", i, build.reduce_max(inside(i, select(hit, j, none), none), j))
    i = axes_for(x.shape)
    chosen, old = last[tuple(i)], x[tuple(i)]
    source = updates[put(i, along, clamped(chosen, updates.shape[along]))]
    return compute(name, i, inside(i, select(compare("ge", chosen, 0), source, old), old))


def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, reduction: str, name: str = "Y") -> Tensor:
    """Returns `Y = X; Y[I[k, 0], I[k, 1], …, r…] = U[k, r…]` for all k, as in `scatter_elements`; I is [k, depth]."""
    count, depth = indices.shape
    i, k = axes_for(x.shape), reduce_axis(count, "k")
    hits = [compare("eq", wrapped(indices[k, d], x.shape[d]), i[d]) for d in range(depth)]
    hit = reduce(Expr.__and__, hits) if hits else compare("ge", k, 0)
    if reduction != "none":
        element = select(hit, updates[(k, *i[depth:])], _identity(x, reduction))
        return _combined(x, reduction, i, element, k, name)
    last = compute("K", i[:depth], build.reduce_max(select(hit, k, Const(-1, "i64")), k))
    i = axes_for(x.shape)
    chosen = last[tuple(i[:depth])]
    source = updates[(clamped(chosen, count), *i[depth:])]
    return compute(name, i, select(compare("ge", chosen, 0), source, x[tuple(i)]))


def _identity(x: Tensor, reduction: str) -> Expr:
    if reduction not in _COMBINE:
        raise UserError(f"scatter: unknown reduction {reduction!r}")
    return Const(identity_of(_COMBINE[reduction][0], x.dtype), x.dtype)


def _combined(x: Tensor, reduction: str, axes: Sequence[Axis], element: Expr, over: Axis, name: str) -> Tensor:
    """Returns x combined with all updates of each position."""
    combiner, op = _COMBINE[reduction]
    found = compute("C", axes, build.reduce(combiner, element, over))
    i = axes_for(x.shape)
    return compute(name, i, binary(op, x[tuple(i)], found[tuple(i)]))


def arg_extremum(x: Tensor, along: int, largest: bool, last: bool, name: str = "Y") -> Tensor:
    """Returns the first (or last) position of the largest (or smallest) value; NaN counts as extreme.

    M = max_k X[k];   Y = min_k where(X[k] == M or X[k] is NaN, k, n)
    """
    shape = put(x.shape, along, 1)
    i, k = axes_for(shape), reduce_axis(x.shape[along], "k")
    extreme = compute("M", i, (build.reduce_max if largest else build.reduce_min)(x[put(i, along, k)], k))
    i, k = axes_for(shape), reduce_axis(x.shape[along], "k")
    value = x[put(i, along, k)]
    hit = compare("eq", value, extreme[tuple(i)])
    if x.dtype in FLOATS:
        hit = hit | compare("ne", value, value)
    if last:
        return compute(name, i, build.reduce_max(select(hit, k, Const(0, "i64")), k))
    return compute(name, i, build.reduce_min(select(hit, k, Const(x.shape[along] - 1, "i64")), k))


def top_k_indices(x: Tensor, along: int, count: int, largest: bool, name: str = "Y") -> Tensor:
    """Returns the positions of the `count` largest (or smallest) values in order; equal values keep their order.

        R[i] = Σ_j (X[j] > X[i] or (not X[i] > X[j] and j < i));   Y[r] = Σ_i where(R[i] == r, i, 0)

    NaN counts as larger than any number, so that ranks are a permutation for all values.
    """

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
    return compute(name, i, build.sum(select(compare("eq", rank[put(i, along, k)], i[along]), k, Const(0, "i64")), k))


def cumulative(x: Tensor, along: int, combiner: Combiner, exclusive: bool, reverse: bool, name: str = "Y") -> Tensor:
    """Returns `Y[i] = Σ_{k <= i} X[k]`; exclusive: k < i; reverse: from the end. A product likewise."""
    i, k = axes_for(x.shape), reduce_axis(x.shape[along], "k")
    op = ("gt" if exclusive else "ge") if reverse else ("lt" if exclusive else "le")
    nothing = Const(identity_of(combiner, x.dtype), x.dtype)
    element = select(compare(op, k, i[along]), x[put(i, along, k)], nothing)
    return compute(name, i, build.reduce(combiner, element, k))


def write_at(x: Tensor, updates: Tensor, starts: Tensor, along: int, circular: bool, name: str = "Y") -> Tensor:
    """Returns `Y = X; Y[b, …, s[b] + j, …] = U[b, …, j, …]` for all j: every batch entry has its own start.

    Elements beyond the end are dropped or, if circular, written from the beginning.
    """
    i = axes_for(x.shape)
    j = binary("sub", i[along], build.cast(starts[i[0]], "i64"))
    j = binary("mod", j, x.shape[along]) if circular else j
    hit = compare("ge", j, 0) & compare("lt", j, updates.shape[along])
    source = updates[put(i, along, clamped(j, updates.shape[along]))]
    return compute(name, i, select(hit, source, x[tuple(i)]))
