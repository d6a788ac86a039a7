"""The property: every legal point of every sketch computes what the reference interpreter computes.

A `Trial` is one random task with random data; its `Case`s are points of its sketches, each with a machine (instruction
set, threads) and a binding (views of inputs and outputs). Everything follows from the trial's seed. `check` builds and
runs one case twice, with all memory against an inaccessible page behind it and then before it, and says what is wrong,
if anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import StormdropError, UserError
from stormdrop.builder.building import described
from stormdrop.codegen.emit import emit
from stormdrop.codegen.llvm import assemble
from stormdrop.device.artifact import Artifact
from stormdrop.device.device import BufferPlace
from stormdrop.device.host import detect
from stormdrop.device.host_device import HostDevice, HostMemory
from stormdrop.device.pool.pool import Pool, shared_pool
from stormdrop.ir.expr import FLOATS, NUMPY, Dtype
from stormdrop.ir.interp import evaluate, magnitude, quantum
from stormdrop.ir.tensor import Task, Tensor
from stormdrop.lower.lower import lower
from stormdrop.lower.prefetch import with_prefetches
from stormdrop.lower.program import Program, View
from stormdrop.lower.verify_program import verify
from stormdrop.model.prepared import PreparedKernel
from stormdrop.space.derive import derive
from stormdrop.space.sketch import Points, Sketch, replay, sketches
from stormdrop.target import ALIGN_BYTES
from stormdrop.target.accuracy import error_bound
from stormdrop.target.machine import Target
from stormdrop.target.structures import Scope
from tests.support import drawn_graphs
from tests.support.guarded import Arena, Bound, bind
from tests.support.paths import observe
from tests.support.tasks import DRAWN, Rng, random_task

Array = NDArray[Any]
CASES = 6
"""Cases of one trial."""
GRAPHS = 1_000_000_000
"""Trials from this seed on are of tasks that the graph layer makes."""
PRODUCTS = ("GMM", "DEN", "GMV", "DOT")
"""What also multiplies bf16."""
LONG_ROWS = ("GMV", "SFM", "NRM", "DOT")
EPS: dict[Dtype, float] = {"f64": 2.0**-52, **dict.fromkeys(("f32", "f16", "bf16"), 2.0**-23)}


@cache
def targets() -> tuple[Target, ...]:
    """This machine, and this machine held to narrower instruction sets."""
    here = detect()
    found = [here]
    for isa in ("avx512", "avx2", "sse"):
        try:
            narrow = here.with_isa(isa)
        except UserError:
            continue
        if narrow.isa != here.isa:
            found.append(narrow)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Case:
    """One point to build and run."""

    trial: Subject
    number: int
    sketch: Sketch
    point: tuple[int, ...]
    views: Mapping[str, View]

    @property
    def target(self) -> Target:
        return self.sketch.target

    @property
    def values(self) -> dict[str, int]:
        return self.sketch.values(self.point)

    def program(self) -> Program:
        """Every second one prefetches all packed constants, however few they are."""
        values = self.values
        program = lower(self.trial.task, self.sketch.at(values), self.sketch.tilings(values), dict(self.views))
        return with_prefetches(program, 0) if self.number % 2 else program

    def __str__(self) -> str:
        where = f"{self.target.isa}, {self.target.threads} threads"
        lines = [
            f"case {self.trial.title}:{self.number}: {self.trial.task.name}, {where}",
            *(f"  {name} seen through {view}" for name, view in self.views.items()),
            str(self.sketch.schedule(self.point)),
            str(self.sketch.schedule(self.point).to_json()),
        ]
        return "\n".join(lines)


class Subject(ABC):
    """A task, its data and the cases to check."""

    @property
    @abstractmethod
    def title(self) -> str: ...

    @cached_property
    @abstractmethod
    def task(self) -> Task: ...

    @cached_property
    @abstractmethod
    def arrays(self) -> dict[str, Array]: ...

    @abstractmethod
    def cases(self) -> Iterator[Case]: ...

    def refitted(self) -> Iterator[Case]:
        """Points found at another shape of the task's class."""
        return iter(())

    @cached_property
    def reference(self) -> dict[int, tuple[dict[str, Array], dict[str, Array]]]:
        """Values and error scales by variant."""
        return {
            k: (evaluate(self.task, self.arrays, k, "f64"), magnitude(self.task, self.arrays, k))
            for k in range(len(self.task.variants))
        }


