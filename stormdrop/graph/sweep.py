"""Rewriting a graph in one sweep over its nodes.

    sweep = Sweep(graph)
    for node in graph.nodes:
        node = sweep.current(node)                      # reads the current replacements of its inputs
        sweep.replace(node.output, x)                   # its readers will read x   …or
        sweep.keep(node)
    return sweep.finished()

Invariant: a replacement is registered before any reader is met, so no node is visited twice; a pass is linear in the
nodes. A sweep without changes returns the original graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.ir.dtypes import DTYPES
from stormdrop.operators.node import Array, Attribute, Node, Operator, Value, infer
from stormdrop.operators.table import node_of


def use_counts(graph: Graph) -> Counter[Value]:
    """Returns the number of uses of each value: as an operand, and as an output of the graph."""
    counts: Counter[Value] = Counter(graph.outputs)
    for node in graph.nodes:
        counts.update(node.inputs)
    return counts


class Sweep:
    """The next graph under construction. `producers` maps each value emitted so far to its node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.producers: dict[Value, Node] = {}
        self._nodes: list[Node] = []
        self._stands: dict[Value, Value] = {}
        self._names = FreshNames(graph)
        self._changed = False

    def current(self, node: Node) -> Node:
        """Returns the node with replaced values as inputs."""
        if not any(v in self._stands for v in node.inputs):
            return node
        return replace(node, inputs=tuple(self._stands.get(v, v) for v in node.inputs))

    def keep(self, node: Node) -> None:
        self._nodes.append(node)
        self.producers[node.output] = node

    def keep_other(self, node: Node) -> None:
        """Keeps a new node in place of a node of the graph."""
        self._changed = True
        self.keep(node)

    def emit(
        self, operator: str | Operator, inputs: Sequence[Value], attributes: Mapping[str, Attribute], like: Node
    ) -> Value:
        """Emits a new node; its value and its error messages take the name of `like`."""
        node = node_of(operator, inputs, attributes, like.name)
        value = Value(self._names.fresh(like.output.name), *infer(node))
        self.keep_other(replace(node, outputs=(value,)))
        return value

    def replace(self, old: Value, new: Value) -> None:
        """Makes later readers of `old`, and the outputs, read `new`."""
        self._changed = True
        self._stands[old] = self._stands.get(new, new)

    def constant(self, array: Array, name: str) -> Value:
        value = Value(self._names.fresh(name), array.shape, DTYPES[array.dtype])
        self.constants[value] = array
        return value

    def fix(self, value: Value, array: Array) -> None:
        """Makes a value that a node computed so far a constant."""
        self._changed = True
        self.constants[value] = array

    def array(self, value: Value) -> Array | None:
        return self.constants.get(value)

    def finished(self) -> Graph:
        """Returns the new graph without unread nodes and constants, or the old graph if it is unchanged."""
        if not self._changed:
            return self.graph
        outputs = tuple(self._stands.get(v, v) for v in self.graph.outputs)
        return replace(self.graph, nodes=tuple(self._nodes), outputs=outputs, constants=self.constants).pruned()


def uniform(array: Array) -> float | None:
    """Returns the number that all elements equal, or None."""
    if array.size == 0:
        return None
    first = array.flat[0]
    if array.size > 1 and (array.flat[array.size - 1] != first or not bool(np.all(array == first))):
        return None
    return first.item()
