"""Models of which another runtime computes a part: the nodes that the importers refuse, and nodes that depend on them.

    mixed = cut(parsed("model.onnx"), runtime)      # a MixedGraph; `runtime` infers the results of its nodes
    for part in mixed.parts: print(part)            # own graphs and sub-models for the runtime, in order

A node is left to the runtime in two cases: its operator, or its form of the operator, is not supported; or it reads a
value of unknown shape or type. The runtime makes sequences of known length if its nodes or outputs read them.

All other nodes are imported as usual: an error in a model is an error here too. Nodes are then divided into alternating
levels, own and foreign, so that there are as few parts as the order allows.

Invariant: every value that passes between parts has one key, the name of an own `Value` or a name of the same form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from numpy.typing import ArrayLike

from stormdrop.base.errors import Unsupported, UnsupportedOperator, UserError
from stormdrop.frontend.custom import CustomOperator
from stormdrop.frontend.functions import CODES
from stormdrop.frontend.node_reader import Binding, NeedsConstant, qualified, tensor_of
from stormdrop.frontend.onnx import ModelImport, imported
from stormdrop.frontend.parsed import ParsedModel, label_of, ordered, read_names
from stormdrop.frontend.pointwise import ELEMENT_TYPES
from stormdrop.graph.graph import Graph
from stormdrop.operators.node import Array, Node, Value, shown

LEAST_IR = 4
"""The first version of the format in which constants need not also be inputs."""
MOST_NAMED = 4
"""The most operators that a summary names."""


class Runtime(Protocol):
    """Another runtime, as far as the cut needs it."""

    @property
    def name(self) -> str: ...
    def output_types(self, model: Any) -> list[Any]:
        """Returns the TypeProtos of an onnx.ModelProto's outputs. Raises UserError if the runtime refuses the model."""
        ...


@dataclass(frozen=True, slots=True)
class MixedPort:
    """An input or output of a model: `value` is None if only another runtime can infer its shape or type."""

    name: str
    key: str
    value: Value | None
    type: Any
    """The type as an onnx.TypeProto."""


@dataclass(frozen=True, slots=True, eq=False)
class ForeignPart:
    """A sub-model for another runtime. `inputs` and `outputs` are keys, in the order of the model's."""

    model: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reasons: tuple[str, ...]
    """The reasons for leaving the part to the runtime, each once. Nodes that only depend on it need no reason."""

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(qualified(n.domain, n.op_type) for n in self.model.graph.node))


@dataclass(frozen=True, slots=True, eq=False)
class MixedGraph:
    """A model in parts that run one after the other. `constants` are the outputs that need no computation, by key."""

    name: str
    parts: tuple[Graph | ForeignPart, ...]
    inputs: tuple[MixedPort, ...]
    outputs: tuple[MixedPort, ...]
    constants: Mapping[str, Array]
    opset: int = 0

    @property
    def foreign(self) -> tuple[ForeignPart, ...]:
        return tuple(p for p in self.parts if isinstance(p, ForeignPart))

    @property
    def own(self) -> tuple[Graph, ...]:
        return tuple(p for p in self.parts if isinstance(p, Graph))

    @property
    def native(self) -> Graph:
        """A single graph of all own parts: values that pass between parts are inputs."""
        return _side_by_side(self.name, self.own, self.opset)

    @property
    def summary(self) -> str:
        """A summary of the cut in one line."""
        operators = list(dict.fromkeys(op for part in self.foreign for op in part.operators))
        named = ", ".join(operators[:MOST_NAMED])
        if len(operators) > MOST_NAMED:
            named += f" and {len(operators) - MOST_NAMED} other operators"
        reason = next((reason for part in self.foreign for reason in part.reasons), "")
        extent, rest = ("a part", "; the rest is native") if self.own else ("all", "")
        return f"onnxruntime runs {extent} of {shown(self.name)}: {named} ({reason}){rest}"


def cut(
    file: ParsedModel,
    runtime: Runtime,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] = (),
) -> Graph | MixedGraph:
    """Reads a model; returns a plain graph if no node is left to the runtime. Raises UserError as `load` does."""
    return imported(file, shapes, constants, operators, lambda *given: _MixedImport(*given, runtime=runtime).cut())


@dataclass(frozen=True, slots=True)
class _Opaque:
    """A value whose shape or type only the other runtime can infer."""

    key: str
    type: Any


