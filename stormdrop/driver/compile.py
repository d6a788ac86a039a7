"""From a model to something that runs: graph, tasks, schedules, machine code, memory, packed weights.

    model = compile("resnet50.onnx")                       # what tuning decided; defaults where it has not
    model = compile(graph, schedules=lambda task: None)    # defaults only

The parts are elsewhere; this module puts them together, and knows of nothing but their order.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormdrop.arguments import check_arguments
from stormdrop.driver import COMPILED, ZOO
from stormdrop.driver.build import Job, build_kernels
from stormdrop.driver.fallback import OnnxRuntimeFallback, fallback_of
from stormdrop.driver.mixed import MixedModel, OpenMixedModel
from stormdrop.driver.placed import placed_phases
from stormdrop.driver.specialise import OpenSource, Sharing, open_interface, open_model, open_source
from stormdrop.driver.stored import DEFAULT, Renews, Schedules, origin_of, proved_again, scheduled, stored_schedules
from stormdrop.driver.unmeasured import unmeasured
from stormdrop.errors import UserError
from stormdrop.frontend.custom import CustomOperator
from stormdrop.frontend.mixed import cut
from stormdrop.frontend.onnx import load as load_onnx
from stormdrop.frontend.onnx import load_parsed
from stormdrop.frontend.parsed import parsed
from stormdrop.graph.graph import Graph, Value
from stormdrop.graph.partition import Partition, TaskCall, partition
from stormdrop.graph.passes import optimise
from stormdrop.graph.storage import StorageBuffer, StoragePlace, storage
from stormdrop.ir.expr import ITEMSIZE
from stormdrop.ir.memo import at_work
from stormdrop.ir.shape import row_strides
from stormdrop.ir.tensor import Task
from stormdrop.ops.winograd import TRANSFORMS
from stormdrop.pytorch import compile_module, graph_of, is_torch
from stormdrop.reservoir.verdict import Verdict
from stormdrop.runtime.arena import Lifetime, plan
from stormdrop.runtime.artifact import SLACK_BYTES, Artifact
from stormdrop.runtime.group import Group
from stormdrop.runtime.grouping import concurrent_calls, grouped, means_from
from stormdrop.runtime.host_device import HostDevice
from stormdrop.runtime.image import Address, Image, KernelCall, Port
from stormdrop.runtime.memory import give_back
from stormdrop.runtime.model import Model, pack
from stormdrop.runtime.pool import Pool
from stormdrop.runtime.summary import PhaseSummary
from stormdrop.runtime.targets import host_for, target_for
from stormdrop.space.offer import Offer, Taken
from stormdrop.space.rule_names import references
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target import whole_lines
from stormdrop.target.cpu import Cpu
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target
from stormdrop.target.scope import Scope

if TYPE_CHECKING:
    from stormdrop.pytorch.compiled import CompiledModule

_log = logging.getLogger("stormdrop.compile")

GIVE_BACK_BYTES = 4 << 20
REUSES = ("predicted", "off")
"""What compiling may take of other tasks' schedules."""

Array = NDArray[Any]
Source = str | os.PathLike[str] | bytes | Graph | Any  # an onnx.ModelProto or of PyTorch, which are not imported here
ArenaKey = StorageBuffer | tuple[int, int]
"""A buffer of activations, or the working memory of a call: its number, and that of the kernel's buffer."""


def load(
    model: Source,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] = (),
    example_inputs: Any = None,
) -> Graph:
    """A model as a graph: from a file, bytes, an ONNX model, `zoo:NAME`, or a graph as it is; a PyTorch module, with
    example inputs, or an exported program.

    `operators` are the caller's own. Raises UserError, for operators that are not supported UnsupportedOperator.
    """
    if isinstance(model, Graph) or is_torch(model):
        if shapes or constants or operators:
            what = "a PyTorch module" if is_torch(model) else "a graph already"
            raise UserError(f"shapes=, constants= and operators= are for loading an ONNX model; this is {what}")
        return model if isinstance(model, Graph) else graph_of(model, example_inputs)
    return load_onnx(named(model, shapes), shapes, constants, operators)


