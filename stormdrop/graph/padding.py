"""Running a graph at larger sizes than its inputs have: proves the valid elements, and masks padding where needed.

    plan = padded(graph, exact)         # one model imported at rounded sizes and at the exact sizes; None: no proof
    plan.graph                          # the rounded graph with masks, which are further inputs
    plan.masks, plan.outputs            # the valid elements: the values of the masks, and the kept parts of the outputs

The proof walks both graphs in step and keeps a claim per value. Along its longer dimensions, its *valid* elements equal
the elements of the exact graph; the remaining elements are arbitrary.

- An operator that works along other dimensions keeps the claim.
- Before an operator that sums, multiplies or compares along a padded dimension, invalid elements are replaced by a
  neutral number (0 in a sum, minus infinity in a softmax).
- An operator without a rule, a constant that depends on a size, or any other difference between the two graphs ends the
  proof.

Invariant: the claim is proved for this pair of graphs alone, so nothing is assumed of other sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from stormdrop.graph.graph import FreshNames, Graph
from stormdrop.ir.expr import FLOATS, NUMPY, Combiner, Dtype
from stormdrop.ir.shape import Claim, Padding, row_strides
from stormdrop.operators.movement import RESHAPE
from stormdrop.operators.node import Array, Attribute, Node, OperatorKind, Value
from stormdrop.operators.pointwise import WHERE


@dataclass(frozen=True, slots=True, eq=False)
class PaddedGraph:
    """A graph at rounded sizes. Its inputs are the model's inputs followed by the masks."""

    graph: Graph
    masks: tuple[Padding, ...]
    outputs: tuple[Claim, ...]


class _NoProof(Exception):
    """Padding might reach a result."""


def padded(graph: Graph, exact: Graph) -> PaddedGraph | None:
    """Returns the rounded graph with the masks it needs; None if its results cannot be proved right."""
    try:
        return _Proof(graph, exact).run()
    except _NoProof:
        return None