@dataclass(frozen=True, slots=True, eq=False)
class _ForeignNode:
    """`reads` and `writes` are keys by the names of the file; `position` counts the own nodes before it."""

    node: Any
    reads: Mapping[str, str]
    writes: Mapping[str, str]
    position: int
    why: str
    hidden: str
    """The key of an input of unknown shape or type; empty if there is none."""
    is_open: bool
    """True if the runtime accepts the node only with open input sizes, as in the file."""


class _MixedImport(ModelImport):
    def __init__(self, *given: Any, runtime: Runtime) -> None:
        super().__init__(*given)
        self.runtime = runtime
        self.opaque: dict[str, _Opaque] = {}
        self.tensors: dict[str, Any] = {}
        self.left: list[_ForeignNode] = []
        self.makers: dict[str, Any] = {}

    # Declarations of the file

    def _constant(self, tensor: Any, env: dict[str, Binding]) -> None:
        try:
            super()._constant(tensor, env)
        except Unsupported:
            if tensor.external_data:
                raise
            self.tensors[tensor.name] = tensor
            self._hide(tensor.name, None)

    def _input(self, i: Any, env: dict[str, Binding]) -> None:
        try:
            super()._input(i, env)
        except Unsupported:
            self._hide(i.name, i.type)

    def _hide(self, name: str, type: Any) -> str:
        self.opaque[name] = _Opaque(self.build.reserve(name), type)
        return self.opaque[name].key

    # Nodes

    def _import_node(self, node: Any, env: dict[str, Binding], depth: int) -> None:
        if depth:
            super()._import_node(node, env, depth)
            return
        why = self._refusal(node, env)
        if why is not None:
            self._leave(node, env, why)

    def _refusal(self, node: Any, env: dict[str, Binding]) -> str | None:
        """Returns the reason why a node cannot be computed here; None if it has been imported."""
        hidden = [name for name in read_names(node) if name in self.opaque]
        if hidden:
            return f"reads {shown(hidden[0])}, whose shape or type is not known here"
        if not self._is_known(node):
            return f"{qualified(node.domain, node.op_type)} is not supported"
        since, version, written = len(self.build.nodes), self.version, self._written
        try:
            super()._import_node(node, env, 0)
        except (Unsupported, NeedsConstant) as error:
            del self.build.nodes[since:]
            self.version, self._written = version, written
            for o in node.output:
                env.pop(o, None)
            return self._reason(error)
        self.makers.update((o, node) for o in node.output if o and not isinstance(env[o], Value))
        return None

    def _release(self, names: Iterable[str], env: dict[str, Binding]) -> None:
        """Leaves producers of sequences to the runtime: another part reads the sequences, and own parts never write
        them.
        """
        pending, released = list(names), set[int]()
        while pending:
            name = pending.pop()
            if name in env and not isinstance(env[name], Value) and id(self.makers[name]) not in released:
                released.add(id(self.makers[name]))
                pending += read_names(self.makers[name])
        for node in [n for n in self.makers.values() if id(n) in released]:
            hidden = [o for o in node.output if o in env and not isinstance(env[o], Value)]
            for o in hidden:
                del env[o]
            if hidden:
                self._leave(node, env, f"makes {shown(hidden[0])}, which is no tensor and is read elsewhere")

    def _reason(self, error: Unsupported | NeedsConstant) -> str:
        """Returns the reason to leave a node; inputs of the model alone can be bound."""
        is_input = isinstance(error, NeedsConstant) and error.value in {i.name for i in self.proto.graph.input}
        return str(error) if is_input else str(error).partition("; bind it")[0]

    def _leave(self, node: Any, env: dict[str, Binding], why: str) -> None:
        """Leaves a node to the runtime, which infers the types of its outputs."""
        self._release(read_names(node), env)
        outputs = [o for o in node.output if o]
        reads = {name: self._key(name, env) for name in read_names(node)}
        types, is_open = self._types(node, outputs, env, why)
        writes: dict[str, str] = {}
        for o, type in zip(outputs, types):
            known = _known(type)
            if o in env:  # computed here too, for nodes before this one
                writes[o] = self.build.reserve(o)
            elif known is None:
                writes[o] = self._hide(o, type)
            else:
                env[o] = value = self.build.input(o, *known)
                writes[o] = value.name
        hidden = next((key for name, key in reads.items() if name in self.opaque), "")
        self.left.append(_ForeignNode(node, reads, writes, len(self.build.nodes), why, hidden, is_open))

    def _types(self, node: Any, outputs: Sequence[str], env: Mapping[str, Binding], why: str) -> tuple[list[Any], bool]:
        """Returns the types of a node's outputs, and whether they were inferred with open sizes.

        A branch that these sizes never enter may contradict them: the runtime then refuses the node with sizes alone.
        """
        try:
            return self.runtime.output_types(self._sub_model([node], outputs, env)), False
        except UserError as error:
            try:
                return self.runtime.output_types(self._sub_model([node], outputs, env, is_open=True)), True
            except UserError:
                message = f"{why} (node {shown(label_of(node))}); and {error}"
                raise UnsupportedOperator(message, [qualified(node.domain, node.op_type)]) from error

    def _key(self, name: str, env: Mapping[str, Binding]) -> str:
        return self.opaque[name].key if name in self.opaque else tensor_of(env[name], shown(name)).name

    def _sub_model(
        self, nodes: Sequence[Any], outputs: Sequence[str], env: Mapping[str, Binding], is_open: bool = False
    ) -> Any:
        """Makes a model of some nodes; each value from outside is an input, or a constant if its elements are known.

        With `is_open` only the ranks of inputs are declared.
        """
        from onnx import ValueInfoProto, helper, numpy_helper

        made = {o for n in nodes for o in n.output}
        outside = dict.fromkeys(name for n in nodes for name in read_names(n) if name not in made)
        inputs: list[Any] = []
        constants: list[Any] = []
        for name in outside:
            if name in self.tensors:
                constants.append(self.tensors[name])
            elif name in self.opaque:
                inputs.append(ValueInfoProto(name=name, type=self.opaque[name].type))
            elif (array := self.build.array(value := tensor_of(env[name], shown(name)))) is not None:
                constants.append(numpy_helper.from_array(array, name))
            else:
                shape = [None] * value.rank if is_open else value.shape
                inputs.append(helper.make_tensor_value_info(name, CODES[value.dtype], shape))
        results = [ValueInfoProto(name=o) for o in outputs]
        graph = helper.make_graph(nodes, "part", inputs, results, constants)
        versions = list(self.proto.opset_import)
        return helper.make_model(graph, opset_imports=versions, ir_version=max(self.proto.ir_version, LEAST_IR))

    # The cut

    def cut(self) -> Graph | MixedGraph:
        proto = self.proto.graph
        env = self._interface()
        given = [i for i in proto.input if i.name not in {t.name for t in proto.initializer}]
        for node in ordered(proto.node, {*env, *self.opaque}):
            self._import_node(node, env, 0)
        names = self.output_names()
        missing = [o for o in names if o not in env and o not in self.opaque]
        if missing or not names:
            raise UserError(f"output {shown(missing[0])} is computed by no node" if missing else "it has no outputs")
        self._release(names, env)
        inputs = [self._port(i.name, i.type, env) for i in given if i.name not in self.given]
        outputs = [self._port(o.name, o.type, env) for o in proto.output]
        if not self.left and all(p.value is not None for p in (*inputs, *outputs)):
            values = [p.value for p in outputs if p.value is not None]
            return self.build.graph(values, names, proto.name or "model", self.version)
        cutting = _Cut(self.build.nodes, self.build.constants, self.left, [p.key for p in outputs])
        parts: list[Graph | ForeignPart] = []
        for level in cutting.levels():
            parts.append(cutting.own_part(level) if level % 2 == 0 else self._foreign_part(cutting, level, env))
        known = {p.key: a for p in outputs if p.value is not None and (a := self.build.array(p.value)) is not None}
        return MixedGraph(proto.name or "model", tuple(parts), tuple(inputs), tuple(outputs), known, self.version)

    def _port(self, name: str, type: Any, env: Mapping[str, Binding]) -> MixedPort:
        if name in self.opaque:
            return MixedPort(name, self.opaque[name].key, None, self.opaque[name].type or type)
        value = tensor_of(env[name], shown(name))
        return MixedPort(name, value.name, value, type)

    def _foreign_part(self, cutting: _Cut, level: int, env: Mapping[str, Binding]) -> ForeignPart:
        nodes = [item for item in cutting.items if isinstance(item, _ForeignNode) and cutting.level_of[item] == level]
        wanted = [(o, key) for n in nodes for o, key in n.writes.items() if cutting.is_wanted(key, level)]
        is_open = any(n.is_open for n in nodes)
        model = self._sub_model([n.node for n in nodes], [o for o, _ in wanted], env, is_open)
        inputs = tuple(self._key(i.name, env) for i in model.graph.input)
        made = {key for n in nodes for key in n.writes.values()}
        first = [n for n in nodes if not n.hidden or n.hidden not in made]
        reasons = tuple(dict.fromkeys(n.why for n in first))
        return ForeignPart(model, inputs, tuple(key for _, key in wanted), reasons)


