"""ONNX models to graphs.

    g = load("resnet50.onnx")                                        # or bytes, or an onnx.ModelProto
    g = load("m.onnx", shapes={"input": (1, 3, 224, 224)}, constants={"axes": np.array([1])})

All shapes of a graph are numbers. A symbolic dimension takes its number from `shapes` (of any input that has it), else
1, which is announced. Inputs that decide shapes can be bound with `constants`.

Nodes are imported in order, with the shapes of their inputs and the values of constant inputs, so shape arithmetic
folds at once. An operator without an importer is expanded by the function body that ONNX gives for it, or refused: one
error names all such operators.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from stormdrop.base.errors import Unsupported, UnsupportedOperator, UserError, warn
from stormdrop.frontend.custom import CustomOperator, importers_of
from stormdrop.frontend.functions import body_of, bound_nodes, local_functions_inlined, schema_of
from stormdrop.frontend.gathering import GATHERING
from stormdrop.frontend.learned import LEARNED, NGRAMS
from stormdrop.frontend.loops import known_number, unroll_loop, unroll_scan
from stormdrop.frontend.microsoft import MICROSOFT, UNDER_THE_STANDARD_NAME
from stormdrop.frontend.movement import MOVEMENT
from stormdrop.frontend.node_reader import Binding, NodeReader, located, qualified, tensor_of, with_remedies
from stormdrop.frontend.open_dimensions import declared_dimensions
from stormdrop.frontend.parsed import (
    ParsedModel,
    array_of,
    check_names,
    is_standard,
    label_of,
    ordered,
    parsed,
    version_of,
)
from stormdrop.frontend.pointwise import POINTWISE, Importer, element_type
from stormdrop.frontend.quantized import MICROSOFT_QUANTIZED, QUANTIZED
from stormdrop.frontend.recurrent import RECURRENT
from stormdrop.frontend.reductions import REDUCTIONS
from stormdrop.frontend.resize import RESIZE
from stormdrop.frontend.schema import MOVES, check, form_of, narrowed, result_types, widened
from stormdrop.frontend.sequences import SEQUENCES
from stormdrop.frontend.signal import SIGNAL
from stormdrop.frontend.windows import WINDOWS
from stormdrop.graph.builder import MOST_NODES, GraphBuilder
from stormdrop.graph.graph import Graph
from stormdrop.ir.dtypes import converted
from stormdrop.ir.expr import Dtype
from stormdrop.ir.shape import dimensions_text
from stormdrop.operators.node import Array, Value, shown

MOST_NESTED = 32
T = TypeVar("T")

IMPORTERS: dict[str, Importer] = {
    **POINTWISE,
    **MOVEMENT,
    **GATHERING,
    **REDUCTIONS,
    **WINDOWS,
    **RESIZE,
    **RECURRENT,
    **SIGNAL,
    **NGRAMS,
    **SEQUENCES,
    **UNDER_THE_STANDARD_NAME,
    **QUANTIZED,
}
DOMAINS: dict[str, dict[str, Importer]] = {
    "": IMPORTERS,
    "ai.onnx.ml": LEARNED,
    "com.microsoft": {**MICROSOFT, **MICROSOFT_QUANTIZED},
}
"""Importers by the domain and the name of their operators."""
_BRANCHES = frozenset({"If", "Scan", "Loop"})


def load(
    model: str | os.PathLike[str] | bytes | Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] = (),
) -> Graph:
    """Reads a model; the caller's `operators` take precedence over all built-in operators.

    Raises ModelError for files that are not ONNX, and for models that cannot be imported, with the place and the
    reason.
    """
    return load_parsed(parsed(model), shapes, constants, operators)


def load_parsed(
    file: ParsedModel,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] = (),
) -> Graph:
    """Reads a parsed model as `load` does; its proto may be changed. Raises ModelError."""
    with with_remedies():
        return imported(file, shapes, constants, operators, lambda *given: ModelImport(*given).run())


def imported(
    file: ParsedModel,
    shapes: Mapping[str, Sequence[int]] | None,
    constants: Mapping[str, ArrayLike] | None,
    operators: Sequence[CustomOperator],
    run: Callable[..., T],
) -> T:
    """Returns the result of `run` on a model; `run` takes the arguments of `ModelImport`. Errors name the model."""
    with located(file.label, file=file.path):
        given = _by_name(shapes, "shapes", lambda shape: tuple(map(operator.index, shape)), "shape")
        bound = _by_name(constants, "constants", np.asarray, "array")
        try:
            return run(file.proto, file.folder, given, bound, importers_of(operators))
        except RecursionError as error:
            raise UserError("it is nested too deeply") from error


def check_operators(file: ParsedModel, operators: Sequence[CustomOperator] = ()) -> None:
    """Raises UnsupportedOperator with all unsupported operators of a model, for any shapes."""
    with with_remedies(), located(file.label, file=file.path):
        ModelImport(file.proto, file.folder, {}, {}, importers_of(operators)).check_operators()


def _by_name(given: Any, option: str, convert: Callable[[Any], Any], wanted: str) -> dict[str, Any]:
    """Returns the user's values by input name, each converted. Raises UserError if a value is not `wanted`."""
    if given is not None and not isinstance(given, Mapping):
        raise UserError(f"{option}= takes {wanted}s by name, not {type(given).__name__}")
    converted_by_name: dict[str, Any] = {}
    for name, value in (given or {}).items():
        if not isinstance(name, str):
            raise UserError(f"{option}= takes {wanted}s by name, and {shown(str(name))} is no name")
        try:
            converted_by_name[name] = convert(value)
        except (TypeError, ValueError) as error:
            raise UserError(f"{option}= gives no {wanted} for {shown(str(name))}: {shown(str(error))}") from error
    return converted_by_name


