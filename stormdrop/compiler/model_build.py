"""From a model's tasks to the model: the schedule and machine code of each task, memory for results, packed weights.

    model = build_model(tasks_of(graph), target, lambda task: Choice())    # by default schedules

Kernels are built in several processes if there are enough of them. Their results share one arena, planned by lifetime;
constants are packed into one block, in the order in which the kernels read them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import warn
from stormdrop.builder.building import BuiltKernel
from stormdrop.builder.grouping import PhaseSummary, PlacedPhase, concurrent_calls, grouped, means_from
from stormdrop.compiler.choose import Choice, Choose, Origin
from stormdrop.compiler.kernel_builds import Job, build_kernels
from stormdrop.compiler.options import Listen, Scheduled, ignore
from stormdrop.compiler.specialise import Sharing
from stormdrop.compiler.stored import StoredSchedules, proved_again
from stormdrop.device.arrays import give_back
from stormdrop.device.artifact import SLACK_BYTES, Artifact, Group
from stormdrop.device.host_device import HostDevice
from stormdrop.graph.partition import Partition, TaskCall
from stormdrop.graph.storage import Storage, StorageBuffer, StoragePlace, storage
from stormdrop.ir.expr import ITEMSIZE
from stormdrop.ir.shape import row_strides
from stormdrop.ir.tensor import Task
from stormdrop.model.arena import Lifetime, plan
from stormdrop.model.fixed_model import FixedModel
from stormdrop.model.image import Address, Image, KernelCall, Port
from stormdrop.model.model import Model
from stormdrop.model.shared_weights import pack
from stormdrop.operators.node import Value
from stormdrop.space.derive import references
from stormdrop.space.rules import RULES, Rule
from stormdrop.target import whole_lines
from stormdrop.target.cpu import Cpu
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target
from stormdrop.target.structures import Scope

_log = logging.getLogger("stormdrop.compile")

GIVE_BACK_BYTES = 4 << 20
_DEVIATIONS = {
    "fitted": "whose values are no legal point for it: they were fitted",
    "shared": "so that it shares its packed constants with other sizes of the model",
}
"""Remarks on kernels with another schedule than the given one."""

Array = NDArray[Any]
ArenaKey = StorageBuffer | tuple[int, int]
"""A buffer of activations, or the working memory of a call: the numbers of the call and of the kernel's buffer."""


def build_model(
    parts: Partition,
    target: Target,
    choose: Choose,
    rules: Sequence[Rule] = RULES,
    sharing: Sharing | None = None,
    host: HostDevice | None = None,
    listen: Listen = ignore,
) -> Model:
    """Builds machine code, memory and packed weights for a partition, with the choices of `choose`.

    With `sharing`, weights and arenas are shared with other models. `host` has the threads that run a CPU's model.
    """
    target = target.with_weights(parts.constant_bytes)
    references(rules)  # an error of a rule comes before the work, also if no other process needs the rules
    build = _Build(parts, target, choose, rules, sharing, listen)
    del parts  # without other references, each constant is freed once it is packed
    image = build.image()
    give_back()
    if sharing is not None:
        image, chunks = sharing.weights.packed(image, build.constants_of, build.copied_constants())
        give_back()
        return FixedModel(image, chunks, sharing.weights.device, arenas=sharing.arenas, origins=build.origins)
    own = None if image.is_for_gpu else host
    weights = pack(image, build.constants_of, own)
    for offset, raw in build.copied_constants():
        weights[offset : offset + raw.nbytes] = raw
    return FixedModel(
        image, weights, own, ordinal=target.ordinal if isinstance(target, Gpu) else 0, origins=build.origins
    )


def memory_of(parts: Partition, target: Target) -> tuple[int, int]:
    """Returns the number of kernels of one run, and the bytes of the arena for their results.

    Nothing is built, and the working memory of the kernels is left out.
    """
    build = _Build(parts, target, lambda task: Choice(), RULES)
    return len(build.laid.calls), plan([life for _, life in build._lifetimes([], [])])[1]