class _Proof:
    def __init__(self, graph: Graph, exact: Graph) -> None:
        self.graph, self.exact = graph, exact
        self.claims: dict[Value, Claim] = {}
        self.twins: dict[Value, Value] = {}
        """The value of the exact graph for a value of the rounded graph."""
        self.zeros: set[tuple[Value, int]] = set()
        """The pairs of a value and a dimension along which its invalid elements are zero."""
        self.masks: dict[tuple[Padding, int], Value] = {}
        self.masked: dict[tuple[Value, int, float], Value] = {}
        self.nodes: list[Node] = []
        self.constants: dict[Value, Array] = {}
        self.names = FreshNames(graph)

    def run(self) -> PaddedGraph:
        if len(self.graph.nodes) != len(self.exact.nodes) or self.graph.input_names != self.exact.input_names:
            raise _NoProof
        for v, twin in zip(self.graph.inputs, self.exact.inputs):
            self.claim(v, twin, _prefixes(v.shape, twin.shape))
        for node, twin in zip(self.graph.nodes, self.exact.nodes):
            self.nodes.append(replace(node, inputs=self.visit(node, twin)))
        for v, twin in zip(self.graph.outputs, self.exact.outputs):
            self.known(v, twin)
        graph = replace(
            self.graph,
            inputs=(*self.graph.inputs, *self.masks.values()),
            nodes=tuple(self.nodes),
            constants={**self.graph.constants, **self.constants},
        )
        masks = tuple(padding for padding, _ in self.masks)
        return PaddedGraph(graph, masks, tuple(self.claims[v] for v in self.graph.outputs))

    def claim(self, v: Value, twin: Value, claim: Claim) -> None:
        """Records the claim of a value. Raises _NoProof if the extents contradict it."""
        if v.rank != twin.rank or v.dtype != twin.dtype:
            raise _NoProof
        for d, (extent, exact) in enumerate(zip(v.shape, twin.shape)):
            p = claim.get(d)
            if (p is None and extent != exact) or (p is not None and extent // p.size * p.valid != exact):
                raise _NoProof
        self.claims[v], self.twins[v] = claim, twin

    def known(self, v: Value, twin: Value) -> Claim:
        """Returns the claim of an operand. Both graphs must read the same operand here, or constants that agree."""
        if v in self.claims:
            if self.twins[v] != twin:
                raise _NoProof
            return self.claims[v]
        ours, theirs = self.graph.constants.get(v), self.exact.constants.get(twin)
        if ours is None or theirs is None or ours.ndim != theirs.ndim:
            raise _NoProof
        claim = _prefixes(ours.shape, theirs.shape)
        if ours.dtype != theirs.dtype or not _same(ours[tuple(map(slice, theirs.shape))], theirs):
            raise _NoProof
        self.claim(v, twin, claim)
        return claim

    def visit(self, node: Node, twin: Node) -> tuple[Value, ...]:
        """Records the claim of a node's result. Returns its operands, masked if needed."""
        if node.op != twin.op or len(node.inputs) != len(twin.inputs):
            raise _NoProof
        claims = [self.known(v, other) for v, other in zip(node.inputs, twin.inputs)]
        if _settings(node) != _settings(twin):
            raise _NoProof
        rule = RULES.get(node.op) or RULES.get(node.operator.kind)
        if rule is None and any(claims):
            raise _NoProof
        result = _keeps({}) if rule is None else rule(_Step(self, node, twin, claims))
        self.claim(node.output, twin.output, result.claim)
        return tuple(
            self.replaced(v, claims[k], axes, result.neutral) if (axes := result.masked.get(k)) else v
            for k, v in enumerate(node.inputs)
        )

    def replaced(self, v: Value, claim: Claim, axes: Sequence[int], neutral: float) -> Value:
        """Returns a value with its invalid elements along `axes` replaced by the number `neutral`."""
        for d in axes:
            if neutral == 0 and (v, d) in self.zeros:
                continue
            key = v, d, neutral
            if key not in self.masked:
                self.masked[key] = self._selected(v, d, claim[d], neutral)
            v = self.masked[key]
        return v

    def _selected(self, v: Value, d: int, padding: Padding, neutral: float) -> Value:
        extent = v.shape[d]
        if (padding, extent) not in self.masks:
            self.masks[padding, extent] = Value(self.names.fresh(f"valid.{extent}"), (extent,), "bool")
        shape = tuple(extent if k == d else 1 for k in range(v.rank))
        mask = Value(self.names.fresh(f"{v.name}.valid"), shape, "bool")
        number = Value(self.names.fresh(f"{v.name}.neutral"), (), v.dtype)
        chosen = Value(self.names.fresh(f"{v.name}.masked"), v.shape, v.dtype)
        self.constants[number] = np.asarray(_number(neutral, v.dtype), NUMPY[v.dtype])
        self.nodes.append(Node(RESHAPE, (self.masks[padding, extent],), (mask,), {"shape": shape}))
        self.nodes.append(Node(WHERE, (mask, v, number), (chosen,)))
        return chosen


@dataclass(frozen=True, slots=True)
class _Step:
    """A node, its twin in the exact graph, and the claims of its operands."""

    proof: _Proof
    node: Node
    twin: Node
    claims: list[Claim]


@dataclass(frozen=True, slots=True)
class _Result:
    """The claim of a node's result; by operand, the dimensions to mask, and the neutral number."""

    claim: Claim
    masked: Mapping[int, Sequence[int]]
    neutral: float = 0.0


_Rule = Callable[[_Step], _Result]


def _settings(node: Node) -> dict[str, Attribute]:
    """Returns the attributes that are no sizes."""
    return {key: value for key, value in node.attributes.items() if key != "shape"}


def _keeps(claim: Claim) -> _Result:
    return _Result(claim, {})


def _prefixes(shape: Sequence[int], exact: Sequence[int]) -> Claim:
    """Returns longer dimensions as prefixes. Raises _NoProof if a dimension is shorter, or empty."""
    if len(shape) != len(exact) or any(n < m or m == 0 for n, m in zip(shape, exact)):
        raise _NoProof
    return {d: Padding(1, n, m) for d, (n, m) in enumerate(zip(shape, exact)) if n != m}


def _same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def _number(neutral: float, dtype: Dtype) -> float | int:
    if dtype in FLOATS or abs(neutral) != inf:
        return neutral
    if dtype == "bool":
        return neutral > 0
    limits = np.iinfo(np.dtype(NUMPY[dtype]).name)
    return int(limits.max if neutral > 0 else limits.min)


def _broadcast(claims: Sequence[Claim], shapes: Sequence[tuple[int, ...]], exact: Sequence[int]) -> dict[int, Padding]:
    """Returns the claim of a result of broadcast operands; `exact` is the result's shape in the exact graph.

    A padded dimension may meet an equally padded dimension or an extent of 1.
    """
    claim_of_result: dict[int, Padding] = {}
    rank = len(exact)
    for claim, shape in zip(claims, shapes):
        claim_of_result.update((d + rank - len(shape), p) for d, p in claim.items())
    for claim, shape in zip(claims, shapes):
        for d, p in claim_of_result.items():
            own = d - rank + len(shape)
            if own >= 0 and shape[own] != 1 and claim.get(own) != p:
                raise _NoProof
    for d, p in claim_of_result.items():
        if exact[d] % p.valid:
            raise _NoProof
    return claim_of_result


def _elementwise(s: _Step) -> _Result:
    return _keeps(_broadcast(s.claims, [v.shape for v in s.node.inputs], s.twin.output.shape))


def _reshape(s: _Step) -> _Result:
    """Requires that every padded dimension lies within one dimension of the result, with the same extents behind it."""
    (source, made), (exact_source, exact_made) = ((n.inputs[0].shape, n.output.shape) for n in (s.node, s.twin))
    kept: dict[int, Padding] = {}
    for d, p in s.claims[0].items():
        stride, exact_stride = row_strides(source)[d] * p.inner, row_strides(exact_source)[d] * p.inner
        for k, (extent, t, exact_extent, u) in enumerate(
            zip(made, row_strides(made), exact_made, row_strides(exact_made), strict=True)
        ):
            inside = stride % t == 0 and (t * extent) % (stride * p.size) == 0
            alike = exact_stride % u == 0 and (u * exact_extent) % (exact_stride * p.valid) == 0
            if inside and alike and stride // t == exact_stride // u and extent > 1:
                if k in kept:
                    raise _NoProof
                kept[k] = Padding(stride // t, p.size, p.valid)
                break
        else:
            raise _NoProof
    return _keeps(kept)


def _transpose(s: _Step) -> _Result:
    perm = s.node.integers("perm")
    return _keeps({k: s.claims[0][d] for k, d in enumerate(perm) if d in s.claims[0]})


def _expand(s: _Step) -> _Result:
    """Keeps the claim: along a repeated dimension, all elements are alike."""
    v, made, exact = s.node.inputs[0], s.node.output.shape, s.twin.output.shape
    shift = len(made) - v.rank
    kept = {d + shift: p for d, p in s.claims[0].items()}
    for d, (n, m) in enumerate(zip(made, exact, strict=True)):
        if n != m and d not in kept:
            if m == 0 or n < m or (d >= shift and v.shape[d - shift] != 1):
                raise _NoProof
            kept[d] = Padding(1, n, m)
    return _keeps(kept)


def _concat(s: _Step) -> _Result:
    """Keeps claims; along the joined dimension only the last operand may be padded, as valid elements stay a prefix."""
    axis = s.node.integer("axis")
    others = [{d: p for d, p in claim.items() if d != axis} for claim in s.claims]
    if any(other != others[0] for other in others) or any(axis in claim for claim in s.claims[:-1]):
        raise _NoProof
    last = s.claims[-1].get(axis)
    if last is None:
        return _keeps(others[0])
    if not _is_prefix(last, s.node.inputs[-1].shape[axis]):
        raise _NoProof
    return _keeps({**others[0], axis: Padding(1, s.node.output.shape[axis], s.twin.output.shape[axis])})


def _slice(s: _Step) -> _Result:
    """Keeps the claim: the first elements of a cut do not depend on its end."""
    v = s.node.inputs[0]
    rows = zip(s.node.integers("starts"), s.node.integers("steps"), strict=True)
    kept: dict[int, Padding] = {}
    for d, (start, step) in enumerate(rows):
        p = s.claims[0].get(d)
        count, exact_count = s.node.output.shape[d], s.twin.output.shape[d]
        if p is not None and (start, step, count) == (0, 1, v.shape[d]):
            kept[d] = p
            continue
        if step < 1 or (p is not None and not _is_prefix(p, v.shape[d])):
            raise _NoProof
        if count != exact_count:
            if exact_count == 0 or count < exact_count:
                raise _NoProof
            kept[d] = Padding(1, count, exact_count)
    return _keeps(kept)


def _is_prefix(p: Padding, extent: int) -> bool:
    return p.inner == 1 and p.size == extent


def _gather(s: _Step) -> _Result:
    """Requires that indices into a padded dimension are constant and valid."""
    axis, (data, indices) = s.node.integer("axis"), s.node.inputs
    p = s.claims[0].get(axis)
    if p is not None:
        known = s.proof.graph.constants.get(indices)
        if known is None or not _is_prefix(p, data.shape[axis]) or s.claims[1]:
            raise _NoProof
        if known.size and (known.min() < 0 or known.max() >= p.valid):
            raise _NoProof
    kept = {d if d < axis else d - 1 + indices.rank: q for d, q in s.claims[0].items() if d != axis}
    return _keeps({**kept, **{axis + d: q for d, q in s.claims[1].items()}})


_NEUTRAL: Mapping[Combiner | None, float] = {"sum": 0.0, "prod": 1.0, "max": -inf, "min": inf}


def _reduce(s: _Step) -> _Result:
    axes = s.node.integers("axes")
    kept = [d for d in range(s.node.inputs[0].rank) if d not in axes]
    places = {d: d if s.node.flag("keepdims", 1) else k for k, d in enumerate(kept)}
    masked = [d for d in axes if d in s.claims[0]]
    claim = {places[d]: p for d, p in s.claims[0].items() if d in places}
    return _Result(claim, {0: masked}, _NEUTRAL[s.node.operator.combiner])


def _softmax(s: _Step) -> _Result:
    axis = s.node.integer("axis")
    masked = [axis] if axis in s.claims[0] else []
    if masked and s.node.op == "Softmax":
        s.proof.zeros.add((s.node.output, axis))
    return _Result(s.claims[0], {0: masked}, -inf)


def _normalised(s: _Step) -> _Result:
    """Requires that normalised dimensions are not padded: statistics would need the number of valid elements."""
    if any(d in s.claims[0] for d in s.node.integers("axes")):
        raise _NoProof
    return _keeps(s.claims[0])


def _matmul(s: _Step) -> _Result:
    a, b = s.node.inputs
    if a.rank < 2 or b.rank < 2:
        raise _NoProof
    row, inner = (-1, -2) if s.node.flag("transpose_a", 0) else (-2, -1)
    other, column = (-1, -2) if s.node.flag("transpose_b", 0) else (-2, -1)
    row, inner, other, column = row + a.rank, inner + a.rank, other + b.rank, column + b.rank
    first, second = s.claims
    if first.get(inner) != second.get(other):
        raise _NoProof
    rank, exact = s.node.output.rank, s.twin.output.shape
    batches = [{d: p for d, p in claim.items() if d < v.rank - 2} for claim, v in zip(s.claims, s.node.inputs)]
    kept = _broadcast(batches, [a.shape[:-2], b.shape[:-2]], exact[:-2])
    for claim, source, place in ((first, row, rank - 2), (second, column, rank - 1)):
        if source in claim:
            kept[place] = claim[source]
    return _Result(kept, {0: [inner], 1: [other]} if inner in first else {})


def _einsum(s: _Step) -> _Result:
    labels, _, result = s.node.text("equation").partition("->")
    padding_of: dict[str, Padding | None] = {}
    operands = labels.split(",")
    for letters, claim in zip(operands, s.claims, strict=True):
        for d, letter in enumerate(letters):
            if padding_of.setdefault(letter, claim.get(d)) != claim.get(d):
                raise _NoProof
    summed = {
        k: [d for d, c in enumerate(x) if c not in result and padding_of[c] is not None] for k, x in enumerate(operands)
    }
    return _Result({k: p for k, c in enumerate(result) if (p := padding_of[c]) is not None}, summed)


def _triangle(s: _Step) -> _Result:
    """Keeps the claim if both indices count alike in both graphs: they decide which elements are kept."""
    v = s.node.inputs[0]
    if any(d >= v.rank - 2 and not _is_prefix(p, v.shape[d]) for d, p in s.claims[0].items()):
        raise _NoProof
    return _keeps(s.claims[0])


def _cumulative(s: _Step) -> _Result:
    """Keeps the claim: a running sum of a prefix depends on no later element."""
    axis = s.node.integer("axis")
    p = s.claims[0].get(axis)
    if p is not None and (s.node.flag("reverse", 0) or not _is_prefix(p, s.node.inputs[0].shape[axis])):
        raise _NoProof
    return _keeps(s.claims[0])


def _tile(s: _Step) -> _Result:
    times = s.node.integers("times")
    if any(times[d] != 1 for d in s.claims[0]):
        raise _NoProof
    return _keeps(s.claims[0])


def _pad(s: _Step) -> _Result:
    before, after = s.node.integers("before"), s.node.integers("after")
    if any(before[d] or after[d] for d in s.claims[0]) or any(s.claims[1:]):
        raise _NoProof
    return _keeps(s.claims[0])


RULES: Mapping[OperatorKind | str, _Rule] = {
    OperatorKind.POINTWISE: _elementwise,
    OperatorKind.REDUCTION: _reduce,
    OperatorKind.NORM: _normalised,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Expand": _expand,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "Trilu": _triangle,
    "Tile": _tile,
    "Pad": _pad,
    "CumSum": _cumulative,
    "CumProd": _cumulative,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "Einsum": _einsum,
}
"""The rules by operator, or by kind of operator. All other operators allow no padded operand."""
