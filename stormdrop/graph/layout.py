"""The layout pass: windows become channels-last, and the data between them stays so.

    Conv(x)                      ->   Conv[NHWC](Transpose(x))
    Relu, Add, Concat, Slice, …  ->   the same on permuted operands
    Transpose                    ->   nothing: a value in another order

Every value is held in one order of its dimensions, or in several if readers need several orders.

1. Dimensions that are joined only for a norm stay apart (`keep_apart`), or they could not be held in another order.
2. Backwards, each node states the preferred order of its inputs (`layout_rules.wishes`).
3. Forwards, each node takes the cheapest option (`layout_rules.options`). The cost is the number of bytes to transpose
   for its inputs and, as far as their wishes are known, for its readers.

A transpose is emitted on demand, at most once per value and order; a transpose that moves only dimensions of extent 1
is a Reshape. Constants become transposed views of their arrays, so no weight is copied here. Inputs and outputs of the
graph stay unchanged. The time is linear in the number of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from math import prod
from operator import mul

import numpy as np

from stormdrop.graph.dense import without_transposes_of_dense
from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.graph.layout_rules import (
    Form,
    Held,
    Option,
    Order,
    identity,
    is_window,
    matched,
    options,
    weighty,
    wishes,
)
from stormdrop.operators.movement import RESHAPE, TRANSPOSE
from stormdrop.operators.node import Array, Attribute, Node, OperatorKind, Value

Pieces = tuple[tuple[int, ...], ...]


def keep_apart(graph: Graph) -> Graph:
    """Returns the same function without temporary joins; the graph itself if there are none.

    Most exporters write group normalisation with joined channels and pixels:

        Reshape[n, g, c/g·h·w] ─ Standardize(axes=2) ─ Reshape[n, c, h, w]
        ->  Reshape[n, g, c/g, h, w] ─ Standardize(axes=2, 3, 4) ─ Reshape[n, c, h, w]

    Joined dimensions could not be held in another order, and every such norm would cost two transposes. The rewrite
    applies if all nodes between the Reshapes are elementwise or work on whole dimensions, with constants as the only
    other operands.
    """
    names = FreshNames(graph)
    nodes: dict[Node, list[Node]] = {}
    constants: dict[Value, Array] = {}
    for node in graph.nodes:
        if node.op != "Reshape" or node in nodes or node.inputs[0] in graph.constants:
            continue
        apart = pieces(node.inputs[0].shape, node.output.shape)
        region = _region(graph, node, apart) if apart is not None else None
        if apart is not None and region is not None:
            changed, reshaped = _rewrite(graph, node, region, apart, names)
            nodes |= changed
            constants |= reshaped
    return graph.rewrite(nodes.get, constants) if nodes else graph


def pieces(source: Sequence[int], target: Sequence[int]) -> Pieces | None:
    """Returns the extents that form each target dimension; None if no dimensions are joined, or if none fit.

    (1, 64, 8, 8), (1, 32, 128)  ->  ((1,), (32,), (2, 8, 8))
    """
    blocks = matched(source, target)
    if blocks is None or all(len(s) < 2 for s, _ in blocks):
        return None
    parts: list[tuple[int, ...]] = [(n,) for n in target]
    for s, t in blocks:
        ends = set(accumulate((source[d] for d in s), mul))
        done = 1
        for d in t:
            cuts = sorted(e for e in ends if done < e < done * target[d])
            marks = [done, *cuts, done * target[d]]
            if any(b % a for a, b in pairwise(marks)):
                return None
            parts[d] = tuple(b // a for a, b in pairwise(marks))
            done = marks[-1]
    return tuple(parts)


def _region(graph: Graph, start: Node, apart: Pieces) -> tuple[list[Node], list[Node]] | None:
    """Returns the nodes from a Reshape to the next Reshapes, and these; None if a node between them is unfit."""

    def fits(node: Node) -> bool:
        return (node.is_pointwise or _joins(node)) and node.output.rank == len(apart)

    region = graph.region(start.output, fits, lambda node: node.op == "Reshape")
    if region is None or not region[0]:
        return None
    reached = {start.output, *(node.output for node in region[0])}
    others = {v for node in region[0] for v in node.inputs if v not in reached}
    if any(v not in graph.constants or _shape(v.shape, apart) is None for v in others):
        return None
    return region


def _joins(node: Node) -> bool:
    """Returns whether a node treats the dimensions in its attribute `axes` as one, and keeps them."""
    works = node.operator.kind in (OperatorKind.REDUCTION, OperatorKind.NORM) and "axes" in node.attributes
    return works and node.flag("keepdims", 1)


def _shape(shape: Sequence[int], apart: Pieces) -> tuple[int, ...] | None:
    """Returns a shape that broadcasts against the pieces as `shape` does against the joined dimensions, or None."""
    own = apart[len(apart) - len(shape) :]
    if any(n not in (1, prod(p)) for n, p in zip(shape, own)):
        return None
    return tuple(chain.from_iterable(p if n == prod(p) else (1,) * len(p) for n, p in zip(shape, own)))


def _rewrite(
    graph: Graph, start: Node, region: tuple[list[Node], list[Node]], apart: Pieces, names: FreshNames
) -> tuple[dict[Node, list[Node]], dict[Value, Array]]:
    """Returns the replacements of a region's nodes, and the constants they read."""
    constants: dict[Value, Array] = {}
    stand_ins: dict[Value, Value] = {}

    def split(v: Value) -> Value:
        if v not in stand_ins:
            shape = _shape(v.shape, apart)
            assert shape is not None
            stand_ins[v] = Value(names.fresh(f"{v.name}.apart"), shape, v.dtype) if shape != v.shape else v
            if v in graph.constants:
                constants[stand_ins[v]] = graph.constants[v].reshape(shape)
        return stand_ins[v]

    first = split(start.output)
    nodes = {start: [replace(start, outputs=(first,), attributes={"shape": first.shape})]}
    between, readers = region
    for node in between:
        attributes: Mapping[str, Attribute] = node.attributes
        if not node.is_pointwise:
            ends = [0, *accumulate(len(p) for p in apart)]
            axes = tuple(k for d in node.integers("axes") for k in range(ends[d], ends[d + 1]))
            attributes = {**attributes, "axes": axes}
        nodes[node] = [
            Node(node.operator, tuple(map(split, node.inputs)), (split(node.output),), attributes, node.name)
        ]
    for reader in readers:
        nodes[reader] = [replace(reader, inputs=(split(reader.inputs[0]),))]
    return nodes, constants


