"""One task's data on a GPU: inputs that stay there, and outputs between guard bytes.

Nothing protects a GPU's memory from a kernel: after a wrong result, all data is uploaded again for the next candidate.
The error reports a changed input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.device.artifact import Artifact
from stormdrop.device.device import Device, Memory
from stormdrop.ir.tensor import Task
from stormdrop.measure.workbench import GUARD_BYTES, Workbench, WrongOutput
from stormdrop.target.machine import Target


class GpuWorkbench(Workbench):
    """A workbench for kernels that run on arrays in a GPU's memory."""

    def __init__(self, task: Task, target: Target, seed: int, sample_points: int, device: Device) -> None:
        super().__init__(task, target, seed, sample_points)
        constants = {t.name for t in task.constants}
        self._inputs = {n: device.adopt(_bytes(a)) for n, a in self.arrays.items() if n not in constants}
        self._outputs = [device.adopt(output.block) for output in self.outputs]

    def arrays_of(self, artifact: Artifact) -> tuple[list[Any], list[Any]]:
        from stormdrop.device.cuda.memory import CudaMemory, DeviceArray

        inputs, outputs = super().arrays_of(artifact)

        def on_gpu(memory: Memory, array: NDArray[Any], offset: int) -> DeviceArray:
            assert isinstance(memory, CudaMemory)
            return DeviceArray(memory.address + offset, array.shape, array.dtype, memory)

        names = [next(n for n, a in self.arrays.items() if a is array) for array in inputs]
        return (
            [on_gpu(self._inputs[name], array, 0) for name, array in zip(names, inputs)],
            [on_gpu(memory, array, GUARD_BYTES) for memory, array in zip(self._outputs, outputs)],
        )

    def poison(self) -> None:
        super().poison()
        self._upload_outputs()

    def check(self, variant: int | None, poisoned: bool) -> None:
        for output, memory in zip(self.outputs, self._outputs):
            output.block[:] = memory.read(0, memory.nbytes)
        try:
            super().check(variant, poisoned)
        except WrongOutput as error:
            raise self._restored(error) from error

    def compare(self, expected: Sequence[NDArray[Any]]) -> None:
        try:
            super().compare(expected)
        except WrongOutput as error:
            raise self._restored(error) from error

    def _restored(self, error: WrongOutput) -> WrongOutput:
        """Restores all data; returns the error, extended by the inputs that the kernel changed."""
        changed = [
            n for n, m in self._inputs.items() if not np.array_equal(m.read(0, m.nbytes), _bytes(self.arrays[n]))
        ]
        for name, memory in self._inputs.items():
            memory.write(0, _bytes(self.arrays[name]))
        self._upload_outputs()
        return WrongOutput(f"{error}; it changed input {', '.join(changed)}") if changed else error

    def _upload_outputs(self) -> None:
        for output, memory in zip(self.outputs, self._outputs):
            memory.write(0, output.block)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
