"""Dense layers next to images: the constant weights, not the data, are reordered for the order of a flattened image.

    MatMul(Relu(Reshape[n, k](Transpose(x))), W)       ->  MatMul(Relu(Reshape[n, k](x)), W with permuted rows)
    Transpose(Reshape[n, c, h, w](Relu(MatMul(x, W)))) ->  Reshape[n, h, w, c](Relu(MatMul(x, W with permuted columns)))

The nodes between the Transpose and the product must be elementwise; their constants are reordered likewise. Each weight
is copied once. A rewrite applies only if its Transpose vanishes: the Transpose's result has no other reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.graph.layout_rules import Order, matched, weighty
from stormdrop.operators.movement import RESHAPE
from stormdrop.operators.node import Array, Node, Value


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A reordering of the flattened image's dimension, viewed as `extents`."""

    extents: tuple[int, ...]
    order: Order

    def apply(self, array: Array, axis: int) -> Array:
        split = array.reshape(*array.shape[:axis], *self.extents, *array.shape[axis + 1 :])
        moved = np.moveaxis(split, [axis + d for d in self.order], range(axis, axis + len(self.order)))
        return moved.reshape(array.shape)


@dataclass(slots=True)
class _Changes:
    """The replacements of nodes and constants."""

    graph: Graph
    outputs: set[Value]
    names: FreshNames
    nodes: dict[Node, list[Node]] = field(default_factory=dict[Node, list[Node]])
    constants: dict[Value, Array] = field(default_factory=dict[Value, Array])
    made: dict[tuple[Value, Shuffle, int], Value] = field(default_factory=dict[tuple[Value, Shuffle, int], Value])

    def constant(self, v: Value, shuffle: Shuffle, axis: int) -> Value:
        key = (v, shuffle, axis)
        if key not in self.made:
            self.made[key] = replace(v, name=self.names.fresh(f"{v.name}@{axis}"))
            array = self.constants[v] if v in self.constants else self.graph.constants[v]
            self.constants[self.made[key]] = shuffle.apply(array, axis)
        return self.made[key]

    def sole_reader(self, v: Value) -> Node | None:
        readers = self.graph.consumers.get(v, ())
        return readers[0] if len(readers) == 1 and v not in self.outputs else None

    def weigh(self, product: Node, shuffle: Shuffle, of_rows: bool) -> None:
        """Reorders the rows or columns of a product's weights, which may already be reordered on the other side."""
        (now,) = self.nodes.get(product, [product])
        w = now.inputs[1]
        last = of_rows == now.flag("transpose_b", 0)
        weights = self.constant(w, shuffle, w.rank - (1 if last else 2))
        self.nodes[product] = [replace(now, inputs=(now.inputs[0], weights))]

    def reordered(self, node: Node, shuffle: Shuffle, size: int) -> None:
        """Reorders the constants of the flattened extent of an elementwise node."""
        known = {v for v in node.inputs if v in self.graph.constants and v.shape[-1:] == (size,)}
        inputs = tuple(self.constant(v, shuffle, v.rank - 1) if v in known else v for v in node.inputs)
        if inputs != node.inputs:
            self.nodes[node] = [replace(node, inputs=inputs)]


def without_transposes_of_dense(graph: Graph) -> Graph:
    """Returns the graph without Transposes next to dense layers; the graph itself if there are none."""
    candidates = [n for n in graph.nodes if n.op == "Transpose"]
    if not candidates:
        return graph
    changes = _Changes(graph, set(graph.outputs), FreshNames(graph))
    for node in candidates:
        if not _flattening(node, changes):
            _unflattening(node, changes)
    if not changes.nodes:
        return graph
    return graph.rewrite(changes.nodes.get, changes.constants)


def _shuffle(flat: Value, image: Value, order: Sequence[int]) -> Shuffle | None:
    """Returns the order, within `order`, of the image's dimensions that the last dimension of `flat` joins.

    Returns None if further dimensions move.
    """
    dims = next((t for s, t in matched(flat.shape, image.shape) or () if s == (flat.rank - 1,)), None)
    if dims is None:
        return None
    seen = weighty(order, image.shape)
    others = [d for d in seen if d not in dims]
    if list(seen[: len(others)]) != sorted(others):
        return None
    moved = seen[len(others) :]
    return Shuffle(tuple(image.shape[d] for d in dims), tuple(dims.index(d) for d in moved))


def _flattening(node: Node, changes: _Changes) -> bool:
    """Rewrites a Reshape after a Transpose, elementwise nodes, and only products with constant weights behind them."""
    graph, image = changes.graph, node.output
    reshape = changes.sole_reader(image)
    if reshape is None or reshape.op != "Reshape":
        return False

    def is_product(n: Node) -> bool:
        return n.op == "MatMul" and n.inputs[1] in graph.constants and not n.integer("transpose_a", 0)

    perm, flat = node.integers("perm"), reshape.output
    shuffle = _shuffle(flat, image, [perm.index(d) for d in range(len(perm))])
    region = graph.region(flat, lambda n: n.is_pointwise, is_product) if shuffle is not None else None
    if shuffle is None or region is None:
        return False
    elementwise, products = region
    reached = {flat, *(n.output for n in elementwise)}
    others = {v for n in elementwise for v in n.inputs if v not in reached and v not in graph.constants}
    if any(v.rank and v.shape[-1] != 1 for v in others):
        return False
    changes.nodes[node] = []
    changes.nodes[reshape] = [replace(reshape, inputs=node.inputs)]
    for n in elementwise:
        changes.reordered(n, shuffle, flat.shape[-1])
    for n in products:
        changes.weigh(n, shuffle, of_rows=True)
    return True


def _unflattening(node: Node, changes: _Changes) -> None:
    """Rewrites a product with constant weights, elementwise nodes and a Reshape before a Transpose.

    Each of these nodes has a single reader.
    """
    graph = changes.graph
    reshape = graph.producers.get(node.inputs[0])
    if reshape is None or reshape.op != "Reshape" or changes.sole_reader(reshape.output) is not node:
        return
    flat = reshape.inputs[0]
    shuffle = _shuffle(flat, reshape.output, node.integers("perm"))
    if shuffle is None:
        return
    size = flat.shape[-1]
    chain: list[Node] = []
    reader, v = reshape, flat
    while True:
        producer = graph.producers.get(v)
        if producer is None or changes.sole_reader(v) is not reader:
            return
        if producer.op == "MatMul" and producer.inputs[1] in graph.constants:
            break
        # `main` is the operand of the flattened extent; further operands may only be broadcast along it.
        main = [u for u in producer.inputs if u not in graph.constants and u.shape[-1:] not in ((), (1,))]
        if not producer.is_pointwise or [u.shape[-1] for u in main] != [size]:
            return
        chain.append(producer)
        reader, v = producer, main[0]
    changes.weigh(producer, shuffle, of_rows=False)
    for n in chain:
        changes.reordered(n, shuffle, size)
    changes.nodes[reshape] = []
    changes.nodes[node] = [Node(RESHAPE, reshape.inputs, node.outputs, {"shape": node.output.shape}, reshape.name)]