@dataclass(slots=True)
class _Weights:
    """Offsets in the block of weights, handed out one after the other."""

    total: int = 0
    constants: dict[Value, int] = field(default_factory=dict[Value, int])
    whole: dict[Value, int] = field(default_factory=dict[Value, int])
    """Constants that kernels take as inputs, unpacked."""

    def reserve(self, nbytes: int) -> int:
        offset = self.total
        self.total += whole_lines(nbytes)
        return offset

    def constant(self, v: Value) -> int:
        if v not in self.constants:
            self.constants[v] = self.reserve(v.nbytes)
        return self.constants[v]


class _Build:
    def __init__(
        self,
        parts: Partition,
        target: Target,
        choose: Choose,
        rules: Sequence[Rule],
        sharing: Sharing | None = None,
        listen: Listen = ignore,
    ) -> None:
        self._sharing, self._listen = sharing, listen
        self.laid, self.target, self._choose, self._rules = storage(parts), target, choose, rules
        graph = parts.graph
        self._name = graph.name
        self._ids = {use.task.digest: use.id for use in parts.tasks}
        self._inputs = tuple(Port(v.name, v.shape, v.dtype) for v in graph.inputs)
        self._outputs = tuple(Port(name, v.shape, v.dtype) for name, v in zip(graph.output_names, graph.outputs))
        self._constants = dict(graph.constants)
        self._given_up = 0  # bytes of constants without references
        self._chosen: dict[str, Choice] = {}
        self.origins: dict[str, str] = {}
        """The origin of each task's schedule, by digest."""
        self._kernels: list[Artifact] = []
        self._summaries: list[tuple[PhaseSummary, ...]] = []
        self._weights = _Weights()
        self._sources: list[Mapping[str, Value]] = []  # per step: constants by their buffer's name

    def image(self) -> Image:
        kernels = self._build_all()
        groups = self._groups(kernels)
        lifetimes = self._lifetimes(kernels, groups)
        offsets, total = plan([life for _, life in lifetimes])
        arena = {key: offset for (key, _), offset in zip(lifetimes, offsets)}
        numbered = enumerate(zip(self.laid.calls, kernels))
        calls = tuple(self._call(k, call, kernel, arena) for k, (call, kernel) in numbered)
        self._readers = Counter(v for sources in self._sources for v in set(sources.values()))
        self._readers.update(self._weights.whole.keys())
        target = self.target
        return Image(
            self._name,
            self._inputs,
            self._outputs,
            tuple(self._kernels),
            calls,
            total,
            self._weights.total,
            target.threads,
            target.triple,
            target.cpu,
            target.features,
            groups,
        )

    def constants_of(self, step: int) -> Mapping[str, Array]:
        """Returns the raw constants that a step packs or keeps, by the name of their buffer.

        Constants that no later step needs are dropped: one call for each step.
        """
        sources = self._sources[step]
        constants = {name: self._constants[v] for name, v in sources.items()}
        if self._given_up > GIVE_BACK_BYTES:
            give_back()
            self._given_up = 0
        for v in set(sources.values()):
            self._readers[v] -= 1
            if not self._readers[v]:
                self._given_up += self._constants.pop(v).nbytes
        return constants

    def copied_constants(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yields the constants that kernels take as inputs, as bytes, each with its offset."""
        for v, offset in self._weights.whole.items():
            yield offset, np.ascontiguousarray(self._constants[v]).reshape(-1).view(np.uint8)

    # ---- code

    def _build_all(self) -> list[int]:
        """Builds all kernels; returns the kernel's number of each call. Equal tasks on equal layouts share a kernel."""
        numbers: dict[tuple[object, ...], int] = {}
        jobs: list[Job] = []
        of_call: list[int] = []
        served: list[list[TaskCall]] = []  # the calls of each job
        for call in self.laid.calls:
            strides = self._strides(call)
            key = (call.task.digest, *strides)
            if key not in numbers:
                numbers[key] = len(jobs)
                tensors = (*call.task.runtime_inputs, *call.task.outputs)
                shaped = {t.name: given for t, given in zip(tensors, strides) if given is not None}
                choice = self._choice(call.task)
                jobs.append(Job(call.task, choice.schedule, shaped, choice.code))
                served.append([])
            served[numbers[key]].append(call)
            of_call.append(numbers[key])
        sharing = self._sharing
        if sharing is not None:
            turn = sharing.packings.begin()
            jobs = [
                replace(job, packing=turn.packing(calls, job.schedule is not None)) for job, calls in zip(jobs, served)
            ]
        build = sharing.kept.build if sharing is not None else build_kernels
        built = build(jobs, self.target, rules=self._rules)
        refuted = self._refuted({job.task.digest: job.task for job, kernel in zip(jobs, built) if kernel.is_changed})
        again = [k for k, job in enumerate(jobs) if job.task.digest in refuted]
        by_default = [replace(jobs[k], schedule=None, code=None) for k in again]
        for k, kernel in zip(again, build_kernels(by_default, self.target, rules=self._rules)):
            built[k] = kernel
        for kernel, calls in zip(built, served):
            for call in calls:
                if sharing is not None and kernel.layout is not None and kernel.layout.tensors:
                    sharing.packings.note(call, kernel.layout, kernel.artifact)
        self._kernels = [kernel.artifact for kernel in built]
        self._summaries = [kernel.phases for kernel in built]
        for job, kernel in zip(jobs, built):
            self.origins[job.task.digest] = self._origin(job.task, kernel).value
        self.origins |= dict.fromkeys(refuted, Origin.DEFAULT.value)
        return of_call

    def _groups(self, kernels: Sequence[int]) -> tuple[Group, ...]:
        """Returns the groups of phases that need no barrier between them."""
        if not isinstance(self.target, Cpu):
            return ()
        phases = _placed_phases(self.laid, [self._kernels[k] for k in kernels], [self._summaries[k] for k in kernels])
        return grouped(phases, self.target, means_from())

    def _origin(self, task: Task, kernel: BuiltKernel) -> Origin:
        if kernel.deviation in _DEVIATIONS and task.digest not in self.origins:
            warn(f"{task.name} is computed by another schedule than its own, {_DEVIATIONS[kernel.deviation]}")
        return Origin.DEFAULT if kernel.deviation in ("default", "shared") else self._choice(task).origin

    def _choice(self, task: Task) -> Choice:
        if task.digest not in self._chosen:
            self._listen(Scheduled(len(self._chosen) + 1, task.name))
            self._chosen[task.digest] = self._choose(task)
        return self._chosen[task.digest]

    def _refuted(self, changed: Mapping[str, Task]) -> set[str]:
        """Returns the changed tasks that compute wrongly, by digest: code differs from the code of the choice."""
        chosen = [(task, self._chosen[digest]) for digest, task in changed.items()]
        proofs = proved_again(chosen, self.target, self._rules) if chosen else []
        if proofs and isinstance(self._choose, StoredSchedules):
            self._choose.renew(proofs)
        return changed.keys() - {task.digest for task, _, _ in proofs}

    def _strides(self, call: TaskCall) -> list[tuple[int, ...] | None]:
        """Returns the strides of run-time inputs and output, None for row-major tensors."""
        given: list[tuple[int, ...] | None] = []
        for v in (*self._runtime(call), call.output):
            strides = self.laid.places[v].strides
            plain = all(a == b for a, b, n in zip(strides, row_strides(v.shape), v.shape) if n > 1)
            given.append(None if plain else strides)
        return given

    def _runtime(self, call: TaskCall) -> list[Value]:
        return [v for t, v in zip(call.task.inputs, call.inputs) if not t.constant]

    # ---- memory

    def _lifetimes(self, kernels: Sequence[int], groups: Sequence[Group]) -> list[tuple[ArenaKey, Lifetime]]:
        """Returns the first and last use of each buffer of the arena, and of the working memory of each step.

        Calls of one group may run at the same time.
        """
        spans: dict[StorageBuffer, tuple[int, int]] = {}
        concurrent = concurrent_calls(groups, len(self.laid.calls))
        for call, (first, last) in zip(self.laid.calls, concurrent):
            for v in (*self._runtime(call), call.output):
                buffer = self.laid.places[v].buffer
                if buffer.kind == "arena":
                    known = spans.get(buffer, (first, last))
                    spans[buffer] = min(known[0], first), max(known[1], last)
        lifetimes: list[tuple[ArenaKey, Lifetime]] = [
            (buffer, Lifetime(buffer.value.nbytes + SLACK_BYTES, first, last))
            for buffer, (first, last) in spans.items()
        ]
        for k, kernel in enumerate(kernels):
            for s, buffer in enumerate(self._kernels[kernel].buffers):
                if buffer.scope is Scope.WORKSPACE:
                    lifetimes.append(((k, s), Lifetime(buffer.nbytes, *concurrent[k])))
        return lifetimes

    def _call(self, k: int, call: TaskCall, kernel: int, arena: Mapping[ArenaKey, int]) -> KernelCall:
        inputs = iter(self._runtime(call))
        constants = iter([v for t, v in zip(call.task.inputs, call.inputs) if t.constant])
        sources: dict[str, Value] = {}
        addresses: list[Address | None] = []
        for s, buffer in enumerate(self._kernels[kernel].buffers):
            match buffer.scope:
                case Scope.INPUT:
                    addresses.append(self._address(self.laid.places[next(inputs)], ITEMSIZE[buffer.dtype], arena))
                case Scope.OUTPUT:
                    addresses.append(self._address(self.laid.places[call.output], ITEMSIZE[buffer.dtype], arena))
                case Scope.CONSTANT:
                    sources[buffer.name] = v = next(constants)
                    addresses.append(Address("weights", 0, self._weights.constant(v)) if buffer.resident else None)
                case Scope.PACKED:
                    offset = self._weights.reserve(buffer.nbytes) if buffer.resident else None
                    addresses.append(None if offset is None else Address("weights", 0, offset))
                case _:
                    addresses.append(Address("arena", 0, arena[(k, s)]))
        self._sources.append(sources)
        task = call.task
        amounts = task.flops, task.minimal_bytes
        of_task = self._ids.get(task.digest, ""), call.shapes_text(), call.node
        return KernelCall(kernel, tuple(addresses), call.label, task.digest, *amounts, *of_task)

    def _address(self, place: StoragePlace, itemsize: int, arena: Mapping[ArenaKey, int]) -> Address:
        offset, buffer = place.offset * itemsize, place.buffer
        match buffer.kind:
            case "arena":
                return Address("arena", 0, arena[buffer] + offset)
            case "constant":
                start = self._weights.whole[buffer.value] = self._weights.constant(buffer.value)
                return Address("weights", 0, start + offset)
            case "input" | "output":
                return Address(buffer.kind, buffer.index, offset)


def _placed_phases(
    laid: Storage, kernels: Sequence[Artifact], summaries: Sequence[Sequence[PhaseSummary]]
) -> list[PlacedPhase]:
    """Returns the phases of all calls with the buffers that they touch, before memory is planned, for `grouped`.

    `kernels` and `summaries` have an entry for each call. Empty phases are left out.
    """
    phases: list[PlacedPhase] = []
    for k, (call, kernel) in enumerate(zip(laid.calls, kernels)):
        inputs = iter([v for t, v in zip(call.task.inputs, call.inputs) if not t.constant])
        places: list[tuple[Hashable, int] | None] = []
        for s, buffer in enumerate(kernel.buffers):
            if buffer.scope in (Scope.INPUT, Scope.OUTPUT):
                place = laid.places[next(inputs) if buffer.scope is Scope.INPUT else call.output]
                places.append((place.buffer, place.offset * ITEMSIZE[buffer.dtype]))
            else:
                places.append(((k, s), 0) if buffer.scope is Scope.WORKSPACE else None)
        constants = {s: buffer.nbytes for s, buffer in enumerate(kernel.buffers) if buffer.is_kept}
        for p, summary in enumerate(summaries[k]):
            if kernel.extents[p]:
                phases.append(PlacedPhase(k, p, summary, places, constants))
    return phases