def _side_by_side(name: str, parts: Sequence[Graph], opset: int) -> Graph:
    """Joins graphs into a single graph; a value that passes between two parts becomes an output and a new input."""
    made = {v for part in parts for node in part.nodes for v in node.outputs}
    inputs: dict[Value, None] = {}
    outputs: dict[Value, None] = {}
    nodes: list[Node] = []
    constants: dict[Value, Array] = {}
    for k, part in enumerate(parts):
        renamed = {v: replace(v, name=f"{v.name}, read by part {k}") for v in part.inputs if v in made}
        inputs |= dict.fromkeys(renamed.get(v, v) for v in part.inputs)
        outputs |= dict.fromkeys(part.outputs)
        constants |= part.constants
        nodes += [replace(n, inputs=tuple(renamed.get(v, v) for v in n.inputs)) for n in part.nodes]
    return Graph(tuple(inputs), tuple(outputs), tuple(nodes), constants, name, opset)


def _known(type: Any) -> tuple[tuple[int, ...], Any] | None:
    """Returns the shape and element type of a tensor, or None if either is unknown."""
    tensor = type.tensor_type
    dims = list(tensor.shape.dim)
    is_tensor = type.HasField("tensor_type") and tensor.HasField("shape") and tensor.elem_type in ELEMENT_TYPES
    if not is_tensor or not all(d.HasField("dim_value") for d in dims):
        return None
    return tuple(int(d.dim_value) for d in dims), ELEMENT_TYPES[tensor.elem_type]


