"""From whatever a user has of a model to something that runs: a graph, its tasks, and what `model_build` makes of them.

    model = compile("resnet50.onnx")                       # what tuning decided; defaults where it has not
    model = compile(graph, schedules=lambda task: None)    # defaults only

The parts are elsewhere; this module puts them together, and knows of nothing but their order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from numpy.typing import ArrayLike

from stormdrop.arguments import check_arguments
from stormdrop.driver import COMPILED, ZOO
from stormdrop.driver.fallback import OnnxRuntimeFallback, fallback_of
from stormdrop.driver.mixed import MixedModel, OpenMixedModel
from stormdrop.driver.model_build import build_model
from stormdrop.driver.specialise import OpenSource, Sharing, open_interface, open_model, open_source
from stormdrop.driver.stored import Schedules
from stormdrop.errors import UserError
from stormdrop.frontend.custom import CustomOperator
from stormdrop.frontend.mixed import cut
from stormdrop.frontend.onnx import load as load_onnx
from stormdrop.frontend.onnx import load_parsed
from stormdrop.frontend.parsed import parsed
from stormdrop.graph.graph import Graph
from stormdrop.graph.partition import Partition, partition
from stormdrop.graph.passes import optimise
from stormdrop.ir.memo import at_work
from stormdrop.ops.winograd import TRANSFORMS
from stormdrop.pytorch import compile_module, graph_of, is_torch
from stormdrop.runtime.model import Model
from stormdrop.runtime.pool import Pool
from stormdrop.runtime.targets import host_for, target_for
from stormdrop.space.rule_names import references
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

if TYPE_CHECKING:
    from stormdrop.pytorch.compiled import CompiledModule

REUSES = ("predicted", "off")
"""What compiling may take of other tasks' schedules."""

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
