"""The host CPU as a device: the process's memory and a thread pool.

A recording is a list of steps for the pool (`pool_ir`), one step per phase of a call, and a table. The table
concatenates the pointer tables of its calls. `bind` rewrites only the entries of the caller's arrays. If phases are
grouped, another list has every phase in a group of its own: it is used to time calls separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from stormdrop.codegen import ENTRY, PREPARE
from stormdrop.codegen.llvm import Code
from stormdrop.device.arrays import address_of, aligned, interleave
from stormdrop.device.artifact import SLACK_BYTES, Artifact, Group, single_groups, step_rows
from stormdrop.device.cpus import allowed_cpus, nodes_of
from stormdrop.device.device import Account, Array, BoundCall, BufferPlace, Bytes, InputArray, Seconds, own
from stormdrop.device.pool.pool import Pool, shared_pool
from stormdrop.device.pool.pool_ir import STEP_WORDS
from stormdrop.ir.expr import NUMPY
from stormdrop.target import ALIGN_BYTES
from stormdrop.target.structures import Scope

Phases = tuple[int, tuple[int, ...]]
"""The address of a function, and the extents of its phases."""


def scratch_stride(scratch_bytes: int) -> int:
    """Returns the bytes from one thread's scratch to the next thread's."""
    return -(-scratch_bytes // 64) * 64 + SLACK_BYTES


class HostMemory:
    """Memory of this process."""

    def __init__(self, block: Bytes) -> None:
        self.block, self.address, self.nbytes = block, block.ctypes.data, block.nbytes

    def write(self, offset: int, data: Bytes) -> None:
        self.block[offset : offset + data.nbytes] = data

    def read(self, offset: int, nbytes: int) -> Bytes:
        """Returns a view of a range."""
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

    def record(self, calls: Sequence[BoundCall], groups: Sequence[Group] = ()) -> HostRecording:
        return HostRecording(calls, [own(call.kernel, HostKernel).phases for call in calls], self, groups)


def host_device(threads: int) -> HostDevice:
    """Returns the host with the process-wide pool of `threads` threads."""
    return HostDevice(shared_pool(threads))


class HostKernel:
    """A kernel with code loaded into this process."""

    def __init__(self, artifact: Artifact, device: HostDevice) -> None:
        self.artifact, self._device = artifact, device
        self.code = Code(artifact.code)
        self.phases = _phases(self.code, ENTRY, artifact.extents)

    def prepare(self, constants: Mapping[str, Array], places: Sequence[BufferPlace | None]) -> None:
        HostPacker(self.artifact, self._device, self.code).prepare(constants, places)


class HostPacker:
    """The load-time phases of an artifact for any device: they run on the host.

    `code` has the phases if it is loaded already; a GPU's artifact contains them as `prepare_code`.
    """

    def __init__(self, artifact: Artifact, device: HostDevice, code: Code | None = None) -> None:
        self.artifact, self._device = artifact, device
        self._phases: Phases | None = None
        if artifact.prepare_extents:
            self._code = code or Code(artifact.prepare_code or artifact.code)
            self._phases = _phases(self._code, PREPARE, artifact.prepare_extents)

    def prepare(self, constants: Mapping[str, Array], places: Sequence[BufferPlace | None]) -> None:
        """Writes constants as `LoadedKernel.prepare`, to places in the host's memory."""
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


def _phases(code: Code, name: str, extents: Sequence[int]) -> Phases:
    return code.address(name), tuple(extents)


