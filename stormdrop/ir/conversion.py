"""Conversion of arrays to another element type: one rule for all arrays that callers pass.

    floats     to a wider type; f64 to f32, rounded to nearest, if every finite number stays finite
    integers   to any integer type that holds all numbers of the array

Callers write every other conversion themselves: the error shows the cast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.ir.dtypes import FLOATS, INTEGERS, NUMPY, PAIRS, Dtype, integer_range, is_exact

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