def named(model: Source, shapes: Mapping[str, Sequence[int]] | None = None, is_open: bool = False) -> Any:
    """A network of the zoo where the model is the name of one, else the model as it is. Raises UserError for a file
    that is compiled already.
    """
    if isinstance(model, (str, os.PathLike)) and str(model).endswith(COMPILED):  # pyright: ignore[reportUnknownArgumentType]
        raise UserError(f"{str(model)!r} is compiled already: sd.load_compiled opens it")  # pyright: ignore[reportUnknownArgumentType]
    return network(model, shapes, is_open) if isinstance(model, str) and model.startswith(ZOO) else model


def network(name: str, shapes: Mapping[str, Sequence[int]] | None = None, is_open: bool = False) -> Any:
    """A network of the zoo as an ONNX model, for as many inputs at once as the given shapes begin with, or any."""
    from stormdrop import zoo

    if is_open:
        return zoo.build(name.removeprefix(ZOO), None)
    leading = {shape[0] for shape in (shapes or {}).values() if len(shape)}
    return zoo.build(name.removeprefix(ZOO), leading.pop() if len(leading) == 1 and 0 not in leading else 1)


class CompileOptions(TypedDict, total=False):
    """The options of `compile`, but `fallback`."""

    schedules: Schedules | None
    shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]] | None
    constants: Mapping[str, ArrayLike] | None
    threads: int | None
    spin: float | None
    affinity: str | Sequence[int] | None
    pool: Pool | str | None
    target: Target | str | None
    precision: str | None
    winograd: bool
    rules: Sequence[Rule]
    unproved: bool
    reuse: str
    operators: Sequence[CustomOperator]


@overload
def compile(model: Source, *, fallback: None = None, **options: Unpack[CompileOptions]) -> Model: ...


@overload
def compile(
    model: Source, *, fallback: str, **options: Unpack[CompileOptions]
) -> Model | MixedModel | OpenMixedModel: ...


@overload
def compile(model: Source, example_inputs: Any, **options: Unpack[CompileOptions]) -> CompiledModule: ...


