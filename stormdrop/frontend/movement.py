"""ONNX's operators that move or make elements: shapes, slices, pads, joins, constants."""

from __future__ import annotations

import math
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, Results, element_type
from stormdrop.ir.expr import FLOATS, NUMPY, Dtype
from stormdrop.operators.broadcast import broadcast_shape
from stormdrop.operators.node import Value


def _reshape(n: NodeReader) -> Value:
    x, wanted = n.input(0), n.integers_of("shape", 1)
    if wanted is None:
        raise n.fail("no shape is given")
    keep = not n.integer("allowzero", 0)
    shape = [x.shape[d] if size == 0 and keep and d < x.rank else size for d, size in enumerate(wanted)]
    if shape.count(-1) > 1 or any(s < -1 for s in shape):
        raise n.fail(f"{wanted} is no shape")
    if -1 in shape:
        rest = prod(s for s in shape if s != -1)
        if rest == 0 or x.size % rest:
            raise n.fail(f"{x} cannot be reshaped to {wanted}")
        shape[shape.index(-1)] = x.size // rest
    return n.build.reshape(x, shape)


def _flatten(n: NodeReader) -> Value:
    x = n.input(0)
    cut = n.integer("axis", 1)
    if not -x.rank <= cut <= x.rank:
        raise n.fail(f"there is no dimension {cut} of {x.rank}")
    cut = cut + x.rank if cut < 0 else cut
    return n.build.reshape(x, [prod(x.shape[:cut]), prod(x.shape[cut:])])


def _squeeze(n: NodeReader) -> Value:
    x, given = n.input(0), n.integers_of("axes", 1)
    dims = [d for d, e in enumerate(x.shape) if e == 1] if given is None else n.dims(given, x.rank)
    if any(x.shape[d] != 1 for d in dims):
        raise n.fail(f"{x} has other extents than 1 in dimensions {dims}")
    return n.build.reshape(x, [e for d, e in enumerate(x.shape) if d not in dims])


def _unsqueeze(n: NodeReader) -> Value:
    x, given = n.input(0), n.integers_of("axes", 1)
    if given is None:
        raise n.fail("no axes are given")
    rank = x.rank + len(given)
    dims = n.dims(given, rank)
    rest = iter(x.shape)
    return n.build.reshape(x, [1 if d in dims else next(rest) for d in range(rank)])


def _transpose(n: NodeReader) -> Value:
    x = n.input(0)
    return n.build.transpose(x, n.integers("perm", list(range(x.rank - 1, -1, -1))))


def _concat(n: NodeReader) -> Value:
    parts = n.given()
    if not parts:
        raise n.fail("it joins no inputs; at least one is needed")
    along = n.dim(n.integer("axis", 1), parts[0].rank)
    return n.build.concat(parts, along)


def _slice(n: NodeReader) -> Value:
    x = n.input(0)
    starts, ends = n.integers_of("starts", 1), n.integers_of("ends", 2)
    if starts is None or ends is None or len(starts) != len(ends):
        raise n.fail("starts and ends must be given alike")
    axes = n.dims(n.integers_of("axes", 3) or list(range(len(starts))), x.rank)
    steps = (n.integers_of("steps", 4) or [1] * len(starts)) if not n.has("starts") else [1] * len(starts)
    if 0 in steps or len(axes) != len(starts) or len(steps) != len(starts):
        raise n.fail(f"steps {steps} and axes {axes} do not fit")
    ranges: dict[int, tuple[int, int, int]] = {}
    for d, start, end, step in zip(axes, starts, ends, steps):
        first, stop = _effective(start, end, step, x.shape[d])
        ranges[d] = first, step, len(range(first, stop, step))
    return n.build.cut(x, ranges)


def _effective(start: int, end: int, step: int, extent: int) -> tuple[int, int]:
    """Returns both ends after ONNX's clamping.

    Going backward, a start before the first element is the first element: not as in Python.
    """
    start, end = (i + extent if i < 0 else i for i in (start, end))
    if step > 0:
        return min(max(start, 0), extent), min(max(end, 0), extent)
    return min(max(start, 0), extent - 1), min(max(end, -1), extent - 1)


