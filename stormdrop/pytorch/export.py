"""A module and the shapes of its arguments to a `Graph`, by way of torch.export and ONNX.

    exported = export(module, leaves, spec, frozen=())

Arguments and results are flat lists of leaves (`torch.utils._pytree`). Every shape is a number: an export serves one
signature. The model computes only results that are new tensors. Numbers and None are kept as they are. Arguments, and
views of arguments or of other results, are created by PyTorch, so that they share memory as in eager mode.

Invariant: an exported module is a function. A module that draws random numbers, or writes into its arguments,
parameters or buffers, is refused.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from stormdrop.base.errors import UserError, first_line
from stormdrop.frontend.onnx import load
from stormdrop.graph.graph import Graph
from stormdrop.ir.expr import NUMPY
from stormdrop.pytorch.tensors import array_of, tensor_of


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
    """Result `index` of `Exported.views`: an argument, a parameter, or a view of one or of another result."""

    index: int


Result = Fixed | Computed | Aliased
Views = Callable[[Sequence[Any], Sequence[Tensor]], Sequence[Tensor]]


class NothingComputed(UserError):
    """All results are arguments, views of them, or numbers: there is nothing to compile."""


@dataclass(frozen=True, slots=True, eq=False)
class Exported:
    """A graph, and how arguments and results of the module are its inputs and outputs."""

    graph: Graph
    inputs: tuple[int, ...]
    """The number of the argument leaf for each input of the graph."""
    results: tuple[Result, ...]
    spec: Any
    """The structure of the results."""
    views: Views | None
    """From the argument leaves and the outputs to the results that share memory with them."""


def export_module(module: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Exported:
    """Exports a module for the arguments of a call."""
    return export(runnable(module), *pytree.tree_flatten((tuple(arguments), dict(named))))


def runnable(module: Any) -> Any:
    """Returns a traceable module, from a module in evaluation mode or an exported program. Raises UserError."""
    if isinstance(module, torch.export.ExportedProgram):
        program = module.module()
        program.training = False  # of no effect: its mode was decided when it was exported
        return program
    if module.training:
        raise UserError("the module is in training mode; call its eval() first")
    return module


class _Flat(torch.nn.Module):
    """A module that takes only tensors and returns the leaves of its results, or only the leaves with numbers in
    `kept`.

    `tell` receives the structure of the results: tracing undoes assignments of `forward` to attributes.
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
        for result in results:
            if not isinstance(result, (Tensor, int, float, str, NoneType)):
                raise UserError(
                    f"a result is a {type(result).__name__}, a type without known parts; let the module return tensors "
                    "(of transformers: use_cache=False), or see torch.utils._pytree.register_pytree_node"
                )
        self._tell(spec)
        return tuple(results) if self.kept is None else tuple(results[k] for k in self.kept)


def export(module: Any, leaves: Sequence[Any], spec: Any, frozen: Collection[int] = ()) -> Exported:
    """Returns the graph of `module` for arguments like `leaves`. `spec` is the structure `(args, kwargs)` of the
    leaves.

    Arguments with numbers in `frozen` become constants. Raises UserError for a module that PyTorch cannot export, that
    is no function, or that has unsupported operators.
    """
    tensors = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    specs: list[Any] = []
    flat = _Flat(module, leaves, spec, specs.append)
    program = _exported(flat, tensors)
    _check_is_function(program)
    classified = _Results(program)
    views = classified.views(places)
    if not classified.kept:
        raise NothingComputed("the module computes no tensor")
    if classified.kept != list(range(len(classified.results))):  # ONNX takes tensors alone, each once
        flat.kept = classified.kept
        program = _exported(flat, tensors)
    names = program.graph_signature.user_inputs
    bound = {name: tensors[k] for k, name in enumerate(names) if places[k] in frozen}
    graph = _graph(program, bound)
    (wanted,) = program.graph.output_node().args
    for v, node in zip(graph.outputs, wanted, strict=True):
        value = node.meta["val"]
        dtype = tensor_of(np.empty(0, NUMPY[v.dtype])).dtype
        if (v.shape, dtype) != (tuple(value.shape), value.dtype):  # complex numbers are pairs in ONNX
            raise UserError(f"a result of {value.dtype} is not supported; in ONNX it is {v}")
    inputs = tuple(place for name, place in zip(names, places, strict=True) if name not in bound)
    if len(inputs) != len(graph.inputs):  # in order: an input that is a result at once has the result's name
        raise UserError(f"{len(inputs)} arguments became {len(graph.inputs)} inputs in ONNX")
    return Exported(graph, inputs, classified.results, specs[-1], views)


