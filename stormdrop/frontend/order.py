"""The order of a file's nodes: producers before readers, whatever order they stand in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from stormdrop.errors import UserError
from stormdrop.graph.graph import shown

GRAPH = 5  # AttributeProto.GRAPH


def label_of(node: Any) -> str:
    return node.name or next((o for o in node.output if o), node.op_type)


def ordered(nodes: Sequence[Any], env: Collection[str]) -> list[Any]:
    """The nodes with producers first, in linear time.

    Raises UserError for cycles and for values that nothing computes.
    """
    producers: dict[str, int] = {}
    for k, node in enumerate(nodes):
        for o in node.output:
            if o in producers and o:
                raise UserError(
                    f"nodes {shown(label_of(nodes[producers[o]]))} and {shown(label_of(node))} both compute {shown(o)}"
                )
            producers[o] = k
    waiting: dict[int, list[int]] = {}
    missing = [0] * len(nodes)
    for k, node in enumerate(nodes):
        needed: set[int] = set()
        for name in _read(node):
            if name in env:
                continue
            if name not in producers:
                raise UserError(f"node {shown(label_of(node))} reads {shown(name)}, which nothing computes")
            needed.add(producers[name])
        missing[k] = len(needed)
        for p in needed:
            waiting.setdefault(p, []).append(k)
    ready = [k for k in range(len(nodes) - 1, -1, -1) if not missing[k]]
    order: list[Any] = []
    while ready:
        k = ready.pop()
        order.append(nodes[k])
        for reader in reversed(waiting.get(k, ())):
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    if len(order) != len(nodes):
        stuck = next(node for k, node in enumerate(nodes) if missing[k])
        raise UserError(f"the graph has a cycle through node {shown(label_of(stuck))}")
    return order


def _read(node: Any) -> Iterable[str]:
    """Every outer name that a node reads, those of its branches included."""
    yield from (i for i in node.input if i)
    stack: list[tuple[Any, frozenset[str]]] = [(a.g, frozenset()) for a in node.attribute if a.type == GRAPH]
    while stack:
        g, around = stack.pop()
        own = (
            around
            | {i.name for i in g.input}
            | {t.name for t in g.initializer}
            | {o for inner in g.node for o in inner.output}
        )
        for inner in g.node:
            yield from (i for i in inner.input if i and i not in own)
            stack += [(a.g, own) for a in inner.attribute if a.type == GRAPH]
        yield from (o.name for o in g.output if o.name not in own)
