"""The effect of each pass on a model's graph, as a difference of its lines."""

from __future__ import annotations

from difflib import unified_diff

from stormdrop.graph.graph import Graph
from stormdrop.graph.passes import optimise


def passes_text(graph: Graph) -> list[str]:
    """Returns the graph as imported, then for every pass the number of nodes before and after, and the changed
    lines.
    """
    told = [str(graph)]

    def listen(name: str, before: Graph, after: Graph) -> None:
        if after is before:
            told.append(f"\npass {name}: changes nothing")
            return
        told.append(f"\npass {name}: {len(before.nodes)} nodes to {len(after.nodes)}")
        changes = unified_diff(list(before.lines()), list(after.lines()), n=0, lineterm="")
        told.extend(line for line in changes if not line.startswith(("---", "+++", "@@")))

    optimise(graph, listen)
    return told
