"""Storage of every value of a model: a buffer of its own, or a place inside another buffer.

Concatenation, slicing, reshaping and transposing (of all dimensions but the rows) need no work if the storage is laid
out for them. A kernel writes the parts of a concatenation directly into the joined buffer, and readers of a slice read
the source. `storage` adds a copying call wherever that is impossible (a value that belongs to two concatenations, an
input that is also a part, …).

1. Backwards: a value that an alias makes part of another value is placed inside it, if a kernel writes it and it has no
   place yet.
2. Forwards: every other value gets a buffer, every other alias a view of its source, or a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from stormdrop.graph.fuse import is_alias
from stormdrop.graph.partition import Partition, TaskCall, call_of
from stormdrop.ir.shape import matching_runs, row_strides
from stormdrop.operators.node import Node, Value
from stormdrop.operators.pointwise import COPY

Kind = Literal["input", "output", "constant", "arena"]


@dataclass(frozen=True, slots=True, eq=False)
class StorageBuffer:
    """A piece of memory, named after the value that fills it. Inputs and outputs are numbered by `index`."""

    value: Value
    kind: Kind
    index: int = 0


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """The place of a value in a buffer: strides and offset in elements."""

    buffer: StorageBuffer
    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """The calls of a model, copies included, and the place of every value they touch."""

    calls: tuple[TaskCall, ...]
    places: dict[Value, StoragePlace]


def storage(parts: Partition) -> Storage:
    """Lays out all values of a partition."""
    return _Layout(parts).run()


class _Layout:
    def __init__(self, parts: Partition) -> None:
        g = self.graph = parts.graph
        self.calls = {call.output: call for call in parts.calls}
        self.places: dict[Value, StoragePlace] = {}
        fixed: dict[Kind, Iterable[Value]] = {"input": g.inputs, "output": g.outputs, "constant": g.constants}
        for kind, values in fixed.items():
            for k, v in enumerate(values):
                self.places[v] = StoragePlace(StorageBuffer(v, kind, k), row_strides(v.shape))

    def run(self) -> Storage:
        nodes = self.graph.nodes
        for node in reversed(nodes):
            if is_alias(node) and node.output.size:
                self._claim(node)
        done: list[TaskCall] = []
        for node in nodes:
            if not node.output.size:
                continue
            if node.output in self.calls:
                self._own(node.output)
                done.append(self.calls[node.output])
            elif is_alias(node):
                done += self._alias(node)
        return Storage(tuple(done), self.places)

    # ---- backwards

    def _claim(self, node: Node) -> None:
        """Puts the inputs of an alias into its output's place, if the output has a place or is the better home."""
        source = node.inputs[0]
        if node.op == "Concat":
            self._claim_parts(node)
        elif node.op == "Slice" or not self._is_free(source):
            return  # readers of a slice read its source
        elif node.op == "Transpose" and (node.output in self.places or self.graph.consumers[source] == (node,)):
            whole, perm = self._own(node.output), node.integers("perm")
            strides = tuple(whole.strides[perm.index(d)] for d in range(len(perm)))
            self.places[source] = StoragePlace(whole.buffer, strides, whole.offset)
        elif node.op == "Reshape" and node.output in self.places:
            whole = self.places[node.output]
            strides = reshaped_strides(node.output.shape, whole.strides, source.shape)
            if strides is not None:
                self.places[source] = StoragePlace(whole.buffer, strides, whole.offset)

    def _claim_parts(self, node: Node) -> None:
        along = node.integer("axis")
        parts = [v for v in node.inputs if v.size]
        if node.output not in self.places:
            joint = self._already_joined(parts, along)
            if joint is not None:
                self.places[node.output] = joint
                return
        whole = self._own(node.output)
        start = 0
        for v in parts:
            if self._is_free(v):
                self.places[v] = StoragePlace(whole.buffer, whole.strides, whole.offset + start * whole.strides[along])
            start += v.shape[along]

    def _already_joined(self, parts: Sequence[Value], along: int) -> StoragePlace | None:
        """Returns the place of a concatenation if its parts lie side by side already, as in a longer concatenation."""
        parts = self._unnested(parts, along)
        if not all(v in self.places for v in parts):
            return None
        first = self.places[parts[0]]
        if first.buffer.kind not in ("arena", "output"):
            return None
        start = first.offset
        for v in parts:
            p = self.places[v]
            if p.buffer is not first.buffer or (p.strides, p.offset) != (first.strides, start):
                return None
            start += v.shape[along] * p.strides[along]
        return first

    def _unnested(self, parts: Sequence[Value], along: int) -> list[Value]:
        """Returns the parts, with nested concatenations that have no place yet replaced by their own parts."""
        flat: list[Value] = []
        stack = list(reversed(parts))
        while stack:
            v = stack.pop()
            node = self.graph.producers.get(v)
            if v in self.places or node is None or node.op != "Concat" or node.integer("axis") != along:
                flat.append(v)
            else:
                stack.extend(reversed([x for x in node.inputs if x.size]))
        return flat

    def _is_free(self, v: Value) -> bool:
        """Returns whether a kernel (or an alias of its result) may write this value to any place."""
        return v not in self.places and v in self.graph.producers

    # ---- forwards

    def _own(self, v: Value) -> StoragePlace:
        if v not in self.places:
            self.places[v] = StoragePlace(StorageBuffer(v, "arena"), row_strides(v.shape))
        return self.places[v]

    def _alias(self, node: Node) -> list[TaskCall]:
        """Places the result of an alias; returns the copies that this needs, often none."""
        if node.op == "Concat":
            return self._joined(node)
        source = self.places[node.inputs[0]]
        view = _view(node, source)
        if node.output not in self.places:
            if view is not None:
                self.places[node.output] = view
                return []
            self._own(node.output)
        elif view is not None and _same(view, self.places[node.output], node.output.shape):
            return []
        return [call_of([node], self.graph.constants)]

    def _joined(self, node: Node) -> list[TaskCall]:
        """Returns copies of the parts of a concatenation that live elsewhere."""
        whole, along = self._own(node.output), node.integer("axis")
        copies: list[TaskCall] = []
        start = 0
        for k, v in enumerate(node.inputs):
            if not v.size:
                continue
            wanted = StoragePlace(whole.buffer, whole.strides, whole.offset + start * whole.strides[along])
            if not _same(self.places[v], wanted, v.shape):
                part = Value(f"{node.output.name}#{k}", v.shape, v.dtype)
                self.places[part] = wanted
                copies.append(call_of([Node(COPY, (v,), (part,), {}, node.name)], self.graph.constants))
            start += v.shape[along]
        return copies