CONSIDERED = 3
"""The most held orders of each input, and the most wishes of readers, that a node considers."""


def channels_last(graph: Graph) -> Graph:
    """Returns the same function with windows in NHWC and few transposes; the graph itself if that gains nothing."""
    windows = any(is_window(n) and n.text("layout") == "NCHW" for n in graph.nodes)
    relaid = _Relayout(keep_apart(graph) if windows else graph).result()
    if not windows and transposed_bytes(relaid) >= transposed_bytes(graph):
        relaid = graph
    return without_transposes_of_dense(relaid)


def transposed_bytes(graph: Graph) -> int:
    """Returns the bytes that the graph's Transposes move."""
    return sum(n.output.nbytes for n in graph.nodes if n.op == "Transpose")


def wished_orders(graph: Graph) -> dict[Value, dict[Order, int]]:
    """Returns for every value the orders (without dimensions of extent 1) that readers prefer, with their counts."""
    votes_by_value: dict[Value, dict[Order, int]] = {}
    windowed: set[tuple[Value, Order]] = set()

    def wish(v: Value, order: Order, vote: int = 1) -> Order:
        seen = weighty(order, v.shape)
        if len(seen) > 1 and v not in graph.constants:
            votes = votes_by_value.setdefault(v, {})
            votes[seen] = votes.get(seen, 0) + vote
        return seen

    for v in graph.outputs:
        wish(v, identity(v.rank))
    for node in reversed(graph.nodes):
        votes = votes_by_value.get(node.output, {})
        # As many for one as for another: a window will not do without, a sum may follow its other operand.
        order = max(votes, key=lambda o, v=node.output, votes=votes: (votes[o], (v, o) in windowed)) if votes else ()
        for v, liked in zip(node.inputs, wishes(node, order)):
            # A product can take its matrices the other way round.
            seen = wish(v, liked, 0 if node.op == "MatMul" else 1)
            if is_window(node):
                windowed.add((v, seen))
    return votes_by_value


