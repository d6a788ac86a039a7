"""One task's data in a runner: random inputs, guarded outputs, and the values that a right kernel puts there.

Inputs are read-only memory: a kernel that writes to one dies instead of making every later candidate look wrong.
Outputs are filled with a NaN before a run and stand between guard bytes.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import BuildError
from stormdrop.device.arrays import HUGE_FROM_BYTES, aligned, huge, random_array
from stormdrop.device.artifact import Artifact, BufferSpec
from stormdrop.device.device import Array, Device, Memory
from stormdrop.ir.dtypes import FLOATS, INTEGERS, ITEMSIZE, NUMPY, Dtype, integer_range
from stormdrop.ir.interp import distances, quantum, sample
from stormdrop.ir.tensor import Task, Tensor
from stormdrop.target.accuracy import error_bound
from stormdrop.target.machine import Target
from stormdrop.target.structures import Scope

GUARD_BYTES = 4096
GUARD = 0xA5
POISON = 0xFF  # all ones is a NaN that no arithmetic produces: x86 and ARM make 0x7fc00000 or 0xffc00000
EPS: dict[Dtype, float] = {"f64": 2.0**-52, **dict.fromkeys(("f32", "f16", "bf16"), 2.0**-23)}
"""The relative rounding errors. Halves have the scale of f32."""
BOUNDS = {dtype: integer_range(dtype) for dtype in ("i8", "u8", "i16", "u16")}
"""The bounds of random integers. Wider types stay at 0 and 1, since they may be indices."""
PROT_READ = 1
MARGIN = 4  # the largest magnitude of a sample is not the largest of all elements

_guard = bytes([GUARD]) * GUARD_BYTES


class WrongOutput(Exception):
    """A kernel that does not compute its task."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """An output array between guard bytes."""

    name: str
    block: NDArray[np.uint8]
    raw: NDArray[np.uint8]
    array: NDArray[Any]

    @staticmethod
    def make(tensor: Tensor) -> Guarded:
        block = aligned(tensor.nbytes + 2 * GUARD_BYTES)
        block.fill(GUARD)
        raw = block[GUARD_BYTES : GUARD_BYTES + tensor.nbytes]
        return Guarded(tensor.name, block, raw, raw.view(NUMPY[tensor.dtype]).reshape(tensor.shape))

    def check(self) -> None:
        """Raises WrongOutput if something was written outside; the guards are whole again afterwards."""
        for side, at in (("before", 0), ("after", GUARD_BYTES + len(self.raw))):
            guard = self.block[at : at + GUARD_BYTES]
            if guard.tobytes() != _guard:
                spoiled = np.flatnonzero(guard != GUARD)
                guard.fill(GUARD)
                near = GUARD_BYTES - int(spoiled[-1]) if side == "before" else int(spoiled[0]) + 1
                raise WrongOutput(f"wrote {near} bytes {side} output {self.name}")


class Workbench:
    """Inputs, outputs and reference values of one task."""

    def __init__(self, task: Task, target: Target, seed: int, sample_points: int) -> None:
        self.task = task
        self._bounds = [error_bound(v, target) for v in task.variants]
        rng = np.random.default_rng(seed)
        self.arrays = {t.name: _read_only(random_array(t, rng, BOUNDS.get(t.dtype, (0, 1)))) for t in task.inputs}
        self.outputs = [Guarded.make(t) for t in task.outputs]
        self.references = sample(task, self.arrays, sample_points, rng)
        self.nbytes = sum(t.nbytes for t in (*task.inputs, *task.outputs))
        self._rewritable: dict[str, Array] = {}

    def arrays_of(self, artifact: Artifact) -> tuple[list[Array], list[Array]]:
        """Returns the inputs and outputs of a kernel, in its order.

        Raises BuildError if it was built for something else.
        """
        wanted = [buffer for buffer in artifact.buffers if buffer.scope is Scope.OUTPUT]
        if len(wanted) < len(self.outputs):
            raise BuildError(f"the kernel does not write every output of {self.task.name}")
        given = [output.array for output in self.outputs]
        return (
            [_fitting(b, self.arrays.get(b.name)) for b in artifact.buffers if b.scope is Scope.INPUT],
            [_fitting(b, given[k] if k < len(given) else None) for k, b in enumerate(wanted)],
        )

    def rewritable(self, inputs: Sequence[Array]) -> list[Array]:
        """Returns inputs of a kernel with the same values in writable memory: the same memory for all kernels."""
        names = {id(array): name for name, array in self.arrays.items()}
        copies: list[Array] = []
        for array in inputs:
            name = names[id(array)]
            if name not in self._rewritable:
                copy = aligned(array.nbytes).view(array.dtype).reshape(array.shape)
                copy[...] = array
                self._rewritable[name] = copy
            copies.append(self._rewritable[name])
        return copies

    def poison(self) -> None:
        for output in self.outputs:
            output.raw.fill(POISON)

    def check(self, variant: int | None, poisoned: bool) -> None:
        """Checks the outputs; `variant` None allows the error of the least exact variant. Raises WrongOutput."""
        bound = max(self._bounds) if variant is None else self._bounds[variant]
        for tensor, output in zip(self.task.outputs, self.outputs):
            output.check()
            if poisoned:
                _check_written(output, tensor.dtype)
            reference = self.references[tensor.name]
            sampled = np.asarray(output.array[reference.indices])
            right = _agree(sampled, reference.values, tensor.dtype, bound * reference.magnitudes, quantum(self.task))
            if not right.all():
                first = int(np.argmin(right))
                values = sampled.ravel()[first], reference.values.ravel()[first]
                place = [int(i[first]) for i in reference.indices]
                raise WrongOutput(_difference("sampled elements differ", right, output.name, place, *values))

    def compare(self, expected: Sequence[NDArray[Any]]) -> None:
        """Compares all outputs with the outputs of another correct kernel, within the errors of both. Raises
        WrongOutput.

        The magnitude of any element is taken to be the largest that was sampled.
        """
        bound = max(self._bounds)
        for tensor, output, other in zip(self.task.outputs, self.outputs, expected):
            largest = float(np.max(self.references[tensor.name].magnitudes, initial=0.0))
            right = _agree(output.array, other, tensor.dtype, 2 * bound * MARGIN * largest, 0)
            if not right.all():
                place = np.unravel_index(int(np.argmin(right)), right.shape)
                values = output.array[place], other[place]
                what = "elements differ from another schedule's"
                raise WrongOutput(_difference(what, right, output.name, [int(i) for i in place], *values))


class GpuWorkbench(Workbench):
    """A workbench for kernels that run on arrays in a GPU's memory.

    Nothing protects a GPU's memory from a kernel: after a wrong result, all data is uploaded again for the next
    candidate. The error reports a changed input.
    """

    def __init__(self, task: Task, target: Target, seed: int, sample_points: int, device: Device) -> None:
        super().__init__(task, target, seed, sample_points)
        constants = {t.name for t in task.constants}
        self._inputs = {n: device.adopt(_bytes(a)) for n, a in self.arrays.items() if n not in constants}
        self._outputs = [device.adopt(output.block) for output in self.outputs]

    def arrays_of(self, artifact: Artifact) -> tuple[list[Any], list[Any]]:
        from stormdrop.device.cuda.context import CudaMemory, DeviceArray

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


def _fitting(buffer: BufferSpec, array: NDArray[Any] | None) -> NDArray[Any]:
    if array is None or array.size != buffer.elements or array.dtype != NUMPY[buffer.dtype]:
        have = "has no such array" if array is None else f"has {array.dtype}{list(array.shape)}"
        raise BuildError(
            f"the kernel needs {buffer.scope} {buffer.name}: {buffer.dtype}[{buffer.elements}]; the task {have}"
        )
    return array


def _check_written(output: Guarded, dtype: Dtype) -> None:
    if dtype not in FLOATS:
        return
    bits = output.raw.view(f"u{ITEMSIZE[dtype]}")
    left = int(np.count_nonzero(bits == np.iinfo(bits.dtype).max))
    if left:
        raise WrongOutput(f"left {left} of {bits.size} elements of output {output.name} unwritten")


def _agree(actual: Array, expected: Array, dtype: Dtype, allowed: float | Array, apart: int) -> NDArray[np.bool_]:
    """Returns a mask of agreement: integers at most `apart` apart, floats with |actual - expected| <= allowed · eps."""
    error = distances(actual, expected)
    most = allowed * EPS[dtype] if dtype in FLOATS else apart * (dtype in INTEGERS)
    return np.asarray((error == 0) | (error <= most))


def _difference(
    what: str, right: NDArray[np.bool_], name: str, place: list[int], actual: object, expected: object
) -> str:
    wrong = right.size - int(np.count_nonzero(right))
    return f"{wrong} of {right.size} {what}: {name}{place} is {actual!s}, not {expected!s}"


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Returns the same values in pages that cannot be written."""
    nbytes = max(1, array.nbytes)
    pages = huge(nbytes) if nbytes >= HUGE_FROM_BYTES else mmap.mmap(-1, nbytes)
    held: NDArray[Any] = np.frombuffer(pages, array.dtype, count=array.size).reshape(array.shape)
    held[...] = array
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(held.ctypes.data), ctypes.c_size_t(nbytes), PROT_READ):
        raise OSError(ctypes.get_errno(), "mprotect")
    held.flags.writeable = False
    return held


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
