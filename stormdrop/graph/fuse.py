"""Fusion: grouping nodes into kernels, between which numbers stay narrow.

    groups(graph) -> [(node, …), …], in the order in which they can run

An anchor (convolution, product, reduction, pooling, normalisation) takes the elementwise nodes behind it as its
epilogue, and a cheap elementwise chain before it as its prologue. The remaining elementwise and movement nodes form
chains of their own. Nodes that only rename memory (`is_alias`) belong to no group: `storage` gives them no cost.

A group grows from its last node T to T's immediate post-dominator P, the first node on all paths from T to the outputs.
It grows if all nodes on these paths are elementwise and of T's shape.

So no value inside a group is read outside it, and groups form no cycle: a node that depends on T and leads to P is on
these paths. A group stands at the position of its last node.

Halves and quantised numbers are stored between kernels, and widened by the kernel that reads them: no kernel ends with
a node that widens. For f16 and bf16 the importer gives f32 arithmetic between casts (`frontend.schema`); the pass
`halves` rewrites it:

    Conv(Cast(x, f32), Cast(w, f32))         ->   Conv(x, w), summed in f32: a kernel reads halves
    Relu(Cast(Cast(y, f16, storage=1), f32)) ->   Relu(y): inside a kernel, values stay f32

A rounding is omitted only if it exists for the file's storage type (`storage`), and if the value has a single,
elementwise reader: producer and reader then are one kernel, and no f32 value is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from stormdrop.graph.builder import Sweep, use_counts
from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.ir.dtypes import HALVES, ITEMSIZE
from stormdrop.operators.node import ANCHORS, Node, OperatorKind, Value
from stormdrop.operators.window import window_of


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


CHAINED = (OperatorKind.POINTWISE, OperatorKind.MOVEMENT)
"""The kinds of operators that a reader's kernel may compute in place."""
FUSED = (*ANCHORS, *CHAINED)
"""The kinds of operators with kernels that take further nodes."""
Group = tuple[Node, ...]
"""The nodes of one kernel, in order; only the last node's output is read outside."""
MOST_NODES = 24
"""The most nodes of a fused chain: in longer chains, code grows and registers run out."""


def is_alias(node: Node) -> bool:
    """Returns whether the result is a view of the input's memory or, for Concat, the inputs' memory side by side."""
    match node.op:
        case "Reshape" | "Concat":
            return True
        case "Slice":
            return all(step == 1 for step in node.integers("steps"))
        case "Transpose":  # rows of the last dimension must stay whole, or every reader would gather
            return keeps_rows(node.integers("perm"), node.inputs[0].shape)
        case _:
            return False


