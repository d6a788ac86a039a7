"""Aligned memory that NumPy can see, in huge pages if it is large enough to gain from them.

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
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
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
