"""Memory of a call's results that later calls take again, once nobody holds the arrays in it.

    memory = ResultMemory(model.outputs)
    arrays = memory.arrays()

The allocator returns large blocks to the system when they are freed, more than 32 MB always and less where several are
freed at once; the next call then pays a page fault for every 4 KiB that it writes (measured: four results of 4 MiB,
1,010 faults a call). Here a block is kept, with room for two calls: a caller usually holds the last result while the
next one is computed.

A block is free when the reference kept here is the only one. Every array in it, and every view of such an array,
refers to the block itself.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from stormdrop.runtime.arrays import Array, Described, array_in, new_block

LEAST_BYTES = 128 << 10
"""Smaller arrays stay with the allocator, which keeps their pages."""


class ResultMemory:
    """Blocks for arrays as they are described. Any thread may call it."""

    def __init__(self, wanted: Sequence[Described]) -> None:
        self._wanted = tuple(wanted)
        self._most = {nbytes: 2 * count for nbytes, count in Counter(t.nbytes for t in wanted).items()}
        self._blocks: dict[int, deque[Array]] = {n: deque() for n in self._most if n >= LEAST_BYTES}

    def arrays(self) -> list[Array]:
        """New arrays of any content. Raises RunError where there is no memory."""
        return [array_in(self._block(t), t) for t in self._wanted]

    def clear(self) -> None:
        """Keep no block any longer."""
        self._blocks = {}

    def _block(self, t: Described) -> Array:
        blocks = self._blocks.get(t.nbytes)
        if blocks is None:
            return new_block(t)
        for _ in range(len(blocks)):
            try:
                block = blocks.popleft()  # atomic: another thread has it, or this one
            except IndexError:
                break
            is_free = sys.getrefcount(block) <= _UNSHARED
            blocks.append(block)
            if is_free:  # the name here keeps others from taking it before its array does
                return block
        block = new_block(t)
        if len(blocks) < self._most[t.nbytes]:
            blocks.append(block)
        return block


def _count_unshared() -> int:
    """What `sys.getrefcount` says of an array that one name refers to: interpreters count differently."""
    blocks = deque([np.empty(0, np.uint8)])
    block = blocks.popleft()
    return sys.getrefcount(block)


_UNSHARED = _count_unshared()