class Given(Subject):
    """A task of a test's own: on every machine `points` points of every sketch, or of `most` random sketches."""

    def __init__(
        self, title: str, task: Task, arrays: Mapping[str, Array] | None = None, points: int = 2, most: int = 1000
    ) -> None:
        rng = np.random.default_rng(0)
        self._title, self._task, self._points, self._most = title, task, points, most
        self._arrays = {t.name: random_array(t, rng) for t in task.inputs} | dict(arrays or {})

    @property
    def title(self) -> str:
        return self._title

    @cached_property
    def task(self) -> Task:
        return self._task

    @cached_property
    def arrays(self) -> dict[str, Array]:
        return self._arrays

    def cases(self) -> Iterator[Case]:
        rng = np.random.default_rng(list(self.title.encode()))
        number = 0
        for machine in rng.permutation(len(targets())):
            found = sketches(self.task, targets()[machine].with_threads(1))
            for k in rng.permutation(len(found)):
                for point in found[k].sample_legal(self._points, rng):
                    views = random_views(self.task, rng) if rng.random() < 0.5 else {}
                    yield Case(self, number, found[k], tuple(int(x) for x in point), views)
                    number += 1
                if number >= self._most * self._points:
                    return


@dataclass(frozen=True)
class Trial(Subject):
    """A random task and its data."""

    seed: int

    @property
    def title(self) -> str:
        return str(self.seed)

    @cached_property
    def name(self) -> str:
        return "graph" if self.seed >= GRAPHS else DRAWN[self.seed % len(DRAWN)]

    @cached_property
    def dtype(self) -> Dtype:
        turn = self.seed // len(DRAWN) % 5
        return "f64" if turn == 4 else "bf16" if turn == 2 and self.name in PRODUCTS else "f32"

    @cached_property
    def _graph(self) -> drawn_graphs.Drawn:
        return drawn_graphs.draw(self.seed, self.seed)

    @cached_property
    def task(self) -> Task:
        if self.name == "graph":
            return self._graph.task
        rng = np.random.default_rng([1, self.seed])
        return random_task(self.name, rng, self.dtype, long=rng.random() < (0.4 if self.name in LONG_ROWS else 0.1))

    @cached_property
    def arrays(self) -> dict[str, Array]:
        if self.name == "graph":
            return dict(self._graph.arrays)
        rng = np.random.default_rng([2, self.seed])
        return {t.name: random_array(t, rng) for t in self.task.inputs}

    def donor(self, rng: Rng, long: float) -> Task:
        """Another shape of the task's class, or the task itself where what is drawn is of another one."""
        if self.name != "graph":
            other = random_task(self.name, rng, self.dtype, long=rng.random() < long)
        else:
            other = drawn_graphs.draw(self.seed, int(rng.integers(1 << 31))).task
        classes = [[v.class_key for v in task.variants] for task in (other, self.task)]
        return other if classes[0] == classes[1] else self.task

    def cases(self) -> Iterator[Case]:
        """Points of three sketches, drawn from those found at this shape or at another one, for this or another
        machine.
        """
        rng = np.random.default_rng([3, self.seed])
        machine = targets()[rng.choice(len(targets()), p=_weights(len(targets())))]
        target = machine.with_threads(int(rng.choice([1, 2])))
        found = self._sketches(rng, target)
        number = 0
        for k in (
            rng.permutation(CASES // 2) % len(found)
            if len(found) < CASES // 2
            else rng.choice(len(found), CASES // 2, replace=False)
        ):
            sketch = found[int(k)]
            points = sketch.sample_legal(2, rng) if rng.random() < 0.5 else uniform_legal(sketch, rng)
            for i in range(2):
                point = points[i % len(points)]
                yield Case(self, number, sketch, tuple(int(x) for x in point), random_views(self.task, rng))
                number += 1

    def refitted(self) -> Iterator[Case]:
        """Points of another shape of the class, re-fitted to this task."""
        rng = np.random.default_rng([4, self.seed])
        target = detect().with_threads(int(rng.choice([1, 2])))
        donor = self.donor(rng, 0.3)
        found = sketches(donor, target.with_threads(4))
        for number in range(CASES // 2):
            other = replace(found[int(rng.integers(len(found)))], target=target)
            sketch, point = replay(self.task, other.schedule(other.sample_legal(1, rng)[0]), target)
            if not sketch.legal(point[None, :])[0]:
                raise AssertionError(f"re-fitting gave an illegal point: {sketch.schedule(point)}")
            yield Case(self, number, sketch, tuple(int(x) for x in point), {})

    def _sketches(self, rng: Rng, target: Target) -> list[Sketch]:
        donor, wide = self.task, target
        if rng.random() < 0.5:
            wide = target.with_threads(int(rng.choice([4, 8])))
        if rng.random() < 0.4:
            donor = self.donor(rng, 0.5)
        found = sketches(donor, wide)
        if donor is not self.task:
            return [
                Sketch(self.task, s.variant, derive(self.task.variants[s.variant], s.structure.steps), target)
                for s in found
            ]
        return [Sketch(self.task, s.variant, s.structure, target) for s in found]


def uniform_legal(sketch: Sketch, rng: Rng) -> Points:
    """Legal ones of many points whose choices are all equally likely; `sample` prefers small tiles, since they fit."""
    drawn = [rng.choice(np.asarray(k.choices, np.int64), 300) for k in sketch.knobs]
    points = sketch.canonical(np.stack(drawn, axis=1)) if drawn else np.zeros((1, 0), np.int64)
    good = points[sketch.legal(points)]
    return good if len(good) else sketch.sample_legal(2, rng)


def _weights(n: int) -> list[float]:
    """Half of all cases are for the machine as it is."""
    return [1.0] if n == 1 else [0.5, *([0.5 / (n - 1)] * (n - 1))]


def random_array(t: Tensor, rng: Rng) -> Array:
    if t.dtype in FLOATS:
        return rng.standard_normal(t.shape).astype(NUMPY[t.dtype])
    return rng.integers(0 if t.dtype == "bool" else -100, 2 if t.dtype == "bool" else 100, t.shape).astype(
        NUMPY[t.dtype]
    )


def random_views(task: Task, rng: Rng) -> dict[str, View]:
    """Half of all run-time arrays are views of larger ones: offset, stepped, permuted, reversed, inputs also
    repeated.
    """
    found: dict[str, View] = {}
    for t in (*task.runtime_inputs, *task.outputs):
        if rng.random() < 0.5:
            found[t.name] = random_view(t, rng, t not in task.outputs)
    return found


def random_view(t: Tensor, rng: Rng, may_repeat: bool) -> View:
    order = list(range(len(t.shape)))
    if rng.random() < 0.25:
        rng.shuffle(order)
    strides = [0] * len(t.shape)
    size = int(rng.choice([1, 1, 1, 2, 3]))
    for d in reversed(order):
        strides[d] = size
        size *= t.shape[d] + int(rng.choice([0, 0, 1, 2, 5]))
    for d in range(len(strides)):
        if rng.random() < 0.06:
            strides[d] = -strides[d]
        elif may_repeat and t.shape[d] <= 8 and rng.random() < 0.06:  # long runs of one value round one way only
            strides[d] = 0
    return View(tuple(strides), int(rng.integers(0, 20)))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one case did, and what is wrong with it (empty: nothing)."""

    paths: frozenset[str]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Plant:
    """What a test does to programs and their text on the way, to see whether it is noticed."""

    program: Callable[[Program], Program] = lambda program: program
    text: Callable[[str], str] = lambda text: text


class GuardedDevice(HostDevice):
    """This machine, with memory from somewhere else."""

    def __init__(self, pool: Pool, allocate: Callable[[int], HostMemory]) -> None:
        super().__init__(pool)
        self._allocate = allocate

    def allocate(self, nbytes: int) -> HostMemory:
        return self._allocate(nbytes)


class Bench:
    """Runs cases in guarded memory, the runtime's own working memory included."""

    def __init__(self, plant: Plant | None = None) -> None:
        self.arena = Arena()
        self.plant = plant or Plant()
        self.at_end = True

    def allocate(self, nbytes: int) -> HostMemory:
        return HostMemory(self.arena.aligned(nbytes, ALIGN_BYTES, self.at_end))

    def check(self, case: Case) -> Verdict:
        paths: set[str] = set()
        try:
            program = case.program()
            verify(program)
            program = self.plant.program(program)
            text = self.plant.text(emit(program, case.target))
            paths = observe(case.sketch, case.values, program, text)
            artifact = described(program, assemble(text, case.target))
            return Verdict(frozenset(paths), self._run(case, artifact))
        except StormdropError as error:
            return Verdict(frozenset(paths), f"{type(error).__name__}: {error}")
        finally:
            self.arena.reset()

    def _run(self, case: Case, artifact: Artifact) -> str:
        task, arrays = case.trial.task, _as_seen(case)
        constants: dict[str, Array] = {}
        self.at_end = case.number % 2 == 0
        for t in task.constants:
            held = bind(self.arena, t, None, self.at_end)
            held.array[...] = arrays[t.name]
            constants[t.name] = held.array
        device = GuardedDevice(shared_pool(case.target.threads), self.allocate)
        kernel = PreparedKernel(artifact, constants, device)
        first: dict[str, Array] | None = None
        for at_end in (True, False):
            self.at_end = at_end
            got, problem = self._call(case, kernel, device, arrays, constants)
            if problem:
                return f"{problem}, all memory {'before' if at_end else 'behind'} an inaccessible page"
            if first is not None and any(not np.array_equal(got[n], first[n], equal_nan=False) for n in got):
                return "two runs of the same kernel differ"
            first = got
        return ""

    def _call(
        self,
        case: Case,
        kernel: PreparedKernel,
        device: HostDevice,
        arrays: Mapping[str, Array],
        constants: Mapping[str, Array],
    ) -> tuple[dict[str, Array], str]:
        call = kernel.call()
        arguments = list(call.arguments)
        tensors = {t.name: t for t in (*case.trial.task.inputs, *case.trial.task.outputs)}
        bound: dict[str, Bound] = {}
        for k, buffer in enumerate(kernel.artifact.buffers):
            if buffer.scope in (Scope.INPUT, Scope.OUTPUT):
                here = bind(self.arena, tensors[buffer.name], case.views.get(buffer.name), self.at_end)
                if buffer.scope is Scope.INPUT:
                    here.array[...] = arrays[buffer.name]
                here.remember()
                bound[buffer.name] = here
            elif buffer.scope is Scope.CONSTANT and buffer.resident:  # the array itself ends where its memory does
                arguments[k] = BufferPlace(HostMemory(constants[buffer.name].reshape(-1).view(np.uint8)))
        recording = device.record([replace(call, arguments=tuple(arguments))])
        inputs, outputs = (
            [bound[buffer.name].origin for buffer in kernel.artifact.buffers if buffer.scope is scope]
            for scope in (Scope.INPUT, Scope.OUTPUT)
        )
        recording.bind(inputs, outputs)
        recording.run()
        results: dict[str, Array] = {}
        for buffer in kernel.artifact.buffers:
            if buffer.scope is Scope.INPUT and not bound[buffer.name].is_untouched():
                return results, f"the kernel wrote on its input {buffer.name}"
            if buffer.scope is Scope.OUTPUT:
                if not bound[buffer.name].gaps_are_untouched():
                    return results, f"the kernel wrote outside its output {buffer.name}"
                results[buffer.name] = bound[buffer.name].array.copy()
        return results, compare(case, results)


def _as_seen(case: Case) -> dict[str, Array]:
    """The trial's data; an input whose view repeats elements holds one value for all of them."""
    seen = dict(case.trial.arrays)
    for name, view in case.views.items():
        if name in seen and 0 in view.strides:
            pick = tuple(slice(0, 1) if s == 0 else slice(None) for s in view.strides)
            seen[name] = np.broadcast_to(seen[name][pick], seen[name].shape)
    return seen


def compare(case: Case, results: Mapping[str, Array]) -> str:
    """Nothing, or the worst element that is further from float64 than the variant's bound."""
    task, variant = case.trial.task, case.sketch.variant
    if any(0 in view.strides for name, view in case.views.items() if name in case.trial.arrays):
        arrays = _as_seen(case)
        wanted, scales = evaluate(task, arrays, variant, "f64"), magnitude(task, arrays, variant)
    else:
        wanted, scales = case.trial.reference[variant]
    for t in task.outputs:
        got, want = results[t.name], wanted[t.name]
        if t.dtype not in EPS:
            wrong = (
                np.abs(got.astype(np.float64) - want.astype(np.float64)) > quantum(task)
                if quantum(task)
                else got != want
            )
        else:
            with np.errstate(all="ignore"):
                error = np.abs(got.astype(np.float64) - want)
                allowed = error_bound(task.variants[variant], case.target) * EPS[t.dtype] * scales[t.name]
                wrong = ~((error <= allowed) | (got == want))
        if np.any(wrong):
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            place = f"{t.name}[{', '.join(map(str, at))}]"
            return f"{place} is {got[at]}, not {want[at]}; {int(np.sum(wrong))} of {wrong.size} elements are wrong"
    return ""
