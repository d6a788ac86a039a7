"""A kernel in memory: loaded code, its packed constants, and the pointer table it is called with."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stormdrop.codegen import ENTRY, PREPARE
from stormdrop.codegen.llvm import Code
from stormdrop.ir.expr import ITEMSIZE, NUMPY
from stormdrop.runtime.artifact import Artifact, Slot
from stormdrop.runtime.memory import aligned
from stormdrop.runtime.pool import Pool
from stormdrop.target.scope import Scope

# Past the end of packed constants a whole vector may be read; between threads' scratch stands a line, against false
# sharing.
SLACK_BYTES = 512


def slot_bytes(slot: Slot) -> int:
    """The memory that a slot's pointer must have behind it."""
    return slot.elements * ITEMSIZE[slot.dtype] + (SLACK_BYTES if slot.scope in (Scope.PACKED, Scope.WORKSPACE) else 0)


def scratch_stride(scratch_bytes: int) -> int:
    """From one thread's scratch to the next one's."""
    return -(-scratch_bytes // 64) * 64 + SLACK_BYTES


def is_kept(slot: Slot) -> bool:
    """Whether a slot points to constants while the kernel runs."""
    return slot.scope in (Scope.PACKED, Scope.CONSTANT) and slot.resident


def pack_constants(
    code: Code, artifact: Artifact, constants: Mapping[str, NDArray[np.generic]], places: Mapping[int, int], pool: Pool
) -> None:
    """Write a kernel's constants to `places`, the addresses of its kept slots: packed ones by the kernel itself, others
    as they are.

    Raises ValueError for a constant of another size.
    """
    raw: dict[int, NDArray[np.generic]] = {}
    for k, slot in enumerate(artifact.slots):
        if slot.scope is Scope.CONSTANT:
            raw[k] = np.ascontiguousarray(constants[slot.name], dtype=NUMPY[slot.dtype])
            if raw[k].size != slot.elements:
                raise ValueError(f"constant {slot.name} has {raw[k].size} elements; it must have {slot.elements}")
    if artifact.prepare_extents:
        extents = np.array(artifact.prepare_extents, np.int64)
        table = (ctypes.c_void_p * len(artifact.slots))()
        passing = {  # what is packed from and not kept: a Winograd filter before it is put in order
            k: aligned(slot_bytes(slot))
            for k, slot in enumerate(artifact.slots)
            if slot.scope is Scope.PACKED and not slot.resident
        }
        for k, address in (*places.items(), *((k, a.ctypes.data) for k, a in (*raw.items(), *passing.items()))):
            table[k] = address
        stride = scratch_stride(artifact.scratch_bytes)
        scratch = aligned(stride * pool.threads)
        pool.run(
            code.address(PREPARE),
            ctypes.addressof(table),
            scratch.ctypes.data,
            stride,
            extents.ctypes.data,
            len(extents),
        )
    for k, array in raw.items():
        if is_kept(artifact.slots[k]):
            ctypes.memmove(places[k], array.ctypes.data, array.nbytes)


class LoadedKernel:
    """Code with its constants packed; `run` takes the addresses of inputs and outputs.

    Working memory belongs to one call at a time: `call_memory` makes one set.
    """

    def __init__(self, artifact: Artifact, constants: Mapping[str, NDArray[np.generic]], pool: Pool) -> None:
        self.artifact, self.pool = artifact, pool
        self._code = Code(artifact.code)
        self.entry = self._code.address(ENTRY)
        self._extents = np.array(artifact.extents, np.int64)
        self.scratch_stride = scratch_stride(artifact.scratch_bytes)
        self._kept = {k: aligned(slot_bytes(slot)) for k, slot in enumerate(artifact.slots) if is_kept(slot)}
        self._fixed = {k: block.ctypes.data for k, block in self._kept.items()}
        pack_constants(self._code, artifact, constants, self._fixed, pool)

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
            if slot.scope is Scope.WORKSPACE:
                block = aligned(slot_bytes(slot))
                self._held.append(block)
                self.table[k] = block.ctypes.data
        scratch = aligned(kernel.scratch_stride * kernel.pool.threads)
        self._held.append(scratch)
        self._extents = kernel._extents
        self.arguments = (
            ctypes.addressof(self.table),
            scratch.ctypes.data,
            kernel.scratch_stride,
            kernel._extents.ctypes.data,
            len(kernel._extents),
        )

    def bind(self, slot: int, address: int) -> None:
        self.table[slot] = address
