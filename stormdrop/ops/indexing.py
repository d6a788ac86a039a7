"""Indices that are data: gather, scatter, ordering.

An index counts from the end where it is negative and is then clamped to its dimension: no input can read or write
outside a tensor. (Importers refuse constant indices that are out of range.) Scatter and ordering compare every
candidate, so their work is the product of both sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from stormdrop.errors import UserError
from stormdrop.ir import build
from stormdrop.ir.expr import FLOATS, Axis, Combiner, Const, Expr, Scalar, binary, call, compare, identity_of, select
from stormdrop.ir.tensor import Tensor, compute, reduce_axis
from stormdrop.ops.broadcast import axes_for


def wrapped(index: Expr, extent: int) -> Expr:
    """An index as data, i64, counted from the end where it is negative."""
    i = build.cast(index, "i64")
    return select(compare("lt", i, 0), i + extent, i)


def clamped(index: Expr, extent: int) -> Expr:
    return binary("max", binary("min", index, extent - 1), 0)


def gather(x: Tensor, indices: Tensor, along: int, name: str = "Y") -> Tensor:
    """`Y[a…, i…, b…] = X[a…, I[i…], b…]`."""
    shape = (*x.shape[:along], *indices.shape, *x.shape[along + 1 :])
    i = axes_for(shape)
    at = i[along : along + len(indices.shape)]
    chosen = clamped(wrapped(indices[tuple(at)], x.shape[along]), x.shape[along])
    return compute(name, i, x[(*i[:along], chosen, *i[along + len(at) :])])


def gather_elements(x: Tensor, indices: Tensor, along: int, name: str = "Y") -> Tensor:
    """`Y[…, i, …] = X[…, I[…, i, …], …]`."""
    i = axes_for(indices.shape)
    chosen = clamped(wrapped(indices[tuple(i)], x.shape[along]), x.shape[along])
    return compute(name, i, x[tuple(chosen if d == along else a for d, a in enumerate(i))])


def gather_nd(x: Tensor, indices: Tensor, batch: int, name: str = "Y") -> Tensor:
    """`Y[b…, i…, r…] = X[b…, I[b…, i…, 0], I[b…, i…, 1], …, r…]`."""
    depth, lead = indices.shape[-1], len(indices.shape) - 1
    i = axes_for((*indices.shape[:-1], *x.shape[batch + depth :]))
    chosen = [clamped(wrapped(indices[(*i[:lead], k)], x.shape[batch + k]), x.shape[batch + k]) for k in range(depth)]
    return compute(name, i, x[(*i[:batch], *chosen, *i[lead:])])


def reverse_sequence(x: Tensor, lengths: Tensor, time: int, batch: int, name: str = "Y") -> Tensor:
    """`Y[t, b] = X[L[b] - 1 - t, b]` for t < L[b], else `X[t, b]`. No length is larger than the dimension."""
    i = axes_for(x.shape)
    length, t = binary("min", build.cast(lengths[i[batch]], "i64"), x.shape[time]), i[time]
    source = clamped(select(compare("lt", t, length), length - 1 - t, t), x.shape[time])
    return compute(name, i, x[tuple(source if d == time else a for d, a in enumerate(i))])


def interpolate(x: Tensor, taps: Tensor, weights: Tensor, along: int, name: str = "Y") -> Tensor:
    """`Y[…, o, …] = Σ_k W[o, k] · X[…, T[o, k], …]`: resampling along one dimension."""
    i = axes_for([taps.shape[0] if d == along else n for d, n in enumerate(x.shape)])
    k = reduce_axis(taps.shape[1], "k")
    tap = clamped(build.cast(taps[i[along], k], "i64"), x.shape[along])
    return compute(
        name, i, build.sum(weights[i[along], k] * x[tuple(tap if d == along else a for d, a in enumerate(i))], k)
    )


_COMBINE: dict[str, tuple[Combiner, str]] = {
    "add": ("sum", "add"),
    "mul": ("prod", "mul"),
    "max": ("max", "max"),
    "min": ("min", "min"),
}


def _all(conditions: Sequence[Expr]) -> Expr:
    return reduce(Expr.__and__, conditions)


def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, along: int, reduction: str, name: str = "Y"
) -> Tensor:
    """`Y = X; Y[…, I[…, j, …], …] = U[…, j, …]` for all j, the last one winning, or combined with what was there.

    K[…, i, …] = max_j where(I[…, j, …] == i, j, -1);   Y[…, i, …] = where(K >= 0, U[…, K, …], X[…, i, …])
    C[…, i, …] = Σ_j where(I[…, j, …] == i, U[…, j, …], 0);   Y = X + C                    (likewise mul, max, min)
    """
    extent = x.shape[along]

    def inside(axes: Sequence[Axis], element: Expr, otherwise: Scalar | Expr) -> Expr:
        bounds = [a < n for d, (a, n, m) in enumerate(zip(axes, updates.shape, x.shape)) if d != along and n != m]
        return select(_all(bounds), element, otherwise) if bounds else element

    i, j = axes_for(x.shape), reduce_axis(updates.shape[along], "j")
    at = tuple(j if d == along else a for d, a in enumerate(i))
    hit = compare("eq", wrapped(indices[at], extent), i[along])
    if reduction == "none":
        last = compute("K", i, build.reduce_max(inside(i, select(hit, j, Const(-1, "i64")), Const(-1, "i64")), j))
        i = axes_for(x.shape)
        chosen = last[tuple(i)]
        source = updates[tuple(clamped(chosen, updates.shape[along]) if d == along else a for d, a in enumerate(i))]
        old = x[tuple(i)]
        return compute(name, i, inside(i, select(compare("ge", chosen, 0), source, old), old))
    combiner, op = _scatter_kind(reduction)
    nothing = Const(identity_of(combiner, x.dtype), x.dtype)
    found = compute("C", i, build.reduce(combiner, inside(i, select(hit, updates[at], nothing), nothing), j))
    i = axes_for(x.shape)
    return compute(name, i, binary(op, x[tuple(i)], found[tuple(i)]))


def _scatter_kind(reduction: str) -> tuple[Combiner, str]:
    if reduction not in _COMBINE:
        raise UserError(f"scatter: unknown reduction {reduction!r}")
    return _COMBINE[reduction]


def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, reduction: str, name: str = "Y") -> Tensor:
    """`Y = X; Y[I[k, 0], I[k, 1], …, r…] = U[k, r…]` for all k, as in `scatter_elements`; I is [k, depth]."""
    count, depth = indices.shape
    i, k = axes_for(x.shape), reduce_axis(count, "k")
    lead = i[:depth]
    hit = (
        _all([compare("eq", wrapped(indices[k, d], x.shape[d]), lead[d]) for d in range(depth)])
        if depth
        else compare("ge", k, 0)
    )
    if reduction == "none":
        last = compute("K", lead, build.reduce_max(select(hit, k, Const(-1, "i64")), k))
        i = axes_for(x.shape)
        chosen = last[tuple(i[:depth])]
        return compute(
            name, i, select(compare("ge", chosen, 0), updates[(clamped(chosen, count), *i[depth:])], x[tuple(i)])
        )
    combiner, op = _scatter_kind(reduction)
    found = compute(
        "C",
        i,
        build.reduce(
            combiner, select(hit, updates[(k, *i[depth:])], Const(identity_of(combiner, x.dtype), x.dtype)), k
        ),
    )
    i = axes_for(x.shape)
    return compute(name, i, binary(op, x[tuple(i)], found[tuple(i)]))


def arg_extremum(x: Tensor, along: int, largest: bool, last: bool, name: str = "Y") -> Tensor:
    """The first (or last) position of the largest (or smallest) value, keeping the dimension; NaN counts as extreme.

    M = max_k X[k];   Y = min_k where(X[k] == M or X[k] is NaN, k, n)
    """
    shape = [1 if d == along else n for d, n in enumerate(x.shape)]

    def place(axes: Sequence[Axis], k: Axis) -> Expr:
        return x[tuple(k if d == along else a for d, a in enumerate(axes))]

    i, k = axes_for(shape), reduce_axis(x.shape[along], "k")
    extreme = compute("M", i, (build.reduce_max if largest else build.reduce_min)(place(i, k), k))
    i, k = axes_for(shape), reduce_axis(x.shape[along], "k")
    value = place(i, k)
    hit = compare("eq", value, extreme[tuple(i)])
    if x.dtype in FLOATS:
        hit = hit | compare("ne", value, value)
    if last:
        return compute(name, i, build.reduce_max(select(hit, k, Const(0, "i64")), k))
    return compute(name, i, build.reduce_min(select(hit, k, Const(x.shape[along] - 1, "i64")), k))


def top_k_indices(x: Tensor, along: int, count: int, largest: bool, name: str = "Y") -> Tensor:
    """The positions of the `count` largest (or smallest) values in order; equal values in the order they stand.

        R[i] = Σ_j (X[j] > X[i] or (not X[i] > X[j] and j < i));   Y[r] = Σ_i where(R[i] == r, i, 0)

    NaN counts as larger than any number, so that ranks are a permutation whatever the values are.
    """

    def precedes(a: Expr, b: Expr) -> Expr:
        """Whether a comes before b wherever they stand; "not less or equal" is also true where either is NaN."""
        if x.dtype not in FLOATS:
            return compare("gt" if largest else "lt", a, b)
        real = b if largest else a
        return call("not", compare("le" if largest else "ge", a, b)) & compare("eq", real, real)

    def put(axes: Sequence[Axis], k: Axis) -> tuple[Axis, ...]:
        return tuple(k if d == along else a for d, a in enumerate(axes))

    i, j = axes_for(x.shape), reduce_axis(x.shape[along], "j")
    mine, other = x[tuple(i)], x[put(i, j)]
    first = precedes(other, mine) | (call("not", precedes(mine, other)) & compare("lt", j, i[along]))
    rank = compute("R", i, build.sum(select(first, Const(1, "i64"), Const(0, "i64")), j))
    i, k = axes_for([count if d == along else n for d, n in enumerate(x.shape)]), reduce_axis(x.shape[along], "k")
    return compute(name, i, build.sum(select(compare("eq", rank[put(i, k)], i[along]), k, Const(0, "i64")), k))


def cumulative(x: Tensor, along: int, combiner: Combiner, exclusive: bool, reverse: bool, name: str = "Y") -> Tensor:
    """`Y[i] = Σ_{k <= i} X[k]`; exclusive: k < i; reverse: from the end. A product likewise."""
    i, k = axes_for(x.shape), reduce_axis(x.shape[along], "k")
    op = ("gt" if exclusive else "ge") if reverse else ("lt" if exclusive else "le")
    element = x[tuple(k if d == along else a for d, a in enumerate(i))]
    return compute(
        name,
        i,
        build.reduce(
            combiner, select(compare(op, k, i[along]), element, Const(identity_of(combiner, x.dtype), x.dtype)), k
        ),
    )
