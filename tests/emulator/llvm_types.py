"""LLVM's types, and the NumPy arrays that hold their values.

A value of a scalar type is an array with one element per thread, or a NumPy scalar if all threads have the same value;
a vector value is an array threads × lanes, or of lanes alone.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.emulator.faults import Unsupported

Array = NDArray[Any]

_DTYPES: dict[str, type[Any]] = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "half": np.float16,
    "float": np.float32,
    "double": np.float64,
    "ptr": np.int64,
}
FLOATS = ("half", "float", "double")


@dataclass(frozen=True)
class Type:
    """A scalar (`lanes` is 0), a vector, or a sequence of types in memory (`fields`): an array or a structure."""

    element: str
    lanes: int = 0
    space: int = 0
    """The address space of a pointer."""
    fields: tuple[Type, ...] = ()

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        if self.element in _DTYPES:
            return np.dtype(_DTYPES[self.element])
        if self.is_integer:
            # Narrow odd widths hold masks, zero-extended; wide ones are Python integers from 0 to 2^bits.
            return np.dtype(np.int64 if self.bits < 64 else object)
        raise Unsupported(f"a value of type {self.element}")

    @cached_property
    def is_integer(self) -> bool:
        return re.fullmatch(r"i\d+", self.element) is not None

    @cached_property
    def bits(self) -> int:
        return int(self.element[1:]) if self.is_integer else 8 * self.dtype.itemsize

    @cached_property
    def item_bytes(self) -> int:
        return self.dtype.itemsize

    @cached_property
    def nbytes(self) -> int:
        """In memory."""
        if self.element in ("array", "struct"):
            return sum(field.nbytes for field in self.fields)
        return self.item_bytes * max(1, self.lanes)

    @property
    def scalar(self) -> Type:
        return Type(self.element, 0, self.space)

    def zero(self) -> Any:
        return np.zeros(self.lanes, self.dtype) if self.lanes else self.dtype.type(0)

    def garbage(self) -> Any:
        """Of poison and of lanes that a shuffle does not define: NaN, or an unlikely integer."""
        value = (
            GARBAGE_FLOAT
            if self.element in FLOATS
            else self.element == "i1" or (0x5A5A5A5A % (1 << min(31, self.bits - 1)))
        )
        one = np.asarray(value).astype(self.dtype)
        return np.full(self.lanes, one) if self.lanes else one[()]

    def constant(self, value: float | int | bool) -> Any:
        """A scalar constant; integers wrap."""
        if self.dtype == object:
            return int(value) % (1 << self.bits)
        if self.is_integer and self.element != "i1":
            low = int(value) % (1 << self.bits)
            is_signed = self.element in _DTYPES and low >> (self.bits - 1)
            return self.dtype.type(low - (1 << self.bits) if is_signed else low)
        return self.dtype.type(value)


GARBAGE_FLOAT = float("nan")


def float_of_hex(text: str) -> float:
    """LLVM writes a float as the bits of the equal double."""
    return struct.unpack(">d", bytes.fromhex(text[2:].rjust(16, "0")))[0]
