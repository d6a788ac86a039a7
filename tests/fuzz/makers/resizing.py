"""Resize and GridSample in all their modes. Upsample is older than any operator set that is drawn."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tests.fuzz.draft import FLOATS, TYPES, Draft, Maker
from tests.fuzz.makers.arguments import either_sign, fixed
from tests.fuzz.makers.windows import image_shape

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SCALES = (0.25, 0.5, 0.75, 1.0, 1.0, 1.25, 1.5, 2.0, 2.0, 3.0, 4.0, 1 / 3, 2 / 3, 0.6, 1.3, 1.7)


def resize(d: Draft) -> str:
    """Nearest of any type; linear and cubic of floats: ONNX does not say how an integer result is rounded.

    Crops are drawn with sizes: with scales, ONNX's text lets the region of interest change the size, and no
    implementation does.
    """
    mode = d.among("nearest", "linear", "cubic")
    rank = d.among(1, 2, 3, 3, 4, 4, 4, 4, 5)
    x = d.take(
        lambda: d.dims(rank, 1_500), TYPES if mode == "nearest" else FLOATS, lambda s: len(s) > 0 and prod(s) <= 1_500
    )
    rank = d.rank(x)
    attributes: dict[str, Any] = {} if mode == "nearest" and d.chance(0.3) else {"mode": mode}
    axes = _axes(d, rank)
    if axes is not None:
        attributes["axes"] = axes
    chosen = list(range(rank)) if axes is None else [a % rank for a in axes]
    _drawn_modes(d, mode, attributes)
    region, cropped = "", attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    if cropped:
        starts = [d.among(0.0, 0.0, 0.25, -0.5, 0.625) for _ in chosen]
        ends = [d.among(1.0, 1.0, 0.75, 1.5, 0.5) for _ in chosen]
        region = d.constant(np.array(starts + ends, d.among(np.float32, np.float32, np.float64)))
        if d.chance(0.6):
            attributes["extrapolation_value"] = d.among(0.0, -2.0, 3.25 if d.dtype(x).kind == "f" else 1.0)
    # outer dimensions mostly stay, as in networks
    changed = [k >= rank - d.among(1, 2, 2, 3) or d.chance(0.2) for k in chosen]
    if not cropped and d.chance(0.7):
        lengths = [d.shape(x)[k] for k in chosen]
        factors = [d.among(1.0, *(s for s in SCALES if n * s >= 1)) if c else 1.0 for c, n in zip(changed, lengths)]
        return d.one("Resize", x, region, d.constant(np.array(factors, np.float32)), **attributes)
    sizes = [d.whole(1, 2 * n + 3) if c else n for c, n in zip(changed, (d.shape(x)[k] for k in chosen))]
    if d.opset >= 18 and d.chance(0.4):
        attributes["keep_aspect_ratio_policy"] = d.among("stretch", "not_larger", "not_smaller")
    return d.one("Resize", x, region, "", d.integers(sizes), **attributes)


def _axes(d: Draft, rank: int) -> list[int] | None:
    if d.opset < 18 or d.chance(0.6):
        return None
    some = [int(a) for a in d.rng.permutation(rank)[: d.whole(1, rank)]]
    return [either_sign(d, a, rank) for a in (sorted(some) if d.chance(0.6) else some)]


def _drawn_modes(d: Draft, mode: str, attributes: dict[str, Any]) -> None:
    if d.chance(0.8):
        more = ["half_pixel_symmetric"] if d.opset >= 19 else []
        attributes["coordinate_transformation_mode"] = d.among(*COORDINATES, *more)
    if mode == "nearest":
        if d.chance(0.7):
            attributes["nearest_mode"] = d.among(*NEAREST)
        return
    if d.opset >= 18 and d.chance(0.3):
        attributes["antialias"] = d.among(0, 1, 1)
    if d.chance(0.3):
        attributes["exclude_outside"] = d.among(0, 1)
    if mode == "cubic" and d.chance(0.4):
        attributes["cubic_coeff_a"] = d.among(-0.75, -0.5, -0.6)


def grid_sample(d: Draft) -> str:
    """Of two or three spatial dimensions; the grid constant or not, of positions inside, at the edges, and far outside.

    Integers are not drawn: Stormdrop samples f32 and f64.
    """
    d.needs(16)
    spatial = d.among(2, 2, 2, 3) if d.opset >= 20 else 2
    shape = image_shape(d, spatial)
    x = d.take(lambda: shape, FLOATS, lambda s: len(s) == 2 + spatial and 0 not in s[2:] and prod(s) <= 3_000)
    sizes = [d.among(1, 2, 3, 4, 5, 7) for _ in range(spatial)]
    reach = d.among(0.9, 1.0, 1.2, 2.5)
    grid = d.rng.uniform(-reach, reach, (d.shape(x)[0], *sizes, spatial))
    if d.chance(0.2):
        grid = np.round(grid * 4) / 4
    names = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}
    mode = d.among("linear", "linear", "nearest", "cubic")
    attributes: dict[str, Any] = {}
    if mode != "linear" or d.chance(0.6):
        attributes["mode"] = mode if d.opset >= 20 else names[mode]
    if d.chance(0.7):
        attributes["padding_mode"] = d.among("zeros", "border", "reflection")
    if d.chance(0.6):
        attributes["align_corners"] = d.among(0, 1)
    name = fixed(d, grid.astype(d.dtype(x) if d.chance(0.8) else d.among(*FLOATS)))
    if d.chance(0.2):
        name = d.one("Tanh", name)
    return d.one("GridSample", x, name, **attributes)


MAKERS: dict[str, tuple[float, Maker]] = {"Resize": (2, resize), "GridSample": (1, grid_sample)}