class HostRecording:
    """Steps for the pool, and their pointers. `phases`: for each call, the entry function and its phases' extents."""

    def __init__(
        self,
        calls: Sequence[BoundCall],
        phases: Sequence[Phases],
        device: HostDevice,
        groups: Sequence[Group] = (),
    ) -> None:
        kernels = {id(call.kernel): call.kernel for call in calls}.values()
        stride = scratch_stride(max((kernel.artifact.scratch_bytes for kernel in kernels), default=0))
        scratch = device.allocate(stride * device.pool.threads)
        pointers: list[int] = []
        self._inputs: dict[int, list[tuple[int, int]]] = {}  # array index: (table entry, byte offset) of each use
        self._outputs: dict[int, list[tuple[int, int]]] = {}
        begins: list[int] = []
        for call in calls:
            begins.append(8 * len(pointers))
            for argument in call.arguments:
                if isinstance(argument, BufferPlace):
                    pointers.append(own(argument.memory, HostMemory).address + argument.offset)
                    continue
                if argument is not None:
                    uses = self._inputs if isinstance(argument, InputArray) else self._outputs
                    uses.setdefault(argument.index, []).append((len(pointers), argument.offset))
                pointers.append(0)
        table = np.array(pointers, np.int64)
        extents = [extents for _, extents in phases]

        def steps(groups: Sequence[Group]) -> _Steps:
            rows = step_rows(extents, groups)
            places = [(phases[r.call][0], table.ctypes.data + begins[r.call], scratch.address, stride) for r in rows]
            records = [(*place, *row.words) for place, row in zip(places, rows)]
            of_call = np.array([row.call for row in rows], np.int64)
            sizes = [len(group.phases) for group in groups]
            return _Steps(np.array(records, np.int64).reshape(-1, STEP_WORDS), of_call, sizes, len(calls))

        singles = single_groups(extents)
        self._single_steps = steps(singles)
        self._steps = steps(groups) if groups and tuple(groups) != singles else self._single_steps
        self._held = (tuple(calls), scratch, table, self._steps, self._single_steps)  # the steps' pointers lead there
        self._entries = table.data  # a memoryview: writes of one entry are faster
        self._pool = device.pool
        self._is_serial = bool(groups) and all(group.is_serial for group in groups)
        run = device.pool.run_alone if self._is_serial else device.pool.run
        self.run = partial(run, self._steps.address, len(self._steps), self._held)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        entries = self._entries
        for places, arrays in ((self._inputs, inputs), (self._outputs, outputs)):
            for index, uses in places.items():
                address = address_of(arrays[index])
                for at, offset in uses:
                    entries[at] = address + offset

    def bench(self, repeats: int) -> Seconds:
        return self._pool.bench(self._steps.address, len(self._steps), repeats, self._is_serial)

    def profile(self, repeats: int, calls: range | None = None) -> Seconds:
        part = self._single_steps.part(calls)
        return part.by_call(self._pool.profile(part.address, len(part), repeats))

    def each(self, calls: range) -> Seconds:
        return self.profile(1, calls).ravel()

    def account(self, repeats: int, calls: range | None = None) -> Account:
        part = self._steps if calls is None else self._single_steps.part(calls)
        by_step = self._pool.account(part.address, part.sizes, repeats)
        return Account(*map(part.by_call, (by_step.seconds, by_step.late, by_step.busy, by_step.off)))


class _Steps:
    """Records for the pool, in groups of `sizes` steps; `of_call` is the call of each, from 0 to `calls` - 1."""

    def __init__(
        self, records: NDArray[np.int64], of_call: NDArray[np.int64], sizes: Sequence[int], calls: int
    ) -> None:
        self._records, self._of_call, self.sizes, self._calls = records, of_call, sizes, calls
        self.address = records.ctypes.data

    def __len__(self) -> int:
        return len(self._records)

    def part(self, calls: range | None) -> _Steps:
        """Returns the steps of some calls, each in a group of its own."""
        if calls is None:
            return self
        begin, end = map(int, np.searchsorted(self._of_call, [calls.start, calls.stop]))
        return _Steps(self._records[begin:end], self._of_call[begin:end] - calls.start, [1] * (end - begin), len(calls))

    def by_call(self, values: Seconds) -> Seconds:
        """Returns amounts by run and step, added up by call."""
        amounts = np.zeros((self._calls, len(values)))
        np.add.at(amounts, self._of_call, values.T)
        return amounts.T
