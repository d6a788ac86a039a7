"""What a case computes: it is built and run on data that follow from its number."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import StormdropError
from stormdrop.builder.building import artifact_of
from stormdrop.codegen.fingerprint import digest
from stormdrop.device.host import unfit
from stormdrop.device.host_device import host_device
from stormdrop.ir.expr import FLOATS, NUMPY, Load, walk
from stormdrop.ir.tensor import Task, Tensor
from stormdrop.model.kernel import PreparedKernel
from stormdrop.target.structures import Scope
from tests.replay.cases import Case
from tests.support.guarded import Arena, bind

Array = NDArray[Any]
SMALLEST, LARGEST = -100, 100
"""Whole numbers that are no indices lie between them."""


@cache
def is_runnable(triple: str, cpu: str, features: str) -> bool:
    return unfit(triple, cpu, features) is None


def runs_here(case: Case) -> bool:
    return is_runnable(case.target.triple, case.target.cpu, case.target.features)


def output_digest(case: Case) -> str:
    """Of the bytes of all outputs, or the error if the kernel cannot be built."""
    try:
        return _output_digest(case)
    except StormdropError as error:
        return f"{type(error).__name__}: {error}"


def _output_digest(case: Case) -> str:
    arena, arrays = Arena(), input_arrays(case)
    constants = {t.name: arrays[t.name] for t in case.task.constants}
    kernel = PreparedKernel(artifact_of(case.program(), case.target), constants, host_device(case.target.threads))
    tensors = {t.name: t for t in (*case.task.inputs, *case.task.outputs)}
    inputs, outputs = (
        [
            bind(arena, tensors[buffer.name], case.views.get(buffer.name), at_end=True)
            for buffer in kernel.artifact.buffers
            if buffer.scope is scope
        ]
        for scope in (Scope.INPUT, Scope.OUTPUT)
    )
    for bound, tensor in zip(inputs, case.task.runtime_inputs, strict=True):
        bound.array[...] = arrays[tensor.name]
    recording = kernel.record()
    recording.bind([bound.origin for bound in inputs], [bound.origin for bound in outputs])
    recording.run()
    return digest(b"".join(_with_one_nan(bound.array).tobytes() for bound in outputs))


def _with_one_nan(array: Array) -> Array:
    """LLVM leaves the sign and the payload of a NaN open: all of them become one."""
    return np.where(np.isnan(array), array.dtype.type(np.nan), array) if array.dtype.kind == "f" else array


def input_arrays(case: Case) -> dict[str, Array]:
    """Normal numbers; whole numbers that are in range wherever the task looks something up.

    An input whose view repeats elements holds one value for all of them.
    """
    rng = np.random.default_rng(case.number)
    limit = index_limit(case.task)
    arrays = {t.name: _random(t, rng, limit) for t in case.task.inputs}
    for name, view in case.views.items():
        if name in arrays and 0 in view.strides:
            first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in view.strides)
            arrays[name] = np.broadcast_to(arrays[name][first], arrays[name].shape)
    return arrays


def index_limit(task: Task) -> int | None:
    """The smallest extent that is indexed by data, in any variant; None where all indices are known."""
    stages = [t.compute for variant in task.variants for t in variant.stages if t.compute is not None]
    reads = [node for compute in stages for node in walk(compute.body) if isinstance(node, Load)]
    return min(
        (
            extent
            for read in reads
            for extent, index in zip(read.tensor.shape, read.indices)
            if any(isinstance(node, Load) for node in walk(index))
        ),
        default=None,
    )


def _random(t: Tensor, rng: np.random.Generator, limit: int | None) -> Array:
    if t.dtype in FLOATS:
        return rng.standard_normal(t.shape).astype(NUMPY[t.dtype])
    if t.dtype == "bool":
        return rng.random(t.shape) < 0.5
    low, high = (SMALLEST, LARGEST) if limit is None else (0, limit)
    return rng.integers(low, high, t.shape).astype(NUMPY[t.dtype])
