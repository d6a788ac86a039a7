"""The caller's arrays: whether they are what a kernel or a model takes, memory for what it gives, random inputs.

Any memory layout is accepted: an input that is not C-contiguous and aligned is copied, an output that is not is written
through a copy. Shapes and types must be right; nothing is converted silently.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormdrop.errors import RunError, UserError
from stormdrop.ir.dtypes import FLOATS, NUMPY, Dtype, integer_range
from stormdrop.target import ALIGN_BYTES

Array = NDArray[Any]


class Described(Protocol):
    """What an array has to be; its repr names it in messages."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Dtype: ...
    @property
    def nbytes(self) -> int: ...


class NamedArray(Described, Protocol):
    """An array that is an input or output of something."""

    @property
    def name(self) -> str: ...


class Wanted(Protocol):
    """A port of a model, or a value of a graph."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Dtype: ...


_DTYPES = {name: np.dtype(kind) for name, kind in NUMPY.items()}


def checked(t: Described, value: ArrayLike) -> Array:
    """An array of the wanted shape and type, C-contiguous and aligned, copied only if it must be. Raises UserError."""
    array = value if isinstance(value, np.ndarray) else _array(t, value)
    _check_type(t, array, "input")
    try:
        return array if is_plain(array) else np.array(array, order="C", copy=True)
    except MemoryError as error:
        raise RunError(
            f"there is no memory for a copy of {t!r}: {t.nbytes:,} bytes; a C-contiguous array needs none"
        ) from error


def array_from(value: Any) -> Array:
    """An array as it is, of another library's memory in place (DLPack), else of numbers. Raises UserError."""
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    except (ValueError, TypeError, BufferError, RuntimeError) as error:
        raise UserError(f"is no array: {error}") from error


def _array(t: Described, value: Any) -> Array:
    try:
        return array_from(value)
    except UserError as error:
        raise UserError(f"input for {t!r} {error}") from error


def checked_outputs(wanted: Sequence[Described], out: Array | Sequence[Array], inputs: Sequence[Array]) -> list[Array]:
    """What `out=` gave. Raises UserError, also where an output overlaps an input or another output."""
    given: list[Any] = list(out) if isinstance(out, (list, tuple)) else [out]
    if len(given) != len(wanted):
        raise UserError(f"out= needs {len(wanted)} arrays, not {len(given)}")
    for t, o in zip(wanted, given):
        if not isinstance(o, np.ndarray):
            raise UserError(f"out= needs a NumPy array for {t!r}, not {type(o).__name__}")
        _check_type(t, o, "out")
        if not o.flags.writeable:
            raise UserError(f"out= for {t!r} is read-only")
        if any(np.may_share_memory(o, x) for x in inputs):
            raise UserError(f"out= for {t!r} overlaps an input; give it memory of its own")
    for k, o in enumerate(given):
        if any(np.may_share_memory(o, other) for other in given[:k]):
            raise UserError("two arrays of out= overlap")
    return given


def is_plain(a: Array) -> bool:
    """Whether native code can use it where it is."""
    flags = a.flags
    return flags.c_contiguous and flags.aligned


def address_of(a: Array) -> int:
    """Where its elements begin. `a.ctypes.data` says the same, in 1.9 µs instead of 0.3."""
    buffer: Any = a
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    except (TypeError, ValueError, BufferError):  # read-only, or without elements
        return a.ctypes.data


def new_array(t: Described) -> Array:
    """A new array on a cache line of its own, of any content.

    From the allocator: it keeps the pages it has, where a mapping of its own would be zeroed on every call.
    """
    return array_in(new_block(t), t)


def new_block(t: Described) -> Array:
    """Bytes that hold an array on a cache line of its own. Raises RunError."""
    try:
        return np.empty(t.nbytes + ALIGN_BYTES, np.uint8)
    except MemoryError as error:
        raise RunError(f"there is no memory for {t!r}: {t.nbytes:,} bytes") from error


def array_in(block: Array, t: Described) -> Array:
    """An array in a block of `new_block`."""
    return np.ndarray(t.shape, _DTYPES[t.dtype], block, -address_of(block) % ALIGN_BYTES)


def _check_type(t: Described, array: Array, what: str) -> None:
    if array.shape != t.shape:
        raise UserError(f"{what} for {t!r} has shape {array.shape}; it must be {t.shape}")
    dtype = _DTYPES[t.dtype]
    if array.dtype != dtype:
        is_swapped = array.dtype.newbyteorder("=") == dtype
        have = "foreign byte order" if is_swapped else f"type {array.dtype}"
        module = "ml_dtypes" if t.dtype == "bf16" else "np"
        raise UserError(f"{what} for {t!r} has {have}; use array.astype({module}.{dtype})")


def random_inputs(wanted: Iterable[Wanted], seed: int = 0) -> dict[str, Array]:
    """Floats are standard normal, numbers of 8 bits anything (images, quantised), other whole numbers 0 or 1 (which are
    in range wherever something is looked up); the same for a seed.
    """
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for v in wanted:
        if v.dtype in FLOATS:
            found[v.name] = rng.standard_normal(v.shape).astype(NUMPY[v.dtype])
        elif v.dtype in ("i8", "u8"):
            found[v.name] = rng.integers(*integer_range(v.dtype), v.shape, endpoint=True).astype(NUMPY[v.dtype])
        else:
            found[v.name] = rng.integers(0, 2, v.shape).astype(NUMPY[v.dtype])
    return found
