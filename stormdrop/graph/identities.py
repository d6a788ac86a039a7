"""Nodes that do nothing, and pairs of nodes that one node can replace.

    Add(x, 0) -> x        Transpose(Transpose(x)) -> Transpose(x)        Mul(Mul(x, 2), 3) -> Mul(x, 6)

All rewrites are exact for every number including NaN and infinities, with three harmless exceptions:

- x + 0.0 turns -0.0 into 0.0; x does not.
- A sum over one element becomes that element.
- Two constants added or multiplied one after the other are rounded once instead of twice (`joined` refuses constants
  that would overflow, vanish or cancel).

A rule receives a node with simplified inputs. It returns a value that readers read instead, or another node for the
same value (which is simplified again), or None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from stormdrop.graph.builder import Sweep, uniform, use_counts
from stormdrop.graph.graph import Graph
from stormdrop.ir.dtypes import FLOATS, INTEGERS, is_exact
from stormdrop.ir.expr import identity_of
from stormdrop.operators.broadcast import broadcast_shape
from stormdrop.operators.movement import RESHAPE
from stormdrop.operators.node import Array, Node, Operator, OperatorKind, Value
from stormdrop.operators.pointwise import ADD, MUL
from stormdrop.operators.window import window_of

Answer = Value | Node | None


def identities(graph: Graph) -> Graph:
    """Drops every node that returns its operand, and joins pairs of nodes into one."""
    rules = _Rules(graph)
    sweep = rules.sweep
    for given in graph.nodes:
        node = first = sweep.current(given)
        while isinstance(answer := rules.answer(node), Node):
            node = answer
        if answer is not None:
            sweep.replace(node.output, answer)
        elif node is first:
            sweep.keep(node)
        else:
            sweep.keep_rewritten(node)
    return sweep.finished()


TAME = {"f32": 2.0**20, "f64": 2.0**49}
"""The largest addends that may be merged: models add and subtract larger numbers to round on purpose."""


def joined(op: str, a: Array, b: Array) -> Array | None:
    """Returns the constant with the effect of `op` with a and then with b.

    Returns None if the constant would be larger than both, overflow or vanish, or if a sum of huge numbers would cancel
    a deliberate rounding.
    """
    shape = broadcast_shape(a.shape, b.shape)
    if math.prod(shape) > max(a.size, b.size):
        return None
    if a.dtype.kind != "f":
        with np.errstate(all="ignore"):
            return np.asarray(a + b if op == "Add" else a * b, a.dtype)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        exact = x + y if op == "Add" else x * y
        result = np.asarray(exact, a.dtype)
        if op == "Add":
            limit = TAME["f32" if a.dtype == np.float32 else "f64"]
            good = (np.abs(x) <= limit) & (np.abs(y) <= limit)
        else:
            good = np.isfinite(result) & ((np.abs(result) >= np.finfo(a.dtype).tiny) | (x == 0) | (y == 0))
    return result if bool(np.all(good)) else None


def inverted(c: Array) -> Array | None:
    """Returns 1 / c if multiplying by it equals dividing by c (powers of two), else None."""
    if c.dtype.kind != "f" or not bool(np.all(np.abs(np.frexp(c)[0]) == 0.5)):
        return None
    with np.errstate(all="ignore"):
        inverse = np.asarray(1 / c, c.dtype)
    normal = np.isfinite(inverse) & (np.abs(inverse) >= np.finfo(c.dtype).tiny)
    return inverse if bool(np.all(normal)) else None


class _Rules:
    def __init__(self, graph: Graph) -> None:
        self.sweep = Sweep(graph)
        self.uses: Counter[Value] = use_counts(graph)
        """The uses in the graph before the sweep: other readers decide a rewrite's benefit, not its correctness."""

    def answer(self, node: Node) -> Answer:
        operator = node.operator
        if operator.repeated:
            inner = self.made_by(node.inputs[0], node.op)
            return None if inner is None else inner.output if operator.repeated == "idempotent" else inner.inputs[0]
        if operator.neutral is not None:
            return self.arithmetic(node) or self.unexpanded(node)
        if operator.kind is OperatorKind.REDUCTION:
            return self.reduction(node)
        if operator.kind is OperatorKind.POOL:
            return self.pool(node)
        return RULES[node.op](self, node) if node.op in RULES else self.unexpanded(node)

    def made_by(self, v: Value, op: str) -> Node | None:
        node = self.sweep.producers.get(v)
        return node if node is not None and node.op == op else None

    def operands(self, node: Node) -> tuple[Value, Array] | None:
        """Returns the variable and the constant operand, if the variable operand has the result's shape and type."""
        a, b = node.inputs
        if (right := self.sweep.array(b)) is not None:
            x, c = a, right
        elif (left := self.sweep.array(a)) is not None and node.operator.commutes != "no":
            x, c = b, left
        else:
            return None
        return (x, c) if (x.shape, x.dtype) == (node.output.shape, node.output.dtype) else None

    def arithmetic(self, node: Node) -> Answer:
        """Simplifies arithmetic: x + 0, x · 1, … become x, and two constants in a row become one.

        Subtraction and division by a constant become + and · if that is exact.
        """
        operands = self.operands(node)
        if operands is None:
            return node.inputs[0] if node.op in ("And", "Or") and node.inputs[0] == node.inputs[1] else None
        x, c = operands
        if uniform(c) == node.operator.neutral:
            return x
        match node.op:
            case "Sub":
                with np.errstate(all="ignore"):
                    return self.with_constant(node, ADD, x, np.asarray(-c, c.dtype))
            case "Div":
                inverse = inverted(c)
                return inverse if inverse is None else self.with_constant(node, MUL, x, inverse)
            case "Add" | "Mul":
                return self.twice(node, x, c)
            case _:
                return None

    def twice(self, node: Node, x: Value, c: Array) -> Answer:
        inner = self.made_by(x, node.op)
        operands = self.operands(inner) if inner is not None and self.uses[x] == 1 else None
        both = joined(node.op, operands[1], c) if operands is not None else None
        if operands is None or both is None:
            return None
        return self.with_constant(node, node.operator, operands[0], both)

    def with_constant(self, node: Node, operator: Operator, x: Value, c: Array) -> Node:
        return replace(node, operator=operator, inputs=(x, self.sweep.constant(c, f"{node.output.name}.c")))

    def extreme(self, node: Node) -> Answer:
        """Simplifies max(x, x) and max(x, -inf) to x."""
        if node.inputs[0] == node.inputs[1]:
            return node.inputs[0]
        operands, combiner = self.operands(node), "max" if node.op == "Max" else "min"
        if operands is not None and uniform(operands[1]) == identity_of(combiner, node.output.dtype):
            return operands[0]
        return self.unexpanded(node)

    def where(self, node: Node) -> Answer:
        condition, a, b = node.inputs
        known = self.sweep.array(condition)
        chosen = a if a == b else None if known is None or uniform(known) is None else a if uniform(known) else b
        return chosen if chosen is not None and chosen.shape == node.output.shape else self.unexpanded(node)

    def unexpanded(self, node: Node) -> Answer:
        """Replaces f(Expand(x), y) by f(x, y) if y has the shape: an elementwise node broadcasts by itself."""
        if not node.is_pointwise or len(node.inputs) < 2:
            return None
        for k, v in enumerate(node.inputs):
            inner = self.made_by(v, "Expand")
            if inner is not None:
                inputs = (*node.inputs[:k], inner.inputs[0], *node.inputs[k + 1 :])
                if broadcast_shape(*(i.shape for i in inputs)) == node.output.shape:
                    return replace(node, inputs=inputs)
        return None

    def reshape(self, node: Node) -> Answer:
        x = node.inputs[0]
        if x.shape == node.output.shape:
            return x
        inner = self.made_by(x, "Reshape")
        return None if inner is None else replace(node, inputs=inner.inputs)

    def transpose(self, node: Node) -> Answer:
        """Simplifies a Transpose; it becomes a Reshape if it only moves dimensions of extent 1, as no data moves."""
        x, order = node.inputs[0], node.integers("perm")
        if order == tuple(range(x.rank)):
            return x
        inner = self.made_by(x, "Transpose")
        if inner is not None:
            first = inner.integers("perm")
            return replace(node, inputs=inner.inputs, attributes={"perm": tuple(first[d] for d in order)})
        moving = [d for d in order if x.shape[d] != 1]
        return self.reshaped(node) if moving == sorted(moving) else None

    def expand(self, node: Node) -> Answer:
        x = node.inputs[0]
        if x.shape == node.output.shape:
            return x
        if x.size == node.output.size:
            return self.reshaped(node)
        inner = self.made_by(x, "Expand")
        return None if inner is None else replace(node, inputs=inner.inputs)

    def reshaped(self, node: Node) -> Node:
        return replace(node, operator=RESHAPE, inputs=node.inputs[:1], attributes={"shape": node.output.shape})

    def cast(self, node: Node) -> Answer:
        x = node.inputs[0]
        if x.dtype == node.output.dtype:
            return x
        inner = self.made_by(x, "Cast")
        if inner is None or not is_exact(inner.inputs[0].dtype, x.dtype):
            return None
        source, to = inner.inputs[0].dtype, node.output.dtype
        if x.dtype in FLOATS and source in INTEGERS and to in INTEGERS and not is_exact(source, to):
            return None  # a float saturates where an integer wraps around
        return replace(node, inputs=inner.inputs)

    def slice(self, node: Node) -> Answer:
        """Joins a slice of a slice to one slice."""
        x, starts, steps = node.inputs[0], node.integers("starts"), node.integers("steps")
        if x.shape == node.output.shape and not any(starts) and all(s == 1 or e == 1 for s, e in zip(steps, x.shape)):
            return x
        inner = self.made_by(x, "Slice")
        if inner is None or node.output.size == 0:
            return None
        whole = list(zip(starts, steps, inner.integers("starts"), inner.integers("steps")))
        starts, steps = tuple(s0 + s * t0 for s, _, s0, t0 in whole), tuple(t * t0 for _, t, _, t0 in whole)
        return replace(node, inputs=inner.inputs, attributes={**node.attributes, "starts": starts, "steps": steps})

    def pad(self, node: Node) -> Answer:
        before, after = node.integers("before"), node.integers("after")
        if not any(before) and not any(after):
            return node.inputs[0]
        inner = self.made_by(node.inputs[0], "Pad")
        if inner is None or len(node.inputs) > 1 or len(inner.inputs) > 1 or self.uses[inner.output] > 1:
            return None
        values = {repr(n.constant("value", n.output.dtype)) for n in (node, inner)}
        if any(n.text("mode") != "constant" for n in (node, inner)) or len(values) > 1:
            return None
        both = {k: tuple(p + q for p, q in zip(node.integers(k), inner.integers(k))) for k in ("before", "after")}
        return replace(node, inputs=inner.inputs, attributes={**node.attributes, **both})

    def clip(self, node: Node) -> Answer:
        low, high = (node.attributes.get(k) for k in ("min", "max"))
        if low in (None, -math.inf) and high in (None, math.inf):
            return node.inputs[0]
        inner = self.made_by(node.inputs[0], "Clip")
        return inner.output if inner is not None and inner.attributes == node.attributes else None

    def unchanged(self, node: Node) -> Answer:
        """Drops Repeat and Tile of once."""
        x = node.inputs[0]
        return x if x.shape == node.output.shape else None

    def pool(self, node: Node) -> Answer:
        """Drops a pool of one pixel."""
        window = window_of(node)
        if any((*window.before, *window.after)) or any(k != 1 for k in window.kernel):
            return None
        return self.unchanged(node)

    def reduction(self, node: Node) -> Answer:
        """Drops a reduction over dimensions of extent 1: it is the element itself."""
        return self.reshaped(node) if node.inputs[0].size == node.output.size > 0 else None


RULES: Mapping[str, Callable[[_Rules, Node], Answer]] = {
    **dict.fromkeys(("Max", "Min"), _Rules.extreme),
    "Where": _Rules.where,
    "Reshape": _Rules.reshape,
    "Transpose": _Rules.transpose,
    "Expand": _Rules.expand,
    "Cast": _Rules.cast,
    "Slice": _Rules.slice,
    "Pad": _Rules.pad,
    "Clip": _Rules.clip,
    "PowConst": lambda _, node: node.inputs[0] if node.number("exponent") == 1 else None,
    "Concat": lambda _, node: node.inputs[0] if len(node.inputs) == 1 else None,
    "Copy": lambda _, node: node.inputs[0],
    **dict.fromkeys(("Repeat", "Tile"), _Rules.unchanged),
}
