"""Narrow numbers between kernels: halves and quantised numbers are stored, and widened by the kernel that reads them.

`fuse` never ends a kernel with a node that widens. For f16 and bf16 the importer gives f32 arithmetic between casts
(`frontend.half_nodes`); `halves` rewrites it:

    Conv(Cast(x, f32), Cast(w, f32))         ->   Conv(x, w), summed in f32: a kernel reads halves
    Relu(Cast(Cast(y, f16, storage=1), f32)) ->   Relu(y): inside a kernel, values stay f32

A rounding is omitted only if it exists for the file's storage type (`storage`), and if the value has a single,
elementwise reader: producer and reader then are one kernel, and no f32 value is stored.
"""

from __future__ import annotations

from dataclasses import replace

from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.graph.sweep import Sweep, use_counts
from stormdrop.ir.dtypes import HALVES, ITEMSIZE
from stormdrop.operators.node import Node, Value


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


def halves(graph: Graph) -> Graph:
    """Makes products read halves, and chains of elementwise nodes round once, at their end."""
    if not any(n.op == "Cast" and n.inputs[0].dtype in HALVES for n in graph.nodes):
        return graph
    uses, consumers, producers = use_counts(graph), graph.consumers, graph.producers

    def source(v: Value) -> Value | None:
        """Returns the half that a value widens to f32, or None."""
        node = producers.get(v)
        is_widening = node is not None and node.op == "Cast" and v.dtype == "f32" and node.inputs[0].dtype in HALVES
        return node.inputs[0] if node is not None and is_widening else None

    def unrounded(cast: Node) -> Value | None:
        """Returns the f32 value behind a widening cast and an omissible rounding, or None."""
        half = source(cast.output)
        rounding = producers.get(half) if half is not None else None
        if half is None or rounding is None or rounding.op != "Cast" or "storage" not in rounding.attributes:
            return None
        readers = consumers.get(cast.output, ())
        alone = uses[half] == 1 and uses[cast.output] == 1 and len(readers) == 1 and readers[0].is_pointwise
        fits = alone and readers[0].output.shape == half.shape
        return rounding.inputs[0] if fits else None

    sweep = Sweep(graph)
    for given in graph.nodes:
        wide = unrounded(given) if given.op == "Cast" else None
        if wide is not None:
            sweep.replace(given.output, wide)
            continue
        narrow = [source(v) for v in given.inputs] if given.operator.accumulates else []
        kinds = {v.dtype if v is not None else None for v in narrow}
        if len(kinds) == 1 and None not in kinds:
            sweep.keep_rewritten(sweep.current(replace(given, inputs=tuple(v for v in narrow if v is not None))))
        else:
            sweep.keep(sweep.current(given))
    return sweep.finished()
