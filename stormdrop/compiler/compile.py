"""From whatever a user has of a model to something that runs: a graph, its tasks, and what `model_build` makes of them.

    model = compile("resnet50.onnx")                       # what tuning decided; defaults where it has not
    model = compile(graph, schedules=lambda task: None)    # defaults only

The parts are elsewhere; this module puts them together, and knows of nothing but their order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from numpy.typing import ArrayLike

from stormdrop.base.arguments import check_arguments, shapes_by_name
from stormdrop.base.errors import UserError
from stormdrop.compiler import COMPILED, ZOO
from stormdrop.compiler.choose import Choose, Schedules, choice_of
from stormdrop.compiler.model_build import build_model
from stormdrop.compiler.open_sizes import at_size
from stormdrop.compiler.specialise import Sharing, open_model, open_source
from stormdrop.compiler.watcher import Progress, told_by
from stormdrop.device.pool.pool import Pool
from stormdrop.device.targets import host_for, target_for
from stormdrop.frontend.custom import CustomOperator
from stormdrop.frontend.mixed import MixedGraph
from stormdrop.frontend.onnx import load as load_onnx
from stormdrop.frontend.onnx import load_parsed
from stormdrop.frontend.parsed import ParsedModel, parsed
from stormdrop.graph.graph import Graph
from stormdrop.graph.partition import Partition, partition
from stormdrop.graph.passes import optimise
from stormdrop.ir.memo import at_work
from stormdrop.model.fallback import REFUSALS, Fallback, Refusal, fallback_of
from stormdrop.model.mixed import mixed_model
from stormdrop.model.model import Model
from stormdrop.operators.winograd import TRANSFORMS
from stormdrop.pytorch import compile_module, graph_of, is_torch
from stormdrop.space.rule_names import references
from stormdrop.space.rules import RULES, Rule
from stormdrop.store.store import Store, default_path
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

if TYPE_CHECKING:
    from stormdrop.pytorch.compiled import CompiledModule

Source = str | os.PathLike[str] | bytes | Graph | Any  # an onnx.ModelProto or of PyTorch, which are not imported here


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
    shapes = shapes_by_name(shapes)
    model = named(model, shapes)
    with at_size(shapes or {}, lambda: open_source(model, parsed(model), None, constants, operators)):
        return load_onnx(model, shapes, constants, operators)


def load_parts(
    model: Source,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] = (),
    example_inputs: Any = None,
    fallback: Fallback | None = None,
) -> Graph | MixedGraph:
    """Reads a model as `load` does, in parts if the importers refuse it and `fallback` does not. Raises UserError."""
    try:
        return load(model, shapes, constants, operators, example_inputs)
    except REFUSALS as refusal:
        if fallback is None or is_torch(model):
            raise
        return fallback.cut(refusal, parsed(named(model, shapes)), shapes, constants, operators)


def native_graph(model: Source, fallback: Fallback | None = None, **reading: Any) -> Graph:
    """Reads a model as `load` does; of a model in parts, the native parts side by side.

    Raises UserError, also where no part runs here.
    """
    graph = load_parts(model, fallback=fallback, **reading)
    if isinstance(graph, Graph):
        return graph
    if not graph.own:
        raise UserError(f"{graph.summary}: nothing is left to tune")
    return graph.native


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
    operators: Sequence[CustomOperator]
    progress: Progress


@overload
def compile(model: Source, *, fallback: str | Fallback | None = "auto", **options: Unpack[CompileOptions]) -> Model: ...


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

    `progress` shows a line about the present step (True) or nothing (False); None: in a terminal and in a notebook.
    Remarks are Python warnings (`sd.StormdropWarning`).

    Raises UserError for a model that cannot be read and for rules that other processes cannot import, and
    UnsupportedOperator for operators that are not supported.
    """
    check_arguments(schedules=schedules, threads=threads, target=target, winograd=winograd, unproved=unproved)
    check_arguments(rules=rules, operators=operators, shapes=shapes, spin=spin, pool=pool)
    check_arguments(precision=precision)
    machine = target_for(target, threads, pool, precision)
    host = host_for(machine.threads, isinstance(machine, Gpu), spin, affinity, pool)
    if is_torch(model):
        if shapes or constants or operators or fallback not in (None, "auto", "none"):
            told = "shapes=, constants=, operators= and fallback= are for ONNX models"
            raise UserError(f"{told}; a PyTorch module takes the shapes of example_inputs")
        own = None if isinstance(machine, Gpu) else host.pool
        options = {"schedules": schedules, "target": machine, "winograd": winograd, "rules": rules}
        return compile_module(
            model, example_inputs, partial(compile, **options, unproved=unproved, pool=own, progress=progress)
        )
    if example_inputs is not None:
        raise UserError(f"example_inputs are for PyTorch modules, not for {type(model).__name__}")
    shapes = shapes_by_name(shapes)
    tell = told_by(progress)
    choose: Choose | None = None if schedules is None else lambda task: choice_of(schedules(task))
    ahead = None if shapes is None or isinstance(shapes, Mapping) else list(shapes)
    settled = shapes if isinstance(shapes, Mapping) else None

    def build(graph: list[Graph], sharing: Sharing | None = None) -> Model:
        shared = sharing if not isinstance(machine, Gpu) else None  # arenas and weights of a GPU are each model's own
        with at_work():
            parts = tasks_of(graph.pop(), winograd)
            tell(f"compiling {parts.graph.name}")
            return build_model(parts, machine, choose, rules, unproved, shared, host, tell)

    is_cuttable = not isinstance(machine, Gpu) and not isinstance(model, Graph)
    runner = fallback_of(fallback) if is_cuttable else None
    if not is_cuttable and fallback not in (None, "auto", "none"):
        raise UserError("fallback= is for ONNX models on the CPU")

    def build_parts(
        refusal: Refusal, file: ParsedModel, sizes: Mapping[str, Sequence[int]] | None, sharing: Sharing | None = None
    ) -> Model:
        assert runner is not None
        parts = runner.cut(refusal, file, sizes, constants, operators)
        return mixed_model(parts, machine.threads, lambda graph: build([graph], sharing))

    with at_work():
        file = None
        if not isinstance(model, Graph):
            model = named(model, settled, ahead is not None)
            file = parsed(model)
            opened = open_source(model, file, settled, constants, operators, runner)
            if opened is not None:
                references(rules)
                is_tuned = partial(_is_tuned, machine, schedules)
                parts = build_parts if runner else None
                return open_model(opened, machine.threads, host, build, ahead or (), parts, is_tuned)
        if ahead:
            raise UserError("shapes= lists several shapes, but the model has no open dimensions: give none")
        if file is None:
            return build([load(model, settled, constants, operators)])
        try:
            with at_size(settled or {}, partial(open_source, model, file, None, constants, operators, runner)):
                graph = [load_parsed(file, settled, constants, operators)]
        except REFUSALS as refusal:
            if runner is None:
                raise
            return build_parts(refusal, file, settled)
        del file
        return build(graph)


def _is_tuned(target: Target, schedules: Schedules | None, key: str) -> bool:
    """Returns whether verdicts of the user's store decide a model with open dimensions at the size of this key."""
    path = default_path()
    return schedules is None and path.exists() and Store.view(path).is_decided(key, target)


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
    """The kernels of a model: what tuning, compiling and reporting all start from."""
    return partition(optimise(graph), tuple(TRANSFORMS) if winograd else ())