@dataclass(eq=False)
class _Cut:
    """The nodes that outputs need, with levels: even levels are computed here, odd levels by the runtime.

    A node has the level of the latest value it reads, or the next level of its own kind.
    """

    nodes: Sequence[Node]
    constants: Mapping[Value, Array]
    left: Sequence[_ForeignNode]
    outputs: Sequence[str]
    items: list[Node | _ForeignNode] = field(default_factory=list[Node | _ForeignNode])
    level_of: dict[Node | _ForeignNode, int] = field(default_factory=dict[Node | _ForeignNode, int])

    def __post_init__(self) -> None:
        self.items = self._needed()
        self._level: dict[str, int] = {}
        self._readers: dict[str, set[int]] = {key: {-1} for key in self.outputs}
        for item in self.items:
            parity = 0 if isinstance(item, Node) else 1
            least = [self._level[key] for key in self._reads(item) if key in self._level]
            level = max([parity, *(at + (at % 2 != parity) for at in least)])
            self.level_of[item] = level
            for key in self._reads(item):
                self._readers.setdefault(key, set()).add(level)
            self._level.update(dict.fromkeys(self._writes(item), level))

    def _in_order(self) -> Iterator[Node | _ForeignNode]:
        done = 0
        for foreign in self.left:
            yield from self.nodes[done : foreign.position]
            done = foreign.position
            yield foreign
        yield from self.nodes[done:]

    def _needed(self) -> list[Node | _ForeignNode]:
        needed = set(self.outputs)
        kept: list[Node | _ForeignNode] = []
        for item in reversed(list(self._in_order())):
            if needed.intersection(self._writes(item)):
                needed.update(self._reads(item))
                kept.append(item)
        return kept[::-1]

    def _reads(self, item: Node | _ForeignNode) -> list[str]:
        if isinstance(item, Node):
            return [v.name for v in item.inputs if v not in self.constants]
        return list(item.reads.values())

    def _writes(self, item: Node | _ForeignNode) -> list[str]:
        return [v.name for v in item.outputs] if isinstance(item, Node) else list(item.writes.values())

    def levels(self) -> list[int]:
        return sorted(set(self.level_of.values()))

    def is_wanted(self, key: str, level: int) -> bool:
        """Returns whether another part, or the caller, reads a result of this level."""
        return bool(self._readers.get(key, set()) - {level})

    def own_part(self, level: int) -> Graph:
        nodes = [n for n in self.items if isinstance(n, Node) and self.level_of[n] == level]
        made = {v: None for n in nodes for v in n.outputs}
        read = dict.fromkeys(v for n in nodes for v in n.inputs)
        constants = {v: self.constants[v] for v in read if v in self.constants}
        inputs = tuple(v for v in read if v not in made and v not in constants)
        outputs = tuple(v for v in made if self.is_wanted(v.name, level))
        return Graph(inputs, outputs, tuple(nodes), constants, f"part {level}").pruned()
