"""f16 and bf16 between kernels: kernels read halves directly, and roundings inside a kernel are omitted.

The importer gives f32 arithmetic between casts (`frontend.half_nodes`). This pass applies two rewrites:

    Conv(Cast(x, f32), Cast(w, f32))         ->   Conv(x, w), summed in f32: a kernel reads halves
    Relu(Cast(Cast(y, f16, storage=1), f32)) ->   Relu(y): inside a kernel, values stay f32

A rounding is omitted only if it exists for the file's storage type (`storage`), and if the value has a single,
elementwise reader: producer and reader then are one kernel, and no f32 value is stored.
"""

from __future__ import annotations

from dataclasses import replace

from stormdrop.graph.elementwise import ELEMENTWISE
from stormdrop.graph.graph import Graph, Node, Value
from stormdrop.graph.shapes import NARROW_PRODUCTS
from stormdrop.graph.sweep import Sweep, use_counts
from stormdrop.ir.dtypes import HALVES


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
        alone = uses[half] == 1 and uses[cast.output] == 1 and len(readers) == 1 and readers[0].op in ELEMENTWISE
        fits = alone and readers[0].output.shape == half.shape
        return rounding.inputs[0] if fits else None

    sweep = Sweep(graph)
    for given in graph.nodes:
        wide = unrounded(given) if given.op == "Cast" else None
        if wide is not None:
            sweep.replace(given.output, wide)
            continue
        narrow = [source(v) for v in given.inputs] if given.op in NARROW_PRODUCTS else []
        kinds = {v.dtype if v is not None else None for v in narrow}
        if len(kinds) == 1 and None not in kinds:
            sweep.keep_other(sweep.current(replace(given, inputs=tuple(v for v in narrow if v is not None))))
        else:
            sweep.keep(sweep.current(given))
    return sweep.finished()
