"""Resize and GridSample in NumPy, after ONNX's text; Resize with positions as exact fractions.

Positions that lie on the boundary of a decision (which pixel is nearest, whether it is outside) are decided exactly;
those within rounding of a boundary are refused. Where a length follows from a scale, align_corners counts its fraction
too, as ONNX's own tests do.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.fuzz.numpy_windows import Undetermined
from tests.fuzz.recipe import Node

Array = NDArray[Any]
HALF = Fraction(1, 2)
HAIR = Fraction(1, 100_000)


def resize(
    node: Node, x: Array, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> Array:
    a = node.attributes
    axes = [int(k) % x.ndim for k in a.get("axes", range(x.ndim))]
    given = sizes is not None and sizes.size > 0
    if any(x.shape[k] == 0 for k in axes):
        raise Undetermined("nothing to resize")
    policy = a.get("keep_aspect_ratio_policy", "stretch") if given else "stretch"
    if given:
        assert sizes is not None
        factors = [Fraction(int(s), x.shape[k]) for s, k in zip(sizes, axes)]
        if policy != "stretch":
            factors = [min(factors) if policy == "not_larger" else max(factors)] * len(axes)
        out = [_rounded(f * x.shape[k]) for f, k in zip(factors, axes)]
    else:
        assert scales is not None
        factors = [Fraction(float(s)) for s in scales]
        out = [_floored(f * x.shape[k]) for f, k in zip(factors, axes)]
    mode: str = a.get("coordinate_transformation_mode", "half_pixel")
    interpolates = a.get("mode", "nearest") != "nearest"
    y = x.astype(np.float64) if interpolates else x
    outside = np.zeros((1,) * x.ndim, bool)
    for k, (axis, factor, length) in enumerate(zip(axes, factors, out)):
        size = x.shape[axis]
        if length == size and factor == 1 and mode != "tf_crop_and_resize":
            continue
        span = (Fraction(float(roi[k])), Fraction(float(roi[k + len(axes)]))) if roi is not None and roi.size else None
        at = _positions(mode, size, length, factor, span)
        is_exact = not given or mode in ("align_corners", "tf_crop_and_resize") or _is_dyadic(factor)
        if mode == "half_pixel_symmetric" and factor * size != length:
            is_exact = False
        if mode == "align_corners" and policy != "stretch" and factor * size != length:
            raise Undetermined("corners of a length that is rounded")
        if mode == "tf_crop_and_resize":
            beyond = np.array([_decided(p, (0, size - 1), is_exact) and not 0 <= p <= size - 1 for p in at], bool)
            outside = outside | beyond.reshape([-1 if d == axis else 1 for d in range(x.ndim)])
        y = _weighed(node, y, axis, at, factor) if interpolates else _nearest(node, y, axis, at, is_exact)
    y = y.astype(x.dtype)
    if outside.any():
        y = np.where(outside, np.asarray(a.get("extrapolation_value", 0.0)).astype(x.dtype), y)
    return y


def _is_dyadic(f: Fraction) -> bool:
    """Whether floats hold it, and quotients by it, exactly."""
    return f.denominator & (f.denominator - 1) == 0


def _rounded(length: Fraction) -> int:
    if length != floor(length) and abs(length - floor(length) - HALF) < HAIR:
        raise Undetermined("a length that is rounded by a hair")
    return floor(length + HALF)


def _floored(length: Fraction) -> int:
    if length != round(length) and abs(length - round(length)) < HAIR * max(1, length):
        raise Undetermined("a length that is rounded by a hair")
    return floor(length)


def _positions(
    mode: str, size: int, length: int, scale: Fraction, roi: tuple[Fraction, Fraction] | None
) -> list[Fraction]:
    """Where every output pixel lies in the input."""
    match mode:
        case "half_pixel":
            return [(i + HALF) / scale - HALF for i in range(length)]
        case "half_pixel_symmetric":
            offset = Fraction(size, 2) * (1 - length / (scale * size))
            return [offset + (i + HALF) / scale - HALF for i in range(length)]
        case "pytorch_half_pixel":
            return [(i + HALF) / scale - HALF if length > 1 else Fraction(0) for i in range(length)]
        case "asymmetric":
            return [i / scale for i in range(length)]
        case "align_corners":
            last = scale * size - 1
            return [Fraction(i * (size - 1)) / last if last > 0 else Fraction(0) for i in range(length)]
        case "tf_crop_and_resize":
            start, end = roi or (Fraction(0), Fraction(1))
            if length == 1:
                return [HALF * (start + end) * (size - 1)]
            return [start * (size - 1) + i * (end - start) * (size - 1) / (length - 1) for i in range(length)]
        case _:
            raise Undetermined(f"unknown mode {mode}")


def _decided(p: Fraction, boundaries: tuple[Fraction | int, ...], is_exact: bool) -> bool:
    """True. Raises Undetermined where rounding may move the position over a boundary."""
    for b in boundaries:
        if abs(p - b) < HAIR * max(1, abs(p)) and not (p == b and is_exact):
            raise Undetermined("a position is decided by a hair")
    return True


def _nearest(node: Node, x: Array, axis: int, at: list[Fraction], is_exact: bool) -> Array:
    mode: str = node.attributes.get("nearest_mode", "round_prefer_floor")
    chosen: list[int] = []
    for p in at:
        _decided(p, (floor(p) + HALF,) if mode.startswith("round") else (floor(p), floor(p) + 1), is_exact)
        match mode:
            case "floor":
                chosen.append(floor(p))
            case "ceil":
                chosen.append(ceil(p))
            case "round_prefer_floor":
                chosen.append(ceil(p - HALF))
            case _:
                chosen.append(floor(p + HALF))
    return np.take(x, np.clip(np.array(chosen, np.int64), 0, x.shape[axis] - 1), axis=axis)


def _weighed(node: Node, x: Array, axis: int, at: list[Fraction], factor: Fraction) -> Array:
    """Sums of the pixels around every position; outside the image lie copies of its border, or nothing."""
    a, size = node.attributes, x.shape[axis]
    stretch = max(1.0, 1 / float(factor)) if a.get("antialias", 0) else 1.0
    reach = ceil((1 if a["mode"] == "linear" else 2) * stretch)
    matrix = np.zeros((len(at), size))
    for i, p in enumerate(at):
        taps = np.arange(floor(p) - reach, floor(p) + reach + 2)
        distance = np.abs(taps - float(p)) / stretch
        weights = np.maximum(0.0, 1 - distance)
        if a["mode"] == "cubic":
            c = float(np.float32(a.get("cubic_coeff_a", -0.75)))
            near = ((c + 2) * distance - (c + 3)) * distance**2 + 1
            far = ((c * distance - 5 * c) * distance + 8 * c) * distance - 4 * c
            weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
        if a.get("exclude_outside", 0):
            weights = np.where((taps >= 0) & (taps < size), weights, 0.0)
        if (a.get("exclude_outside", 0) or stretch > 1) and weights.sum() != 0:
            weights = weights / weights.sum()
        np.add.at(matrix[i], np.clip(taps, 0, size - 1), weights)
        beyond = weights[(taps < 0) | (taps >= size)].any()
        merged = beyond and a["mode"] == "cubic"  # weights of both signs for one pixel, added first or last
        if merged or stretch > 1 or (weights[(taps > float(p) - reach) & (taps <= float(p) + reach)] == 0).any():
            _finite(np.take(x, np.clip(taps, 0, size - 1), axis=axis))
    moved = np.moveaxis(x, axis, 0)
    terms = matrix.reshape(*matrix.shape, *(1,) * (x.ndim - 1)) * moved[None]
    return np.moveaxis(
        np.where(matrix.reshape(*matrix.shape, *(1,) * (x.ndim - 1)) == 0, 0.0, terms).sum(axis=1), 0, axis
    )


def _finite(x: Array) -> None:
    """Raises Undetermined where a weight of 0 meets infinity: some implementations leave the element out."""
    if not np.isfinite(x).all():
        raise Undetermined("0 times infinity")


# ---- GridSample ------------------------------------------------------------------------------------------------------


def grid_sample(node: Node, x: Array, grid: Array) -> Array:
    """The image, continued without end by zeros, by its border or by reflections, interpolated, as PyTorch does."""
    mode: str = node.attributes.get("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    padding: str = node.attributes.get("padding_mode", "zeros")
    align = bool(node.attributes.get("align_corners", 0))
    sizes, rank = x.shape[2:], x.ndim - 2
    taps: list[list[tuple[Array, Array]]] = []
    for d, size in enumerate(sizes):
        g = grid[..., rank - 1 - d].astype(np.float64)
        p = (g + 1) * (size - 1) / 2 if align else ((g + 1) * size - 1) / 2
        base = np.rint(p) if mode == "nearest" else np.floor(p)
        taps.append([(base + k, w) for k, w in _taps(mode, p - base)])
    total = np.zeros((x.shape[0], *grid.shape[1:-1], x.shape[1]))
    batch = np.arange(x.shape[0]).reshape(-1, *(1,) * rank)
    for chosen in product(*taps):
        weight, inside = np.ones(grid.shape[:-1]), np.ones(grid.shape[:-1], bool)
        index: list[Array] = []
        for (at, w), size in zip(chosen, sizes):
            is_pixel, pixel = _pixel(at, size, padding, align)
            weight, inside = weight * w, inside & is_pixel
            index.append(pixel)
        pixels = x[(batch, slice(None), *index)].astype(np.float64)
        _finite(pixels[inside & (weight == 0)])
        total = total + np.where(inside[..., None], pixels * weight[..., None], 0.0)
    return np.moveaxis(total, -1, 1).astype(x.dtype)


def _taps(mode: str, t: Array) -> list[tuple[int, Array]]:
    """Offsets of the neighbours and their weights, t behind the first one."""
    if mode == "nearest":
        return [(0, np.ones_like(t))]
    if mode == "linear":
        return [(0, 1 - t), (1, t)]
    a = -0.75

    def near(u: Array) -> Array:
        return ((a + 2) * u - (a + 3)) * u**2 + 1

    def far(u: Array) -> Array:
        return ((a * u - 5 * a) * u + 8 * a) * u - 4 * a

    return [(-1, far(t + 1)), (0, near(t)), (1, near(1 - t)), (2, far(2 - t))]


def _pixel(at: Array, size: int, padding: str, align: bool) -> tuple[Array, Array]:
    """Whether there is a pixel at these positions, and which one."""
    if padding == "reflection":
        low, width = (0.0, size - 1.0) if align else (-0.5, float(size))
        away = np.mod(np.abs(at - low), 2 * width) if width > 0 else np.zeros_like(at)
        at = np.where(away > width, 2 * width - away, away) + low
    inside = (at >= 0) & (at <= size - 1) if padding == "zeros" else np.ones(at.shape, bool)
    return inside, np.clip(at, 0, size - 1).astype(np.int64)
