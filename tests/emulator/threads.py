"""The threads that run together: who they are, and which of them take part in an instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.emulator.llvm_types import Array
from tests.emulator.memory import Memory

WARP = 32
Mask = NDArray[np.bool_] | None
"""Which threads take part; None: all."""


class Threads:
    """Some threads of some blocks, in order of block and thread; whole warps."""

    def __init__(self, memory: Memory, first_block: int, blocks: int, in_block: Array, block_size: int) -> None:
        """Of `blocks` blocks from `first_block` on, the threads `in_block`."""
        per_block = len(in_block)
        position = np.repeat(np.arange(blocks), per_block)
        self.count = blocks * per_block
        self.block_size = block_size
        self.in_block = np.tile(in_block, blocks).astype(np.int32)
        self.block = (first_block + position).astype(np.int32)
        self.number = self.block.astype(np.int64) * block_size + self.in_block
        """In the whole launch."""
        self.position = position
        """Of the block among those that run together."""
        self.shared_base = memory.shared_start + position.astype(np.int64) * memory.shared_stride
        self.shared_owner = (-1 - position).astype(np.int32)
        self.lane = self.in_block % WARP
        self.warp_start = np.arange(self.count) - self.lane
        """The position of the warp's first thread in these arrays."""
        self.warp_size = np.minimum(WARP, block_size - (self.in_block - self.lane))


class Frame:
    """One activation of a function by some threads: their registers, and the present mask."""

    def __init__(self, threads: Threads, slots: int) -> None:
        self.threads = threads
        self.regs: list[Any] = [None] * slots
        self.mask: Mask = None
        self._lanes: Array | None = None

    def narrow(self, mask: Mask) -> None:
        self.mask, self._lanes = mask, None

    @property
    def lanes(self) -> Array | None:
        """The positions of the threads that take part; None: all."""
        if self.mask is not None and self._lanes is None:
            self._lanes = np.nonzero(self.mask)[0]
        return self._lanes

    def put(self, slot: int, value: Any, is_vector: bool) -> None:
        """Set a register; threads that do not take part keep theirs."""
        old = self.regs[slot]
        if self.mask is not None and old is not None:
            value = np.where(self.mask[:, None] if is_vector else self.mask, value, old)
        self.regs[slot] = value
