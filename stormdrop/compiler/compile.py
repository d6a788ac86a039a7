"""Compilation of a model: from a file, a graph or a PyTorch module to something that runs.

    model = compile("resnet50.onnx")                       # verdicts of the user's store, else default schedules
    model = compile(graph, schedules=lambda task: None)    # default schedules only

`compile` (`sd.compile`) builds a `CompileOptions` of its keyword arguments. All compiling, also of the command line,
is `compile_model`: read the model, cut it into tasks, choose schedules, build (`compiler.model_build`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from numpy.typing import ArrayLike

from stormdrop.base.arguments import check_arguments, shapes_by_name
from stormdrop.base.errors import StormdropError, UserError, warn
from stormdrop.compiler import COMPILED, ZOO
from stormdrop.compiler.choose import Choose, Schedules, choice_of
from stormdrop.compiler.model_build import build_model
from stormdrop.compiler.open_sizes import at_size
from stormdrop.compiler.options import (
    CompileOptions,
    Event,
    Listen,
    MachineOptions,
    Placed,
    Planned,
    Progress,
    ReadOptions,
    Scheduled,
    Shapes,
    StoreUnreadable,
    ignore,
    told_by,
)
from stormdrop.compiler.specialise import OpenSource, Sharing, open_model, open_source
from stormdrop.compiler.stored import stored_schedules
from stormdrop.device.pool.pool import Pool
from stormdrop.frontend.custom import CustomOperator
from stormdrop.frontend.mixed import MixedGraph
from stormdrop.frontend.onnx import load_parsed
from stormdrop.frontend.parsed import ParsedModel, parsed
from stormdrop.graph.graph import Graph
from stormdrop.graph.partition import Partition, partition
from stormdrop.graph.passes import optimise
from stormdrop.ir.memo import at_work
from stormdrop.model.fallback import REFUSALS, Fallback, fallback_of
from stormdrop.model.mixed import mixed_model
from stormdrop.model.model import Model
from stormdrop.operators.winograd import TRANSFORMS
from stormdrop.pytorch import compile_module, graph_of, is_torch
from stormdrop.space.derive import references
from stormdrop.space.rules import RULES, Rule
from stormdrop.store.store import Store, default_path
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

if TYPE_CHECKING:
    from stormdrop.pytorch.compiled import CompiledModule

Source = str | os.PathLike[str] | bytes | Graph | Any
"""A model: also an onnx.ModelProto, or a module or exported program of PyTorch, which are not imported here."""


def read_graph(
    model: Source,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] = (),
    example_inputs: Any = None,
) -> Graph:
    """Reads a model as a graph: from a file, bytes, an ONNX model, or `zoo:NAME`. A graph is returned unchanged.

    A PyTorch module needs `example_inputs`; an exported program has inputs of its own.

    `operators` are the caller's own. Raises UserError, and UnsupportedOperator for operators that are not supported.
    """
    graph = load_parts(model, shapes, constants, operators, example_inputs)
    assert isinstance(graph, Graph)  # without another runtime, no model is cut
    return graph


def load_parts(
    model: Source,
    shapes: Shapes | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] = (),
    example_inputs: Any = None,
    fallback: Fallback | None = None,
) -> Graph | MixedGraph:
    """Reads a model; a model that the importers refuse is read in parts if there is a `fallback`. Raises UserError."""
    options = ReadOptions(shapes=shapes, constants=constants, operators=operators)
    if is_torch(model):
        options.refuse_for("a PyTorch module")
        return graph_of(model, example_inputs)
    if isinstance(model, Graph):
        options.refuse_for("a graph already")
        return model
    shapes = shapes_by_name(shapes)  # perhaps no mapping: the importer refuses it
    model = named(model, shapes)
    return _imported(model, parsed(model), shapes, options, fallback)


def _imported(
    model: Source, file: ParsedModel, shapes: Shapes | None, options: ReadOptions, fallback: Fallback | None
) -> Graph | MixedGraph:
    """Imports a model with closed dimensions. Raises UserError, with shapes that work if the given shapes do not."""
    constants, operators = options.constants, options.operators
    try:
        with at_size(shapes or {}, lambda: open_source(model, file, None, constants, operators, fallback)):
            return load_parsed(file, shapes, constants, operators)
    except REFUSALS as refusal:
        if fallback is None:
            raise
        return fallback.cut(refusal, file, shapes, constants, operators)


def native_graph(model: Source, fallback: Fallback | None = None, **reading: Any) -> Graph:
    """Reads a model as `load_parts` does; a model in parts gives the native parts side by side.

    Raises UserError, also for a model without native parts.
    """
    graph = load_parts(model, fallback=fallback, **reading)
    if isinstance(graph, Graph):
        return graph
    if not graph.own:
        raise UserError(f"{graph.summary}: nothing is left to tune")
    return graph.native


def named(model: Source, shapes: Shapes | None = None, is_open: bool = False) -> Any:
    """Returns the network if the model is a name of the zoo, else the model as it is.

    Raises UserError for a file that is compiled already.
    """
    if isinstance(model, (str, os.PathLike)) and str(model).endswith(COMPILED):  # pyright: ignore[reportUnknownArgumentType]
        raise UserError(f"{str(model)!r} is compiled already: sd.load opens it")  # pyright: ignore[reportUnknownArgumentType]
    return network(model, shapes, is_open) if isinstance(model, str) and model.startswith(ZOO) else model


def network(name: str, shapes: Shapes | None = None, is_open: bool = False) -> Any:
    """Returns a network of the zoo as an ONNX model, with the common batch of the given shapes, or an open batch."""
    from stormdrop import zoo

    if is_open:
        return zoo.build(name.removeprefix(ZOO), None)
    leading = {shape[0] for shape in (shapes or {}).values() if len(shape)}
    return zoo.build(name.removeprefix(ZOO), leading.pop() if len(leading) == 1 and 0 not in leading else 1)


def compile_model(model: Source | MixedGraph, options: CompileOptions | None = None, listen: Listen = ignore) -> Model:
    """Compiles a model; `sd.compile` describes the options. A model with open dimensions is an `OpenModel`.

    `listen` receives the events, also of sizes that are compiled later. Raises UserError.
    """
    with at_work():
        return _Compilation(options or CompileOptions(), listen).of(model)


def choices(parts: Partition, target: Target, options: CompileOptions, listen: Listen = ignore) -> Choose:
    """Returns the choices of compiling for a model's tasks: of `schedules`, else of the user's store."""
    schedules, machine = options.schedules, target.with_weights(parts.constant_bytes)
    if schedules is not None:
        return lambda task: choice_of(schedules(task))

    def unreadable(error: StormdropError) -> None:
        listen(StoreUnreadable(error))

    return stored_schedules(machine, options.rules, parts.digest, options.unproved, unreadable)


class _Compilation:
    """The compilation of a model; if dimensions are open, of each of its sizes."""

    def __init__(self, options: CompileOptions, listen: Listen) -> None:
        self._options = options
        self._target, self._host = options.machine.resolved()
        self._is_for_gpu = isinstance(self._target, Gpu)
        self._listener = listen
        self._is_store_unreadable = False

    def of(self, model: Source | MixedGraph) -> Model:
        graphs = self._read(model)
        if isinstance(graphs, list):
            return self._built(graphs)
        references(self._options.rules)
        sizes = self._options.read.sizes or ()
        return open_model(graphs, self._target.threads, self._host, self._built, sizes, self._is_decided)

    def _read(self, model: Source | MixedGraph) -> list[Graph | MixedGraph] | OpenSource:
        """Reads a model: a graph in a list that has the only reference to it, or a model with open dimensions."""
        read = self._options.read
        if self._is_for_gpu or isinstance(model, Graph):
            read.refuse_fallback()
        if isinstance(model, (Graph, MixedGraph)):
            self._refuse_sizes()
            if isinstance(model, Graph):
                read.refuse_for("a graph already")
            return [model]
        fallback = None if self._is_for_gpu else fallback_of(read.fallback, lambda text: self._listen(Placed(text)))
        model = named(model, read.closed, read.sizes is not None)
        file = parsed(model)
        opened = open_source(model, file, read.closed, read.constants, read.operators, fallback)
        if opened is not None:
            return opened
        self._refuse_sizes()
        return [_imported(model, file, read.closed, read, fallback)]

    def _refuse_sizes(self) -> None:
        if self._options.read.sizes:
            raise UserError("shapes= lists several shapes, but the model has no open dimensions: give none")

    def _built(self, graphs: list[Graph | MixedGraph], sharing: Sharing | None = None) -> Model:
        if isinstance(graphs[0], MixedGraph):
            return mixed_model(graphs[0], self._target.threads, lambda part: self._built([part], sharing))
        options, target = self._options, self._target
        with at_work():
            parts = tasks_of(_popped(graphs), options.read.winograd)
            self._listen(Planned(parts.graph.name, len(parts.tasks)))
            choose = choices(parts, target, options, self._listen)
            shared = None if self._is_for_gpu else sharing  # each model of a GPU has arenas and weights of its own
            return build_model(parts, target, choose, options.rules, shared, self._host, self._listen)

    def _is_decided(self, key: str) -> bool:
        """Returns whether verdicts of the user's store decide the model at the size of this key."""
        path = default_path()
        try:
            is_there = self._options.schedules is None and path.exists()
            return is_there and Store.view(path).is_decided(key, self._target)
        except StormdropError as error:
            self._listen(StoreUnreadable(error))
            return False

    def _listen(self, event: Event) -> None:
        """Passes an event on; a store that cannot be read is reported once."""
        if isinstance(event, StoreUnreadable):
            if self._is_store_unreadable:
                return
            self._is_store_unreadable = True
        self._listener(event)


