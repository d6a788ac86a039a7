"""From the graph as imported to the graph that is cut into kernels.

    graph = optimise(load("model.onnx"))
    optimise(graph, listen=lambda name, before, after: print(name, len(before.nodes), len(after.nodes)))

Every pass is a function from a graph to a graph of the same interface that computes the same; the graph is verified
after each. Simplification runs before and after the layout is chosen.
"""

from __future__ import annotations

from collections.abc import Callable

from stormdrop.graph.batch_norm import fold_scales
from stormdrop.graph.fuse import halves, own_widenings
from stormdrop.graph.graph import Graph, verify
from stormdrop.graph.identities import identities
from stormdrop.graph.layout import channels_last
from stormdrop.graph.quantized import quantized
from stormdrop.graph.simplify import common_subexpressions, empties, fold_constants, own_outputs, pads_into_windows
from stormdrop.operators.node import Node

Pass = Callable[[Graph], Graph]
Listen = Callable[[str, Graph, Graph], None]

SIMPLIFY: tuple[tuple[str, Pass], ...] = (
    ("constants", fold_constants),
    ("identities", identities),
    ("common subexpressions", common_subexpressions),
    ("pads into windows", pads_into_windows),
)

PASSES: tuple[tuple[str, Pass], ...] = (
    ("empties", empties),
    ("halves", halves),
    ("quantised numbers", quantized),
    *SIMPLIFY,
    ("scales into weights", fold_scales),
    ("channels last", channels_last),
    *SIMPLIFY,
    ("widenings", own_widenings),
    ("outputs", own_outputs),
)


def optimise(graph: Graph, listen: Listen | None = None) -> Graph:
    """Runs all passes in order. `listen` receives the name of each pass, and the graph before and after it."""
    graph = graph.pruned()
    verified: frozenset[Node] = frozenset()
    for name, function in PASSES:
        after = function(graph)
        if after is not graph:
            verify(after, verified)
            verified = frozenset(after.nodes)
        if listen is not None:
            listen(name, graph, after)
        graph = after
    return graph
