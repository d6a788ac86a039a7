"""Operators that make elements of shapes and numbers, not of data."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike
from onnx import numpy_helper

from tests.fuzz.draft import TYPES, Draft, Maker
from tests.fuzz.makers.arguments import INT64, anything, drawn, sometimes


def _code(dtype: DTypeLike) -> int:
    return {"float32": 1, "float64": 11, "int32": 6, "int64": 7, "bool": 9}[np.dtype(dtype).name]


def eye_like(d: Draft) -> str:
    x = anything(d, 2, 2)
    attributes = sometimes(d, 0.5, dtype=_code(d.type_among(TYPES))) | sometimes(d, 0.6, k=d.whole(-4, 4))
    return d.one("EyeLike", x, **attributes)


def _of_shape(d: Draft) -> str:
    """A shape: a constant, or the shape of a value."""
    return d.one("Shape", anything(d)) if d.chance(0.3) else d.integers(d.dims(most=5_000))


def constant_of_shape(d: Draft) -> str:
    dtype = d.type_among(TYPES)
    value = numpy_helper.from_array(drawn(d, (1,), dtype))
    return d.one("ConstantOfShape", _of_shape(d), **sometimes(d, 0.8, value=value))


def constant(d: Draft) -> str:
    match d.among("value", "value", "value_float", "value_floats", "value_int", "value_ints"):
        case "value":
            array = drawn(d, d.dims(most=500), d.type_among(TYPES))
            return d.one("Constant", value=numpy_helper.from_array(array))
        case "value_float":
            return d.one("Constant", value_float=float(np.float32(d.rng.standard_normal())))
        case "value_floats":
            return d.one("Constant", value_floats=[float(np.float32(v)) for v in d.rng.standard_normal(d.whole(1, 9))])
        case "value_int":
            return d.one("Constant", value_int=d.among(0, -3, 7, INT64.max, INT64.min, 2**53 + 1))
        case _:
            return d.one("Constant", value_ints=[d.among(d.whole(-9, 9), INT64.min) for _ in range(d.whole(1, 9))])


def counted(d: Draft) -> str:
    """Range, with numbers that float types hold exactly: the sum of start and steps then has one value."""
    dtype = d.among(np.float32, np.float64, np.int32, np.int64)
    steps, delta = d.whole(0 if d.empties else 1, 40), d.among(1, 1, 2, 3, -1, -2, -7)
    start = d.among(0, 0, d.whole(-50, 50), 2**40 if dtype == np.int64 else 1000)
    limit = start + steps * delta - (d.whole(0, abs(delta) - 1) * (1 if delta > 0 else -1) if steps else 0)
    unit = 0.25 if np.dtype(dtype).kind == "f" and d.chance(0.6) else 1
    inputs = [d.constant(np.array(v * unit, dtype)) for v in (start, limit, delta)]
    return d.one("Range", *inputs)


def shape(d: Draft) -> str:
    x = anything(d)
    bound = d.rank(x) + 2
    attributes = sometimes(d, 0.5, start=d.whole(-bound, bound), end=d.whole(-bound, bound)) if d.opset >= 15 else {}
    return d.one("Shape", x, **attributes)


def size(d: Draft) -> str:
    return d.one("Size", anything(d))


def non_zero(d: Draft) -> str:
    """Of a constant: the number of elements decides a shape."""
    array = drawn(d, d.dims(d.among(0, 1, 1, 1, 2, 2, 3), 200), d.type_among(TYPES))
    return d.one("NonZero", d.constant(array))


MAKERS: dict[str, tuple[float, Maker]] = {
    "EyeLike": (0.3, eye_like),
    "ConstantOfShape": (0.4, constant_of_shape),
    "Constant": (0.3, constant),
    "Range": (0.3, counted),
    "Shape": (0.4, shape),
    "Size": (0.3, size),
    "NonZero": (0.3, non_zero),
}