def _popped(graphs: list[Graph | MixedGraph]) -> Graph:
    """Takes the graph out of its list: raw constants that the passes replace are freed at once."""
    graph = graphs.pop()
    assert isinstance(graph, Graph)
    return graph


class Keywords(TypedDict, total=False):
    """The keyword arguments of `compile`, but `fallback`."""

    schedules: Schedules | None
    shapes: Shapes | Sequence[Shapes] | None
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
    operators: Sequence[CustomOperator]
    progress: Progress


@overload
def compile(model: Source, *, fallback: str | Fallback | None = "auto", **options: Unpack[Keywords]) -> Model: ...


@overload
def compile(model: Source, example_inputs: Any, **options: Unpack[Keywords]) -> CompiledModule: ...


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
    operators: Sequence[CustomOperator] = (),
    fallback: str | Fallback | None = "auto",
    progress: Progress = None,
) -> Model | CompiledModule:
    """Compiles a model for the CPU of this machine, or with `target="cuda"` for its GPU.

    `device.targets` has the other targets; a model for an absent GPU can be saved. On a GPU, `precision` is the type
    of the factors of f32 products and convolutions: "f32", or by matrix instructions "tf32", "3xtf32", "bf16", "fp16".

    A PyTorch module is compiled for `example_inputs`, a tuple of its arguments or a mapping by name, and called like
    the module. An exported program has examples of its own.

    A model with open dimensions is an `OpenModel`, compiled for each size at the first call with this size. `shapes`
    gives the shapes of inputs by name, and closes their dimensions. A list of such mappings leaves dimensions open, and
    the model is compiled for each mapping ahead.

    `schedules` returns the schedule of a task, None for the default schedule; `tuned.schedules` of a `TunedModel` is
    such a function. Without `schedules`, the store's verdicts are used. `unproved` also takes the fastest trial of a
    task without a verdict. `Model.origins` has the origin of each schedule.

    `rules` are the rules that schedules may follow. With `winograd=False` convolutions are summed directly, which
    rounds less. `operators` are the caller's own (`sd.CustomOperator`).

    `fallback` is for ONNX models on the CPU. With "auto", operators that are not supported run in onnxruntime if it is
    installed: the result is an `sd.MixedModel`, and a warning names the cut. With "onnxruntime" no warning is given,
    and a missing onnxruntime is an error. With "none" such models are refused.

    `threads`, `spin` (microseconds that a waiting thread spins before it sleeps) and `affinity` (the CPUs of threads:
    "none", "compact", "spread" or the CPU of each) are as for `sd.Pool`. `pool` is an `sd.Pool` that several models may
    use, "own" for a pool of this model alone, or "shared", the default: the pool of all models with these settings.

    `progress` shows a line about the present step: True, False, or None for a terminal and a notebook. Remarks are
    Python warnings (`sd.StormdropWarning`), also for a store that cannot be read: default schedules are used then.

    Raises UserError for a model that cannot be read and for rules that other processes cannot import, and
    UnsupportedOperator for operators that are not supported.
    """
    check_arguments(schedules=schedules, threads=threads, target=target, winograd=winograd, unproved=unproved)
    check_arguments(rules=rules, operators=operators, shapes=shapes, spin=spin, pool=pool, precision=precision)
    options = CompileOptions(
        read=ReadOptions(shapes=shapes, constants=constants, operators=operators, fallback=fallback, winograd=winograd),
        machine=MachineOptions(
            target=target, precision=precision, threads=threads, spin=spin, affinity=affinity, pool=pool
        ),
        rules=rules,
        schedules=schedules,
        unproved=unproved,
    )
    listen = partial(_heard, told_by(progress), fallback == "onnxruntime")
    if is_torch(model):
        options.read.refuse_for("a PyTorch module, which takes the shapes of example_inputs")
        machine, host = options.machine.resolved()
        own = MachineOptions(target=machine, pool=None if isinstance(machine, Gpu) else host.pool)
        each = replace(options, read=ReadOptions(winograd=winograd), machine=own)
        return compile_module(model, example_inputs, partial(compile_model, options=each, listen=listen))
    if example_inputs is not None:
        raise UserError(f"example_inputs are for PyTorch modules, not for {type(model).__name__}")
    return compile_model(model, options, listen)


def _heard(tell: Callable[[str], None], is_runtime_asked_for: bool, event: Event) -> None:
    """Shows the progress, and warns of other events; a runtime that the caller asked for needs no warning."""
    match event:
        case Planned() | Scheduled():
            tell(str(event))
        case StoreUnreadable():
            warn(str(event))
        case Placed():
            if not is_runtime_asked_for:
                warn(str(event))


def size_key(
    model: Source,
    graph: Graph,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] = (),
) -> str:
    """Returns the key of a model with open dimensions at the size of `graph`, which was loaded from it.

    The key of other models is empty.
    """
    if isinstance(model, (Graph, Partition)) or is_torch(model):
        return ""
    try:
        origin = named(model, is_open=True)
        opened = open_source(origin, parsed(origin), None, constants, operators)
        shapes = dict(zip(graph.input_names, (v.shape for v in graph.inputs)))
        return "" if opened is None else opened.key(tuple(shapes[port.name] for port in opened.interface.inputs))
    except (UserError, KeyError):
        return ""


def tasks_of(graph: Graph, winograd: bool = True) -> Partition:
    """Cuts a graph into tasks, the kernels of the model; tuning, compiling and reports begin here."""
    return partition(optimise(graph), tuple(TRANSFORMS) if winograd else ())
