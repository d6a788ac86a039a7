"""The emulator as a device of the runtime: an artifact's code is LLVM text, memory is an array of bytes.

    device = EmulatedDevice()
    kernel = PreparedKernel(artifact, constants, device)

Every launch runs in another order, drawn from the device's seed. Constants are packed on the host.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from stormdrop.errors import BuildError
from stormdrop.runtime.artifact import Artifact
from stormdrop.runtime.device import (
    Account,
    Argument,
    Array,
    BoundCall,
    BufferPlace,
    Bytes,
    InputArray,
    OutputArray,
    Seconds,
)
from stormdrop.runtime.host_device import HostMemory, HostPacker, host_device
from stormdrop.runtime.memory import aligned
from stormdrop.target.scope import Scope
from tests.emulator.launch import Order, launch
from tests.emulator.memory import POISON, GlobalBuffer, Pointer
from tests.emulator.reading import read


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

    def record(self, calls: Sequence[BoundCall]) -> EmulatedRecording:
        return EmulatedRecording(calls, self)


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


class EmulatedRecording:
    def __init__(self, calls: Sequence[BoundCall], device: EmulatedDevice) -> None:
        self._calls, self._device = list(calls), device
        self._inputs: list[tuple[Array, EmulatedMemory]] = []
        self._outputs: list[tuple[Array, EmulatedMemory]] = []

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._inputs, self._outputs = (
            [(array, self._device.allocate(array.nbytes)) for array in arrays] for arrays in (inputs, outputs)
        )

    def run(self) -> None:
        self.profile(1)

    def bench(self, repeats: int) -> Seconds:
        return self.profile(repeats).sum(axis=1)

    def profile(self, repeats: int, calls: range | None = None) -> Seconds:
        chosen = calls if calls is not None else range(len(self._calls))
        for array, memory in (*self._inputs, *self._outputs):  # of outputs, what no call writes stays as it is
            memory.write(0, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        seconds = np.array([[self._timed(self._calls[n]) for n in chosen] for _ in range(repeats)]).reshape(repeats, -1)
        for array, memory in self._outputs:
            array[...] = memory.read(0, array.nbytes).view(array.dtype).reshape(array.shape)
        return seconds

    def each(self, calls: range) -> Seconds:
        return self.profile(1, calls).ravel()

    def account(self, repeats: int, calls: range | None = None) -> Account:
        seconds = self.profile(repeats, calls)
        return Account(seconds, 0 * seconds, seconds, 0 * seconds)

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
