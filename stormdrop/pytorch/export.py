"""A module and the shapes of its arguments to a `Graph`, by way of torch.export and ONNX.

    exported = export(module, leaves, spec, frozen=())

Arguments and results are flat lists of leaves (`torch.utils._pytree`). Every shape is a number: an export serves one
signature. A result that is no new tensor is not the model's: numbers and None are kept as they are, an argument and
views of it are made by PyTorch, so that they share memory with the argument as in eager mode.

Invariant: what is exported is a function. A module that draws random numbers, or writes into its arguments, parameters
or buffers, is refused.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from stormdrop.errors import UserError
from stormdrop.frontend.onnx import load
from stormdrop.graph.graph import Graph
from stormdrop.pytorch.tensors import array_of


@dataclass(frozen=True, slots=True)
class Fixed:
    """A result that does not depend on the values of tensors: a number, None."""

    value: object


@dataclass(frozen=True, slots=True)
class Computed:
    """Output `index` of the graph."""

    index: int


@dataclass(frozen=True, slots=True)
class Aliased:
    """Result `index` of `Exported.views`: an argument, a parameter, or a view of one."""

    index: int


Result = Fixed | Computed | Aliased


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """A graph, and how arguments and results of the module are its inputs and outputs."""

    graph: Graph
    inputs: tuple[int, ...]
    """Of each input of the graph, which of the argument leaves it is."""
    results: tuple[Result, ...]
    spec: Any
    """The structure of the results."""
    views: Callable[[Sequence[object]], Sequence[Tensor]] | None
    """From the argument leaves to the results that share memory with them."""


def export_module(module: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Exported:
    """As `export`, for arguments as they are called."""
    return export(runnable(module), *pytree.tree_flatten((tuple(arguments), dict(named))))


def runnable(module: Any) -> Any:
    """A module whose calls can be traced, from one in evaluation mode or a program. Raises UserError."""
    if isinstance(module, torch.export.ExportedProgram):
        return module.module()
    if module.training:
        raise UserError("the module is in training mode; call its eval() first")
    return module


class _Flat(torch.nn.Module):
    """A module that takes tensors alone and returns the leaves of its results, or those of `kept`.

    `tell` receives the structure of the results: tracing undoes whatever `forward` assigns to attributes.
    """

    def __init__(self, module: Any, leaves: Sequence[object], spec: Any, tell: Callable[[Any], None]) -> None:
        super().__init__()
        self.module = module
        self._leaves, self._spec = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec
        self._places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.kept: Sequence[int] | None = None
        self._tell = tell

    def forward(self, *tensors: Tensor) -> tuple[object, ...]:
        leaves = list(self._leaves)
        for k, tensor in zip(self._places, tensors):
            leaves[k] = tensor
        arguments, named = pytree.tree_unflatten(leaves, self._spec)
        results, spec = pytree.tree_flatten(self.module(*arguments, **named))
        self._tell(spec)
        return tuple(results) if self.kept is None else tuple(results[k] for k in self.kept)


def export(module: Any, leaves: Sequence[Any], spec: Any, frozen: Collection[int] = ()) -> Exported:
    """The graph of `module` for arguments like `leaves`, which `spec` makes the structure `(args, kwargs)`.

    Arguments whose numbers are in `frozen` become constants. Raises UserError for a module that PyTorch cannot export,
    that is no function, or that has operators which are not supported.
    """
    tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    specs: list[Any] = []
    flat = _Flat(module, leaves, spec, specs.append)
    program = _exported(flat, tensors)
    _check_is_function(program)
    results, kept, aliased = _sorted_results(program)
    views = _views(program, aliased, places) if aliased else None
    if not kept:
        raise UserError("the module computes no tensor")
    if len(kept) != len(results):  # the exporter to ONNX takes nothing but tensors
        flat.kept = kept
        program = _exported(flat, tensors)
    names = program.graph_signature.user_inputs
    bound = {name: tensors[k] for k, name in enumerate(names) if places[k] in frozen}
    graph = _graph(program, bound)
    place_of = dict(zip(names, places))
    return Exported(graph, tuple(place_of[v.name] for v in graph.inputs), results, specs[-1], views)


def _exported(flat: _Flat, tensors: Sequence[Tensor]) -> Any:
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(flat, tuple(tensors), strict=False)
    except Exception as error:  # of any kind: they come from the user's code, which is run to be traced
        raise UserError(f"PyTorch cannot export the module: {_first_line(error)}") from error


def _check_is_function(program: Any) -> None:
    held = {_storage(node) for node in program.graph.nodes if node.op == "placeholder"} - {None}
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        named = _arguments(node)
        if named.get("training") or named.get("train"):
            raise UserError(f"{node.target} is in training mode; call eval() of the module")
        is_random = torch.Tag.nondeterministic_seeded in node.target.tags
        if is_random and not {"training", "train"} & named.keys() and named.get("dropout_p", 1.0) != 0.0:
            raise UserError(f"{node.target} draws random numbers")
        for argument in node.target._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = named.get(argument.name)
                for part in written if isinstance(written, (list, tuple)) else (written,):
                    if isinstance(part, fx.Node) and _storage(part) in held:
                        raise UserError(f"{node.target} writes into an argument, a parameter or a buffer")


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator by name, defaults included."""
    schema = node.target._schema.arguments
    values = {a.name: a.default_value for a in schema if a.has_default_value()}
    values.update(zip([a.name for a in schema], node.args))
    values.update(node.kwargs)
    return values


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


