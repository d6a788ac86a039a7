"""Memory for the output arrays of calls, reused by later calls once the arrays in it are garbage.

    memory = ResultMemory(model.outputs)
    arrays = memory.arrays()

The reason is that the allocator returns large blocks to the system when they are freed: always above 32 MB, smaller if
several are freed at once. The next call then pays a page fault for every 4 KiB that it writes (measured: four results
of 4 MiB, 1,010 faults a call). Here up to two blocks are kept for each output, since a caller usually holds the last
result while the next result is computed.

A block is free if its only reference is the reference in `ResultMemory`. The array in a block, and every view of that
array, hold a reference to the block itself.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from stormdrop.device.arrays import Array, Described, array_in, new_block

LEAST_BYTES = 128 << 10
"""Smaller arrays stay with the allocator, which keeps their pages."""


class ResultMemory:
    """Allocates one array for each description in `wanted`, again and again. Any thread may call its methods."""

    def __init__(self, wanted: Sequence[Described]) -> None:
        self._wanted = tuple(wanted)
        # by size in bytes: the number of blocks kept, and the blocks, free or in use
        self._most = {nbytes: 2 * count for nbytes, count in Counter(t.nbytes for t in wanted).items()}
        self._blocks: dict[int, deque[Array]] = {n: deque() for n in self._most if n >= LEAST_BYTES}

    def arrays(self) -> list[Array]:
        """Returns arrays without other references, with undefined contents. Raises RunError if there is no memory."""
        return [array_in(self._block(t), t) for t in self._wanted]

    def clear(self) -> None:
        """Drops all blocks, and keeps none from now on."""
        self._blocks = {}

    def _block(self, t: Described) -> Array:
        blocks = self._blocks.get(t.nbytes)
        if blocks is None:
            return new_block(t)
        for _ in range(len(blocks)):
            try:
                block = blocks.popleft()  # atomic: no two threads look at the same block
            except IndexError:
                break
            is_free = sys.getrefcount(block) <= _UNSHARED
            blocks.append(block)
            if is_free:  # the local reference marks it as taken until an array refers to it
                return block
        block = new_block(t)
        if len(blocks) < self._most[t.nbytes]:
            blocks.append(block)
        return block


def _count_unshared() -> int:
    """Returns the `sys.getrefcount` of a free block in `_block`. Measured, since interpreters count differently."""
    blocks = deque([np.empty(0, np.uint8)])
    block = blocks.popleft()
    return sys.getrefcount(block)


_UNSHARED = _count_unshared()