def _tensor_type(type: Any) -> Any:
    """Returns the type of a tensor, or of an optional tensor, which is assumed present; empty for any other type."""
    return type.optional_type.elem_type.tensor_type if type.HasField("optional_type") else type.tensor_type


class ModelImport:
    """One import: the values known by their names in the file, and the graph so far."""

    def __init__(
        self,
        proto: Any,
        folder: str | None,
        shapes: dict[str, tuple[int, ...]],
        constants: dict[str, Array],
        own: Mapping[tuple[str, str], Importer],
    ) -> None:
        check_names(proto)
        self.version = version_of(proto)
        self.versions = {"" if is_standard(o.domain) else o.domain: int(o.version) for o in proto.opset_import}
        self.proto = local_functions_inlined(proto) if proto.functions else proto
        self.folder, self.shapes, self.given, self.own = folder, shapes, constants, own
        self.build = GraphBuilder()
        self.symbols: dict[str, int] = {}
        self._written = 0

    def run(self) -> Graph:
        graph = self.proto.graph
        env = self._interface()
        self._check_known(graph.node)
        self._import(ordered(graph.node, env), env, 0)
        outputs: list[Value] = []
        for o in graph.output:
            if not _tensor_type(o.type).HasField("elem_type") and (kind := o.type.WhichOneof("value")):
                raise Unsupported(f"output {shown(o.name)} is no tensor but a {kind}, which is not supported")
            if o.name not in env:
                raise UserError(f"output {shown(o.name)} is computed by no node")
            outputs.append(tensor_of(env[o.name], f"output {shown(o.name)}"))
        if not outputs:
            raise UserError("it has no outputs")
        return self.build.graph(outputs, self.output_names(), graph.name or "model", self.version)

    def _interface(self) -> dict[str, Binding]:
        """Returns the values that no node computes, by name."""
        graph = self.proto.graph
        env: dict[str, Binding] = {}
        for tensor in graph.initializer:
            self._constant(tensor, env)
        if graph.sparse_initializer:
            raise Unsupported("sparse constants are not supported")
        self._inputs(graph.input, env)
        return env

    def _constant(self, tensor: Any, env: dict[str, Binding]) -> None:
        self._initializer(tensor, env)

    def output_names(self) -> list[str]:
        names = [o.name for o in self.proto.graph.output]
        if len(set(names)) != len(names):
            raise UserError("two outputs have the same name")
        return names

    def _importer(self, node: Any) -> Importer | None:
        """Returns the caller's own importer, or the package's."""
        domain = "" if is_standard(node.domain) else node.domain
        return self.own.get((domain, node.op_type)) or DOMAINS.get(domain, {}).get(node.op_type)

    def _is_known(self, node: Any) -> bool:
        if self._importer(node) is not None or (is_standard(node.domain) and node.op_type in _BRANCHES):
            return True
        return schema_of(node, self.versions) is not None

    def check_operators(self) -> None:
        self._check_known(self.proto.graph.node)

    def _check_known(self, nodes: Iterable[Any]) -> None:
        """Raises one error for all unsupported operators."""
        missing: dict[str, list[str]] = {}
        for node in nodes:
            if not self._is_known(node):
                missing.setdefault(qualified(node.domain, node.op_type), []).append(shown(label_of(node)))
        if not missing:
            return
        lines = [
            f"{op} ({len(names)}: {', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
            for op, names in sorted(missing.items())
        ]
        text = f"operators that are not supported (opset {self.version}): {'; '.join(lines)}"
        raise UnsupportedOperator(text, missing)

    # Inputs and constants

    def _initializer(self, tensor: Any, env: dict[str, Binding]) -> None:
        if tensor.name in env:
            raise UserError(f"constant {shown(tensor.name)} is defined twice")
        self.build.node = tensor.name
        array = array_of(tensor, self.folder, f"constant {shown(tensor.name)}")
        env[tensor.name] = self.build.constant(array, name=tensor.name)

    def _inputs(self, declared: Sequence[Any], env: dict[str, Binding]) -> None:
        names = [i.name for i in declared if i.name not in env]
        for what, table in (("shapes", self.shapes), ("constants", self.given)):
            for name in table:
                if name not in names:
                    inputs = ", ".join(map(shown, names))
                    raise UserError(f"{what} name {shown(name)}, which is no input; the inputs are {inputs}")
        if len(set(names)) != len(names):
            raise UserError("two inputs have the same name")
        listed = [i for i in declared if i.name in names]
        for i in listed:  # numbers given for one input decide the symbols of all
            if i.name in self.shapes or i.name in self.given:
                self._bind(i, self.shapes[i.name] if i.name in self.shapes else self.given[i.name].shape)
        for i in listed:
            self._input(i, env)

    def _input(self, i: Any, env: dict[str, Binding]) -> None:
        dtype = self._type(i)
        if i.name in self.given:
            env[i.name] = self._given(i.name, dtype)
        else:
            env[i.name] = self.build.input(i.name, self._shape(i), dtype)

    def _type(self, i: Any) -> Dtype:
        declared = _tensor_type(i.type)
        if not declared.HasField("elem_type"):
            raise Unsupported(f"input {shown(i.name)} is no tensor but a {i.type.WhichOneof('value') or 'nothing'}")
        return element_type(declared.elem_type, f"input {shown(i.name)}")

    def _given(self, name: str, dtype: Dtype) -> Value:
        given = self.given[name]
        try:
            array = converted(given, dtype)
        except UserError as error:
            raise UserError(f"constants= gives {shown(name)}, which is {dtype}, an array that {error}") from error
        return self.build.constant(array.copy() if array is given else array, name=name)

    def _bind(self, i: Any, shape: tuple[int, ...]) -> None:
        declared = _tensor_type(i.type)
        if not declared.HasField("shape"):
            return
        dims = declared_dimensions(i.name, declared.shape)
        if len(dims) != len(shape) or min(shape, default=0) < 0:
            raise UserError(f"input {shown(i.name)} has {len(dims)} dimensions, but the shape {shape} is given")
        for d, n in zip(dims, shape):
            if isinstance(d, str):
                if (known := self.symbols.setdefault(d, n)) != n:
                    raise UserError(f"dimension {shown(d)} is given both as {known} and as {n}")
            elif d not in (0, n):
                fixed = ", ".join(map(shown, dimensions_text(i.name, dims)))
                raise UserError(f"input {shown(i.name)} has the fixed shape [{fixed}], but {shape} is given")

    def _shape(self, i: Any) -> tuple[int, ...]:
        if i.name in self.shapes:
            return self.shapes[i.name]
        declared = _tensor_type(i.type)
        if not declared.HasField("shape"):
            raise UserError(f"input {shown(i.name)} has no shape; give one (shapes=, or --shapes)")
        dims = declared_dimensions(i.name, declared.shape)
        for d, text in zip(dims, dimensions_text(i.name, dims)):
            if isinstance(d, str) and d not in self.symbols:
                remedy = "is open and taken as 1; give the input a shape (shapes=, or --shapes)"
                warn(f"input {shown(i.name)}: dimension {shown(text)} {remedy}")
                self.symbols[d] = 1
        return tuple(self.symbols[d] if isinstance(d, str) else d for d in dims)

    # Nodes

    def _import(self, nodes: Iterable[Any], env: dict[str, Binding], depth: int) -> None:
        for node in nodes:
            self._import_node(node, env, depth)

    def _import_node(self, node: Any, env: dict[str, Binding], depth: int) -> None:
        label = label_of(node)
        operator = qualified(node.domain, node.op_type)
        self.build.node = label
        self.build.hint = next((o for o in node.output if o), label)
        for o in node.output:
            if o and o in env:
                raise UserError(f"node {shown(label)} computes {shown(o)}, which exists already")
        with located(f"{node.op_type} node {shown(label)}", node=label, operator=operator):
            self._node(node, env, depth, label)
        missing = [o for o in node.output if o and o not in env]
        if missing:
            message = f"{node.op_type} node {shown(label)}: its output {shown(missing[0])} is not supported"
            raise UnsupportedOperator(message, [operator])

    def _node(self, node: Any, env: dict[str, Binding], depth: int, label: str) -> None:
        inputs = [env[i] if i else None for i in node.input]
        is_own = ("" if is_standard(node.domain) else node.domain, node.op_type) in self.own
        if is_standard(node.domain) and not is_own:
            check(node, self.version, inputs, {a.name: a.type or _kind(a) for a in node.attribute})
        if node.op_type in _BRANCHES and is_standard(node.domain) and not is_own:
            self._branch(node, inputs, env, depth)
            return
        importer = self._importer(node)
        if importer is None:
            self._function(node, inputs, env, depth, label)
            return
        attributes = {a.name: self._attribute(a, label) for a in node.attribute}
        since = len(self.build.nodes)
        form = form_of(node.op_type, self.version) if is_standard(node.domain) else None
        halves: list[Dtype | None] = [None] * len(node.output)
        if node.op_type not in MOVES:
            halves = result_types(node.op_type, form, inputs, len(node.output))
            inputs = widened(self.build, inputs)
        names = list(node.output)
        reader = NodeReader(node.op_type, label, self.version, inputs, names, attributes, self.build, node.domain)
        results = importer(reader)
        listed = [results] if isinstance(results, Binding) else list(results)
        for o, binding, half in zip(node.output, listed, halves):
            binding = narrowed(self.build, binding, half)
            if o and binding is not None:
                env[o] = self.build.rename(binding, o, since) if isinstance(binding, Value) else binding

    def _attribute(self, a: Any, label: str) -> Any:
        kind = a.type or _kind(a)
        value = getattr(a, _FIELDS.get(kind, "type"))
        match kind:
            case 1 | 2:
                return value
            case 3:
                return value.decode("utf-8", "replace")
            case 4:
                return array_of(value, self.folder, f"attribute {shown(a.name)} of node {shown(label)}")
            case 6 | 7:
                return list(value)
            case 8:
                return [v.decode("utf-8", "replace") for v in value]
            case 13:  # the type of an empty optional value, which has no reader
                return None
            case _:
                raise Unsupported(f"attribute {shown(a.name)} is of a kind that is not supported")

    def _function(
        self, node: Any, inputs: Sequence[Binding | None], env: dict[str, Binding], depth: int, label: str
    ) -> None:
        """Imports the body that ONNX defines for a composite operator, in place."""
        if depth >= MOST_NESTED:
            raise UserError("functions are nested too deeply")
        body = body_of(node, self.versions, inputs)
        if body is None:
            raise UserError("ONNX gives no body for these inputs")
        inner: dict[str, Binding] = {formal: v for formal, v in zip(body.input, inputs) if v is not None}
        nodes = bound_nodes(body, schema_of(node, self.versions), node, inner, label)
        outside = self.version
        self.version = next((int(o.version) for o in body.opset_import if is_standard(o.domain)), outside)
        self._check_known(nodes)
        self._import(ordered(nodes, inner), inner, depth + 1)
        self.version = outside
        for o, formal in zip(node.output, body.output):
            if o and formal in inner:
                env[o] = inner[formal]

    def _branch(self, node: Any, inputs: Sequence[Binding | None], env: dict[str, Binding], depth: int) -> None:
        """Imports subgraphs in place: the chosen branch, or the body of a loop of known length."""
        if depth >= MOST_NESTED:
            raise UserError("subgraphs are nested too deeply")

        def run(body: Any, bound: Mapping[str, Binding]) -> list[Binding]:
            return self._body(body, {**env, **bound}, depth + 1)

        match node.op_type:
            case "If":
                results = run(self._taken(node, inputs[0]), {})
            case "Scan":
                if self.version < 9:
                    raise Unsupported("Scan of operator set 8 is not supported")
                results = unroll_scan(node, inputs, self.build, run)
            case _:
                results = unroll_loop(node, inputs, self.build, run)
        env.update((o, binding) for o, binding in zip(node.output, results) if o)

    def _taken(self, node: Any, condition: Binding | None) -> Any:
        assert isinstance(condition, Value)  # `check` refuses other nodes
        wanted = "then_branch" if known_number(self.build, condition, "its condition") else "else_branch"
        body = next((a.g for a in node.attribute if a.name == wanted), None)
        if body is None or len(body.output) < len(node.output):
            raise UserError(f"it has no {wanted} with {len(node.output)} outputs")
        return body

    def _body(self, body: Any, inner: dict[str, Binding], depth: int) -> list[Binding]:
        self._written += 1 + len(body.node) + len(inner) // 64  # names are copied for every step
        if self._written > MOST_NODES:
            raise UserError(f"written out it would have more than {MOST_NODES:,} nodes")
        for tensor in body.initializer:
            inner.pop(tensor.name, None)
            self._initializer(tensor, inner)
        for node in body.node:  # a name defined inside hides one outside
            for o in node.output:
                inner.pop(o, None)
        self._check_known(body.node)
        self._import(ordered(body.node, inner), inner, depth)
        missing = [o.name for o in body.output if o.name not in inner]
        if missing:
            raise UserError(f"its subgraph does not compute {shown(missing[0])}")
        return [inner[o.name] for o in body.output]


_FIELDS = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints", 8: "strings"}
"""The field in which an attribute of each kind holds its value."""


def _kind(a: Any) -> int:
    """Returns the kind of an attribute, which files of the first versions omit."""
    return next((kind for kind, name in _FIELDS.items() if (a.HasField(name) if kind < 5 else getattr(a, name))), 0)
