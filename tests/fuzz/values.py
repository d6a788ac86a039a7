"""Arrays of random data: tame, coarse (with many ties), widely spread, huge; with special values where they are asked
for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], special: bool) -> Array:
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < rng.choice([0.1, 0.5, 0.5, 0.9]))
    if dtype.kind in "iu":
        return _integers(rng, shape, dtype)
    if dtype == np.float16:
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    array = np.asarray(
        _floats(rng, shape).astype(dtype)
    )  # NumPy gives a scalar for no dimensions, onnxruntime takes arrays
    return _sprinkled(rng, array) if special else array


def _floats(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    match rng.choice(["normal", "normal", "normal", "coarse", "coarse", "wide", "positive", "unit"]):
        case "coarse":
            return np.asarray(rng.integers(-6, 7, shape)) * 0.5
        case "wide":
            return np.asarray(rng.standard_normal(shape)) * 2.0 ** rng.uniform(-20, 20, shape)
        case "positive":
            return np.abs(np.asarray(rng.standard_normal(shape))) + 0.01
        case "unit":
            return np.asarray(rng.uniform(-1, 1, shape))
        case _:
            return np.asarray(rng.standard_normal(shape))


def _integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    info = np.iinfo(dtype)
    match rng.choice(["small", "small", "small", "medium", "medium", "huge"]):
        case "small":
            return np.asarray(rng.integers(-5, 6, shape)).astype(dtype)
        case "medium":
            return np.asarray(rng.integers(-1000, 1001, shape)).astype(dtype)
        case _:
            anything = np.asarray(rng.integers(info.min, info.max, shape, dtype, endpoint=True))
            known = [info.min, info.min + 1, info.max, info.max - 1, 0, -1, 1, 2**24 + 1, 2**31 - 1, 2**24 + 3]
            known += [2**53 + 1, -(2**53) - 1]
            ends = np.array([v for v in known if info.min <= v <= info.max], dtype)
            return np.where(rng.random(shape) < 0.5, rng.choice(ends, shape).astype(dtype), anything).astype(dtype)


def _sprinkled(rng: np.random.Generator, array: Array) -> Array:
    info = np.finfo(array.dtype)
    some = [
        np.nan,
        np.inf,
        -np.inf,
        0.0,
        -0.0,
        info.smallest_subnormal,
        -info.smallest_normal / 2,
        info.max,
        -info.max,
        1.0,
        -1.0,
    ]
    some = some if rng.random() < 0.5 else [v for v in some if not np.isfinite(v) or abs(v) <= 1]
    mask = rng.random(array.shape) < rng.choice([0.05, 0.2, 0.6])
    return np.where(mask, rng.choice(np.array(some, array.dtype), array.shape), array).astype(array.dtype)
