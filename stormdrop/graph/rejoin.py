"""Temporarily joined dimensions stay apart: group normalisation in the form that most exporters write.

    Reshape[n, g, c/g·h·w] ─ Standardize(axes=2) ─ Reshape[n, c, h, w]
    ->  Reshape[n, g, c/g, h, w] ─ Standardize(axes=2, 3, 4) ─ Reshape[n, c, h, w]

Joined channels and pixels could not be held in another order, and every such norm would cost two transposes. The
rewrite applies if all nodes between the Reshapes are elementwise or work on whole dimensions, with constants as the
only other operands. Values do not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from math import prod
from operator import mul

from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.graph.layout_rules import matched
from stormdrop.operators.node import Array, Attribute, Node, OperatorKind, Value

Pieces = tuple[tuple[int, ...], ...]


def keep_apart(graph: Graph) -> Graph:
    """Returns the same function without temporary joins; the graph itself if there are none."""
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