def compile(
    model: Source,
    example_inputs: Any = None,
    *,
    schedules: Schedules | None = None,
    shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    threads: int | None = None,
    spin: float | None = None,
    affinity: str | Sequence[int] | None = None,
    pool: Pool | str | None = None,
    target: Target | str | None = None,
    precision: str | None = None,
    winograd: bool = True,
    rules: Sequence[Rule] = RULES,
    unproved: bool = False,
    reuse: str = "predicted",
    operators: Sequence[CustomOperator] = (),
    fallback: str | None = None,
) -> Model | MixedModel | OpenMixedModel | CompiledModule:
    """A model that runs on this machine: on its CPU, or with `target="cuda"` on its GPU (`runtime.targets` has other
    names; a model for a GPU that is not here can be saved). `precision`, on a GPU, is that of the factors of f32
    products and convolutions: "f32", or by matrix instructions "tf32", "3xtf32", "bf16", "fp16".

    A PyTorch module is compiled for `example_inputs`, a tuple of its arguments or a mapping by name, and called like
    the module; an exported program has examples of its own.

    A model with open dimensions is an `OpenModel`, compiled for each size when it is first called with it. `shapes`
    gives the shapes of inputs by name: what it settles is open no more. A list of such mappings leaves dimensions open
    and compiles for each of them ahead.

    `schedules` says how to compute a task, None meaning the default; without it the store's verdicts are used, and with
    those of a `TunedModel`, `tuned.schedules`, what was found there. `unproved` also takes the fastest trial of a task
    that the store has no verdict on. Where the store knows nothing of a task, a schedule of a related one is taken,
    re-fitted and unmeasured, if what tuning has learned predicts enough gain (`stormdrop.driver.unmeasured`);
    `reuse="off"` takes the default there, and so do models with open dimensions. `Model.origins` says what was taken.

    `rules` are those that schedules may follow. With `winograd=False` convolutions are summed directly, which rounds
    less. `operators` are the caller's own (`sd.CustomOperator`). With `fallback="onnxruntime"` what is not supported
    runs there, and the result is a `MixedModel` if anything does.

    `threads`, `spin` (microseconds that a waiting thread spins before it sleeps) and `affinity` (where threads run:
    "none", "compact", "spread" or the CPU of each) are as for `sd.Pool`. `pool` is one of those, which several models
    may use, "own" for one that no other model uses, or "shared", the default: all models with these settings.

    Raises UserError for a model that cannot be read and for rules that other processes cannot import, and
    UnsupportedOperator for operators that are not supported.
    """
    check_arguments(schedules=schedules, threads=threads, target=target, winograd=winograd, unproved=unproved)
    check_arguments(rules=rules, operators=operators, shapes=shapes, spin=spin, pool=pool)
    check_arguments(precision=precision)
    if reuse not in REUSES:
        raise UserError(f"reuse={reuse!r}: give one of {', '.join(REUSES)}")
    machine = target_for(target, threads, pool, precision)
    host = host_for(machine.threads, isinstance(machine, Gpu), spin, affinity, pool)
    if is_torch(model):
        if shapes or constants or operators or fallback:
            told = "shapes=, constants=, operators= and fallback= are for ONNX models"
            raise UserError(f"{told}; a PyTorch module takes the shapes of example_inputs")
        own = None if isinstance(machine, Gpu) else host.pool
        options = {"schedules": schedules, "target": machine, "winograd": winograd, "rules": rules, "reuse": reuse}
        return compile_module(model, example_inputs, partial(compile, **options, unproved=unproved, pool=own))
    if example_inputs is not None:
        raise UserError(f"example_inputs are for PyTorch modules, not for {type(model).__name__}")
    ahead = None if shapes is None or isinstance(shapes, Mapping) else list(shapes)
    settled = shapes if isinstance(shapes, Mapping) else None

    def build(graph: list[Graph], sharing: Sharing | None = None) -> Model:
        shared = sharing if not isinstance(machine, Gpu) else None  # arenas and weights of a GPU are each model's own
        with at_work():
            parts = tasks_of(graph.pop(), winograd)
            is_reusing = reuse != "off" and sharing is None
            return build_model(parts, machine, schedules, rules, unproved, shared, is_reusing, host)

    with at_work():
        if fallback is not None:
            if isinstance(machine, Gpu) or isinstance(model, Graph):
                raise UserError("fallback= is for ONNX models on the CPU")
            source = named(model, settled, ahead is not None)
            return _mixed(source, settled, ahead, constants, operators, fallback_of(fallback, machine.threads), build)
        read = _read(model, settled, constants, operators, ahead is not None)
        if not isinstance(read, OpenSource):
            if ahead:
                raise UserError("shapes= lists several shapes, but the model has no open dimensions: give none")
            return build(read)
        references(rules)
        return open_model(read, machine.threads, host, build, ahead or ())


def _mixed(
    model: Any,
    shapes: Mapping[str, Sequence[int]] | None,
    ahead: Sequence[Mapping[str, Sequence[int]]] | None,
    constants: Mapping[str, ArrayLike] | None,
    operators: Sequence[CustomOperator],
    runtime: OnnxRuntimeFallback,
    build: Callable[[list[Graph]], Model],
) -> Model | MixedModel | OpenMixedModel:
    """A model of which `runtime` may run a part; with open dimensions, one for each size it is called with."""

    def sized(sizes: Mapping[str, Sequence[int]] | None) -> Model | MixedModel:
        graph = cut(parsed(model), runtime, sizes, constants, operators)
        if isinstance(graph, Graph):
            return build([graph])
        own = [part for part in graph.parts if isinstance(part, Graph)]
        return MixedModel(graph, [build([part]) for part in own], runtime)

    opened = open_interface(parsed(model), shapes, constants)
    if opened is None:
        return sized(shapes)
    found = OpenMixedModel(opened.name, [port.name for port in opened.inputs], sized)
    for sizes in ahead or ():
        found.specialised(sizes)
    return found


def _read(
    model: Source,
    shapes: Mapping[str, Sequence[int]] | None,
    constants: Mapping[str, ArrayLike] | None,
    operators: Sequence[CustomOperator],
    is_open: bool,
) -> list[Graph] | OpenSource:
    """A model as a graph where all its shapes are known (in a list, to be taken out), else to be compiled by size."""
    if isinstance(model, Graph):
        return [load(model, shapes, constants, operators)]
    model = named(model, shapes, is_open)
    file = parsed(model)
    opened = open_source(model, file, shapes, constants, operators)
    return opened or [load_parsed(file, shapes, constants, operators)]


