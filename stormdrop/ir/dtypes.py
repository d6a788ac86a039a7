"""Element types: their sizes, their NumPy types, the range of the integers, and the conversion of arrays.

`f16` and `bf16`, the halves, are stored, moved and chosen; they are computed with as `f32`, and only between them and
`f32` are values cast. Integers are computed with in their own type, modulo 2^bits. The pairs `bf16x2` and `i16x2` exist
only inside loop programs, as operands of dot products.

One rule converts (`converted`) all arrays that callers pass:

    floats     to a wider type; f64 to f32, rounded to nearest, if every finite number stays finite
    integers   to any integer type that holds all numbers of the array

Callers write every other conversion themselves: the error shows the cast.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import UserError

Dtype = Literal[
    "f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "bf16x2", "i16x2"
]

NUMPY: dict[Dtype, type[np.generic]] = {
    "f32": np.float32,
    "f64": np.float64,
    "i32": np.int32,
    "i64": np.int64,
    "bool": np.bool_,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "i8": np.int8,
    "i16": np.int16,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "bf16x2": np.uint32,
    "i16x2": np.uint32,
}
ITEMSIZE: dict[Dtype, int] = {dtype: np.dtype(kind).itemsize for dtype, kind in NUMPY.items()}
HALVES: tuple[Dtype, ...] = ("f16", "bf16")
FLOATS: tuple[Dtype, ...] = ("f32", "f64", *HALVES)
SIGNED: tuple[Dtype, ...] = ("i8", "i16", "i32", "i64")
UNSIGNED: tuple[Dtype, ...] = ("u8", "u16", "u32", "u64")
INTEGERS: tuple[Dtype, ...] = (*SIGNED, *UNSIGNED)
PAIRS: tuple[Dtype, ...] = ("bf16x2", "i16x2")
ACCUMULATOR: dict[Dtype, Dtype] = {"f16": "f32", "bf16": "f32", "i16": "i32"}
"""The type in which products of two numbers of a narrow type are exact and summed. Absent types use themselves."""


DtypeLike = Dtype | str | type | np.dtype[np.generic]
"""An element type by its name here, by NumPy's name, or as a NumPy type: "f32", "float32", np.float32."""


def dtype_of(value: object) -> Dtype:
    """Returns the element type of a `DtypeLike`. Raises UserError if the value names no supported type."""
    if isinstance(value, str) and value in NUMPY:
        return value
    with suppress(TypeError):
        wanted = np.dtype(value).type if value is not None else None  # pyright: ignore[reportArgumentType, reportCallIssue]
        for name, kind in NUMPY.items():
            if name not in PAIRS and wanted is kind:
                return name
    known = ", ".join(name for name in NUMPY if name not in PAIRS)
    raise UserError(f"unknown element type {value!r}; known: {known}, and NumPy's names and types of them")


def integer_range(dtype: Dtype) -> tuple[int, int]:
    """Returns the least and the largest value of an integer type."""
    bits = 8 * ITEMSIZE[dtype]
    return (0, 2**bits - 1) if dtype in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def wrapped(value: int, dtype: Dtype) -> int:
    """Returns an integer modulo 2^bits of its type, in two's complement."""
    if dtype == "bool":
        return value
    low, high = integer_range(dtype)
    return (value - low) % (high - low + 1) + low


def is_exact(source: Dtype, to: Dtype) -> bool:
    """Returns whether every value of type `source` is a value of type `to`."""
    if source == to or source == "bool":
        return True
    if source in FLOATS:
        return to == "f64" or (to == "f32" and source in HALVES)
    low, high = integer_range(source)
    if to in FLOATS:
        return max(-low, high) <= _WHOLE[to]
    return to != "bool" and integer_range(to)[0] <= low and high <= integer_range(to)[1]


_WHOLE: dict[Dtype, int] = {"f64": 2**53, "f32": 2**24, "f16": 2**11, "bf16": 2**8}
"""The largest n per float type such that all integers up to n are numbers of the type."""


Array = NDArray[Any]
DTYPES: dict[np.dtype[Any], Dtype] = {np.dtype(kind): dtype for dtype, kind in NUMPY.items() if dtype not in PAIRS}


def converted(array: Array, dtype: Dtype, is_own: bool = True) -> Array:
    """Returns the array itself if it has the element type `dtype`, else a C-contiguous array of this type.

    Raises UserError, "has type …; use …", where the caller must cast. `is_own=False` means that the caller passed a
    list.
    """
    kind = np.dtype(NUMPY[dtype])
    if array.dtype == kind:
        return array
    have = f"type {array.dtype}"
    if array.dtype.newbyteorder("=") == kind:
        have = "foreign byte order"
    source = DTYPES.get(array.dtype)
    if source in FLOATS and dtype in FLOATS:
        if is_exact(source, dtype):
            return array.astype(kind, order="C")
        if (source, dtype) == ("f64", "f32"):
            with np.errstate(over="ignore"):
                rounded = array.astype(kind, order="C")
            if np.array_equal(np.isinf(rounded), np.isinf(array)):
                return rounded
            have += f" and a finite number beyond {kind}"
    elif source in INTEGERS and dtype in INTEGERS:
        low, high = integer_range(dtype)
        if is_exact(source, dtype) or not array.size or low <= int(array.min()) <= int(array.max()) <= high:
            return array.astype(kind, order="C")
        have += f" and a number beyond {kind}"
    raise UserError(f"has {have}; use {cast_text(dtype, is_own)}")


def cast_text(dtype: Dtype, is_own: bool = True) -> str:
    """Returns the Python expression that converts an array `x` to this element type: `x.astype(np.float32)`."""
    name = type_text(dtype)
    return f"x.astype({name})" if is_own else f"np.asarray(x, {name})"


def type_text(dtype: Dtype) -> str:
    """Returns the NumPy type as code: np.float32."""
    return f"{'ml_dtypes' if dtype == 'bf16' else 'np'}.{NUMPY[dtype].__name__}"
