"""Resize of a region that may be data (tf_crop_and_resize): positions, taps and weights as nodes of the graph, in f64.

A region is a share of each dimension, from a start to an end; outputs outside the input get `extrapolation_value`. A
constant region folds into constant taps. The nearest pixel is found from positions that are rounded to the type of the
region: 0.1 of 5 pixels is half a pixel in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from stormdrop.frontend.movement import bounded
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.graph.builder import GraphBuilder
from stormdrop.ir.expr import FLOATS
from stormdrop.operators.node import Value

FARTHEST = 2.0**30
"""The limit to which positions are clamped: indices fit 64 bits."""


def _with(b: GraphBuilder, op: str, x: Value, number: float) -> Value:
    return b.emit(op, x, b.number(number, x))


def cropped(
    n: NodeReader, x: Value, axes: Sequence[int], extents: Sequence[int], factors: Sequence[float], roi: Value | None
) -> Value:
    """Returns x resampled to `extents` along `axes`; `roi` holds the starts of all axes, then the ends."""
    b, mode = n.build, n.text("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        raise n.fail(f"unknown mode {mode}")
    if roi is None or not roi.size:
        roi = b.constant([0.0] * len(axes) + [1.0] * len(axes), "f64")
    if roi.shape != (2 * len(axes),):
        raise n.fail(f"a region of {len(axes)} dimensions has {2 * len(axes)} numbers, got {roi}")
    edges = [b.cut(roi, {0: (k, 1, 1)}) for k in range(2 * len(axes))]
    y, beyond = x, list[Value]()
    for k, d in enumerate(axes):
        if not x.shape[d] and extents[k]:
            raise n.fail(f"{x} is empty along dimension {d} and cannot be resized")
        if not extents[k]:
            y = b.cut(y, {d: (0, 1, 0)})
            continue
        at = _positions(n, edges[k], edges[k + len(axes)], x.shape[d], extents[k])
        y = _resampled(n, y, d, at, factors[k])
        mask = b.reshape(_outside(b, at, x.shape[d]), [at.size if e == d else 1 for e in range(x.rank)])
        known = b.array(mask)
        if known is None or known.any():
            beyond.append(mask)
    if not beyond:
        return y
    value = n.number("extrapolation_value", 0.0)
    filler = b.number(value if y.dtype in FLOATS else round(value), y)
    return b.emit("Where", reduce(lambda p, q: b.emit("Or", p, q), beyond), filler, y)


def _resampled(n: NodeReader, x: Value, d: int, at: Value, scale: float) -> Value:
    b, size, mode, known = n.build, x.shape[d], n.text("mode", "nearest"), n.build.array(at)
    if known is not None and np.array_equal(known, np.arange(size)):
        return x
    if mode == "nearest":
        return b.emit("Gather", x, _nearest_index(n, at, size), axis=d)
    taps, weights = _taps(n, at, size, scale, mode == "cubic")
    return b.emit("Interpolate", x, taps, b.cast(weights, x.dtype), axis=d)


def _positions(n: NodeReader, start: Value, end: Value, size: int, out: int) -> Value:
    """Returns the position of every output pixel in the input, from the start of the region to its end.

    An end of 1 is exactly the last pixel.
    """
    b, dtype = n.build, start.dtype
    start, end = b.cast(start, "f64"), b.cast(end, "f64")
    if out == 1:
        at = _with(b, "Mul", b.emit("Add", start, end), 0.5 * (size - 1))
    else:
        i = np.arange(bounded(n, out), dtype=np.float64)
        shares = b.emit("Mul", start, b.constant(out - 1 - i)), b.emit("Mul", end, b.constant(i))
        at = _with(b, "Div", _with(b, "Mul", b.emit("Add", *shares), size - 1), out - 1)
    if n.text("mode", "nearest") == "nearest":
        at = b.cast(b.cast(at, dtype), "f64")
    return b.emit("Clip", at, min=-FARTHEST, max=FARTHEST)


def _outside(b: GraphBuilder, at: Value, size: int) -> Value:
    return b.emit("Or", _with(b, "Less", at, 0.0), _with(b, "Greater", at, size - 1))


_NEAREST: dict[str, Callable[[GraphBuilder, Value], Value]] = {
    "round_prefer_floor": lambda b, x: b.emit("Ceil", _with(b, "Sub", x, 0.5)),
    "round_prefer_ceil": lambda b, x: b.emit("Floor", _with(b, "Add", x, 0.5)),
    "floor": lambda b, x: b.emit("Floor", x),
    "ceil": lambda b, x: b.emit("Ceil", x),
}


def _nearest_index(n: NodeReader, at: Value, size: int) -> Value:
    rounding = n.text("nearest_mode", "round_prefer_floor")
    if rounding not in _NEAREST:
        raise n.fail(f"unknown nearest mode {rounding}")
    b = n.build
    return b.emit("Clip", b.cast(_NEAREST[rounding](b, at), "i64"), min=0, max=size - 1)


def _taps(n: NodeReader, at: Value, size: int, scale: float, cubic: bool) -> tuple[Value, Value]:
    """Returns the input positions and weights of every output pixel, [out, k]; antialiasing stretches the filter."""
    b = n.build
    stretch = max(1.0, 1 / scale) if n.integer("antialias", 0) else 1.0
    reach = (2 if cubic else 1) * stretch
    count = int(np.ceil(2 * reach)) + (stretch > 1)
    bounded(n, count * at.size)
    x = b.reshape(at, (at.size, 1))
    first = b.emit("Floor", _with(b, "Sub", x, reach) if stretch > 1 else x)
    first = _with(b, "Add", first, 1.0 if stretch > 1 else -float(cubic))
    places = b.emit("Add", first, b.constant(np.arange(count, dtype=np.float64)))
    distance = b.emit("Abs", _with(b, "Div", b.emit("Sub", places, x), stretch))
    weights = _cubic(b, distance, n.number("cubic_coeff_a", -0.75)) if cubic else _linear(b, distance)
    if n.integer("exclude_outside", 0):
        weights = b.emit("Where", _outside(b, places, size), b.number(0, weights), weights)
    if n.integer("exclude_outside", 0) or stretch > 1:
        weights = b.emit("Div", weights, b.reduce("Sum", weights, [1]))
    return b.emit("Clip", b.cast(places, "i64"), min=0, max=size - 1), weights


def _linear(b: GraphBuilder, t: Value) -> Value:
    return b.emit("Max", b.number(0, t), b.emit("Sub", b.number(1, t), t))


def _cubic(b: GraphBuilder, t: Value, a: float) -> Value:
    def polynomial(*factors: float) -> Value:
        """Evaluates a polynomial by Horner's rule, the highest power first."""
        total = b.number(factors[0], t)
        for factor in factors[1:]:
            total = _with(b, "Add", b.emit("Mul", total, t), factor)
        return total

    near, far = polynomial(a + 2, -(a + 3), 0.0, 1.0), polynomial(a, -5 * a, 8 * a, -4 * a)
    beyond = b.emit("Where", _with(b, "Less", t, 2.0), far, b.number(0, t))
    return b.emit("Where", _with(b, "LessOrEqual", t, 1.0), near, beyond)