def _split(n: NodeReader) -> Results:
    x = n.input(0)
    along = n.axis(0, x.rank)
    sizes = n.integers_of("split", 1)
    if sizes is None:
        count = n.integer("num_outputs", len(n.outputs))
        if count != len(n.outputs):
            raise n.fail(f"it is split into {count} parts, but has {len(n.outputs)} outputs")
        each = -(-x.shape[along] // count)
        sizes = [max(0, min(each, x.shape[along] - k * each)) for k in range(count)]
    if sum(sizes) != x.shape[along] or min(sizes, default=0) < 0 or len(sizes) < len(n.outputs):
        raise n.fail(f"parts {sizes} do not make {x.shape[along]}")
    starts = [0, *accumulate(sizes)]
    return [n.build.cut(x, {along: (start, 1, size)}) for start, size in zip(starts, sizes)]


def _pad(n: NodeReader) -> Value:
    x, mode = n.input(0), n.text("mode", "constant")
    pads = n.integers("pads") if n.has("pads") else n.integers_of("", 1)
    if pads is None:
        raise n.fail("no pads are given")
    axes = n.integers_of("", 3) if not n.has("pads") else None
    dims = list(range(x.rank)) if axes is None else n.dims(axes, x.rank)
    if len(pads) != 2 * len(dims):
        raise n.fail(f"{len(pads)} pads do not fit {len(dims)} dimensions")
    before, after = [0] * x.rank, [0] * x.rank
    for k, d in enumerate(dims):
        before[d], after[d] = pads[k], pads[k + len(dims)]
    kept = {d: (max(0, -b), 1, x.shape[d] - max(0, -b) - max(0, -a)) for d, (b, a) in enumerate(zip(before, after))}
    if any(count < 0 for _, _, count in kept.values()):
        raise n.fail(f"pads {pads} remove more elements than {x} has")
    x = n.build.cut(x, kept)
    before, after = [max(0, b) for b in before], [max(0, a) for a in after]
    if not any(before) and not any(after):
        return x
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise n.fail(f"unknown mode {mode}")
    given = n.optional(2) if not n.has("pads") else None
    if given is not None and given.size != 1:
        raise n.fail(f"input 2 ({given}) must hold one number")
    value = n.build.array(given) if given is not None else np.array(n.number("value", 0.0))
    if value is None and given is not None:
        if mode == "constant":
            scalar = n.build.reshape(given, ())
            return n.build.emit("Pad", x, scalar, before=tuple(before), after=tuple(after), mode=mode, value=0.0)
        value = np.zeros(())
    assert value is not None
    element = value.reshape(()).astype(NUMPY[x.dtype]).item()
    return n.build.emit("Pad", x, before=tuple(before), after=tuple(after), mode=mode, value=element)


def _expand(n: NodeReader) -> Value:
    x, wanted = n.input(0), n.integers_of("shape", 1)
    if wanted is None or any(s < 0 for s in wanted):
        raise n.fail(f"{wanted} is no shape")
    return n.build.expand(x, broadcast_shape(x.shape, tuple(wanted)))


def _tile(n: NodeReader) -> Value:
    x, times = n.input(0), n.integers_of("repeats", 1)
    if times is None or len(times) != x.rank or any(t < 0 for t in times):
        raise n.fail(f"repeats {times} do not fit {x}")
    return x if all(t == 1 for t in times) else n.build.emit("Tile", x, times=tuple(times))


def _depth_to_space(n: NodeReader) -> Value:
    x, b = n.input(0), n.integer("blocksize")
    if x.rank != 4 or b < 1 or x.shape[1] % (b * b):
        raise n.fail(f"{x} has no blocks of {b}")
    batch, c, h, w = x.shape
    c //= b * b
    if n.text("mode", "DCR") == "DCR":
        y = n.build.transpose(n.build.reshape(x, (batch, b, b, c, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = n.build.transpose(n.build.reshape(x, (batch, c, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return n.build.reshape(y, (batch, c, h * b, w * b))


def _space_to_depth(n: NodeReader) -> Value:
    x, b = n.input(0), n.integer("blocksize")
    if x.rank != 4 or b < 1 or x.shape[2] % b or x.shape[3] % b:
        raise n.fail(f"{x} has no blocks of {b}")
    batch, c, h, w = x.shape
    order = (0, 3, 5, 1, 2, 4) if n.text("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    y = n.build.transpose(n.build.reshape(x, (batch, c, h // b, b, w // b, b)), order)
    return n.build.reshape(y, (batch, c * b * b, h // b, w // b))


def _shape(n: NodeReader) -> Value:
    x = n.input(0)
    start, stop, _ = slice(n.integer("start", 0), n.integer("end", x.rank), 1).indices(x.rank)
    return n.build.constant(np.array(x.shape[start:stop], np.int64))


def _size(n: NodeReader) -> Value:
    return n.build.constant(n.input(0).size, "i64")


def _constant(n: NodeReader) -> Value:
    for key in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if n.has(key):
            value: Any = n.attributes[key]
            dtype: Dtype | None = None if key == "value" else "f32" if "float" in key else "i64"
            return n.build.constant(value, dtype)
    raise n.fail("no value of a supported kind is given")


def _constant_of_shape(n: NodeReader) -> Value:
    shape = n.array(0)
    if shape.ndim != 1 or (shape < 0).any():
        raise n.fail(f"{shape.tolist()} is no shape")
    value: Any = n.attributes.get("value", np.zeros(1, np.float32))
    if np.size(value) != 1:
        raise n.fail("its value must be one number")
    return n.build.expand(n.build.constant(np.asarray(value).reshape(())), [int(s) for s in shape])


def _range(n: NodeReader) -> Value:
    start, limit, delta = (n.scalar(k) for k in range(3))
    dtype = n.input(0).dtype
    if delta == 0 or not all(map(math.isfinite, (start, limit, delta))):
        raise n.fail(f"a range from {start} to {limit} in steps of {delta} never ends")
    if dtype in FLOATS:
        steps = math.ceil(min(max((limit - start) / delta, 0.0), 2.0**62))
    else:
        steps = -((start - limit) // delta)
    count = bounded(n, max(0, steps))
    return n.build.constant((start + np.arange(count) * delta).astype(NUMPY[dtype]))


def bounded(n: NodeReader, count: int) -> int:
    """Returns a number of elements, checked against the limit of elements made at import."""
    if count > 1 << 24:
        raise n.fail(f"would make {count:,} elements")
    return count


def _eye_like(n: NodeReader) -> Value:
    x = n.input(0)
    if x.rank != 2:
        raise n.fail(f"{x} is no matrix")
    dtype = element_type(n.integer("dtype"), "its result") if n.has("dtype") else x.dtype
    bounded(n, x.size)
    return n.build.constant(np.eye(x.shape[0], x.shape[1], n.integer("k", 0), NUMPY[dtype]))


def _trilu(n: NodeReader) -> Value:
    x = n.input(0)
    k = 0 if n.optional(1) is None else n.scalar(1)
    return n.build.emit("Trilu", x, upper=n.integer("upper", 1), k=k)


def _one_hot(n: NodeReader) -> Value:
    """Imports OneHot: where(indices (counted from the end if negative) == position, on, off)."""
    b, indices, depth = n.build, n.input(0), n.scalar(1)
    rank = indices.rank + 1
    along = n.axis(-1, rank)
    values = n.input(2)
    if not 0 < depth <= 1 << 24 or values.shape != (2,):
        raise n.fail(f"a depth of {depth}, or values {values}, do not fit")
    depth = int(depth)
    off, on = (b.reshape(b.cut(values, {0: (k, 1, 1)}), ()) for k in (0, 1))
    whole = b.cast(indices, "i64")
    size = b.constant(bounded(n, depth), "i64")
    wrapped = b.emit("Where", b.emit("Less", whole, b.constant(0, "i64")), b.emit("Add", whole, size), whole)
    spread = b.reshape(wrapped, (*indices.shape[:along], 1, *indices.shape[along:]))
    at = b.reshape(b.constant(np.arange(depth)), [depth if d == along else 1 for d in range(rank)])
    return b.emit("Where", b.emit("Equal", spread, at), on, off)


def _nonzero(n: NodeReader) -> Value:
    """Imports NonZero: indices of the non-zero elements, a row per dimension; of a scalar, shape (0, 0) or (0, 1)."""
    x = n.array(0)
    bounded(n, max(1, x.ndim) * int(np.count_nonzero(x)))
    indices = np.array(np.nonzero(np.atleast_1d(x)), np.int64)
    return n.build.constant(indices[: x.ndim])


MOVEMENT: dict[str, Importer] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Slice": _slice,
    "Split": _split,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Shape": _shape,
    "Size": _size,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "EyeLike": _eye_like,
    "Trilu": _trilu,
    "OneHot": _one_hot,
    "NonZero": _nonzero,
}
