"""Masks, indices that are computed, shapes that are computed, parts that are joined again."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tests.fuzz.draft import FLOATS, Draft, Maker, Refused
from tests.fuzz.makers.layers import activated, linear, reduced
from tests.fuzz.makers.operands import (
    affordable,
    anything,
    axis_of,
    cast,
    companion,
    long_axis,
    narrower,
    scalar,
    signed,
    size,
    swapped,
    together,
)


def _mask(d: Draft) -> str:
    """Comparisons joined by logic, and something that reads them."""
    x = anything(d, (*FLOATS, np.int64))
    c = d.one(d.among("Greater", "Less", "GreaterOrEqual", "LessOrEqual"), *swapped(d, x, companion(d, x)))
    if d.chance(0.3):
        c = d.one("Not", c)
    if d.chance(0.5):
        c = d.one(d.among("And", "Or", "Xor"), *swapped(d, c, companion(d, c)))
    if d.chance(0.3):
        wanted = d.type_among((np.float32, np.float64, np.int64))
        kept = cast(d, c, wanted)
        return d.one("Mul", *swapped(d, kept, companion(d, kept)))
    y = companion(d, c, d.dtype(x))
    z = companion(d, c, d.dtype(x))
    together(d, c, y, z)
    return d.one("Where", c, y, z)


def _without_nan(d: Draft, x: str) -> None:
    if np.isnan(d.held[x].plain).any() or not size(d.shape(x)):
        raise Refused("nothing is largest")


def _chosen(d: Draft) -> str:
    """The position of the largest element reads a table, or the value itself."""
    x = anything(d, FLOATS, least_rank=1)
    _without_nan(d, x)
    axis = axis_of(d, x)
    if d.chance(0.4):
        at = d.one("ArgMax", x, axis=axis, keepdims=1)
        return d.one("GatherElements", x, at, axis=axis)
    at = d.one("ArgMax", x, axis=axis, keepdims=d.whole(0, 1))
    table = d.value((d.shape(x)[axis], *d.dims(d.whole(0, 2), 30)), d.type_among())
    return d.one("Gather", table, at, axis=0)


def _embedded(d: Draft) -> str:
    """Rows of a table by tokens, with positions added; or the same rows by one-hot vectors and a product."""
    rows, c, dtype = d.among(2, 5, 17), d.dim(17), d.type_among(FLOATS)
    tokens = d.within((d.among(1, 2), d.dim(9)), 0, rows)
    table = d.value((rows, c), dtype)
    if d.chance(0.5):
        values = d.constant(np.array([0, 1], dtype))
        hot = d.one("OneHot", tokens, d.constant(np.array(rows, np.int64)), values, **d.among({}, {"axis": -1}))
        y = d.one("MatMul", hot, table)
    else:
        y = d.one("Gather", table, tokens, axis=d.among(0, -2))
    if d.chance(0.5):
        y = d.one("Add", y, d.weights(*d.shape(y)[1:], dtype=dtype))
    return (
        d.one("LayerNormalization", y, d.weights(c, dtype=dtype, centre=1.0)) if d.opset >= 17 and d.chance(0.4) else y
    )


def _computed_indices(d: Draft) -> str:
    """Integer arithmetic, taken modulo an extent or clipped to it, then rows by that."""
    x = anything(d, (*FLOATS, np.int32, np.int64, np.bool_), least_rank=1)
    axis = axis_of(d, x)
    extent = d.shape(x)[axis]
    if not extent:
        raise Refused("no index is valid")
    dtype = np.dtype(d.among(np.int64, np.int32))
    i = d.take(lambda: d.dims(d.whole(0, 2), 30), [dtype], lambda s: len(s) <= 2 and size(s) <= 30)
    for _ in range(d.whole(0, 2)):
        i = d.one(d.among("Add", "Sub", "Mul"), *swapped(d, i, scalar(d, d.whole(-3, 3), dtype)))
    match d.among("mod", "clip", "min", "where"):
        case "mod":
            i = d.one("Mod", i, scalar(d, extent, dtype))
        case "clip":
            i = d.one("Clip", i, scalar(d, -extent, dtype), scalar(d, extent - 1, dtype))
        case "min":
            i = d.one("Min", d.one("Max", i, scalar(d, 0, dtype)), scalar(d, extent - 1, dtype))
        case _:
            legal = d.one(
                "And", d.one("Less", i, scalar(d, extent, dtype)), d.one("Greater", i, scalar(d, -extent - 1, dtype))
            )
            i = d.one("Where", legal, i, scalar(d, 0, dtype))
    return d.one("Gather", x, i, axis=signed(d, axis, d.rank(x)))


def _largest_only(d: Draft) -> str:
    """All but the k largest elements of a row become 0, or the softmax of them."""
    x = anything(d, FLOATS, least_rank=1)
    _without_nan(d, x)
    k = d.whole(1, d.shape(x)[-1])
    values, _ = d.emit("TopK", x, d.integers([k]), results=2)
    least = d.one("Slice", values, d.integers([k - 1]), d.integers([k]), d.integers([-1]))
    kept = d.one("GreaterOrEqual", x, least)
    if d.chance(0.5):
        return d.one("Where", kept, x, scalar(d, 0, d.dtype(x)))
    return d.one("Softmax", d.one("Where", kept, x, scalar(d, -1e4, d.dtype(x))))


# ---- shapes and joins ----------------------------------------------------------------------------------------------


def _shaped(d: Draft) -> str:
    """A new shape computed from the value's own, as exporters write flatten and view."""
    x = anything(d, (*FLOATS, np.int64), least_rank=1)
    shape = d.one("Shape", x)
    at = axis_of(d, x)
    one = d.one("Gather", shape, d.integers([at]))
    if d.chance(0.5):
        rest = d.integers([-1])
        if not d.shape(x)[at] or not size(d.shape(x)):
            raise Refused("an open dimension of nothing")
        return d.one("Reshape", x, d.one("Concat", *swapped(d, one, rest), axis=0))
    low = d.one("Slice", shape, d.integers([0]), d.integers([at]))
    high = d.one("Slice", shape, d.integers([at]), d.integers([d.rank(x)]))
    return d.one("Reshape", x, d.one("Concat", *swapped(d, low, high), axis=0))


