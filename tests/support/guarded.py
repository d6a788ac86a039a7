"""Memory whose ends are known: arrays flush against a page that nobody may touch, everything else a known byte.

A read or write beyond such a page kills the process; a write anywhere else outside the array changes a known byte.
"""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.expr import ITEMSIZE, NUMPY
from stormdrop.ir.shape import row_strides
from stormdrop.ir.tensor import Tensor
from stormdrop.lower.program import View

Array = NDArray[Any]
PAGE = mmap.PAGESIZE
POISON = 0xFF
"""Every float made of this byte is NaN."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


@dataclass(slots=True)
class Block:
    """Pages between two inaccessible ones."""

    pages: mmap.mmap
    data: NDArray[np.uint8]

    @staticmethod
    def of(nbytes: int) -> Block:
        pages = mmap.mmap(-1, nbytes + 2 * PAGE)
        everything = np.frombuffer(pages, np.uint8)
        for at in (0, PAGE + nbytes):
            if _libc.mprotect(everything.ctypes.data + at, PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect failed")
        return Block(pages, everything[PAGE : PAGE + nbytes])


class Arena:
    """Blocks by size, taken for one run and all given back by `reset`."""

    def __init__(self) -> None:
        self._free: dict[int, list[Block]] = {}
        self._taken: list[Block] = []

    def take(self, nbytes: int) -> Block:
        size = PAGE
        while size < nbytes:
            size *= 2
        free = self._free.setdefault(size, [])
        block = free.pop() if free else Block.of(size)
        self._taken.append(block)
        block.data.fill(POISON)
        return block

    def reset(self) -> None:
        for block in self._taken:
            self._free[len(block.data)].append(block)
        self._taken = []

    def aligned(self, nbytes: int, align: int, at_end: bool) -> NDArray[np.uint8]:
        """As `device.arrays.aligned`, poisoned instead of zeroed, against the page behind or before it."""
        data = self.take(nbytes).data
        start = (len(data) - nbytes) // align * align if at_end else 0
        return data[start : start + nbytes]


@dataclass(slots=True)
class Bound:
    """One array as a kernel sees it: `address` is where its view's offset counts from."""

    array: Array
    address: int
    around: NDArray[np.uint8]
    before: NDArray[np.uint8] | None = None

    @property
    def origin(self) -> Array:
        """A byte at `address`, for a recording to be bound to. It may lie outside the memory: do not touch it."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * 1).from_address(self.address))

    def remember(self) -> None:
        self.before = self.around.copy()

    def is_untouched(self) -> bool:
        return self.before is not None and np.array_equal(self.around, self.before)

    def gaps_are_untouched(self) -> bool:
        """Whether nothing changed but the array itself."""
        assert self.before is not None
        now = self.around.copy()
        view = np.ndarray(self.array.shape, self.array.dtype, now.data, self._start(), self.array.strides)
        was = np.ndarray(self.array.shape, self.array.dtype, self.before.data, self._start(), self.array.strides)
        view[...] = was
        return np.array_equal(now, self.before)

    def _start(self) -> int:
        return self.array.ctypes.data - self.around.ctypes.data


def bind(arena: Arena, t: Tensor, view: View | None, at_end: bool) -> Bound:
    """Memory for a tensor seen through a view: its outermost element touches the page behind it or before it."""
    view = view or View(row_strides(t.shape))
    item = ITEMSIZE[t.dtype]
    moves = [(n - 1) * s for n, s in zip(t.shape, view.strides)]
    low, high = sum(min(0, m) for m in moves), sum(max(0, m) for m in moves)
    nbytes = (high - low + 1) * item
    block = arena.take(nbytes)
    start = len(block.data) - nbytes if at_end else 0
    first = start - low * item
    strides = tuple(s * item for s in view.strides)
    array = np.ndarray(t.shape, NUMPY[t.dtype], block.data.data, first, strides)
    return Bound(array, block.data.ctypes.data + first - view.offset * item, block.data)