def _sorted_results(program: Any) -> tuple[tuple[Result, ...], list[int], list[fx.Node]]:
    """What each result is; the numbers of those that are computed, each once; the nodes of those that share memory with
    an argument or a parameter.
    """
    held = {_storage(node) for node in program.graph.nodes if node.op == "placeholder"} - {None}
    (values,) = program.graph.output_node().args
    results: list[Result] = []
    computed: dict[fx.Node, int] = {}
    kept: list[int] = []
    aliased: dict[fx.Node, int] = {}
    for k, (value, spec) in enumerate(zip(values, program.graph_signature.output_specs)):
        if not isinstance(value, fx.Node):
            results.append(Fixed(spec.arg.value if isinstance(spec.arg, ConstantArgument) else value))
        elif _storage(value) is None:
            raise UserError("a result is a number that is computed from tensors")
        elif _storage(value) in held:
            results.append(Aliased(aliased.setdefault(value, len(aliased))))
        else:
            if value not in computed:
                computed[value] = len(kept)
                kept.append(k)
            results.append(Computed(computed[value]))
    _check_apart(list(computed))
    return tuple(results), kept, list(aliased)


def _check_apart(nodes: Sequence[fx.Node]) -> None:
    """Raises UserError where two results share memory: writing into one would have to change the other."""
    seen: dict[int | None, fx.Node] = {}
    for node in nodes:
        if (other := seen.setdefault(_storage(node), node)) is not node and torch._C._overlaps(
            node.meta["val"], other.meta["val"]
        ):
            raise UserError(f"the results {other.name} and {node.name} are views of one tensor")


def _views(program: Any, nodes: Sequence[fx.Node], places: Sequence[int]) -> Callable[..., Sequence[Tensor]]:
    """The part of a program that makes these nodes."""
    needed: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += node.all_input_nodes
    graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in program.graph.nodes:
        if node.op == "placeholder" or node in needed:
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[node] for node in nodes))
    run = fx.GraphModule(program.graph_module, graph)
    held = [_held(program, spec) for spec in program.graph_signature.input_specs if spec.kind != InputKind.USER_INPUT]

    def views(leaves: Sequence[object]) -> Sequence[Tensor]:
        return run(*held, *(leaves[k] for k in places))

    return views


def _held(program: Any, spec: Any) -> object:
    """A parameter, buffer or constant of a program."""
    return program.state_dict.get(spec.target, program.constants.get(spec.target))


def _graph(program: Any, bound: dict[str, Tensor]) -> Graph:
    """A program as a graph, `bound` inputs and all that the program holds being constants."""
    import onnx_ir

    try:
        with torch.no_grad(), _quiet():
            model = torch.onnx.export(program, dynamo=True, verbose=False, optimize=False).model
    except ImportError as error:
        raise UserError(
            f"PyTorch exports to ONNX with the package onnxscript: pip install stormdrop[torch] ({error})"
        ) from error
    except Exception as error:
        raise UserError(f"PyTorch cannot write the module as ONNX: {_first_line(_cause(error))}") from error
    arrays: dict[str, Any] = {name: array_of(tensor) for name, tensor in bound.items()}
    for name, value in model.graph.initializers.items():  # as inputs: no file format limits their size
        arrays[name] = value.const_value.numpy()
        model.graph.inputs.append(value)
    model.graph.initializers.clear()
    return load(onnx_ir.to_proto(model), constants=arrays)


@contextmanager
def _quiet() -> Generator[None]:
    """The exporter's own warnings are about its internals."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _cause(error: BaseException) -> BaseException:
    return _cause(error.__cause__) if error.__cause__ is not None else error


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
