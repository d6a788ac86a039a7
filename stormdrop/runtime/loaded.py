"""A kernel in memory: loaded code, its packed constants, and the pointer table it is called with."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stormdrop.codegen import ENTRY, PREPARE
from stormdrop.codegen.llvm import Code
from stormdrop.ir.expr import NUMPY
from stormdrop.runtime.artifact import SLACK_BYTES, Artifact
from stormdrop.runtime.memory import aligned
from stormdrop.runtime.pool import Pool
from stormdrop.target.scope import Scope


def scratch_stride(scratch_bytes: int) -> int:
    """From one thread's scratch to the next one's."""
    return -(-scratch_bytes // 64) * 64 + SLACK_BYTES


def pack_constants(
    code: Code, artifact: Artifact, constants: Mapping[str, NDArray[np.generic]], places: Mapping[int, int], pool: Pool
) -> None:
    """Write a kernel's constants to `places`, the addresses of its kept buffers.

    Packed ones are written by the kernel itself, others copied.

    Raises ValueError for a constant of another size.
    """
    raw: dict[int, NDArray[np.generic]] = {}
    for k, buffer in enumerate(artifact.buffers):
        if buffer.scope is Scope.CONSTANT:
            raw[k] = np.ascontiguousarray(constants[buffer.name], dtype=NUMPY[buffer.dtype])
            if raw[k].size != buffer.elements:
                raise ValueError(f"constant {buffer.name} has {raw[k].size} elements; it must have {buffer.elements}")
    if artifact.prepare_extents:
        extents = np.array(artifact.prepare_extents, np.int64)
        table = (ctypes.c_void_p * len(artifact.buffers))()
        passing = {  # what is packed from and not kept: a Winograd filter before it is put in order
            k: aligned(buffer.nbytes)
            for k, buffer in enumerate(artifact.buffers)
            if buffer.scope is Scope.PACKED and not buffer.resident
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
        if artifact.buffers[k].is_kept:
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
        self._kept = {k: aligned(buffer.nbytes) for k, buffer in enumerate(artifact.buffers) if buffer.is_kept}
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
        self.table = (ctypes.c_void_p * max(1, len(artifact.buffers)))()
        self._held: list[NDArray[np.generic]] = []
        for k, address in kernel._fixed.items():
            self.table[k] = address
        for k, buffer in enumerate(artifact.buffers):
            if buffer.scope is Scope.WORKSPACE:
                block = aligned(buffer.nbytes)
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

    def bind(self, number: int, address: int) -> None:
        self.table[number] = address
