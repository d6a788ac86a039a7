"""The model graph: immutable values and nodes in topological order.

    g = load("model.onnx");  print(g)
    g2 = g.rewrite(lambda node: [...] or None)        # a new graph; unchanged nodes are shared

Invariant (see `verify`): every value is an input, a constant or the output of one node that precedes its readers, and
names are unique. Values and nodes stand in `operators.node`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from stormdrop.base.errors import UserError
from stormdrop.ir.expr import NUMPY
from stormdrop.operators.node import Array, Node, Value, infer, shown

MOST_REGION = 64
"""The most nodes of a region that a pass may request."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A model. `input_names` and `output_names` are the names that users see; several outputs may be one value."""

    inputs: tuple[Value, ...]
    """The values that a caller gives."""
    outputs: tuple[Value, ...]
    """The values that a run returns."""
    nodes: tuple[Node, ...]
    """The operations, producers first."""
    constants: Mapping[Value, Array]
    """The arrays of values that are the same in every run."""
    name: str = "model"
    """The name of the model."""
    opset: int = 0
    """The version of the standard operators in the model's file; 0 if the graph comes from no file."""
    output_names: tuple[str, ...] = ()
    """The names of the outputs, in order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        if not self.output_names:
            object.__setattr__(self, "output_names", tuple(v.name for v in self.outputs))

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs, in order."""
        return tuple(v.name for v in self.inputs)

    @cached_property
    def producers(self) -> Mapping[Value, Node]:
        """The node that computes each value."""
        return {v: node for node in self.nodes for v in node.outputs}

    @cached_property
    def consumers(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes that read a value, each once, in order."""
        readers: dict[Value, dict[Node, None]] = {}
        for node in self.nodes:
            for v in node.inputs:
                readers.setdefault(v, {})[node] = None
        return {v: tuple(nodes) for v, nodes in readers.items()}

    def rewrite(
        self, visit: Callable[[Node], Sequence[Node] | None], constants: Mapping[Value, Array] | None = None
    ) -> Graph:
        """Returns a new graph; the sequence that `visit` returns replaces its node (None: the node stays).

        The sequence, perhaps empty, must compute the outputs that are still read. `constants` are added. Unread nodes
        and constants are dropped.
        """
        nodes: list[Node] = []
        for node in self.nodes:
            answer = visit(node)
            nodes.extend([node] if answer is None else answer)
        merged = {**self.constants, **(constants or {})}
        return replace(self, nodes=tuple(nodes), constants=merged).pruned()

    def region(
        self, start: Value, inside: Callable[[Node], bool], ends: Callable[[Node], bool]
    ) -> tuple[list[Node], list[Node]] | None:
        """Returns the nodes that transitively read a value, and the nodes at which the region ends.

        Returns None if a node is neither inside nor an end, if an output is reached, or if there are more than
        `MOST_REGION` nodes. The limit keeps a pass that requests many regions linear.
        """
        between: dict[Node, None] = {}
        last: dict[Node, None] = {}
        waiting = [start]
        while waiting:
            v = waiting.pop()
            if v in self.outputs:
                return None
            for node in self.consumers.get(v, ()):
                if ends(node):
                    last[node] = None
                elif not inside(node) or len(between) >= MOST_REGION:
                    return None
                elif node not in between:
                    between[node] = None
                    waiting.append(node.output)
        return list(between), list(last)

    def pruned(self) -> Graph:
        """Returns the graph without nodes and constants that no output needs."""
        needed = set(self.outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if any(v in needed for v in node.outputs):
                needed.update(node.inputs)
                kept.append(node)
        constants = {v: a for v, a in self.constants.items() if v in needed}
        if len(kept) == len(self.nodes) and len(constants) == len(self.constants):
            return self
        return replace(self, nodes=tuple(reversed(kept)), constants=constants)

    def lines(self) -> Iterator[str]:
        """Yields the lines of the printed graph."""
        yield f"graph {shown(self.name)}({', '.join(map(str, self.inputs))})"
        for v, array in self.constants.items():
            small = f" = {array.tolist()}" if array.size <= 4 else ""
            yield f"  constant {v}{small}"
        for node in self.nodes:
            yield f"  {node}"
        yield f"  return {', '.join(f'%{shown(v.name)}' for v in self.outputs)}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        counts = f"{len(self.nodes)} nodes, {len(self.inputs)} inputs, {len(self.outputs)} outputs"
        return f"<graph {shown(self.name)}: {counts}>"


class FreshNames:
    """Generator of unused names: distinct from a graph's names and from its own earlier names."""

    def __init__(self, graph: Graph | None = None) -> None:
        self._graph = graph
        self._next: dict[str, int] = {}

    @cached_property
    def used(self) -> set[str]:
        g = self._graph
        if g is None:
            return set()
        return {v.name for v in (*g.inputs, *g.constants)} | {n.output.name for n in g.nodes}

    def fresh(self, wanted: str) -> str:
        """Returns `wanted` itself, or `wanted` with a number appended."""
        name = wanted = wanted or "v"
        while name in self.used:
            self._next[wanted] = self._next.get(wanted, 0) + 1
            name = f"{wanted}.{self._next[wanted]}"
        self.used.add(name)
        return name


def verify(graph: Graph, verified: Collection[Node] = ()) -> None:
    """Raises UserError if the graph is malformed.

    - A value is defined twice, or read before its definition.
    - A node's result differs from its operator's result for its inputs.
    - A constant's array contradicts its value.
    - A node or constant is never read.

    The result of a node among `verified` is not determined again: nodes do not change.
    """
    defined: dict[str, Value] = {}

    def define(v: Value, what: str) -> None:
        if v.name in defined:
            raise UserError(f"{what} {v} is defined twice")
        defined[v.name] = v

    def check(v: Value, what: object) -> None:
        # `what` is formatted only for an error: a graph may have a hundred thousand nodes.
        if defined.get(v.name) != v:
            raise UserError(f"{what} reads {v}, which is not defined before it")

    for v in graph.inputs:
        define(v, "input")
    for v, array in graph.constants.items():
        define(v, "constant")
        if array.shape != v.shape or array.dtype != NUMPY[v.dtype]:
            raise UserError(f"constant {v} holds {array.dtype}{list(array.shape)}")
    for node in graph.nodes:
        for v in node.inputs:
            check(v, node)
        if len(node.outputs) != 1:
            raise UserError(f"{node}: a node has one output")
        if node not in verified:
            shape, dtype = infer(node)
            if (shape, dtype) != (node.output.shape, node.output.dtype):
                raise UserError(f"{node}: {node.op} gives {dtype}{list(shape)}")
        define(node.output, "value")
    for v in graph.outputs:
        check(v, "the model's end")
    if len(graph.output_names) != len(graph.outputs):
        raise UserError(f"{len(graph.outputs)} outputs have {len(graph.output_names)} names")
    read = {v for node in graph.nodes for v in node.inputs} | set(graph.outputs)
    for node in graph.nodes:
        if node.output not in read:
            raise UserError(f"{node}: nothing reads it")
    for v in graph.constants:
        if v not in read:
            raise UserError(f"constant {v}: nothing reads it")
