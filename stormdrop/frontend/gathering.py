"""ONNX's operators with indices as data, and its operators that order values."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from stormdrop.frontend.movement import bounded
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, Results
from stormdrop.frontend.reductions import along_axis
from stormdrop.operators.node import Value

MOST_ORDERED = 1 << 16


def _indices(n: NodeReader, *extents: int) -> Value:
    """Returns input 1, which holds indices into dimensions of these extents.

    With one extent, every element is an index. With several, the last dimension holds an index for each. Constant
    indices must lie in their dimensions.
    """
    value = n.input(1)
    if value.dtype not in ("i32", "i64"):
        raise n.fail(f"indices must be integers, not {value}")
    known = n.build.array(value)
    depth = 1 if len(extents) == 1 or not value.rank else value.shape[-1]
    if known is not None and 0 < depth <= len(extents):
        for at, extent in zip(known.reshape(-1, depth).T, extents):
            if at.size and (at.min() < -extent or at.max() >= extent):
                raise n.fail(f"an index lies outside a dimension of {extent}")
    return value


def _without(shape: Sequence[int], along: int) -> list[int]:
    return [e for d, e in enumerate(shape) if d != along]


def _gather(n: NodeReader) -> Value:
    x = n.input(0)
    along = n.axis(0, x.rank)
    indices = _indices(n, x.shape[along])
    known = n.build.array(indices)
    if known is not None and known.ndim <= 1 and known.size:
        run = np.where(known < 0, known + x.shape[along], known).reshape(-1)
        steps = np.diff(run)
        step = int(steps[0]) if len(steps) else 1
        if step != 0 and (steps == step).all():  # a slice in disguise
            part = n.build.cut(x, {along: (int(run[0]), step, len(run))})
            return part if known.ndim else n.build.reshape(part, _without(x.shape, along))
    if x.shape[along] == 0 and indices.size:
        raise n.fail(f"{x} is empty along dimension {along}; elements of it cannot be gathered")
    return n.build.emit("Gather", x, indices, axis=along)


def _gather_elements(n: NodeReader) -> Value:
    x = n.input(0)
    along = n.axis(0, x.rank)
    return n.build.emit("GatherElements", x, _indices(n, x.shape[along]), axis=along)


def _gather_nd(n: NodeReader) -> Value:
    x, batch = n.input(0), n.integer("batch_dims", 0)
    return n.build.emit("GatherND", x, _indices(n, *x.shape[batch:]), batch_dims=batch)


def _scatter_elements(n: NodeReader) -> Value:
    x = n.input(0)
    along = n.axis(0, x.rank)
    indices = _indices(n, x.shape[along])
    return n.build.emit("ScatterElements", x, indices, n.input(2), axis=along, reduction=n.text("reduction", "none"))


def _scatter_nd(n: NodeReader) -> Value:
    x, updates = n.input(0), n.input(2)
    indices = _indices(n, *x.shape)
    depth = indices.shape[-1] if indices.rank else 0
    count = prod(indices.shape[:-1])
    flat = n.build.reshape(indices, (count, depth))
    rows = n.build.reshape(updates, (count, *x.shape[depth:]))
    return n.build.emit("ScatterND", x, flat, rows, reduction=n.text("reduction", "none"))


def _reverse_sequence(n: NodeReader) -> Value:
    x, time, batch = n.input(0), n.integer("time_axis", 0), n.integer("batch_axis", 1)
    if x.rank < 2 or {time, batch} != {0, 1} or n.input(1).shape != (x.shape[batch],):
        raise n.fail(f"lengths {n.input(1)} do not fit {x}")
    return n.build.emit("ReverseSequence", x, n.input(1), time_axis=time, batch_axis=batch)


def _cumulative(n: NodeReader) -> Value:
    x = n.input(0)
    along = n.dim(int(n.scalar(1)), x.rank)
    return n.build.emit(n.op, x, axis=along, exclusive=n.integer("exclusive", 0), reverse=n.integer("reverse", 0))


def _arg(n: NodeReader) -> Value:
    x = n.input(0)
    along = n.axis(0, x.rank)
    if x.shape[along] == 0:
        raise n.fail(f"{x} has no largest element along an empty dimension")
    y = n.build.emit(n.op, x, axis=along, keepdims=1, last=n.integer("select_last_index", 0))
    return y if n.integer("keepdims", 1) else n.build.reshape(y, _without(x.shape, along))


def _top_k(n: NodeReader) -> Results:
    x = n.input(0)
    along = n.axis(-1, x.rank)
    k = n.integer("k") if n.has("k") else int(n.scalar(1))
    if not 0 <= k <= x.shape[along]:
        raise n.fail(f"{k} elements cannot be taken of {x.shape[along]}")
    if x.shape[along] > MOST_ORDERED:
        raise n.unsupported(f"ordering {x.shape[along]:,} elements, more than {MOST_ORDERED:,}")
    positions = n.build.emit("TopKIndices", x, axis=along, k=k, largest=n.integer("largest", 1))
    values = n.build.emit("GatherElements", x, positions, axis=along)
    return [values, positions]


def _hardmax(n: NodeReader) -> Value:
    x, b = n.input(0), n.build
    if not x.size:
        return x
    flat, along = along_axis(n)
    best = b.emit("ArgMax", flat, axis=along, keepdims=1, last=0)
    positions = b.constant(np.arange(bounded(n, flat.shape[along])))
    at = b.reshape(positions, [e if d == along else 1 for d, e in enumerate(flat.shape)])
    return b.reshape(b.cast(b.emit("Equal", best, at), x.dtype), x.shape)


def _compress(n: NodeReader) -> Value:
    x, chosen = n.input(0), np.flatnonzero(n.array(1))
    if not n.has("axis"):
        x = n.build.reshape(x, (x.size,))
    along = n.axis(0, x.rank)
    if chosen.size and chosen[-1] >= x.shape[along]:
        raise n.fail(f"the condition is longer than dimension {along} of {x}")
    return n.build.emit("Gather", x, n.build.constant(chosen.astype(np.int64)), axis=along)


def _tensor_scatter(n: NodeReader) -> Value:
    """Imports TensorScatter: each batch entry's new keys or values are written into a cache behind the present keys."""
    x, updates, starts = n.input(0), n.input(1), n.optional(2)
    mode = n.text("mode", "linear")
    if mode not in ("linear", "circular"):
        raise n.fail(f"unknown mode {mode}")
    along = n.axis(-2, x.rank)
    if along == 0:
        raise n.fail("the sequence cannot be the dimension of the batch")
    if starts is None:
        starts = n.build.expand(n.build.constant(0, "i64"), (x.shape[0],))
    return n.build.emit("WriteAt", x, updates, starts, axis=along, circular=int(mode == "circular"))


def _unique(n: NodeReader) -> Results:
    """Imports Unique of a constant: the number of distinct values decides shapes."""
    x, is_sorted = n.array(0), n.integer("sorted", 1)
    along = n.dim(n.integer("axis"), x.ndim) if n.has("axis") else None
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=along
    )
    inverse = inverse.reshape(-1)
    if not is_sorted:
        order = np.argsort(first)
        inverse = np.argsort(order)[inverse]
        values, first, counts = np.take(values, order, axis=along or 0), first[order], counts[order]
    return [n.build.constant(values), *(n.build.constant(a, "i64") for a in (first, inverse, counts))]


GATHERING: dict[str, Importer] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "ScatterND": _scatter_nd,
    "ReverseSequence": _reverse_sequence,
    "CumSum": _cumulative,
    "CumProd": _cumulative,
    "ArgMax": _arg,
    "ArgMin": _arg,
    "TopK": _top_k,
    "Hardmax": _hardmax,
    "Compress": _compress,
    "TensorScatter": _tensor_scatter,
    "Unique": _unique,
}
