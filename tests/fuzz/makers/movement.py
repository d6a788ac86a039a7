"""Operators that move elements without computing, of every element type; those of `constants` too."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np

from tests.fuzz.draft import TYPES, Draft, Maker, Refused, Shape
from tests.fuzz.makers import constants
from tests.fuzz.makers.arguments import (
    INT32,
    INT64,
    anything,
    axis_of,
    drawn,
    either_sign,
    fixed,
    index_vector,
    some_axes,
    sometimes,
)

# ---- shapes ----------------------------------------------------------------------------------------------------------


def transpose(d: Draft) -> str:
    x = anything(d)
    perm = [int(p) for p in d.rng.permutation(d.rank(x))]
    return d.one("Transpose", x, **(sometimes(d, 0.85, perm=perm) if perm else {}))


def _factors(d: Draft, n: int, most: int = 4) -> list[int]:
    """n as a product of a few numbers, ones among them."""
    found: list[int] = []
    while n > 1 and len(found) < most - 1:
        found.append(d.among(*(k for k in range(1, n + 1) if n % k == 0)))
        n //= found[-1]
    return [*found, n] if n != 1 or d.chance(0.3) else found


def _new_shape(d: Draft, shape: Shape) -> list[int]:
    """Another shape of as many elements."""
    match d.among("free", "merge", "split", "ones", "flat"):
        case "merge" if len(shape) >= 2:
            k = d.whole(0, len(shape) - 2)
            return [*shape[:k], shape[k] * shape[k + 1], *shape[k + 2 :]]
        case "split" if shape:
            k = d.whole(0, len(shape) - 1)
            return [*shape[:k], *_factors(d, shape[k], 3), *shape[k + 1 :]]
        case "ones":
            new = [e for e in shape if e != 1 or d.chance(0.5)]
            for _ in range(d.among(0, 1, 2)):
                new.insert(d.whole(0, len(new)), 1)
            return new
        case "flat":
            return [prod(shape)]
        case _:
            return _factors(d, prod(shape))


def reshape(d: Draft) -> str:
    """To any shape, with -1, with 0 for a kept dimension, with allowzero; the shape constant or made of shapes."""
    x = anything(d)
    shape = d.shape(x)
    new = _new_shape(d, shape)
    if prod(new) != prod(shape) or len(new) > 6:
        raise Refused("not a shape of it")
    attributes = sometimes(d, 0.3, allowzero=1 if 0 in new else d.among(0, 1)) if d.opset >= 14 else {}
    if not attributes.get("allowzero"):
        new = [0 if k < len(shape) and shape[k] == e and d.chance(0.3) else e for k, e in enumerate(new)]
        if any(e == 0 and (k >= len(shape) or shape[k]) for k, e in enumerate(new)) and 0 in shape:
            raise Refused("a dimension of 0 means another one")
    if new and 0 not in shape and d.chance(0.4):
        new[d.whole(0, len(new) - 1)] = -1
        if attributes.get("allowzero") and 0 in new:
            raise Refused("-1 and a dimension of 0")
    if d.chance(0.25):
        return d.one("Reshape", x, _computed_shape(d, x, new), **attributes)
    return d.one("Reshape", x, d.integers(new), **attributes)


def _computed_shape(d: Draft, x: str, new: list[int]) -> str:
    """A shape as exporters write it: parts of Shape(x) and constants, joined."""
    parts: list[str] = []
    source = d.one("Shape", x)
    for size in new:
        if size > 0 and size in d.shape(x) and d.chance(0.7):
            at = d.shape(x).index(size)
            parts.append(d.one("Gather", source, d.integers([at]), axis=0))
        else:
            parts.append(d.integers([size]))
    return d.one("Concat", *parts, axis=0) if parts else d.integers([])


def flatten(d: Draft) -> str:
    x = anything(d)
    rank = d.rank(x)
    return d.one("Flatten", x, **({} if rank and d.chance(0.2) else {"axis": d.whole(-rank, rank)}))


def squeeze(d: Draft) -> str:
    x = d.take(lambda: tuple(1 if d.chance(0.4) else n for n in d.dims(most=5_000)), TYPES, lambda s: len(s) <= 5)
    ones = [k for k, e in enumerate(d.shape(x)) if e == 1]
    if d.chance(0.3):
        return d.one("Squeeze", x)
    if not ones:
        raise Refused("no dimension of 1")
    chosen = [either_sign(d, int(a), d.rank(x)) for a in d.rng.permutation(ones)[: d.whole(1, len(ones))]]
    return d.one("Squeeze", x, d.integers(chosen))


def unsqueeze(d: Draft) -> str:
    x = anything(d, most_rank=4)
    rank = d.rank(x) + d.among(1, 1, 2)
    axes = [either_sign(d, int(a), rank) for a in d.rng.permutation(rank)[: rank - d.rank(x)]]
    return d.one("Unsqueeze", x, d.integers(axes))


def expand(d: Draft) -> str:
    """To more dimensions, to fewer (which keeps them), with ones where the value has more."""
    x = d.take(lambda: tuple(1 if d.chance(0.4) else n for n in d.dims(most=2_000)), TYPES, lambda s: prod(s) <= 2_000)
    shape = [d.dim(9) if e == 1 and d.chance(0.6) else 1 if d.chance(0.3) else e for e in d.shape(x)]
    if d.chance(0.3):
        shape = [d.dim(5) for _ in range(d.whole(0, 5 - len(shape)))] + shape if len(shape) < 5 else shape
    elif d.chance(0.2):
        shape = shape[d.whole(0, len(shape)) :]
    return d.one("Expand", x, d.integers(shape))


def tile(d: Draft) -> str:
    x = anything(d, 0, most=2_000)
    times = [0 if d.empties and d.chance(0.1) else d.among(1, 1, 1, 2, 3) for _ in d.shape(x)]
    return d.one("Tile", x, d.integers(times))


# ---- parts -----------------------------------------------------------------------------------------------------------


def span(d: Draft, n: int) -> tuple[int, int, int]:
    """Start, end and step of a slice of n elements: from either end, beyond the ends, backwards, up to huge ones."""
    step = d.among(1, 1, 1, 1, 2, 3, n + 1, INT32.max)
    if d.chance(0.3):
        first = d.among(n - 1, d.whole(0, max(n - 1, 0)), -1, n + 3, -n - 3, INT32.max, INT64.max)
        last = d.among(-n - 1, d.whole(0, max(n // 2, 0)), -n - 5, INT32.min, INT64.min, INT64.min + 1)
        return first, last, -step
    first = d.among(0, 0, d.whole(0, n), d.whole(-n, 0), -n - 3, INT32.min, INT64.min)
    last = d.among(n, d.whole(0, n), d.whole(-n, 0), n + 4, INT32.max, INT64.max, INT64.max)
    return first, last, step


def cut(d: Draft) -> str:
    x = anything(d, 1)
    axes = some_axes(d, d.rank(x), 1)
    with_axes, with_steps = d.chance(0.8), d.chance(0.75)
    if not with_axes:
        axes = list(range(len(axes)))
    spans = [span(d, d.shape(x)[a]) for a in axes]
    if not with_steps:
        spans = [(a, b, 1) if s > 0 else (b, a, 1) for a, b, s in spans]
    if not d.empties and any(len(range(*slice(*s).indices(d.shape(x)[a]))) == 0 for s, a in zip(spans, axes)):
        raise Refused("nothing is left")
    columns = [list(c) for c in zip(*spans)]
    narrow = d.chance(0.25) and all(INT32.min <= v <= INT32.max for column in columns for v in column)
    starts, ends, steps, along = (d.constant(np.array(c, np.int32 if narrow else np.int64)) for c in (*columns, axes))
    given = [along if with_axes else "", steps if with_steps else ""]
    while given and not given[-1]:
        given.pop()
    return d.one("Slice", x, starts, ends, *given)


def _sizes(d: Draft, n: int, count: int) -> list[int]:
    """Parts of n, of any sizes; empty ones only where those are asked for."""
    if d.empties:
        marks = sorted([0, n, *(d.whole(0, n) for _ in range(count - 1))])
    else:
        marks = sorted({0, n, *(d.whole(0, n) for _ in range(count - 1))})
    return [b - a for a, b in pairwise(marks)]


def split(d: Draft, x: str | None = None) -> list[str]:
    """Into sizes that are given, into equal parts, into num_outputs parts of which the last may be smaller."""
    x = x or anything(d, 1)
    axis = axis_of(d, d.rank(x))
    n = d.shape(x)[axis]
    attributes = {} if axis == 0 and d.chance(0.3) else {"axis": either_sign(d, axis, d.rank(x))}
    if d.chance(0.5):
        sizes = _sizes(d, n, d.among(1, 2, 2, 3, 4))
        if not sizes:
            raise Refused("nothing to split")
        return d.emit("Split", x, d.integers(sizes), results=len(sizes), **attributes)
    if d.opset >= 18:
        count = d.among(1, 2, 2, 3, 4, 5)
        if n == 0 or -(-n // count) * (count - 1) >= n:
            raise Refused("the last part would be empty")
        return d.emit("Split", x, results=count, num_outputs=count, **attributes)
    count = d.among(*(c for c in range(1, 6) if n % c == 0))
    return d.emit("Split", x, results=count, **attributes)


def concat(d: Draft) -> str:
    """Of values, slices of values, constants, and the same value twice; along any dimension; sometimes of very many."""
    x = anything(d, 1)
    shape, dtype = d.shape(x), d.dtype(x)
    axis = axis_of(d, len(shape))

    def fits(s: Shape) -> bool:
        return len(s) == len(shape) and all(k == axis or a == b for k, (a, b) in enumerate(zip(s, shape)))

    parts = [x]
    for _ in range(d.among(0, 1, 1, 1, 2, 3, 18 if prod(shape) < 200 else 2)):
        match d.among("value", "value", "value", "same", "constant", "slice"):
            case "same":
                parts.append(x)
            case "value":
                parts.append(d.pick(fits, (dtype,)))
            case "slice":
                source = d.pick(fits, (dtype,))
                n = d.shape(source)[axis]
                if n == 0:
                    continue
                at, end = sorted(int(v) for v in d.rng.choice(n + 1, 2, replace=False))
                parts.append(d.one("Slice", source, *(d.integers([v]) for v in (at, end, axis))))
            case _:
                parts.append(d.value([d.dim(3) if k == axis else e for k, e in enumerate(shape)], dtype))
    parts = [parts[int(k)] for k in d.rng.permutation(len(parts))]
    return d.one("Concat", *parts, axis=either_sign(d, axis, len(shape)))


def split_and_joined(d: Draft) -> str:
    """Some of the parts of a value, perhaps changed, in another order, joined again."""
    x = anything(d, 1)
    parts = split(d, x)
    axis = int(d.nodes[-1].attributes.get("axis", 0))
    chosen = [parts[int(k)] for k in d.rng.permutation(len(parts))[: d.whole(1, len(parts))]]
    if d.dtype(x) != np.bool_:
        chosen = [d.one(d.among("Neg", "Abs", "Relu"), p) if d.chance(0.3) else p for p in chosen]
    if d.chance(0.3):
        chosen.append(d.among(*chosen))
    return d.one("Concat", *chosen, axis=axis)


def rejoined(d: Draft) -> str:
    """Parts of an earlier concatenation joined again: some, in another order, with the whole, as slices of it."""
    earlier = [n for n in d.nodes if n.op == "Concat" and d.shape(n.outputs[0])]
    node = earlier[d.whole(0, len(earlier) - 1)] if earlier else None
    if node is None:
        concat(d)
        node = d.nodes[-1]
    rank = d.rank(node.outputs[0])
    axis, parts, joined = int(node.attributes["axis"]) % rank, list(node.inputs), node.outputs[0]
    match d.among("some", "some", "shuffled", "whole", "slices"):
        case "some":
            k = d.whole(0, len(parts) - 1)
            chosen = parts[k : k + d.among(1, 2, 3)]
        case "shuffled":
            chosen = [parts[int(k)] for k in d.rng.permutation(len(parts))]
        case "whole":
            chosen = [joined, parts[0]]
        case _:
            n = d.shape(joined)[axis]
            k, low, zero, high, along = d.whole(0, n), *(d.integers([v]) for v in (0, 0, n, axis))
            low = d.integers([k])
            chosen = [d.one("Slice", joined, low, high, along), d.one("Slice", joined, zero, low, along)]
    return d.one("Concat", *chosen, axis=axis)


def compress(d: Draft) -> str:
    """With a constant condition, which may be shorter than the dimension."""
    x = anything(d, 1)
    axis = axis_of(d, d.rank(x)) if d.chance(0.7) else None
    n = prod(d.shape(x)) if axis is None else d.shape(x)[axis]
    condition = np.asarray(d.rng.random(d.among(n, n, d.whole(0, n))) < d.among(0.2, 0.5, 0.9))
    if not condition.any() and not d.empties:
        raise Refused("nothing is left")
    attributes = {} if axis is None else {"axis": either_sign(d, axis, d.rank(x))}
    return d.one("Compress", x, d.constant(condition), **attributes)


# ---- around the edges ------------------------------------------------------------------------------------------------


def pad(d: Draft) -> str:
    """In all modes; pads of both signs; the constant's value absent, constant or given at run time."""
    x = anything(d, 1, most=2_000)
    rank, shape = d.rank(x), d.shape(x)
    mode = d.among("constant", "constant", "constant", "reflect", "edge", *(["wrap"] if d.opset >= 19 else []))
    axes = some_axes(d, rank) if d.opset >= 18 and d.chance(0.4) else None
    sizes = [shape[a] for a in (range(rank) if axes is None else axes)]
    most = [min(3, {"reflect": n - 1, "wrap": n}.get(mode, 3)) for n in sizes]
    amounts = [d.whole(0, max(0, m)) if d.chance(0.6) else 0 for m in most * 2]
    if mode == "constant" and d.chance(0.2):
        amounts = [-d.whole(0, min(n // 2, 2)) if d.chance(0.4) else a for n, a in zip(sizes * 2, amounts)]
    if mode != "constant" and 0 in shape:
        raise Refused("an empty value has no edge")
    value = ""
    if d.chance(0.6 if mode == "constant" else 0.15):
        value = fixed(d, drawn(d, (), d.dtype(x)))
    inputs = [x, d.integers(amounts), value, "" if axes is None else index_vector(d, axes)]
    while not inputs[-1]:
        inputs.pop()
    return d.one("Pad", *inputs, **({} if mode == "constant" and d.chance(0.5) else {"mode": mode}))


def trilu(d: Draft) -> str:
    d.needs(14)
    x = anything(d, 2)
    n, m = d.shape(x)[-2:]
    k = d.among(0, 1, -1, d.whole(-n - 1, m + 1), 1000, -1000)
    inputs = [d.constant(np.array(k, np.int64))] if d.chance(0.7) else [""] if d.chance(0.2) else []
    return d.one("Trilu", x, *inputs, **sometimes(d, 0.7, upper=d.among(0, 1)))


def reverse_sequence(d: Draft) -> str:
    x = anything(d, 2)
    time = d.among(0, 1)
    steps, batch = d.shape(x)[time], d.shape(x)[1 - time]
    if steps == 0:
        raise Refused("no step")
    lengths = fixed(d, np.asarray(d.rng.integers(1, steps + 1, batch), np.int64))
    attributes = {} if time == 0 and d.chance(0.4) else {"time_axis": time, "batch_axis": 1 - time}
    return d.one("ReverseSequence", x, lengths, **attributes)


def identity(d: Draft) -> str:
    return d.one("Identity", anything(d))


MAKERS: dict[str, tuple[float, Maker]] = {
    "Transpose": (2, transpose),
    "Reshape": (2, reshape),
    "Flatten": (0.7, flatten),
    "Squeeze": (0.7, squeeze),
    "Unsqueeze": (0.7, unsqueeze),
    "Expand": (1, expand),
    "Tile": (0.7, tile),
    "Slice": (2, cut),
    "Split": (1, split),
    "Concat": (2, concat),
    "split and joined": (1, split_and_joined),
    "rejoined": (1, rejoined),
    "Compress": (0.4, compress),
    "Pad": (1.5, pad),
    "Trilu": (0.7, trilu),
    "ReverseSequence": (0.5, reverse_sequence),
    "Identity": (0.4, identity),
} | constants.MAKERS
