"""The model graph: immutable values and nodes in topological order.

    g = load("model.onnx");  print(g)
    g2 = g.rewrite(lambda node: [...] or None)        # a new graph; what is not replaced is shared

A value is a name, a shape and an element type; all shapes are numbers. Every node has exactly one output and its
attributes are plain data: axes, pads, sizes and the like are attributes, never inputs. Invariant (see `verify`): every
value is an input, a constant or the output of one node that stands before its readers, and names are unique.

Names come from files and may hold anything. They are data inside the graph; `shown` makes them fit to print.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from stormdrop.errors import UserError
from stormdrop.ir.expr import FLOATS, ITEMSIZE, Dtype

Array = NDArray[Any]
Attribute = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[tuple[int, ...], ...]
SHOWN = 80


def shown(name: str) -> str:
    """A name as printed: short, one line, without quotes, markup, path separators or control characters."""
    kept = [c if c.isalnum() or c in "_.:-+@#" else _escape(c) for c in name[:SHOWN]]
    return "".join(kept) + ("…" if len(name) > SHOWN else "")


def _escape(c: str) -> str:
    if c in "/ ":
        return "|" if c == "/" else "_"
    return c if unicodedata.category(c)[0] == "L" else f"~{ord(c):x}"


@dataclass(frozen=True, slots=True)
class Value:
    """What flows along an edge."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype

    def __hash__(self) -> int:
        return hash(
            self.name
        )  # which Python keeps; names are unique in a graph, and passes look up values all the time

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @property
    def nbytes(self) -> int:
        return self.size * ITEMSIZE[self.dtype]

    def __str__(self) -> str:
        return f"%{shown(self.name)}: {self.dtype}[{', '.join(map(str, self.shape))}]"


_NONE: Mapping[str, Attribute] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Node:
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

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.attributes.get(key, default)
        if not isinstance(value, int):
            raise UserError(f"{self}: attribute {key} is {value!r}, not an integer")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.attributes.get(key, default)
        if not isinstance(value, (int, float)):
            raise UserError(f"{self}: attribute {key} is {value!r}, not a number")
        return float(value)

    def constant(self, key: str, dtype: Dtype) -> bool | int | float:
        """A number that stands for an element of this type: integers keep all their bits."""
        value = self.attributes.get(key)
        if not isinstance(value, (int, float)):
            raise UserError(f"{self}: attribute {key} is {value!r}, not a number")
        return float(value) if dtype in FLOATS else bool(value) if dtype == "bool" else int(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self.attributes.get(key, default)
        if not isinstance(value, str):
            raise UserError(f"{self}: attribute {key} is {value!r}, not a text")
        return value

    def integers(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        value = self.attributes.get(key, default)
        if not isinstance(value, tuple):
            raise UserError(f"{self}: attribute {key} is {value!r}, not a list of integers")
        found: list[int] = []
        for v in value:
            if not isinstance(v, int):
                raise UserError(f"{self}: attribute {key} is {value!r}, not a list of integers")
            found.append(int(v))
        return tuple(found)

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
    """A model. `input_names` and `output_names` are those that the user knows; several outputs may be one value."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[Value, Array]
    name: str = "model"
    opset: int = 0
    output_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        if not self.output_names:
            object.__setattr__(self, "output_names", tuple(v.name for v in self.outputs))

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(v.name for v in self.inputs)

    @cached_property
    def producers(self) -> Mapping[Value, Node]:
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
        """A new graph in which every node that `visit` answers is replaced by its answer (perhaps by nothing).

        The answer must compute the outputs that are still read. `constants` are added. What nobody reads is dropped.
        """
        nodes: list[Node] = []
        for node in self.nodes:
            answer = visit(node)
            nodes.extend([node] if answer is None else answer)
        merged = {**self.constants, **(constants or {})}
        return replace(self, nodes=tuple(nodes), constants=merged).pruned()

    def substitute(self, values: Mapping[Value, Value]) -> Graph:
        """Read another value in place of each key; chains are followed. What nobody reads is dropped."""

        def final(v: Value) -> Value:
            for _ in range(len(values) + 1):
                if v not in values:
                    return v
                v = values[v]
            raise UserError(f"{v} would stand for itself")

        nodes = [
            replace(n, inputs=tuple(final(v) for v in n.inputs)) if any(v in values for v in n.inputs) else n
            for n in self.nodes
        ]
        return replace(self, nodes=tuple(nodes), outputs=tuple(final(v) for v in self.outputs)).pruned()

    def pruned(self) -> Graph:
        """Without nodes and constants that no output needs."""
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
        return (
            f"<graph {shown(self.name)}: {len(self.nodes)} nodes, {len(self.inputs)} inputs, "
            f"{len(self.outputs)} outputs>"
        )