def _exported(flat: _Flat, tensors: Sequence[Tensor]) -> Any:
    try:
        with torch.no_grad(), _quiet():
            return torch.export.export(flat, tuple(tensors), strict=False)
    except UserError:
        raise
    except Exception as error:  # of any kind: they come from the user's code, which is run to be traced
        raise UserError(f"PyTorch cannot export the module: {first_line(error)}") from error


def _check_is_function(program: Any) -> None:
    held = {_storage(node) for node in program.graph.nodes if node.op == "placeholder"} - {None}
    for node in program.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        named = _arguments(node)
        if named.get("training") or named.get("train"):
            raise UserError(f"{node.target} is in training mode; call eval() of the module")
        if named.get("divisor_override") is not None:
            raise UserError(f"{node.target} has a divisor of its own, which PyTorch does not write to ONNX")
        is_random = torch.Tag.nondeterministic_seeded in node.target.tags
        if is_random and not {"training", "train"} & named.keys() and named.get("dropout_p", 1.0) != 0.0:
            raise UserError(f"{node.target} draws random numbers")
        if any(_storage(written) in held for written in _writes(node)):
            raise UserError(f"{node.target} writes into an argument, a parameter or a buffer")


def _writes(node: fx.Node) -> list[fx.Node]:
    """Returns the tensors into which an operator writes."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return []
    named = _arguments(node)
    written = [named.get(a.name) for a in node.target._schema.arguments if a.alias_info and a.alias_info.is_write]
    parts = [part for w in written for part in (w if isinstance(w, (list, tuple)) else (w,))]
    return [part for part in parts if isinstance(part, fx.Node)]


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Returns the arguments of an operator by name, defaults included."""
    schema = node.target._schema.arguments
    values = {a.name: a.default_value for a in schema if a.has_default_value()}
    values.update(zip([a.name for a in schema], node.args))
    values.update(node.kwargs)
    return values


def _storage(node: fx.Node) -> int | None:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


