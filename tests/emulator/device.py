"""The emulator as a device of the runtime: an artifact's code is LLVM text, memory is an array of bytes.

    device = EmulatedDevice()
    kernel = PreparedKernel(artifact, constants, device)

Every launch runs in another order, drawn from the device's seed. Constants are packed on the host.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from stormdrop.base.errors import BuildError
from stormdrop.device.arrays import aligned
from stormdrop.device.artifact import Artifact, Group
from stormdrop.device.device import (
    Argument,
    Array,
    BoundCall,
    BufferPlace,
    Bytes,
    InputArray,
    OutputArray,
)
from stormdrop.device.host_device import HostMemory, HostPacker, host_device
from stormdrop.target.structures import Scope
from tests.emulator.launch import Order, launch
from tests.emulator.memory import POISON, GlobalBuffer, Pointer
from tests.emulator.reading import read
from tests.support.copying_recording import CopyingRecording


class EmulatedMemory:
    def __init__(self, data: Bytes) -> None:
        self.block, self.nbytes = data, data.nbytes

    def write(self, offset: int, data: Bytes) -> None:
        assert 0 <= offset <= self.nbytes - data.nbytes
        self.block[offset : offset + data.nbytes] = data

    def read(self, offset: int, nbytes: int) -> Bytes:
        assert 0 <= offset <= self.nbytes - nbytes
        return self.block[offset : offset + nbytes].copy()


class EmulatedDevice:
    """`orders`: every launch takes the next one; drawn from a seed unless given."""

    def __init__(self, seed: int = 0, order: Order | None = None) -> None:
        self._seed, self._order, self._launches = seed, order, 0

    def next_order(self) -> Order:
        self._launches += 1
        return self._order or Order.drawn(1000 * self._seed + self._launches)

    def allocate(self, nbytes: int) -> EmulatedMemory:
        return EmulatedMemory(np.resize(POISON, nbytes))

    def adopt(self, data: Bytes) -> EmulatedMemory:
        return EmulatedMemory(data.copy())

    def load(self, artifact: Artifact) -> EmulatedKernel:
        return EmulatedKernel(artifact, self)

    def record(self, calls: Sequence[BoundCall], groups: Sequence[Group] = ()) -> EmulatedRecording:
        return EmulatedRecording(calls, self.allocate)


class EmulatedKernel:
    def __init__(self, artifact: Artifact, device: EmulatedDevice) -> None:
        if not artifact.launches:
            raise BuildError("the kernel was built for a CPU, not for a GPU")
        self.artifact, self._device = artifact, device
        self._module = read(artifact.code.decode())

    def prepare(self, constants: Mapping[str, Array], places: Sequence[BufferPlace | None]) -> None:
        blocks = [place and aligned(b.nbytes) for b, place in zip(self.artifact.buffers, places)]
        on_host = [None if block is None else BufferPlace(HostMemory(block)) for block in blocks]
        HostPacker(self.artifact, host_device(1)).prepare(constants, on_host)
        for block, place in zip(blocks, places):
            if block is not None and place is not None:
                place.memory.write(place.offset, block)

    def launch(self, arguments: Sequence[tuple[EmulatedMemory, int] | None]) -> None:
        """All phases of a call. An argument is a block of memory, and where the argument begins there.

        A kernel may access the whole block: an argument may be a view of an array, with steps between its elements.
        """
        writable: set[EmulatedMemory] = set()
        names: dict[EmulatedMemory, list[str]] = {}
        for spec, argument in zip(self.artifact.buffers, arguments, strict=True):
            if argument is not None:
                names.setdefault(argument[0], []).append(spec.name)
                if spec.scope in (Scope.OUTPUT, Scope.WORKSPACE):
                    writable.add(argument[0])
        blocks = {
            memory: GlobalBuffer(" and ".join(held), memory.block, memory in writable) for memory, held in names.items()
        }
        pointers = [None if a is None else Pointer(blocks[a[0]], a[1]) for a in arguments]
        for number, shape in enumerate(self.artifact.launches):
            launch(
                self._module,
                f"phase{number}",
                blocks=shape.blocks,
                threads=shape.threads,
                shared_bytes=shape.shared_bytes,
                arguments=pointers,
                order=self._device.next_order(),
            )


class EmulatedRecording(CopyingRecording[EmulatedMemory]):
    def _timed(self, call: BoundCall) -> float:
        assert isinstance(call.kernel, EmulatedKernel)
        start = time.perf_counter()
        call.kernel.launch([self._place(argument) for argument in call.arguments])
        return time.perf_counter() - start

    def _place(self, argument: Argument) -> tuple[EmulatedMemory, int] | None:
        match argument:
            case None:
                return None
            case BufferPlace(memory, offset):
                assert isinstance(memory, EmulatedMemory)
                return memory, offset
            case InputArray(index, offset):
                return self._inputs[index][1], offset
            case OutputArray(index, offset):
                return self._outputs[index][1], offset
