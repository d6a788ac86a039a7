"""Nodes that widen stored numbers: halves and quantised numbers on their way into f32 or i16.

Such nodes belong to the kernel that reads them, so kernels store narrow numbers between them. `fuse` never ends a
kernel with such a node.
"""

from __future__ import annotations

from dataclasses import replace

from stormdrop.graph.graph import FreshNames, Graph, Node
from stormdrop.ir.dtypes import ITEMSIZE


def widens(node: Node) -> bool:
    """Returns whether a node widens numbers of at most 16 bits to larger elements."""
    if node.op == "Dequantize":
        return True
    if node.op == "Cast" and node.inputs[0].dtype != "bool":
        return ITEMSIZE[node.inputs[0].dtype] < min(ITEMSIZE[node.output.dtype], 4)
    return node.op in ("Add", "Sub") and node.output.dtype == "i16"  # differences from a zero point


def own_widenings(graph: Graph) -> Graph:
    """Gives every reader of a widened value its own widening node.

    w = Cast(x); a = Exp(w); b = Sum(w)   ->   w = Cast(x); v = Cast(x); a = Exp(w); b = Sum(v)
    """
    shared = {n.output: n for n in graph.nodes if widens(n) and len(graph.consumers.get(n.output, ())) > 1}
    shared = {v: n for v, n in shared.items() if v not in graph.outputs and v.dtype != "i16"}
    if not shared:
        return graph
    names = FreshNames(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        copies: dict[str, Node] = {}
        for v in node.inputs:
            maker = shared.get(v)
            if maker is not None and v.name not in copies:
                copies[v.name] = replace(maker, outputs=(replace(v, name=names.fresh(v.name)),))
        inputs = tuple(copies[v.name].output if v.name in copies else v for v in node.inputs)
        nodes += [*copies.values(), replace(node, inputs=inputs) if copies else node]
    return replace(graph, nodes=tuple(nodes)).pruned()