def tasks_of(graph: Graph, winograd: bool = True) -> Partition:
    """The kernels of a model: what tuning, compiling and reporting all start from."""
    return partition(optimise(graph), tuple(TRANSFORMS) if winograd else ())


def suited(target: Target, parts: Partition) -> Target:
    """The target as the model finds it: cold, where the model's weights leave the caches between two runs."""
    return target.with_cold_weights(parts.constant_bytes > target.l3_bytes)


def build_model(
    parts: Partition,
    target: Target,
    schedules: Schedules | None = None,
    rules: Sequence[Rule] = RULES,
    unproved: bool = False,
    sharing: Sharing | None = None,
    reuse: bool = True,
    host: HostDevice | None = None,
) -> Model:
    """Machine code, memory and packed weights for a partition; by default with what the user's store knows, and with
    `reuse` what it predicts.

    With `sharing`, weights and arenas are those of other models too. `host` has the threads that run a CPU's model.
    """
    target = suited(target, parts)
    references(rules)  # told now, not only where there are enough kernels for another process
    if schedules is None:
        offers = unmeasured(parts, target, rules) if reuse else None
        schedules = stored_schedules(target, rules, parts.digest, unproved, offers)
    build = _Build(parts, target, schedules, rules, sharing)
    del parts  # if this was the last to know the model's constants, each is freed once it is packed
    image = build.image()
    give_back()
    if sharing is not None:
        image, chunks = sharing.weights.packed(image, build.constants_of, build.copied_constants())
        give_back()
        return Model(image, chunks, sharing.weights.device, arenas=sharing.arenas, origins=build.origins)
    own = None if image.is_for_gpu else host
    weights = pack(image, build.constants_of, own)
    for offset, raw in build.copied_constants():
        weights[offset : offset + raw.nbytes] = raw
    return Model(image, weights, own, ordinal=target.ordinal if isinstance(target, Gpu) else 0, origins=build.origins)


def memory_of(parts: Partition, target: Target) -> tuple[int, int]:
    """The kernels of one run, and the bytes of the arena for their results.

    Nothing is built: what schedules need besides is not known.
    """
    build = _Build(parts, target, lambda task: None, RULES)
    return len(build.laid.calls), plan([life for _, life in build._lifetimes([], [])])[1]