class _Relayout:
    """The new graph under construction. `held[v][order]` is v of the old graph, permuted, as a value of the new one."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = dict(graph.constants)
        self.wished = wished_orders(graph)
        self.held: dict[Value, dict[Order, Value]] = {}
        self.formed: dict[tuple[Value, Form], Value] = {}
        # A Transpose's result: another value, its dimensions in this order.
        self.renamed: dict[Value, tuple[Value, Order]] = {}
        self.known: dict[tuple[Value, Order], Node] = {}  # the old graph's Transposes, in the same terms
        self.viewed: dict[Value, Value] = {}  # the source of every Reshape of the new graph
        self.names = FreshNames(graph)

    def result(self) -> Graph:
        for v in self.graph.inputs:
            self.held[v] = {identity(v.rank): v}
        for node in self.graph.nodes:
            if node.op == "Transpose":
                self.rename(node)
            else:
                self.place(node)
        outputs = tuple(self.get(v, identity(v.rank)) for v in self.graph.outputs)
        return replace(self.graph, nodes=tuple(self.nodes), outputs=outputs, constants=self.constants).pruned()

    def rename(self, node: Node) -> None:
        v, order = self.resolve(node.inputs[0], node.integers("perm"))
        self.renamed[node.output] = (v, order)
        self.known.setdefault((v, order), node)

    def resolve(self, v: Value, form: Form) -> tuple[Value, Form]:
        """Returns the value of which `v` is a transposition, and the form in terms of its dimensions."""
        if v not in self.renamed:
            return v, form
        root, order = self.renamed[v]
        return root, tuple(order[d] if d >= 0 else d for d in form)

    def orders(self, v: Value) -> Held:
        """Returns the orders in which a value is held so far."""
        root, order = self.resolve(v, identity(v.rank))
        if root in self.graph.constants:
            return None
        held = list(self.held[root])[:CONSIDERED]
        if root is v:
            return held
        place = {d: k for k, d in enumerate(order)}
        return [tuple(place[d] for d in h) for h in held]

    def place(self, node: Node) -> None:
        wished = list(self.wished.get(node.output, ()))[:CONSIDERED]
        best = self.best(node, wished)
        shape = tuple(node.output.shape[d] for d in best.order)
        if node.op == "Reshape":
            source = self.get(node.inputs[0], best.forms[0])
            self.held[node.output] = {best.order: self.view(source, shape, self.named(node.output, best.order), node)}
            return
        inputs = tuple(self.get(v, form) for v, form in zip(node.inputs, best.forms))
        output = self.named(node.output, best.order)
        if inputs == node.inputs and output == node.output and best.attributes is None:
            self.nodes.append(node)
        else:
            attributes = node.attributes if best.attributes is None else best.attributes
            self.nodes.append(Node(node.operator, inputs, (output,), attributes, node.name))
        self.held[node.output] = {best.order: output}

    def best(self, node: Node, wished: list[Order]) -> Option:
        best, least = None, float("inf")
        for option in options(node, [self.orders(v) for v in node.inputs], wished):
            cost = self.cost(node, option, wished)
            if best is None or cost < least:
                best, least = option, cost
            if not cost:
                break
        assert best is not None, f"{node}: no way to compute it"
        return best

    def cost(self, node: Node, option: Option, wished: list[Order]) -> float:
        """Returns the bytes to transpose for an option.

        Counted are inputs not held in the option's form, divided among the readers with the same wish, and the result
        for its readers.
        """
        total = 0.0
        for v, form in zip(node.inputs, option.forms):
            root, own = self.resolve(v, form)
            if root in self.graph.constants or own in self.held[root]:
                continue
            seen = weighty(own, root.shape)
            if all(weighty(h, root.shape) != seen for h in self.held[root]):
                total += v.nbytes / max(1, self.wished.get(v, {}).get(weighty(form, v.shape), 1))
        for w in wished:
            if tuple(d for d in option.order if d in w) != w:
                total += node.output.nbytes
        return total

    def get(self, v: Value, form: Form) -> Value:
        """Returns a value in a form: as it is held, viewed, or transposed."""
        v, form = self.resolve(v, form)
        if v in self.graph.constants:
            return self.constant(v, form)
        held = self.held[v]
        order = tuple(d for d in form if d >= 0)
        if order in held and len(order) == len(form):
            return held[order]
        if (v, form) not in self.formed:
            seen = weighty(form, v.shape)
            base = next((u for h, u in held.items() if weighty(h, v.shape) == seen), None)
            if base is None:
                base = self.transpose(v, order)
                if len(order) == len(form):
                    return base
            shape = tuple(v.shape[d] if d >= 0 else 1 for d in form)
            self.formed[v, form] = self.view(base, shape, self.named(v, form))
            if len(order) == len(form):
                held[order] = self.formed[v, form]
        return self.formed[v, form]

    def transpose(self, v: Value, order: Order) -> Value:
        now, source = next(iter(self.held[v].items()))
        old = self.known.get((v, order))
        output = self.named(v, order)
        perm = tuple(now.index(d) for d in order)
        if old is not None and old.inputs[0] == source and old.integers("perm") == perm:
            self.nodes.append(old)
        else:
            producer = self.graph.producers.get(v)
            name = producer.name if producer else v.name
            self.nodes.append(Node(TRANSPOSE, (source,), (output,), {"perm": perm}, name))
        self.held[v][order] = output
        return output

    def constant(self, v: Value, form: Form) -> Value:
        """Returns a constant in a form: a view of its array."""
        if form == identity(v.rank):
            return v
        if (v, form) not in self.formed:
            order = [d for d in form if d >= 0]
            shape = tuple(v.shape[d] if d >= 0 else 1 for d in form)
            missing = [d for d in range(v.rank) if d not in order]
            made = self.named(v, form)
            self.constants[made] = np.transpose(self.constants[v], (*missing, *order)).reshape(shape)
            self.formed[v, form] = made
        return self.formed[v, form]

    def view(self, source: Value, shape: tuple[int, ...], output: Value, old: Node | None = None) -> Value:
        """Returns a Reshape of the root of which the source is a view, or the root itself if its shape is right."""
        root = self.viewed.get(source, source)
        if root.shape == shape:
            return root
        if old is not None and old.inputs == (root,) and old.output == output:
            self.nodes.append(old)
        else:
            self.nodes.append(Node(RESHAPE, (root,), (output,), {"shape": shape}, old.name if old else ""))
        self.viewed[output] = root
        return output

    def named(self, v: Value, form: Form) -> Value:
        """Returns the new graph's value for this form of v: v itself, the old graph's value for it, or a new value."""
        if form == identity(v.rank):
            return v
        if (v, form) in self.known:
            return self.known[v, form].output
        name = f"{v.name}@{'.'.join('_' if d < 0 else str(d) for d in form)}"
        return Value(self.names.fresh(name), tuple(v.shape[d] if d >= 0 else 1 for d in form), v.dtype)