class _Results:
    """The classification of a program's results in `results`; `kept` are the numbers of the results that the graph
    computes.

    Results that share memory with an argument, a parameter or an earlier result are views of it.
    """

    def __init__(self, program: Any) -> None:
        self._program = program
        self._sources = {_storage(node): node for node in program.graph.nodes if node.op == "placeholder"}
        self._order = {node: k for k, node in enumerate(program.graph.nodes)}
        self._computed: dict[fx.Node, int] = {}
        self._views: dict[fx.Node, int] = {}
        self.kept: list[int] = []
        (values,) = program.graph.output_node().args
        specs = program.graph_signature.output_specs
        by_number: dict[int, Result] = {}
        for k in sorted(range(len(values)), key=lambda k: self._order.get(values[k], -1)):
            by_number[k] = self._result(k, values[k], specs[k])
        self.results = tuple(by_number[k] for k in range(len(values)))

    def _result(self, k: int, value: Any, spec: Any) -> Result:
        if not isinstance(value, fx.Node):
            return Fixed(spec.arg.value if isinstance(spec.arg, ConstantArgument) else value)
        if value in self._computed:
            return Computed(self._computed[value])
        if value in self._views:
            return Aliased(self._views[value])
        if (storage := _storage(value)) is None:
            raise UserError("a result is a number that is computed from tensors")
        if (source := self._sources.get(storage)) is None:
            self._sources[storage] = value
        elif source.op == "placeholder" or source in _ancestors([value], self._sources.values()):
            self._views[value] = len(self._views)
            return Aliased(self._views[value])
        elif _overlap(value, source):
            raise UserError(f"the results {source.name} and {value.name} are views of one tensor")
        self._computed[value] = len(self.kept)
        self.kept.append(k)
        return Computed(self._computed[value])

    def views(self, places: Sequence[int]) -> Views | None:
        """Returns the part of the program that creates the views from their sources; None without views."""
        if not self._views:
            return None
        program = self._program
        needed = _ancestors(list(self._views), self._computed)
        graph, made = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in program.graph.nodes:
            if node.op == "placeholder":
                made[node] = graph.node_copy(node)
        for node in self._computed:
            made[node] = graph.placeholder(node.name)
        for node in program.graph.nodes:
            if node in needed and node not in made:
                if _writes(node):
                    raise UserError(f"{node.target} writes into a tensor of which a result is a view")
                made[node] = graph.node_copy(node, made.__getitem__)
        graph.output(tuple(made[node] for node in self._views))
        run = fx.GraphModule(program.graph_module, graph)
        specs = program.graph_signature.input_specs
        held = [_held(program, spec) for spec in specs if spec.kind != InputKind.USER_INPUT]

        def views(leaves: Sequence[Any], outputs: Sequence[Tensor]) -> Sequence[Tensor]:
            return run(*held, *(leaves[k] for k in places), *outputs)

        return views


def _ancestors(nodes: Sequence[fx.Node], stop: Collection[fx.Node]) -> set[fx.Node]:
    """Returns the nodes and all their ancestors, up to the nodes of `stop`."""
    needed: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += [] if node in stop else node.all_input_nodes
    return needed


def _overlap(one: fx.Node, other: fx.Node) -> bool:
    """Returns whether two views of the same storage have an element in common."""
    values = [node.meta["val"] for node in (one, other)]
    memory = np.empty(values[0].untyped_storage().nbytes(), np.uint8)  # its bytes are never touched
    a, b = (
        np.ndarray(
            tuple(v.shape),
            f"V{v.element_size()}",
            memory,
            v.storage_offset() * v.element_size(),
            [n * v.element_size() for n in v.stride()],
        )
        for v in values
    )
    return np.shares_memory(a, b)


def _held(program: Any, spec: Any) -> object:
    """Returns a parameter, buffer or constant of a program."""
    return program.state_dict.get(spec.target, program.constants.get(spec.target))


def _graph(program: Any, bound: dict[str, Tensor]) -> Graph:
    """Returns a program as a graph; `bound` inputs, parameters, buffers and constants become constants of the graph."""
    import onnx_ir

    try:
        with torch.no_grad(), _quiet():
            written = torch.onnx.export(program, dynamo=True, verbose=False, optimize=False)
            if any("Sequence" in node.op_type for node in written.model.graph):
                written.optimize()  # which rewrites common sequence operators as plain operators
    except ImportError as error:
        raise UserError(
            f"PyTorch exports to ONNX with the package onnxscript: pip install 'stormdrop[torch]' ({error})"
        ) from error
    except Exception as error:
        raise UserError(f"PyTorch cannot write the module as ONNX: {first_line(_cause(error))}") from error
    model = written.model
    arrays: dict[str, Any] = {name: array_of(tensor) for name, tensor in bound.items()}
    for name, value in model.graph.initializers.items():  # as inputs: no file format limits their size
        arrays[name] = value.const_value.numpy()
        model.graph.inputs.append(value)
    model.graph.initializers.clear()
    return load(onnx_ir.to_proto(model), constants=arrays)


@contextmanager
def _quiet() -> Generator[None]:
    """Silences the exporter's warnings, which concern its internals."""
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