def _same(a: StoragePlace, b: StoragePlace, shape: Sequence[int]) -> bool:
    """Returns whether two places cover the same elements of memory; the stride of a single element does not matter."""
    strides = all(x == y for x, y, n in zip(a.strides, b.strides, shape) if n > 1)
    return a.buffer is b.buffer and a.offset == b.offset and strides


def _view(node: Node, source: StoragePlace) -> StoragePlace | None:
    """Returns the place of an alias's output, given its input's."""
    match node.op:
        case "Reshape":
            strides = reshaped_strides(node.inputs[0].shape, source.strides, node.output.shape)
            return None if strides is None else StoragePlace(source.buffer, strides, source.offset)
        case "Slice":
            skipped = sum(start * stride for start, stride in zip(node.integers("starts"), source.strides))
            return StoragePlace(source.buffer, source.strides, source.offset + skipped)
        case _:
            return StoragePlace(source.buffer, tuple(source.strides[d] for d in node.integers("perm")), source.offset)


def reshaped_strides(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the strides of `wanted` over memory that holds `shape` in row-major order, or None if none exist.

    Runs of dimensions that hold equally many elements on both sides are matched; each run must be evenly spaced.
    """
    if 0 in shape:
        return row_strides(tuple(wanted))
    result = [1] * len(wanted)
    for held, needed in matching_runs(shape, wanted):
        for outer, inner in pairwise(held):
            if strides[outer] != shape[inner] * strides[inner]:
                return None
        step = strides[held[-1]]
        for d in reversed(needed):
            result[d] = step
            step *= wanted[d]
    return tuple(result)
