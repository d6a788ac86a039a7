"""The host CPU as a device: the process's memory and a thread pool.

A recording is one list of steps for the pool (`pool_ir`), one step per call, and one table: the concatenated pointer
tables of its calls. `bind` rewrites only the entries of the caller's arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from stormdrop.codegen import ENTRY, PREPARE
from stormdrop.codegen.llvm import Code
from stormdrop.ir.expr import NUMPY
from stormdrop.runtime.arrays import address_of
from stormdrop.runtime.artifact import SLACK_BYTES, Artifact
from stormdrop.runtime.cpus import allowed_cpus, nodes_of
from stormdrop.runtime.device import Account, Array, BoundCall, BufferPlace, Bytes, InputArray, Seconds
from stormdrop.runtime.memory import aligned, interleave
from stormdrop.runtime.pool import Pool, shared_pool
from stormdrop.runtime.pool_ir import STEP_WORDS
from stormdrop.target import ALIGN_BYTES
from stormdrop.target.scope import Scope

T = TypeVar("T")


def scratch_stride(scratch_bytes: int) -> int:
    """Bytes from one thread's scratch to the next thread's."""
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
        self._nodes = nodes_of(pool.cpus or allowed_cpus())

    def allocate(self, nbytes: int) -> HostMemory:
        block = aligned(nbytes)
        interleave(block, self._nodes)
        return HostMemory(block)

    def adopt(self, data: Bytes) -> HostMemory:
        if data.flags.c_contiguous and data.ctypes.data % ALIGN_BYTES == 0:
            interleave(data, self._nodes)
            return HostMemory(data)
        copy = self.allocate(data.nbytes)
        copy.write(0, data)
        return copy

    def load(self, artifact: Artifact) -> HostKernel:
        return HostKernel(artifact, self)

    def record(self, calls: Sequence[BoundCall]) -> HostRecording:
        return HostRecording(calls, [_own(call.kernel, HostKernel).phases for call in calls], self)


def host_device(threads: int) -> HostDevice:
    """The host with the process-wide pool of `threads` threads."""
    return HostDevice(shared_pool(threads))


class HostKernel:
    """A kernel whose code is loaded into this process."""

    def __init__(self, artifact: Artifact, device: HostDevice) -> None:
        self.artifact, self._device = artifact, device
        self.code = Code(artifact.code)
        self.phases = _phases(self.code, ENTRY, artifact.extents)
        """The address of the entry function, and the extents of its phases."""

    def prepare(self, constants: Mapping[str, Array], places: Sequence[BufferPlace | None]) -> None:
        HostPacker(self.artifact, self._device, self.code).prepare(constants, places)


class HostPacker:
    """The load-time phases of an artifact for any device: they run on the host.

    `code` has the phases where it is loaded already; a GPU's artifact brings them as `prepare_code`.
    """

    def __init__(self, artifact: Artifact, device: HostDevice, code: Code | None = None) -> None:
        self.artifact, self._device = artifact, device
        self._phases: tuple[int, NDArray[np.int64]] | None = None
        if artifact.prepare_extents:
            self._code = code or Code(artifact.prepare_code or artifact.code)
            self._phases = _phases(self._code, PREPARE, artifact.prepare_extents)

    def prepare(self, constants: Mapping[str, Array], places: Sequence[BufferPlace | None]) -> None:
        """As `LoadedKernel.prepare`, to places in the host's memory."""
        arguments: list[BufferPlace | None] = []
        for buffer, place in zip(self.artifact.buffers, places):
            if buffer.scope is Scope.CONSTANT:
                raw = np.ascontiguousarray(constants[buffer.name], dtype=NUMPY[buffer.dtype])
                if raw.size != buffer.elements:
                    raise ValueError(f"constant {buffer.name} has {raw.size} elements; it must have {buffer.elements}")
                data = raw.reshape(-1).view(np.uint8)
                if place is not None:
                    place.memory.write(place.offset, data)
                place = BufferPlace(HostMemory(data))
            elif buffer.scope is Scope.PACKED and place is None:  # an intermediate: a transformed Winograd filter
                place = BufferPlace(self._device.allocate(buffer.nbytes))
            arguments.append(place)
        if self._phases is not None:
            HostRecording([BoundCall(self, tuple(arguments))], [self._phases], self._device).run()


def _phases(code: Code, name: str, extents: Sequence[int]) -> tuple[int, NDArray[np.int64]]:
    return code.address(name), np.array(extents, np.int64)


class HostRecording:
    """Steps for the pool, and their pointers. `phases`: for each call, the entry function and its phases' extents."""

    def __init__(
        self, calls: Sequence[BoundCall], phases: Sequence[tuple[int, NDArray[np.int64]]], device: HostDevice
    ) -> None:
        kernels = {id(call.kernel): call.kernel for call in calls}.values()
        stride = scratch_stride(max((kernel.artifact.scratch_bytes for kernel in kernels), default=0))
        scratch = device.allocate(stride * device.pool.threads)
        pointers: list[int] = []
        self._inputs: dict[int, list[tuple[int, int]]] = {}  # array index: (table entry, byte offset) of each use
        self._outputs: dict[int, list[tuple[int, int]]] = {}
        steps: list[tuple[int, ...]] = []
        for call, (entry, extents) in zip(calls, phases):
            steps.append((entry, 8 * len(pointers), scratch.address, stride, address_of(extents), len(extents)))
            for argument in call.arguments:
                if isinstance(argument, BufferPlace):
                    pointers.append(_own(argument.memory, HostMemory).address + argument.offset)
                    continue
                if argument is not None:
                    uses = self._inputs if isinstance(argument, InputArray) else self._outputs
                    uses.setdefault(argument.index, []).append((len(pointers), argument.offset))
                pointers.append(0)
        table = np.array(pointers, np.int64)
        records = np.array(steps, np.int64).reshape(-1, STEP_WORDS)
        records[:, 1] += table.ctypes.data
        self._held = (tuple(calls), tuple(phases), scratch, table, records)  # what the steps point to
        self._entries = table.data  # a memoryview: writes of one entry are faster
        self._pool, self._steps, self._count = device.pool, records.ctypes.data, len(records)
        self.run = partial(device.pool.run, self._steps, self._count, self._held)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        entries = self._entries
        for places, arrays in ((self._inputs, inputs), (self._outputs, outputs)):
            for index, uses in places.items():
                address = address_of(arrays[index])
                for at, offset in uses:
                    entries[at] = address + offset

    def bench(self, repeats: int) -> Seconds:
        return self._pool.bench(self._steps, self._count, repeats)

    def profile(self, repeats: int, calls: range | None = None) -> Seconds:
        return self._pool.profile(*self._part(calls), repeats)

    def each(self, calls: range) -> Seconds:
        return self.profile(1, calls).ravel()

    def account(self, repeats: int, calls: range | None = None) -> Account:
        return self._pool.account(*self._part(calls), repeats)

    def _part(self, calls: range | None) -> tuple[int, int]:
        """The address of the first step of some calls, and their number."""
        part = calls if calls is not None else range(self._count)
        return self._steps + 8 * STEP_WORDS * part.start, len(part)


def _own(thing: object, kind: type[T]) -> T:
    if not isinstance(thing, kind):
        raise TypeError(f"{thing!r} is of another device")
    return thing