@dataclass(slots=True)
class _Weights:
    """Offsets in the block of weights, handed out one after the other."""

    total: int = 0
    constants: dict[Value, int] = field(default_factory=dict[Value, int])
    whole: dict[Value, int] = field(default_factory=dict[Value, int])
    """Those that kernels take as inputs: nobody packs them."""

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
        schedules: Schedules,
        rules: Sequence[Rule],
        sharing: Sharing | None = None,
    ) -> None:
        self._sharing = sharing
        self.laid, self.target, self.schedules, self._rules = storage(parts), target, schedules, rules
        graph = parts.graph
        self._name = graph.name
        self._inputs = tuple(Port(v.name, v.shape, v.dtype) for v in graph.inputs)
        self._outputs = tuple(Port(name, v.shape, v.dtype) for name, v in zip(graph.output_names, graph.outputs))
        self._constants = dict(graph.constants)
        self._given_up = 0  # bytes of them
        self._chosen: dict[str, Schedule | Verdict | Offer | None] = {}
        self.origins: dict[str, str] = {}
        """Where the schedule of each task came from, by digest."""
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
        """The raw constants that a step packs or keeps, by the name of their buffer.

        It is asked once, and forgets what no other needs.
        """
        sources = self._sources[step]
        found = {name: self._constants[v] for name, v in sources.items()}
        if self._given_up > GIVE_BACK_BYTES:
            give_back()
            self._given_up = 0
        for v in set(sources.values()):
            self._readers[v] -= 1
            if not self._readers[v]:
                self._given_up += self._constants.pop(v).nbytes
        return found

    def copied_constants(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Constants that kernels take as inputs, as bytes, each with its offset."""
        for v, offset in self._weights.whole.items():
            yield offset, np.ascontiguousarray(self._constants[v]).reshape(-1).view(np.uint8)

    # ---- code

    def _build_all(self) -> list[int]:
        """The number of every call's kernel; calls of equal tasks on equally laid out memory share one."""
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
                found = self._found(call.task)
                code = found.code if isinstance(found, Verdict) else None
                offer = found if isinstance(found, Offer) else None
                jobs.append(Job(call.task, scheduled(found), shaped, code, offer=offer))
                served.append([])
            served[numbers[key]].append(call)
            of_call.append(numbers[key])
        sharing = self._sharing
        if sharing is not None:
            turn = sharing.packings.begin()
            jobs = [replace(job, packing=turn.packing(calls)) for job, calls in zip(jobs, served)]
        build = sharing.kept.build if sharing is not None else build_kernels
        built = build(jobs, self.target, rules=self._rules)
        refuted = self._refuted({job.task.digest for job, kernel in zip(jobs, built) if kernel.is_changed})
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
        self.origins = {job.task.digest: self._origin(job.task, kernel.taken) for job, kernel in zip(jobs, built)}
        self.origins |= dict.fromkeys(refuted, DEFAULT)
        return of_call

    def _groups(self, kernels: Sequence[int]) -> tuple[Group, ...]:
        """The phases of all calls that need no barrier between them."""
        if not isinstance(self.target, Cpu):
            return ()
        phases = placed_phases(self.laid, [self._kernels[k] for k in kernels], [self._summaries[k] for k in kernels])
        return grouped(phases, self.target, means_from())

    def _origin(self, task: Task, taken: Taken | None) -> str:
        if taken is not None:
            told = "%s is computed as %s, unmeasured (%s): predicted to be %.2f times as fast as by default"
            _log.info(told, task.name, taken.donor, taken.origin, taken.predicted)
            return taken.origin
        return origin_of(self._found(task))

    def _found(self, task: Task) -> Schedule | Verdict | Offer | None:
        if task.digest not in self._chosen:
            found = self._chosen[task.digest] = self.schedules(task)
            check_arguments(schedule=scheduled(found))
        return self._chosen[task.digest]

    def _refuted(self, changed: set[str]) -> set[str]:
        """Of the tasks whose verdicts name other code than their schedules have now, those that compute wrongly."""
        verdicts = [v for digest, v in self._chosen.items() if digest in changed and isinstance(v, Verdict)]
        held = proved_again(verdicts, self.target, self._rules) if verdicts else []
        if held and isinstance(self.schedules, Renews):
            self.schedules.renew(held)
        return changed - {verdict.task.digest for verdict in held}

    def _strides(self, call: TaskCall) -> list[tuple[int, ...] | None]:
        """The strides of run-time inputs and output; None where they are row-major."""
        found: list[tuple[int, ...] | None] = []
        for v in (*self._runtime(call), call.output):
            strides = self.laid.places[v].strides
            plain = all(a == b for a, b, n in zip(strides, row_strides(v.shape), v.shape) if n > 1)
            found.append(None if plain else strides)
        return found

    def _runtime(self, call: TaskCall) -> list[Value]:
        return [v for t, v in zip(call.task.inputs, call.inputs) if not t.constant]

    # ---- memory

    def _lifetimes(self, kernels: Sequence[int], groups: Sequence[Group]) -> list[tuple[ArenaKey, Lifetime]]:
        """Every buffer of the arena from its first to its last use, and the working memory of every step. Calls of one
        group may run at the same time.
        """
        spans: dict[StorageBuffer, tuple[int, int]] = {}
        concurrent = concurrent_calls(groups, len(self.laid.calls))
        for call, (first, last) in zip(self.laid.calls, concurrent):
            for v in (*self._runtime(call), call.output):
                buffer = self.laid.places[v].buffer
                if buffer.kind == "arena":
                    known = spans.get(buffer, (first, last))
                    spans[buffer] = min(known[0], first), max(known[1], last)
        found: list[tuple[ArenaKey, Lifetime]] = [
            (buffer, Lifetime(buffer.value.nbytes + SLACK_BYTES, first, last))
            for buffer, (first, last) in spans.items()
        ]
        for k, kernel in enumerate(kernels):
            for s, buffer in enumerate(self._kernels[kernel].buffers):
                if buffer.scope is Scope.WORKSPACE:
                    found.append(((k, s), Lifetime(buffer.nbytes, *concurrent[k])))
        return found

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
        return KernelCall(kernel, tuple(addresses), call.label, task.digest, task.flops, task.minimal_bytes)

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
