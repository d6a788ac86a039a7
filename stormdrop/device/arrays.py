"""The caller's arrays: checks of inputs and outputs, memory for results, random inputs.

Any memory layout is accepted: an input that is not C-contiguous and aligned is copied, and such an output is written
through a copy. Shapes must be right. Types must be right too, but for an input that `ir.dtypes` converts.

Aligned memory that NumPy can see, in huge pages if it is large enough to gain from them.

Ordinary pages share cache sets by chance, so a kernel's speed varies from one process to the next (measured: 5 % on
products of 512² matrices). Mappings are private: Linux gives no huge pages to shared mappings by default, and a forked
child must not write into its parent's.

On a machine with several NUMA nodes, blocks are interleaved over the nodes of the threads that use them. First touch
would put all weights on one node.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormdrop.base.errors import RunError, UserError
from stormdrop.ir.dtypes import FLOATS, NUMPY, Dtype, converted, integer_range, type_text
from stormdrop.ir.tensor import Task
from stormdrop.target import ALIGN_BYTES

HUGE_BYTES = 2 << 20
HUGE_FROM_BYTES = 128 << 10

_MBIND = {"x86_64": 237, "aarch64": 235}  # system calls, by platform.machine() on Linux
_MPOL_INTERLEAVE, _MPOL_MF_MOVE = 3, 2


def aligned(nbytes: int, align: int = ALIGN_BYTES) -> NDArray[np.uint8]:
    """Returns zeroed bytes that start at a multiple of `align`."""
    if nbytes >= HUGE_FROM_BYTES and align <= HUGE_BYTES:
        return np.frombuffer(huge(nbytes), np.uint8)[:nbytes]
    raw = np.zeros(nbytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes]


def give_back() -> None:
    """Returns freed memory to the system: glibc would keep it, and a model's raw weights are as large as its packed
    weights.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def huge(nbytes: int) -> memoryview[Any]:
    """Returns at least `nbytes` zeroed bytes of their own pages, huge pages if the system gives them.

    The bytes start at a boundary of huge pages. Raises MemoryError.
    """
    size = -(-nbytes // HUGE_BYTES) * HUGE_BYTES
    try:
        pages = mmap.mmap(-1, size + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        raise MemoryError(f"{nbytes} bytes cannot be had: {error}") from error
    start = -np.frombuffer(pages, np.uint8).ctypes.data % HUGE_BYTES
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE, start, size)
    return memoryview(pages)[start : start + size]


def interleave(block: NDArray[np.uint8], nodes: Sequence[int]) -> bool:
    """Spreads the huge pages of a block of `aligned` over NUMA nodes, also pages in use; does nothing without huge
    pages.

    Returns whether the system did it: it may have no NUMA support, and containers often forbid the call.
    """
    number = _MBIND.get(platform.machine())
    if not nodes or number is None or block.nbytes < HUGE_FROM_BYTES or block.ctypes.data % HUGE_BYTES:
        return False
    words = (ctypes.c_ulong * (max(nodes) // 64 + 1))()
    for node in nodes:
        words[node // 64] |= 1 << node % 64
    nbytes = -(-block.nbytes // HUGE_BYTES) * HUGE_BYTES  # of its mapping, which nothing else uses
    most = 64 * len(words) + 1  # the kernel takes one off
    return not _system_call()(
        number, block.ctypes.data, nbytes, _MPOL_INTERLEAVE, ctypes.addressof(words), most, _MPOL_MF_MOVE
    )


@cache
def _system_call() -> Any:
    call = ctypes.CDLL(None).syscall
    call.restype, call.argtypes = ctypes.c_long, [ctypes.c_long] * 7
    return call


def check_memory(task: Task) -> None:
    """Raises UserError for a task whose arrays alone are larger than this machine's memory."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if task.minimal_bytes > total:
        needed, present = (f"{n / (1 << 30):,.3g} GiB" for n in (task.minimal_bytes, total))
        raise UserError(
            f"the inputs and outputs of {task.name} need {needed}, and this machine has {present} of memory"
        )


Array = NDArray[Any]


class Typed(Protocol):
    """The shape and type of an array."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> Dtype: ...


class Described(Typed, Protocol):
    """The required properties of an array; its repr names it in messages."""

    @property
    def nbytes(self) -> int: ...


class Wanted(Typed, Protocol):
    """A port of a model, or a value of a graph."""

    @property
    def name(self) -> str: ...


class NamedArray(Described, Wanted, Protocol):
    """An array that is an input or output of something."""


_DTYPES = {name: np.dtype(kind) for name, kind in NUMPY.items()}


def checked(t: Described, value: ArrayLike) -> Array:
    """Returns an array of the wanted shape and type, C-contiguous and aligned; copied and converted only if needed.

    Raises UserError.
    """
    array = value if isinstance(value, np.ndarray) else _array(t, value)
    _check_shape(t, array, "input")
    try:
        if array.dtype != _DTYPES[t.dtype]:
            return _converted(t, array, array is value)
        return array if is_plain(array) else np.array(array, order="C", copy=True)
    except MemoryError as error:
        raise RunError(
            f"there is no memory for a copy of {t!r}: {t.nbytes:,} bytes; a C-contiguous array needs none"
        ) from error


def array_from(value: Any) -> Array:
    """Returns an array unchanged, another library's memory in place (DLPack), or numbers as an array. Raises
    UserError.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    except (ValueError, TypeError, BufferError, RuntimeError) as error:
        raise UserError(f"is no array: {error}") from error


def _converted(t: Described, array: Array, is_own: bool) -> Array:
    try:
        return converted(array, t.dtype, is_own)
    except UserError as error:
        raise UserError(f"input for {t!r} {error}") from error


def _array(t: Described, value: Any) -> Array:
    try:
        return array_from(value)
    except UserError as error:
        raise UserError(f"input for {t!r} {error}") from error


def checked_outputs(wanted: Sequence[Described], out: Array | Sequence[Array], inputs: Sequence[Array]) -> list[Array]:
    """Returns the arrays of `out=`. Raises UserError, also if an output overlaps an input or another output."""
    given: list[Any] = list(out) if isinstance(out, (list, tuple)) else [out]
    if len(given) != len(wanted):
        raise UserError(f"out= needs {len(wanted)} arrays, not {len(given)}")
    for t, o in zip(wanted, given):
        if not isinstance(o, np.ndarray):
            raise UserError(f"out= needs a NumPy array for {t!r}, not {type(o).__name__}")
        _check_shape(t, o, "out")
        if o.dtype != _DTYPES[t.dtype]:
            raise UserError(f"out for {t!r} has type {o.dtype}; give np.empty({t.shape}, {type_text(t.dtype)})")
        if not o.flags.writeable:
            raise UserError(f"out= for {t!r} is read-only")
        if any(np.may_share_memory(o, x) for x in inputs):
            raise UserError(f"out= for {t!r} overlaps an input; give it memory of its own")
    for k, o in enumerate(given):
        if any(np.may_share_memory(o, other) for other in given[:k]):
            raise UserError("two arrays of out= overlap")
    return given


def copied_out(out: Array | Sequence[Array] | None, results: list[Any]) -> list[Any]:
    """Copies results into the arrays of `out=`, if there are any, and returns the caller's arrays. Raises UserError."""
    if out is None:
        return results
    targets: list[Any] = list(out) if isinstance(out, (list, tuple)) else [out]
    if len(targets) != len(results):
        raise UserError(f"out= needs {len(results)} arrays, not {len(targets)}")
    for target, array in zip(targets, results):
        if not isinstance(target, np.ndarray) or (target.shape, target.dtype) != (array.shape, array.dtype):
            raise UserError(f"out= needs an array {array.dtype}{list(array.shape)}")
        target[...] = array
    return targets


def is_plain(a: Array) -> bool:
    """Returns whether native code can use the array in place."""
    flags = a.flags
    return flags.c_contiguous and flags.aligned


def address_of(a: Array) -> int:
    """Returns the address of the first element. `a.ctypes.data` is equal, but takes 1.9 µs instead of 0.3."""
    buffer: Any = a
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    except (TypeError, ValueError, BufferError):  # read-only, or without elements
        return a.ctypes.data


def new_array(t: Described) -> Array:
    """Returns a new array on a cache line of its own, of any content.

    Its memory comes from the allocator, which keeps its pages; a mapping of its own would be zeroed on every call.
    """
    return array_in(new_block(t), t)


def new_block(t: Described) -> Array:
    """Returns bytes that hold an array on a cache line of its own. Raises RunError."""
    try:
        return np.empty(t.nbytes + ALIGN_BYTES, np.uint8)
    except MemoryError as error:
        raise RunError(f"there is no memory for {t!r}: {t.nbytes:,} bytes") from error


def array_in(block: Array, t: Described) -> Array:
    """Returns an array in a block of `new_block`."""
    return np.ndarray(t.shape, _DTYPES[t.dtype], block, -address_of(block) % ALIGN_BYTES)


def _check_shape(t: Described, array: Array, what: str) -> None:
    if array.shape != t.shape:
        raise UserError(f"{what} for {t!r} has shape {array.shape}; it must be {t.shape}")


def random_array(t: Typed, rng: np.random.Generator, bounds: tuple[int, int], is_wide: bool = False) -> Array:
    """Returns standard normal floats, or integers of which `bounds` are the least and the largest.

    If `is_wide`, numbers are drawn as float64 or int64 and converted: other numbers, in more time and memory.
    """
    kind = NUMPY[t.dtype]
    if t.dtype in FLOATS:
        drawn = rng.standard_normal(t.shape, np.float64 if is_wide or t.dtype == "f64" else np.float32)
    else:
        drawn = rng.integers(*bounds, t.shape, np.int64 if is_wide else kind, endpoint=True)
    return drawn.astype(kind, copy=False)


def random_inputs(
    wanted: Iterable[Wanted], seed: int = 0, ranges: Mapping[str, tuple[int, int]] = MappingProxyType({})
) -> dict[str, Array]:
    """Returns standard normal floats, and integers between the two numbers that `ranges` has for an input.

    Without a range, integers of 8 bits take all values (images, quantised numbers), and other integers are 0 or 1.
    Arrays are the same for equal seeds and ranges.
    """
    rng = np.random.default_rng(seed)
    usual = {dtype: integer_range(dtype) for dtype in ("i8", "u8")}
    return {v.name: random_array(v, rng, ranges.get(v.name) or usual.get(v.dtype, (0, 1)), True) for v in wanted}