def keeps_rows(perm: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    order = [d for d in perm if shape[d] != 1]
    return not order or order[-1] == max(order)


def groups(graph: Graph) -> list[Group]:
    """Returns the groups of the graph; every node that is no alias is in exactly one group."""
    return _Fusion(graph).run()


class _Fusion:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.position = {node: k for k, node in enumerate(graph.nodes)}
        self.consumers = graph.consumers
        self.outputs = frozenset(graph.outputs)
        self.meeting = post_dominators(graph)
        self.group_of: dict[Node, list[Node]] = {}

    def run(self) -> list[Group]:
        nodes = self.graph.nodes
        # The later of two anchors takes the sum they meet in: the other's result is then still in the cache.
        for node in reversed(nodes):
            if node.operator.kind in ANCHORS:
                self._grow(node)
        for node in nodes:
            if node not in self.group_of and not is_alias(node):
                self._grow(node)
        for node in nodes:
            if node in self.group_of and (node.operator.kind in FUSED):
                self._absorb(node)
        members_by_id = {id(members): members for members in self.group_of.values()}
        ordered = [sorted(members, key=self.position.__getitem__) for members in members_by_id.values()]
        ordered.sort(key=lambda members: self.position[members[-1]])
        return [tuple(members) for members in ordered]

    def _grow(self, node: Node) -> None:
        members = self.group_of[node] = [node]
        if node.operator.kind not in FUSED:
            return
        tail = node
        steps: list[list[Node]] = []
        while True:
            end = self.meeting.get(tail)
            between = None if end is None else self._way(tail, end)
            if end is None or between is None or len(members) + len(between) > MOST_NODES:
                break
            for n in between:
                self.group_of[n] = members
            members += between
            steps.append(between)
            tail = end
        while steps and not all(map(widens, members)) and self._stores_wide(steps[-1]):
            (last,) = steps.pop()
            members.remove(last)
            del self.group_of[last]

    def _stores_wide(self, step: list[Node]) -> bool:
        """Returns whether a kernel ending with these nodes stores widened numbers, which its readers could widen."""
        return len(step) == 1 and widens(step[0]) and step[0].output not in self.outputs

    def _way(self, start: Node, end: Node) -> list[Node] | None:
        """Returns all nodes on the paths from `start` (exclusive) to `end`, or None if one cannot be fused."""
        shape = start.output.shape
        between: dict[Node, None] = {}
        stack = [start]
        while stack:
            for reader in self.consumers.get(stack.pop().output, ()):
                if reader in between:
                    continue
                fits = reader.is_pointwise and reader.output.shape == shape and reader not in self.group_of
                if not fits or len(between) >= MOST_NODES:
                    return None
                between[reader] = None
                if reader is not end:
                    stack.append(reader)
        return list(between)

    def _absorb(self, node: Node) -> None:
        """Takes complete groups before this node into its own group if computing them in place is worth it."""
        producers = self.graph.producers
        mine = self.group_of[node]
        for v in dict.fromkeys(node.inputs):
            source = producers.get(v)
            if source is None or source not in self.group_of or v in self.outputs or self.consumers[v] != (node,):
                continue
            theirs = self.group_of[source]
            fits = theirs is not mine and len(mine) + len(theirs) <= MOST_NODES
            joins = fits and all(n.operator.kind in CHAINED for n in theirs)
            if joins and self._worth(node, v, theirs):
                for n in theirs:
                    self.group_of[n] = mine
                mine += theirs

    def _worth(self, node: Node, v: Value, chain: list[Node]) -> bool:
        moves = any(n.operator.kind is OperatorKind.MOVEMENT for n in chain)
        cheap = not any(n.operator.is_costly for n in chain)
        is_first = v == node.inputs[0]
        match node.operator.kind, node.op:
            case _, "MatMul" | "Einsum":
                return (chain[0].op == "Transpose" and len(chain) == 1) or (cheap and not moves and is_first)
            case _, "Conv":
                sizes = (*node.integers("kernel"), *node.integers("strides"), node.integer("groups"))
                # Operands that are converted to i16 are computed into a copy of the kernel's own, for any window.
                return cheap and not moves and (prod(sizes) == 1 or v.dtype == "i16") and is_first
            case OperatorKind.PRODUCT, _:
                return False
            case OperatorKind.POOL, _:
                w = window_of(node)
                return not moves and (cheap or all(k <= s for k, s in zip(w.kernel, w.strides)))
            case OperatorKind.POINTWISE, _:
                return all(widens(n) for n in chain)
            case OperatorKind.REDUCTION, _:
                return not moves
            case OperatorKind.NORM, _:
                return cheap and not moves
            case _, "Transpose" | "Slice" | "Pad" | "Trilu":
                return is_first
            case _, "Gather":  # a border's test does not protect an index that data decides
                return cheap and not moves and is_first
            case _:
                return cheap and is_first


def post_dominators(graph: Graph) -> Mapping[Node, Node]:
    """Returns the immediate post-dominator of every node: the first node on all its paths to the model's outputs.

    Nodes without such a node are absent.
    """
    parent: dict[Node, Node | None] = {}
    depth: dict[Node, int] = {}
    outputs = frozenset(graph.outputs)

    def meet(nodes: Iterable[Node]) -> Node | None:
        it = iter(nodes)
        common: Node | None = next(it)
        for other in it:
            walker: Node | None = other
            while common is not walker:
                if common is None or walker is None:
                    return None
                if depth[common] >= depth[walker]:
                    common = parent[common]
                else:
                    walker = parent[walker]
        return common

    for node in reversed(graph.nodes):
        readers = graph.consumers.get(node.output, ())
        above = None if node.output in outputs or not readers else meet(readers)
        parent[node] = above
        depth[node] = 0 if above is None else depth[above] + 1
    return {node: above for node, above in parent.items() if above is not None}
