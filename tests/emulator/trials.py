"""Random tasks and points of their GPU sketches, run on any device and compared with the reference interpreter.

A `GpuTrial` is a random task with data, as `tests.support.trials` draws them for CPUs, and a few points of its sketches
for GPUs. `emulated` lowers a point, emits LLVM text, runs it in the emulator and says what is wrong, if anything.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import StormdropError
from stormdrop.device.artifact import Artifact
from stormdrop.device.device import Device
from stormdrop.ir.expr import FLOATS, NUMPY, Dtype
from stormdrop.ir.tensor import Task, Tensor
from stormdrop.lower.verify_program import verify
from stormdrop.model.kernel import PreparedKernel
from stormdrop.space.rules import RULES
from stormdrop.space.sketch import sketches
from stormdrop.target.gpu import Gpu, gpu
from stormdrop.target.machine import Target
from stormdrop.target.microkernels import Precision
from tests.emulator.building import text_artifact
from tests.emulator.device import EmulatedDevice
from tests.emulator.faults import Fault, Unsupported
from tests.support.tasks import DRAWN
from tests.support.trials import Case, Trial, compare, uniform_legal

Array = NDArray[Any]
CASES = 2
"""Points of one trial."""
TARGETS = tuple(gpu(architecture) for architecture in ("sm_80", "sm_86", "sm_90"))


@dataclass(frozen=True)
class GpuTrial(Trial):
    """Trial `seed` with points of sketches for a GPU."""

    machine: Target | None = None
    """None: one of the architectures."""

    @cached_property
    def dtype(self) -> Dtype:
        return "f64" if self.seed // len(DRAWN) % 5 == 4 else "f32"

    def cases(self) -> Iterator[Case]:
        rng = np.random.default_rng([5, self.seed])
        drawn = TARGETS[int(rng.integers(len(TARGETS)))]
        found = sketches(self.task, self.machine or drawn)
        for number in range(CASES):
            sketch = found[int(rng.integers(len(found)))]
            points = sketch.sample_legal(1, rng) if rng.random() < 0.5 else uniform_legal(sketch, rng)
            yield Case(self, number, sketch, tuple(int(x) for x in points[0]), {})


@dataclass(frozen=True)
class MatrixTrial(GpuTrial):
    """Trial `seed` with points of the sketches that use matrix instructions; none where no sketch does."""

    precision: Precision = "bf16"

    @cached_property
    def dtype(self) -> Dtype:
        return "f32"

    def cases(self) -> Iterator[Case]:
        rng = np.random.default_rng([6, self.seed])
        drawn = TARGETS[int(rng.integers(len(TARGETS)))]
        target = (self.machine if isinstance(self.machine, Gpu) else drawn).with_precision(self.precision)
        found = [s for s in sketches(self.task, target) if any(step.rule == "mma" for step in s.structure.steps)]
        for number in range(CASES if found else 0):
            sketch = found[int(rng.integers(len(found)))]
            points = sketch.sample_legal(1, rng) if rng.random() < 0.5 else uniform_legal(sketch, rng)
            yield Case(self, number, sketch, tuple(int(x) for x in points[0]), {})


def results(task: Task, arrays: Mapping[str, Array], artifact: Artifact, device: Device) -> dict[str, Array]:
    """The outputs of one call on a device; what a kernel does not write stays poisoned."""
    constants = {t.name: arrays[t.name] for t in task.constants}
    found = {t.name: poisoned(t) for t in task.outputs}
    recording = PreparedKernel(artifact, constants, device).record()
    names = [b.name for b in artifact.buffers]
    inputs = sorted((t for t in task.runtime_inputs if t.name in names), key=lambda t: names.index(t.name))
    outputs = sorted(task.outputs, key=lambda t: names.index(t.name))
    recording.bind([arrays[t.name] for t in inputs], [found[t.name] for t in outputs])
    recording.run()
    return found


def poisoned(t: Tensor) -> Array:
    dtype = NUMPY[t.dtype]
    return np.full(t.shape, np.nan if t.dtype in FLOATS else True if t.dtype == "bool" else -77_777, dtype)


def emulated(case: Case, change: Callable[[str], str] = lambda text: text, seed: int | None = None) -> str:
    """What is wrong with a point; empty: nothing. `change` plants a mistake in the LLVM text."""
    return outcome(case, change, seed)[0]


def outcome(case: Case, change: Callable[[str], str], seed: int | None) -> tuple[str, frozenset[str]]:
    """What is wrong with a point, and what its program and text have (of `MARKS`)."""
    found = frozenset[str]()
    try:
        program = case.program()
        if case.number == 0:  # the verifier takes as long as the emulator
            verify(program)
        artifact = text_artifact(program, case.target, change)
        found = marks(case, artifact)
        order = zlib.crc32(f"{case.trial.title}:{case.number}".encode()) % 1_000_000 if seed is None else seed
        problem = compare(case, results(case.trial.task, case.trial.arrays, artifact, EmulatedDevice(order)))
    except (Fault, Unsupported, StormdropError) as error:
        problem = f"{type(error).__name__}: {error}"
    return problem, found


PATTERNS = {
    "barrier": r"barrier\.cta",
    "asynchronous copy": r"cp\.async\.c[ag]",
    "shuffle": r"shfl\.sync",
    "shared memory": r"@shared, i32",
    "vector load": r"load <\d+ x",
    "vector store": r"store <\d+ x",
    "invariant load": r"!invariant\.load",
    "page": r"ptr @page",
    "64-bit indices": r"zext i32 %v\d+ to i64",
}
PHASES = ("1 phase", "2 phases", "3 phases or more")
MARKS = (*PATTERNS, *(f"rule {rule.name}" for rule in RULES), *PHASES, "packed at load", "one block")
"""What points are counted by."""


def marks(case: Case, artifact: Artifact) -> frozenset[str]:
    text = artifact.code.decode()
    found = {name for name, pattern in PATTERNS.items() if re.search(pattern, text)}
    found |= {f"rule {step.rule}" for step in case.sketch.structure.steps}
    found.add(PHASES[min(len(PHASES), len(artifact.launches)) - 1])
    if artifact.prepare_extents:
        found.add("packed at load")
    if all(launch.blocks == 1 for launch in artifact.launches):
        found.add("one block")
    return frozenset(found)
