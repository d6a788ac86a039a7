"""Aligned memory that NumPy can see, in huge pages where it is large enough to gain from them.

Ordinary pages lie anywhere in physical memory: some of them share cache sets, others do not, and a kernel's speed
varies by several percent from one process to the next (measured: 5 % on products of 512² matrices). Within a huge page
addresses decide alone. Mappings are private: Linux gives no huge pages to shared ones by default, and a forked child
must not write into its parent's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.errors import UserError
from stormdrop.ir.tensor import Task
from stormdrop.target import ALIGN_BYTES

HUGE_BYTES = 2 << 20
HUGE_FROM_BYTES = 128 << 10


def aligned(nbytes: int, align: int = ALIGN_BYTES) -> NDArray[np.uint8]:
    """Zeroed bytes that start at a multiple of `align`."""
    if nbytes >= HUGE_FROM_BYTES and align <= HUGE_BYTES:
        return np.frombuffer(huge(nbytes), np.uint8)[:nbytes]
    raw = np.zeros(nbytes + align, np.uint8)
    start = -raw.ctypes.data % align
    return raw[start : start + nbytes]


def give_back() -> None:
    """Return to the system what was freed: glibc would keep it for later, and a model's raw weights are as large as its
    packed ones.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def huge(nbytes: int) -> memoryview[Any]:
    """At least so many zeroed bytes of their own pages, huge ones if the system gives them; they start where such a
    page may.

    Raises MemoryError.
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


def check_memory(task: Task) -> None:
    """Raises UserError for a task whose arrays alone are larger than this machine's memory."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if task.minimal_bytes > total:
        needed, present = (f"{n / (1 << 30):,.3g} GiB" for n in (task.minimal_bytes, total))
        raise UserError(
            f"the inputs and outputs of {task.name} need {needed}, and this machine has {present} of memory"
        )