def _rejoined(d: Draft) -> str:
    """Parts of an earlier concatenation joined again: some, in another order, with the whole, or as its slices."""
    earlier = [n for n in d.nodes if n.op == "Concat"]
    if not earlier:
        x = anything(d, FLOATS, least_rank=1)
        axis = axis_of(d, x)
        d.one("Concat", x, d.value(d.shape(x), d.dtype(x)), d.one("Neg", x), axis=axis)
        earlier = d.nodes[-1:]
    node = d.among(*earlier)
    whole, parts = node.outputs[0], list(node.inputs)
    axis = int(node.attributes["axis"])
    match d.among("some", "some", "shuffled", "whole", "slices"):
        case "some":
            k = d.whole(0, len(parts) - 1)
            chosen = parts[k : k + 2]
        case "shuffled":
            chosen = [parts[int(k)] for k in d.rng.permutation(len(parts))]
        case "whole":
            chosen = [whole, parts[0]]
        case _:
            k, end = d.whole(0, d.shape(whole)[axis]), d.shape(whole)[axis]
            low, high, zero, along = (d.integers([v]) for v in (k, end, 0, axis))
            chosen = [d.one("Slice", whole, low, high, along), d.one("Slice", whole, zero, low, along)]
    return d.one("Concat", *chosen, axis=axis)


def _parts_changed(d: Draft) -> str:
    """Split, some parts changed, perhaps left out or repeated, and joined."""
    x = d.take(lambda: (*d.dims(d.whole(0, 3), 300), d.whole(2, 17)), FLOATS, lambda s: max(s, default=0) > 1)
    axis = long_axis(d, x)
    n = d.shape(x)[axis]
    marks = sorted({0, n, *(d.whole(0, n) for _ in range(d.whole(1, 3)))})
    sizes = [b - a for a, b in pairwise(marks)]
    if len(sizes) < 2:
        raise Refused("there is nothing to split")
    parts = d.emit("Split", x, d.integers(sizes), results=len(sizes), axis=signed(d, axis, d.rank(x)))
    parts = [activated(d, p) if d.chance(0.5) else p for p in parts]
    order = d.rng.permutation(len(parts)) if d.chance(0.5) else range(len(parts))
    chosen = [parts[int(k)] for k in order]
    if d.chance(0.2):
        chosen.append(chosen[0])
    return d.one("Concat", *chosen[d.chance(0.2) :], axis=signed(d, axis, d.rank(x)))


def _diamond(d: Draft) -> str:
    """One value read by two chains of elementwise operators that meet again."""
    x = anything(d, FLOATS)

    def chain() -> str:
        y = x
        for _ in range(d.whole(0, 3)):
            y = (
                activated(d, y)
                if d.chance(0.6)
                else d.one("Add", *swapped(d, y, d.weights(*narrower(d, d.shape(x)), dtype=d.dtype(x))))
            )
        return y

    return d.one(d.among("Add", "Mul", "Sub", "Max"), chain(), chain())


def _experts(d: Draft) -> str:
    """Products with several matrices, weighed by a softmax of another product."""
    x = d.take(lambda: d.dims(2, 300), FLOATS)
    n, k = d.shape(x)
    experts, m, dtype = d.among(2, 3), d.dim(9), d.dtype(x)
    affordable(experts * n * k * m)
    gate = d.one("Softmax", linear(d, x, experts), axis=-1)
    each = d.one("MatMul", x, d.weights(experts, k, m, dtype=dtype, scale=max(k, 1) ** -0.5))
    weighed = d.one("Unsqueeze", d.one("Transpose", gate, perm=[1, 0]), d.integers([-1]))
    return reduced(d, d.one("Mul", each, weighed), [0], "ReduceSum", keepdims=0)


MAKERS: dict[str, tuple[float, Maker]] = {
    "argmax then gather": (0.7, _chosen),
    "computed indices": (0.8, _computed_indices),
    "diamond": (1.0, _diamond),
    "embedding": (0.8, _embedded),
    "experts": (0.4, _experts),
    "largest only": (0.5, _largest_only),
    "mask": (1.2, _mask),
    "parts changed": (1.0, _parts_changed),
    "rejoined": (1.0, _rejoined),
    "shape arithmetic": (0.6, _shaped),
}
