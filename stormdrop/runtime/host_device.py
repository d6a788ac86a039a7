"""This machine as a device: the process's memory, and a pool of threads.

A recording is one list of steps for the pool (`pool_ir`) and one table of pointers, in which the tables of all its
calls follow each other. Only the entries of the caller's arrays change between runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import TypeVar

import numpy as np

from stormdrop.codegen import ENTRY, PREPARE
from stormdrop.codegen.llvm import Code
from stormdrop.ir.expr import NUMPY
from stormdrop.runtime.arrays import address_of
from stormdrop.runtime.artifact import SLACK_BYTES, Artifact
from stormdrop.runtime.device import Array, BoundCall, Bytes, InputArray, OutputArray, Place, Seconds
from stormdrop.runtime.memory import aligned
from stormdrop.runtime.pool import Pool, shared_pool
from stormdrop.runtime.pool_ir import STEP_WORDS
from stormdrop.target import ALIGN_BYTES
from stormdrop.target.scope import Scope

T = TypeVar("T")


def scratch_stride(scratch_bytes: int) -> int:
    """From one thread's scratch to the next one's."""
    return -(-scratch_bytes // 64) * 64 + SLACK_BYTES


class HostMemory:
    """Memory of this process."""

    def __init__(self, block: Bytes) -> None:
        self.block, self.address, self.nbytes = block, block.ctypes.data, block.nbytes

    def write(self, offset: int, data: Bytes) -> None:
        self.block[offset : offset + data.nbytes] = data

    def read(self, offset: int, nbytes: int) -> Bytes:
        """A view."""
        return self.block[offset : offset + nbytes]


class HostDevice:
    """The threads of one pool, and all memory of the process."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def allocate(self, nbytes: int) -> HostMemory:
        return HostMemory(aligned(nbytes))

    def adopt(self, data: Bytes) -> HostMemory:
        if data.flags.c_contiguous and data.ctypes.data % ALIGN_BYTES == 0:
            return HostMemory(data)
        copy = self.allocate(data.nbytes)
        copy.write(0, data)
        return copy

    def load(self, artifact: Artifact) -> HostKernel:
        return HostKernel(artifact, self)

    def record(self, calls: Sequence[BoundCall]) -> HostRecording:
        return HostRecording(calls, self)

    def scratch(self, scratch_bytes: int) -> tuple[HostMemory, int]:
        """Scratch for every thread, and the bytes from one thread's to the next one's."""
        stride = scratch_stride(scratch_bytes)
        return self.allocate(stride * self.pool.threads), stride


@cache
def host_device(threads: int) -> HostDevice:
    """The process's device with so many threads."""
    return HostDevice(shared_pool(threads))


class HostKernel:
    """Code in this process."""

    def __init__(self, artifact: Artifact, device: HostDevice) -> None:
        self.artifact, self._device = artifact, device
        self.code = Code(artifact.code)
        self.entry = self.code.address(ENTRY)
        self.extents = np.array(artifact.extents, np.int64)

    def prepare(self, constants: Mapping[str, Array], places: Sequence[Place | None]) -> None:
        buffers = self.artifact.buffers
        table = np.zeros(len(buffers), np.int64)
        held: list[Array | HostMemory] = []
        for k, (buffer, place) in enumerate(zip(buffers, places)):
            if buffer.scope is Scope.CONSTANT:
                raw = np.ascontiguousarray(constants[buffer.name], dtype=NUMPY[buffer.dtype])
                if raw.size != buffer.elements:
                    raise ValueError(f"constant {buffer.name} has {raw.size} elements; it must have {buffer.elements}")
                table[k] = raw.ctypes.data
                held.append(raw)
                if buffer.is_kept and place is not None:
                    place.memory.write(place.offset, raw.reshape(-1).view(np.uint8))
            elif buffer.is_kept and place is not None:
                table[k] = _address(place)
            elif buffer.scope is Scope.PACKED:  # read by other phases at load: a Winograd filter before it is packed
                passing = self._device.allocate(buffer.nbytes)
                table[k] = passing.address
                held.append(passing)
        extents = np.array(self.artifact.prepare_extents, np.int64)
        if len(extents):
            scratch, stride = self._device.scratch(self.artifact.scratch_bytes)
            self._device.pool.run(
                self.code.address(PREPARE),
                table.ctypes.data,
                scratch.address,
                stride,
                extents.ctypes.data,
                len(extents),
            )
        del held  # native code read it until here


class HostRecording:
    """Steps for the pool, and their pointers."""

    def __init__(self, calls: Sequence[BoundCall], device: HostDevice) -> None:
        kernels = [_own(call.kernel, HostKernel) for call in calls]
        most = max((kernel.artifact.scratch_bytes for kernel in kernels), default=0)
        scratch, stride = device.scratch(most)
        pointers: list[int] = []
        self._inputs: dict[int, list[tuple[int, int]]] = {}  # (entry, byte offset) of each use of an array
        self._outputs: dict[int, list[tuple[int, int]]] = {}
        records = np.zeros((len(calls), STEP_WORDS), np.int64)
        for n, (call, kernel) in enumerate(zip(calls, kernels)):
            extents = kernel.extents
            records[n] = kernel.entry, 8 * len(pointers), scratch.address, stride, extents.ctypes.data, len(extents)
            for argument in call.arguments:
                address = 0
                match argument:
                    case None:
                        pass
                    case Place():
                        address = _address(argument)
                    case InputArray(index, offset):
                        self._inputs.setdefault(index, []).append((len(pointers), offset))
                    case OutputArray(index, offset):
                        self._outputs.setdefault(index, []).append((len(pointers), offset))
                pointers.append(address)
        table = np.array(pointers, np.int64)
        records[:, 1] += table.ctypes.data
        self._held = (tuple(calls), scratch, table, records)  # what the steps point to
        self._entries = table.data  # quicker to write one entry through
        self._pool, self._steps, self._count = device.pool, records.ctypes.data, len(records)
        self.run = partial(device.pool.run_steps, self._steps, self._count)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        entries = self._entries
        for places, arrays in ((self._inputs, inputs), (self._outputs, outputs)):
            for index, uses in places.items():
                address = address_of(arrays[index])
                for at, offset in uses:
                    entries[at] = address + offset

    def bench(self, repeats: int) -> Seconds:
        return self._pool.bench_steps(self._steps, self._count, repeats)

    def profile(self, repeats: int, calls: range | None = None) -> Seconds:
        part = calls if calls is not None else range(self._count)
        return self._pool.profile_steps(self._steps + 8 * STEP_WORDS * part.start, len(part), repeats)


def _address(place: Place) -> int:
    return _own(place.memory, HostMemory).address + place.offset


def _own(thing: object, kind: type[T]) -> T:
    if not isinstance(thing, kind):
        raise TypeError(f"{thing!r} is of another device")
    return thing
