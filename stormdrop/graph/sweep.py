"""Rewriting a graph in one sweep over its nodes.

    sweep = Sweep(graph)
    for node in graph.nodes:
        node = sweep.current(node)                      # reads what stands for its inputs by now
        sweep.replace(node.output, x)                   # its readers will read x   …or
        sweep.keep(node)
    return sweep.finished()

Invariant: a stand-in is known before any reader is met, so nothing is visited twice; a pass is linear in the nodes.
A sweep that changed nothing gives back the graph it was given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stormdrop.graph.builder import DTYPES
from stormdrop.graph.graph import Array, Attribute, FreshNames, Graph, Node, Value
from stormdrop.graph.shapes import infer


def use_counts(graph: Graph) -> Counter[Value]:
    """How often each value is read: by operands, and as an output of the graph."""
    counts: Counter[Value] = Counter(graph.outputs)
    for node in graph.nodes:
        counts.update(node.inputs)
    return counts


class Sweep:
    """A graph on its way to the next. `producers` are those of the values emitted so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.producers: dict[Value, Node] = {}
        self._nodes: list[Node] = []
        self._stands: dict[Value, Value] = {}
        self._names = FreshNames(graph)
        self._changed = False

    def current(self, node: Node) -> Node:
        """The node, reading what stands for its inputs."""
        if not any(v in self._stands for v in node.inputs):
            return node
        return replace(node, inputs=tuple(self._stands.get(v, v) for v in node.inputs))

    def keep(self, node: Node) -> None:
        self._nodes.append(node)
        self.producers[node.output] = node

    def keep_other(self, node: Node) -> None:
        """Keep a node that was made in place of one of the graph's."""
        self._changed = True
        self.keep(node)

    def emit(self, op: str, inputs: Sequence[Value], attributes: Mapping[str, Attribute], like: Node) -> Value:
        """A new node; its value is named after that of `like`, whose messages it also takes."""
        shape, dtype = infer(op, inputs, attributes)
        value = Value(self._names.fresh(like.output.name), shape, dtype)
        self.keep_other(Node(op, tuple(inputs), (value,), attributes, like.name))
        return value

    def replace(self, old: Value, new: Value) -> None:
        """Readers of `old` that are still to come read `new`, and so do the outputs."""
        self._changed = True
        self._stands[old] = self._stands.get(new, new)

    def constant(self, array: Array, name: str) -> Value:
        value = Value(self._names.fresh(name), array.shape, DTYPES[array.dtype])
        self.constants[value] = array
        return value

    def fix(self, value: Value, array: Array) -> None:
        """A value that a node computed so far is a constant from now on."""
        self._changed = True
        self.constants[value] = array

    def array(self, value: Value) -> Array | None:
        return self.constants.get(value)

    def finished(self) -> Graph:
        """The new graph without what nothing reads, or the old one if it is the same."""
        if not self._changed:
            return self.graph
        outputs = tuple(self._stands.get(v, v) for v in self.graph.outputs)
        return replace(self.graph, nodes=tuple(self._nodes), outputs=outputs, constants=self.constants).pruned()


def uniform(array: Array) -> float | None:
    """The number that all elements are, if they are one."""
    if array.size == 0:
        return None
    first = array.flat[0]
    if array.size > 1 and (array.flat[array.size - 1] != first or not bool(np.all(array == first))):
        return None
    return first.item()
