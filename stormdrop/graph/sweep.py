"""Rewriting a graph in one sweep over its nodes.

    sweep = Sweep(graph)
    for node in graph.nodes:
        node = sweep.current(node)                      # with replaced inputs; then one of
        sweep.keep(node)
        sweep.keep_rewritten(replace(node, …))          # another node that computes the same value
        sweep.replace(node.output, value)               # readers of the node read `value`; the node is dropped
        sweep.fold(node.output, array)                  # the node's value becomes a constant; the node is dropped
    return sweep.finished()

Invariant: the nodes of a graph are in topological order, so that every replacement precedes the readers; each node is
visited once. A sweep without changes returns the original graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.ir.conversion import DTYPES
from stormdrop.operators.node import Array, Attribute, Node, Operator, Value, infer
from stormdrop.operators.table import node_of


def use_counts(graph: Graph) -> Counter[Value]:
    """Returns the number of uses of each value: as an operand, and as an output of the graph."""
    counts: Counter[Value] = Counter(graph.outputs)
    for node in graph.nodes:
        counts.update(node.inputs)
    return counts


class Sweep:
    """A graph under construction. `producers` maps the value of each kept node to this node.

    `constants` maps the constants of the old graph, and new constants, to their arrays.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.producers: dict[Value, Node] = {}
        self._nodes: list[Node] = []
        self._replacements: dict[Value, Value] = {}
        self._names = FreshNames(graph)
        self._changed = False

    def current(self, node: Node) -> Node:
        """Returns the node with replaced values as inputs."""
        if not any(v in self._replacements for v in node.inputs):
            return node
        return replace(node, inputs=tuple(self._replacements.get(v, v) for v in node.inputs))

    def keep(self, node: Node) -> None:
        """Appends a node of the old graph, with current inputs, to the new graph."""
        self._nodes.append(node)
        self.producers[node.output] = node

    def keep_rewritten(self, node: Node) -> None:
        """Appends a node that the old graph does not have to the new graph."""
        self._changed = True
        self.keep(node)

    def emit(
        self, operator: str | Operator, inputs: Sequence[Value], attributes: Mapping[str, Attribute], like: Node
    ) -> Value:
        """Appends a node of an operator, named after the node `like`, and returns its value."""
        node = node_of(operator, inputs, attributes, like.name)
        value = Value(self._names.fresh(like.output.name), *infer(node))
        self.keep_rewritten(replace(node, outputs=(value,)))
        return value

    def replace(self, old: Value, new: Value) -> None:
        """Makes later readers of `old`, and the outputs, read `new`."""
        self._changed = True
        self._replacements[old] = self._replacements.get(new, new)

    def constant(self, array: Array, name: str) -> Value:
        """Returns a new constant."""
        value = Value(self._names.fresh(name), array.shape, DTYPES[array.dtype])
        self.constants[value] = array
        return value

    def fold(self, value: Value, array: Array) -> None:
        """Makes the value of a node of the old graph a constant."""
        self._changed = True
        self.constants[value] = array

    def array(self, value: Value) -> Array | None:
        """Returns the array of a constant; None for other values."""
        return self.constants.get(value)

    def finished(self) -> Graph:
        """Returns the new graph, without unread nodes and constants; the old graph if nothing changed."""
        if not self._changed:
            return self.graph
        outputs = tuple(self._replacements.get(v, v) for v in self.graph.outputs)
        return replace(self.graph, nodes=tuple(self._nodes), outputs=outputs, constants=self.constants).pruned()


def uniform(array: Array) -> float | None:
    """Returns the number that all elements equal; None if elements differ or the array is empty."""
    if array.size == 0:
        return None
    first = array.flat[0]
    if array.size > 1 and (array.flat[array.size - 1] != first or not bool(np.all(array == first))):
        return None
    return first.item()
