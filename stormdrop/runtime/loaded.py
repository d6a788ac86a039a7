"""A kernel in memory: loaded code, its packed constants, and the pointer table it is called with."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stormdrop.codegen.emit import ENTRY, PREPARE
from stormdrop.codegen.llvm import Code
from stormdrop.ir.expr import ITEMSIZE, NUMPY
from stormdrop.runtime.artifact import Artifact
from stormdrop.runtime.memory import aligned
from stormdrop.runtime.pool import Pool

# Past the end of packed constants a whole vector may be read; between threads' scratch stands a line, against false sharing.
SLACK_BYTES = 512


class LoadedKernel:
    """Code with its constants packed; `run` takes the addresses of inputs and outputs.

    Working memory belongs to one call at a time: `call_memory` makes one set.
    """

    def __init__(self, artifact: Artifact, constants: Mapping[str, NDArray[np.generic]], pool: Pool) -> None:
        self.artifact, self.pool = artifact, pool
        self._code = Code(artifact.code)
        self.entry = self._code.address(ENTRY)
        self._memory: list[NDArray[np.generic]] = []
        self._extents = np.array(artifact.extents, np.int64)
        self.scratch_stride = -(-artifact.scratch_bytes // 64) * 64 + SLACK_BYTES
        self._fixed: dict[int, int] = {}
        held: dict[int, NDArray[np.generic]] = {}  # the caller's constants, needed until they are packed
        for k, slot in enumerate(artifact.slots):
            if slot.role == "constant":
                array = np.ascontiguousarray(constants[slot.name], dtype=NUMPY[slot.dtype])
                held[k] = array
                self._fixed[k] = array.ctypes.data
            elif slot.role == "packed":
                block = aligned(slot.elements * ITEMSIZE[slot.dtype] + SLACK_BYTES)
                self._memory.append(block)
                self._fixed[k] = block.ctypes.data
        if artifact.prepare_extents:
            self._prepare()
        for k, slot in enumerate(artifact.slots):
            if slot.role == "constant" and slot.resident:
                copy = np.array(held[k], copy=True)
                self._memory.append(copy)
                self._fixed[k] = copy.ctypes.data

    def _prepare(self) -> None:
        extents = np.array(self.artifact.prepare_extents, np.int64)
        table = (ctypes.c_void_p * len(self.artifact.slots))()
        for k, address in self._fixed.items():
            table[k] = address
        scratch = aligned(self.scratch_stride * self.pool.threads)
        entry = self._code.address(PREPARE)
        self.pool.run(entry, ctypes.addressof(table), scratch.ctypes.data, self.scratch_stride, extents.ctypes.data, len(extents))

    def call_memory(self) -> CallMemory:
        return CallMemory(self)

    def run(self, memory: CallMemory) -> None:
        self.pool.run(self.entry, *memory.arguments)

    def bench(self, memory: CallMemory, repeats: int) -> NDArray[np.float64]:
        """Seconds of each of `repeats` runs, timed natively."""
        return self.pool.bench(self.entry, *memory.arguments, repeats)


class CallMemory:
    """One call's pointer table and working memory."""

    def __init__(self, kernel: LoadedKernel) -> None:
        artifact = kernel.artifact
        self.table = (ctypes.c_void_p * max(1, len(artifact.slots)))()
        self._held: list[NDArray[np.generic]] = []
        for k, address in kernel._fixed.items():
            self.table[k] = address
        for k, slot in enumerate(artifact.slots):
            if slot.role == "shared":
                block = aligned(slot.elements * ITEMSIZE[slot.dtype] + SLACK_BYTES)
                self._held.append(block)
                self.table[k] = block.ctypes.data
        scratch = aligned(kernel.scratch_stride * kernel.pool.threads)
        self._held.append(scratch)
        self._extents = kernel._extents
        self.arguments = (
            ctypes.addressof(self.table), scratch.ctypes.data, kernel.scratch_stride, kernel._extents.ctypes.data, len(kernel._extents)
        )  # fmt: skip

    def bind(self, slot: int, address: int) -> None:
        self.table[slot] = address
