"""Ranges of integer inputs: per input, the integers that a model can use, for drawing random inputs.

    Gather(table[257, 64], ids)              ids: 0 to 256
    Gather(table[512, 64], positions + 2)    positions: 0 to 509
    Equal(ids, arange(257))                  ids: 0 to 256
    Cast(mask, f32), Where(mask == 0, …)     mask: 0 or 1
    counts · 3                               counts: 0 to 9

An input is followed through moves, casts between integers, and additions of constants. If several nodes read it,
indices count first, then comparisons with constants, then arithmetic. Integers whose arithmetic ends in an index are 0
or 1: nearly all indices have both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from stormdrop.graph.graph import Graph
from stormdrop.ir.dtypes import INTEGERS, ITEMSIZE, integer_range
from stormdrop.operators.node import Node, Value

Range = tuple[int, int]
"""A range: the least and the greatest integer."""

MASK: Range = (0, 1)
NUMBERS: Range = (0, 9)
"""The range of integers in arithmetic."""

_MOVES = ("Concat", "Repeat", "Pad", "Copy", "Max", "Min", "Clip")
"""Further operators that give elements of their inputs, apart from bounds."""


@dataclass(slots=True)
class _Uses:
    indices: list[Range] = field(default_factory=list[Range])
    compared: list[Range] = field(default_factory=list[Range])
    is_computed_with: bool = False
    is_mask: bool = False

    @property
    def range(self) -> Range | None:
        if self.indices:
            low, high = max(r[0] for r in self.indices), min(r[1] for r in self.indices)
            return (low, high) if low <= high else self.indices[0]
        if self.compared:
            low, high = min(r[0] for r in self.compared), max(r[1] for r in self.compared)
            return MASK if low >= 0 and high <= 1 else (low, max(high, low + 1))
        return NUMBERS if self.is_computed_with else MASK if self.is_mask else None


def index_ranges(graph: Graph) -> dict[str, Range]:
    """Returns the range of each integer input; of 8 bits, only if the input is an index or compared with constants."""
    ranges = {v.name: _range(graph, v) for v in graph.inputs if v.dtype in INTEGERS}
    return {name: range for name, range in ranges.items() if range is not None}


def _range(graph: Graph, start: Value) -> Range | None:
    uses = _Uses()
    waiting = deque([(start, 0, 0)])
    seen = {start}
    while waiting:
        v, low, high = waiting.pop()  # the input plus low to high
        for node in graph.consumers.get(v, ()):
            moved = _moved(graph, node, v)
            if moved is None:
                _note(graph, node, v, (low, high), uses)
            elif node.output not in seen:
                seen.add(node.output)
                # Additions last: in `Where(x < 0, x + 257, x)`, a wrapped index, the plain branch counts.
                (waiting.append if moved == (0, 0) else waiting.appendleft)(
                    (node.output, low + moved[0], high + moved[1])
                )
        uses.is_computed_with |= v in graph.outputs
    least, greatest = integer_range(start.dtype)
    if ITEMSIZE[start.dtype] == 1 and not uses.indices and not uses.compared:
        return None
    if uses.range is None:
        return None
    low, high = uses.range
    low, high = min(max(low, least), greatest), min(max(high, least), greatest)
    return low, high


def _moved(graph: Graph, node: Node, v: Value) -> Range | None:
    """Returns the least and greatest constant that the node adds, 0 for movements; None for every other computation."""
    if node.output.dtype not in INTEGERS:
        return None
    if node.operator.moves or node.op in _MOVES or node.op == "Cast" or (node.op == "Where" and node.inputs[0] != v):
        return 0, 0
    if node.op == "Gather" and node.inputs[0] == v != node.inputs[1]:
        return 0, 0
    if node.op in ("Add", "Sub") and len(node.inputs) == 2 and (node.op == "Add" or node.inputs[0] == v):
        (other,) = [x for x in node.inputs if x != v] or [v]
        array = graph.constants.get(other)
        if array is not None and array.size:
            low, high = int(array.min()), int(array.max())
            return (low, high) if node.op == "Add" else (-high, -low)
    return None


def _note(graph: Graph, node: Node, v: Value, added: Range, uses: _Uses) -> None:
    """Adds a use by a node that does more than move."""
    low, high = added
    indexed = list(_indexed(node, v))
    if indexed:
        least, greatest = max(r[0] for r in indexed), min(r[1] for r in indexed)
        # No index is negative, so that an input plus its offset is not either.
        first = max(least - low, 0)
        uses.indices.append((first, max(first, greatest - high)))
    elif node.op in ("Cast", "Where") or (node.is_pointwise and node.output.dtype == "bool"):
        others = [graph.constants[x] for x in node.inputs if x in graph.constants]
        if node.op == "Equal" and others and others[0].size:
            uses.compared.append((int(others[0].min()) - high, int(others[0].max()) - low))
        uses.is_mask = True
    elif _ends_in_an_index(graph, node):
        uses.is_mask = True
    else:
        uses.is_computed_with = True


def _indexed(node: Node, v: Value) -> Iterator[Range]:
    """Yields the valid values of an operand, for each use as an index."""
    match node.op, node.inputs:
        case "WriteAt", (x, updates, starts) if starts == v:
            axis = node.integer("axis")
            yield 0, max(0, x.shape[axis] - updates.shape[axis])
        case "Gather" | "GatherElements" | "ScatterElements", (x, indices, *_) if indices == v:
            yield 0, max(0, x.shape[node.integer("axis")] - 1)
        case "GatherND" | "ScatterND", (x, indices, *_) if indices == v:
            first = node.integer("batch_dims", 0)
            extents = x.shape[first : first + v.shape[-1]]
            yield 0, max(0, min(extents, default=1) - 1)
        case "ReverseSequence", (x, lengths) if lengths == v:
            yield 0, x.shape[node.integer("time_axis")]
        case _:
            return


def _ends_in_an_index(graph: Graph, start: Node) -> bool:
    waiting, seen = [start.output], {start.output}
    while waiting:
        v = waiting.pop()
        for node in graph.consumers.get(v, ()):
            if any(_indexed(node, v)):
                return True
            if node.output not in seen and node.output.dtype in INTEGERS:
                seen.add(node.output)
                waiting.append(node.output)
    return False
