"""The model graph: immutable values and nodes in topological order.

    g = load("model.onnx");  print(g)
    g2 = g.rewrite(lambda node: [...] or None)        # a new graph; unchanged nodes are shared

A value is a name, a shape and an element type; all shapes are numbers. Every node has exactly one output and its
attributes are plain data: axes, pads, sizes and the like are attributes, never inputs.

Invariant (see `verify`): every value is an input, a constant or the output of one node that precedes its readers, and
names are unique.

Names come from files and may hold any text. They are data inside the graph; `shown` makes them fit to print.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.ir.expr import FLOATS, ITEMSIZE, Dtype

Array = NDArray[Any]
Attribute = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[tuple[int, ...], ...]
SHOWN = 80
MOST_REGION = 64


def shown(name: str) -> str:
    """Returns a name as printed: short, one line, without quotes, markup, path separators or control characters."""
    kept = [c if c.isalnum() or c in "_.:-+@#" else _escape(c) for c in name[:SHOWN]]
    return "".join(kept) + ("…" if len(name) > SHOWN else "")


def _escape(c: str) -> str:
    if c in "/ ":
        return "|" if c == "/" else "_"
    return c if unicodedata.category(c)[0] == "L" else f"~{ord(c):x}"


@dataclass(frozen=True, slots=True)
class Value:
    """An edge of the graph: a tensor with a name, a shape and an element type."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype

    def __hash__(self) -> int:
        # Python keeps the hash of a text; names are unique in a graph, and passes look up values all the time.
        return hash(self.name)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]

    def __str__(self) -> str:
        return f"%{shown(self.name)}: {self.dtype}[{', '.join(map(str, self.shape))}]"


_NONE: Mapping[str, Attribute] = MappingProxyType({})


class AttributeReader:
    """Attributes by their type; a node of the graph and a node of the file read theirs alike."""

    __slots__ = ()
    attributes: Mapping[str, Any]

    def fail(self, message: str) -> UserError:
        raise NotImplementedError

    def typed(self, key: str, default: object, kinds: type | tuple[type, ...], what: str) -> Any:
        value = self.attributes.get(key, default)
        if not isinstance(value, kinds):
            given = "missing" if value is None else shown(repr(value))
            raise self.fail(f"attribute {key} is {given}, not {what}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        return int(self.typed(key, default, int, "an integer"))

    def flag(self, key: str, default: int | None = None) -> bool:
        return bool(self.integer(key, default))

    def number(self, key: str, default: float | None = None) -> float:
        return float(self.typed(key, default, (int, float), "a number"))

    def text(self, key: str, default: str | None = None) -> str:
        return self.typed(key, default, str, "a text")

    def integers(self, key: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
        values = self.typed(key, default, (list, tuple), "a list of integers")
        if not all(isinstance(v, int) for v in values):
            raise self.fail(f"attribute {key} is {shown(repr(values))}, not a list of integers")
        return tuple(values)


@dataclass(frozen=True, slots=True, eq=False)
class Node(AttributeReader):
    """One operation. `name` is that of the file's node it came from, for messages."""

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: _NONE)
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    @property
    def output(self) -> Value:
        return self.outputs[0]

    def fail(self, message: str) -> UserError:
        return UserError(f"{self}: {message}")

    def constant(self, key: str, dtype: Dtype) -> bool | int | float:
        """Returns a number that stands for an element of this type: integers keep all their bits."""
        value = self.typed(key, None, (int, float), "a number")
        return float(value) if dtype in FLOATS else bool(value) if dtype == "bool" else int(value)

    def __str__(self) -> str:
        given = ", ".join(f"%{shown(v.name)}" for v in self.inputs)
        attributes = "".join(f", {k}={_attribute(v)}" for k, v in sorted(self.attributes.items()))
        made = ", ".join(map(str, self.outputs))
        return f"{made} = {self.op}({given}{attributes})"


def _attribute(value: Attribute) -> str:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, tuple):
        return "(" + ", ".join(_attribute(v) for v in value) + ")"
    return repr(value)


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
        found: dict[Value, dict[Node, None]] = {}
        for node in self.nodes:
            for v in node.inputs:
                found.setdefault(v, {})[node] = None
        return {v: tuple(nodes) for v, nodes in found.items()}

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
        found: dict[Node, None] = {}
        last: dict[Node, None] = {}
        waiting = [start]
        while waiting:
            v = waiting.pop()
            if v in self.outputs:
                return None
            for node in self.consumers.get(v, ()):
                if ends(node):
                    last[node] = None
                elif not inside(node) or len(found) >= MOST_REGION:
                    return None
                elif node not in found:
                    found[node] = None
                    waiting.append(node.output)
        return list(found), list(last)

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
    def taken(self) -> set[str]:
        g = self._graph
        if g is None:
            return set()
        return {v.name for v in (*g.inputs, *g.constants)} | {n.output.name for n in g.nodes}

    def fresh(self, wanted: str) -> str:
        """Returns `wanted` itself, or `wanted` with a number appended."""
        name = wanted = wanted or "v"
        while name in self.taken:
            self._next[wanted] = self._next.get(wanted, 0) + 1
            name = f"{wanted}.{self._next[wanted]}"
        self.taken.add(name)
        return name
