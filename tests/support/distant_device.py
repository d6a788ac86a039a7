"""A device made of what `device.device` promises and nothing else: memory of its own, and one thread.

It stands for machines like GPUs: arrays of the caller are copied in when a run begins and out when it ends, `read`
gives a copy, and phases run one after the other through ctypes.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence

import numpy as np

from stormdrop.codegen import ENTRY, PREPARE
from stormdrop.codegen.llvm import Code
from stormdrop.device.arrays import aligned
from stormdrop.device.artifact import Artifact, Group
from stormdrop.device.device import Argument, Array, BoundCall, BufferPlace, Bytes, InputArray, OutputArray, Seconds
from stormdrop.ir.expr import NUMPY
from stormdrop.target.structures import Scope
from tests.support.copying_recording import CopyingRecording

Function = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, use_errno=False
)


class DistantMemory:
    def __init__(self, data: Bytes) -> None:
        self.block, self.nbytes = aligned(data.nbytes), data.nbytes
        self.block[:] = data

    def write(self, offset: int, data: Bytes) -> None:
        assert 0 <= offset <= self.nbytes - data.nbytes
        self.block[offset : offset + data.nbytes] = data

    def read(self, offset: int, nbytes: int) -> Bytes:
        assert 0 <= offset <= self.nbytes - nbytes
        return self.block[offset : offset + nbytes].copy()


class DistantDevice:
    """`profiled` lists the calls that `profile` was asked for."""

    def __init__(self) -> None:
        self.profiled: list[range] = []

    def allocate(self, nbytes: int) -> DistantMemory:
        return DistantMemory(np.full(nbytes, 0xFF, np.uint8))

    def adopt(self, data: Bytes) -> DistantMemory:
        return DistantMemory(data)

    def load(self, artifact: Artifact) -> DistantKernel:
        return DistantKernel(artifact)

    def record(self, calls: Sequence[BoundCall], groups: Sequence[Group] = ()) -> DistantRecording:
        return DistantRecording(calls, self)


class DistantKernel:
    def __init__(self, artifact: Artifact) -> None:
        self.artifact, self._code = artifact, Code(artifact.code)

    def prepare(self, constants: Mapping[str, Array], places: Sequence[BufferPlace | None]) -> None:
        table: list[int] = []
        held: list[DistantMemory] = []
        for buffer, place in zip(self.artifact.buffers, places, strict=True):
            if buffer.scope is Scope.CONSTANT:
                raw = np.ascontiguousarray(constants[buffer.name], NUMPY[buffer.dtype]).reshape(-1).view(np.uint8)
                if raw.nbytes != buffer.nbytes:
                    raise ValueError(f"constant {buffer.name} has another size")
                if place is not None:
                    place.memory.write(place.offset, raw)
                held.append(DistantMemory(raw))
                table.append(held[-1].block.ctypes.data)
            elif place is not None:
                table.append(address(place))
            else:
                held.append(DistantMemory(np.zeros(buffer.nbytes, np.uint8)))
                table.append(held[-1].block.ctypes.data)
        self.launch(table, at_load=True)

    def launch(self, table: Sequence[int], at_load: bool = False) -> None:
        pointers, scratch = (ctypes.c_void_p * max(1, len(table)))(*table), aligned(self.artifact.scratch_bytes + 512)
        name, extents = (PREPARE, self.artifact.prepare_extents) if at_load else (ENTRY, self.artifact.extents)
        for phase, extent in enumerate(extents):
            entry = Function(self._code.address(name))
            entry(ctypes.addressof(pointers), scratch.ctypes.data, phase, 0, extent)


class DistantRecording(CopyingRecording[DistantMemory]):
    def __init__(self, calls: Sequence[BoundCall], device: DistantDevice) -> None:
        super().__init__(calls, device.allocate)
        self._device = device

    def profile(self, repeats: int, calls: range | None = None) -> Seconds:
        self._device.profiled.append(calls if calls is not None else range(len(self._calls)))
        return super().profile(repeats, calls)

    def _timed(self, call: BoundCall) -> float:
        assert isinstance(call.kernel, DistantKernel)
        table = [self._address(argument) for argument in call.arguments]
        start = time.perf_counter()
        call.kernel.launch(table)
        return time.perf_counter() - start

    def _address(self, argument: Argument) -> int:
        match argument:
            case None:
                return 0
            case BufferPlace():
                return address(argument)
            case InputArray(index, offset):
                return address(BufferPlace(self._inputs[index][1], offset))
            case OutputArray(index, offset):
                return address(BufferPlace(self._outputs[index][1], offset))


def address(place: BufferPlace) -> int:
    assert isinstance(place.memory, DistantMemory)
    return place.memory.block.ctypes.data + place.offset
