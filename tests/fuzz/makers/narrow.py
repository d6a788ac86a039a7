"""Numbers of 8 and 16 bits and unsigned ones: made, moved, computed with, quantised and multiplied."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.helper import np_dtype_to_tensor_dtype

from tests.fuzz.draft import Draft, Maker, Refused
from tests.fuzz.makers.arguments import affordable, drawn, fixed

INTEGERS = (np.uint8, np.int8, np.int16, np.uint16, np.uint32, np.uint64)
BYTES = (np.uint8, np.int8)
NARROW = (*INTEGERS, np.float16)
WIDE = (np.float32, np.float64, np.int32, np.int64)


def _code(dtype: Any) -> int:
    return np_dtype_to_tensor_dtype(np.dtype(dtype))


def _taken(d: Draft, dtypes: Any = NARROW, rank: int | None = None) -> str:
    return d.take(lambda: d.dims(rank, 3_000), dtypes, None if rank is not None else lambda s: len(s) <= 4)


def cast(d: Draft) -> str:
    """From any type to a narrow one, or back; the special values of floats saturate or become zero."""
    if d.chance(0.5):
        return d.one("Cast", _taken(d), to=_code(d.among(*WIDE, *NARROW, np.bool_)))
    return d.one("Cast", d.take(lambda: d.dims(None, 3_000), WIDE), to=_code(d.among(*NARROW)))


def move(d: Draft) -> str:
    x = _taken(d)
    rank = d.rank(x)
    match d.among("Transpose", "Concat", "Reshape", "Gather", "Pad", "Where"):
        case "Transpose" if rank:
            return d.one("Transpose", x, perm=[int(p) for p in d.rng.permutation(rank)])
        case "Concat" if rank:
            return d.one("Concat", x, d.value(d.shape(x), d.dtype(x)), axis=d.whole(0, rank - 1))
        case "Gather" if rank and d.shape(x)[0]:
            return d.one("Gather", x, d.within((3,), 0, d.shape(x)[0]), axis=0)
        case "Pad" if rank:
            pads = d.integers([d.whole(0, 2) for _ in range(2 * rank)])
            return d.one("Pad", x, pads, d.constant(np.array(3, d.dtype(x))))
        case "Where":
            return d.one("Where", d.value(d.shape(x), np.bool_), x, d.value(d.shape(x), d.dtype(x)))
        case _:
            return d.one("Reshape", x, d.integers([-1]))


def compute(d: Draft) -> str:
    """Integers wrap around; halves are rounded."""
    d.needs(14)
    x = _taken(d)
    op = d.among("Add", "Sub", "Mul", "Max", "Min", "Less", "Equal", "Greater")
    if d.dtype(x) == np.float16 and d.chance(0.4):
        return d.one(d.among("Relu", "Tanh", "Sigmoid", "Abs", "Neg", "Exp"), x)
    return d.one(op, x, d.value(d.shape(x), d.dtype(x)))


def halves(d: Draft) -> str:
    """A product of f16."""
    x = d.take(lambda: d.dims(2, 2_000), (np.float16,))
    rows, inner = d.shape(x)
    affordable(rows * inner * 16)
    w = d.rng.standard_normal((inner, d.dim(33))) / np.sqrt(max(1, inner))
    return d.one("MatMul", x, fixed(d, w.astype(np.float16)))


def _scale(d: Draft, *shape: int) -> str:
    return d.constant(d.rng.uniform(0.004, 0.09, shape).astype(np.float32))


def _zero(d: Draft, dtype: Any, *shape: int) -> str:
    return d.constant(drawn(d, shape, dtype) if d.chance(0.6) else np.zeros(shape, dtype))


def quantize(d: Draft) -> str:
    if d.special:
        raise Refused("ONNX does not say what NaN becomes")
    x = d.take(lambda: d.dims(None, 3_000), (np.float32,), lambda s: len(s) <= 4)
    return d.one("QuantizeLinear", x, _scale(d), _zero(d, d.among(*BYTES)))


def dequantize(d: Draft) -> str:
    x = _taken(d, BYTES)
    return d.one("DequantizeLinear", x, _scale(d), _zero(d, d.dtype(x)))


def product(d: Draft) -> str:
    """Of matrices of bytes: exact sums, requantised ones, or floats between dequantised numbers."""
    a = _taken(d, BYTES, 2)
    rows, inner = d.shape(a)
    if 0 in (rows, inner):
        raise Refused("nothing is summed")
    columns, of_b = d.dim(33), d.among(*BYTES)
    affordable(rows * inner * columns)
    b = fixed(d, drawn(d, (inner, columns), of_b))
    a_zero, b_zero, y_zero = _zero(d, d.dtype(a)), _zero(d, of_b), _zero(d, d.among(*BYTES))
    match d.among("sums", "requantised", "between floats"):
        case "sums":
            return d.one("MatMulInteger", a, b, a_zero, b_zero)
        case "requantised":
            return d.one("QLinearMatMul", a, _scale(d), a_zero, b, _scale(d), b_zero, _scale(d), y_zero)
        case _:
            left = d.one("DequantizeLinear", a, _scale(d), a_zero)
            right = d.one("DequantizeLinear", b, _scale(d), b_zero)
            y = d.one("MatMul", left, right)
            return d.one("QuantizeLinear", d.one("Relu", y) if d.chance(0.5) else y, _scale(d), y_zero)


def convolution(d: Draft) -> str:
    """Of an image of bytes: the border holds the zero point."""
    groups, per_group, outs, size = d.among(1, 1, 2, 5), d.among(1, 3, 8, 17), d.among(1, 2, 7, 16), d.among(3, 6, 9)
    kernel, stride, pad = d.among(1, 3), d.among(1, 1, 2), d.among(0, 1)
    of_x, of_w = d.among(*BYTES), d.among(*BYTES)
    x = d.input((d.among(1, 2), groups * per_group, size, size), of_x)
    w = fixed(d, drawn(d, (groups * outs, per_group, kernel, kernel), of_w))
    window: dict[str, Any] = {"group": groups, "strides": [stride] * 2, "pads": [pad] * 4}
    x_zero = _zero(d, of_x)
    if d.chance(0.3):
        return d.one("ConvInteger", x, w, x_zero, _zero(d, of_w), **window)
    each = [groups * outs] if d.chance(0.5) else []
    bias = [d.constant(d.rng.integers(-2000, 2000, groups * outs).astype(np.int32))] if d.chance(0.5) else []
    y_zero = _zero(d, d.among(*BYTES))
    of_weights = [_scale(d, *each), _zero(d, of_w, *each)]
    return d.one("QLinearConv", x, _scale(d), x_zero, w, *of_weights, _scale(d), y_zero, *bias, **window)


MAKERS: dict[str, tuple[float, Maker]] = {
    "narrow cast": (0.8, cast),
    "narrow movement": (0.8, move),
    "narrow arithmetic": (0.8, compute),
    "a product of halves": (0.4, halves),
    "QuantizeLinear": (0.6, quantize),
    "DequantizeLinear": (0.6, dequantize),
    "a quantised product": (0.6, product),
    "a quantised convolution": (0.6, convolution),
}
