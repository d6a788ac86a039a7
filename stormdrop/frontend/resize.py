"""ONNX's Resize and Upsample, dimension by dimension: each a gather, or a weighted sum of constant taps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.frontend.crops import cropped
from stormdrop.frontend.movement import bounded
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer
from stormdrop.ir.expr import FLOATS
from stormdrop.operators.node import Value, shown

Floats = NDArray[np.float64]


def _coordinates(n: NodeReader, mode: str, size: int, out: int, scale: float) -> Floats:
    """Returns the position of every output pixel in the input.

    If the length comes from a scale, corners are aligned by its fraction too, as in ONNX's tests.
    """
    length = size * scale if _is_scaled(n) else out
    i = np.arange(out, dtype=np.float64)
    match mode:
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            adjustment = out / (scale * size) if size else 1.0
            return size / 2 * (1 - adjustment) + (i + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (i + 0.5) / scale - 0.5 if out > 1 else np.zeros(out)
        case "asymmetric":
            return i / scale
        case "align_corners":
            return i * (size - 1) / (length - 1) if length > 1 else np.zeros(out)
        case "tf_half_pixel_for_nn":
            return (i + 0.5) / scale
        case _:
            raise n.fail(f"unknown coordinate mode {mode}")


def _is_scaled(n: NodeReader) -> bool:
    """Returns whether the node gives scales instead of sizes."""
    return len(n.inputs) < 4 or n.optional(3) is None or n.input(3).size == 0


_NEAREST: dict[str, Callable[[Floats], Floats]] = {
    "round_prefer_floor": lambda x: np.where(x == np.floor(x) + 0.5, np.floor(x), np.floor(x + 0.5)),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _cubic(t: Floats, a: float) -> Floats:
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((t - 5) * t + 8) * t * a - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _linear(t: Floats) -> Floats:
    return np.maximum(0.0, 1 - np.abs(t))


def _taps(n: NodeReader, x: Floats, size: int, scale: float, cubic: bool) -> tuple[NDArray[np.int64], Floats]:
    """Returns the input positions and weights of every output pixel, [out, k]; antialiasing stretches the filter."""
    stretch = max(1.0, 1 / scale) if n.integer("antialias", 0) else 1.0
    reach = (2 if cubic else 1) * stretch
    first = np.floor(x - reach) + 1 if stretch > 1 else np.floor(x) - cubic
    count = int(np.ceil(2 * reach)) + (stretch > 1)
    bounded(n, count * len(x))
    at = first.astype(np.int64)[:, None] + np.arange(count)[None, :]
    distance = (at - x[:, None]) / stretch
    weights = _cubic(distance, n.number("cubic_coeff_a", -0.75)) if cubic else _linear(distance)
    if n.integer("exclude_outside", 0):
        weights = np.where((at >= 0) & (at < size), weights, 0.0)
    if n.integer("exclude_outside", 0) or stretch > 1:
        weights = weights / np.sum(weights, axis=1, keepdims=True)
    return np.clip(at, 0, size - 1), weights


def _one_dimension(n: NodeReader, x: Value, d: int, out: int, scale: float) -> Value:
    """Returns x with dimension d resampled."""
    size, b = x.shape[d], n.build
    if not size and out:
        raise n.fail(f"{x} is empty along dimension {d} and cannot be resized")
    modern = n.op == "Resize" and n.version >= 11
    coordinate_mode = n.text("coordinate_transformation_mode", "half_pixel" if modern else "asymmetric")
    at = _coordinates(n, coordinate_mode, size, bounded(n, out), scale)
    mode = n.text("mode", "nearest")
    if mode == "nearest":
        default = "round_prefer_floor" if modern else "floor"
        if n.op == "Resize" and n.version == 10 and scale < 1:  # as ONNX's tests of that version have it
            default = "ceil"
        rounding = n.text("nearest_mode", default)
        if rounding not in _NEAREST:
            raise n.fail(f"unknown nearest mode {rounding}")
        index = np.clip(_NEAREST[rounding](at).astype(np.int64), 0, size - 1)
        times = out // size if size else 0
        if np.array_equal(index, np.arange(out)) and out == size:
            return x
        if out == times * size and np.array_equal(index, np.arange(out) // max(times, 1)):
            return b.emit("Repeat", x, axis=d, times=times)
        return b.emit("Gather", x, b.constant(index), axis=d)
    if mode not in ("linear", "cubic"):
        raise n.fail(f"unknown mode {mode}")
    taps, weights = _taps(n, at, size, scale, mode == "cubic")
    if out == size and np.array_equal(at, np.arange(out)):
        return x
    return b.emit("Interpolate", x, b.constant(taps), b.constant(weights, x.dtype), axis=d)


def _resize(n: NodeReader) -> Value:
    x = n.input(0)
    roi, scales = (None, 1) if len(n.inputs) == 2 else (1, 2)
    axes = n.dims(n.integers("axes", range(x.rank)), x.rank) if n.has("axes") else list(range(x.rank))
    factors: list[float]
    if not _is_scaled(n):
        out = [int(v) for v in n.vector(3)]
        if min(out) < 0 or len(out) != len(axes):
            raise n.fail(f"sizes {out} do not fit {x}")
        factors = [o / x.shape[d] if x.shape[d] else 1.0 for o, d in zip(out, axes)]
        policy = n.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scale = min(factors) if policy == "not_larger" else max(factors)
            factors = [scale] * len(axes)
            out = [int(np.floor(scale * x.shape[d] + 0.5)) for d in axes]
    else:
        factors = [] if n.optional(scales) is None else [float(v) for v in n.vector(scales)]
        out = _enlarged(n, [x.shape[d] for d in axes], factors)
    return _resampled(n, x, axes, out, factors, None if roi is None else n.optional(roi))


def _resampled(
    n: NodeReader, x: Value, axes: Sequence[int], out: Sequence[int], factors: Sequence[float], roi: Value | None
) -> Value:
    if len(out) != len(axes) or len(factors) != len(axes) or min(factors, default=1.0) <= 0:
        raise n.fail(f"{len(out)} sizes or scales {list(factors)} do not fit {x}")
    mixed = n.text("mode", "nearest") != "nearest"
    if mixed and x.dtype == "bool":
        raise n.fail(f"{x} cannot be interpolated")
    b = n.build
    y = x if x.dtype in FLOATS or not mixed else b.cast(x, "f64")
    if n.text("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        y = cropped(n, y, axes, out, factors, roi)
    else:
        for k, d in enumerate(axes):
            if out[k] != x.shape[d] or factors[k] != 1.0:
                y = _one_dimension(n, y, d, out[k], factors[k])
    return y if y.dtype == x.dtype else b.cast(b.emit("Round", y), x.dtype)


def _upsample(n: NodeReader) -> Value:
    x = n.input(0)
    given: Any = n.attributes.get("scales") if n.has("scales") else n.vector(1)
    factors = [float(v) for v in given]
    return _resampled(n, x, list(range(x.rank)), _enlarged(n, x.shape, factors), factors, None)


def _enlarged(n: NodeReader, sizes: Sequence[int], factors: Sequence[float]) -> list[int]:
    if not all(0 < s < 1 << 32 for s in factors):
        raise n.fail(f"scales {list(factors)} are not positive numbers")
    return [int(np.floor(e * s)) for e, s in zip(sizes, factors)]


def _grid_sample(n: NodeReader) -> Value:
    x, grid = n.input(0), n.input(1)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(n.text("mode", "linear"), n.text("mode", "linear"))
    fits = x.rank == grid.rank > 2 and (grid.shape[0], grid.shape[-1]) == (x.shape[0], x.rank - 2)
    if not fits or 0 in x.shape[2:]:
        raise n.fail(f"grid {grid} does not fit {x}")
    padding, align = n.text("padding_mode", "zeros"), n.integer("align_corners", 0)
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise n.fail(f"unknown mode {shown(mode)} or padding {shown(padding)}")
    if x.dtype not in FLOATS:
        raise n.fail(f"{x} cannot be sampled; supported are f32 and f64")
    return n.build.emit("GridSample", x, grid, mode=mode, padding=padding, align_corners=align)


RESIZE: dict[str, Importer] = {"Resize": _resize, "Upsample": _upsample, "GridSample": _grid_sample}
