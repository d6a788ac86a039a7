"""Operators on matrices that are written out step by step: determinants."""

from __future__ import annotations

import numpy as np

from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer
from stormdrop.graph.graph import Value

MOST_ROWS = 32


def _det(n: NodeReader) -> Value:
    """Imports Det as Gaussian elimination with partial pivoting, a few nodes for each row.

    In every step the row with the largest first element becomes the pivot, and the first row takes its place. The
    determinant is the product of the pivots, negated for every exchange.
    """
    b, a = n.build, n.input(0)
    if a.rank < 2 or a.shape[-1] != a.shape[-2] or not 1 <= a.shape[-1] <= MOST_ROWS:
        raise n.fail(f"{a} holds no square matrices of at most {MOST_ROWS} rows")
    lead = a.shape[:-2]
    rows, columns = len(lead), len(lead) + 1
    total: Value | None = None
    for left in range(a.shape[-1], 0, -1):
        first = b.cut(a, {rows: (0, 1, 1)})
        pivot = first
        if left > 1:
            size = b.emit("Abs", b.cut(a, {columns: (0, 1, 1)}))
            chosen = b.emit("ArgMax", size, axis=rows, keepdims=1, last=0)
            pivot = b.emit("GatherElements", a, b.expand(chosen, (*lead, 1, left)), axis=rows)
            numbers = b.reshape(b.constant(np.arange(1, left)), (left - 1, 1))
            rest = b.emit("Where", b.emit("Equal", numbers, chosen), first, b.cut(a, {rows: (1, 1, left - 1)}))
            exchanged = b.emit("Greater", chosen, b.constant(0, "i64"))
            sign = b.emit("Where", exchanged, b.number(-1, a), b.number(1, a))
        else:
            rest = sign = None
        head = b.cut(pivot, {columns: (0, 1, 1)})
        factor = head if sign is None else b.emit("Mul", head, sign)
        total = factor if total is None else b.emit("Mul", total, factor)
        if rest is not None:
            # A pivot of zero makes the determinant zero in any case; divide by 1 instead.
            divisor = b.emit("Where", b.emit("Equal", head, b.number(0, a)), b.number(1, a), head)
            share = b.emit("Div", b.cut(rest, {columns: (0, 1, 1)}), divisor)
            tail = b.emit("Mul", share, b.cut(pivot, {columns: (1, 1, left - 1)}))
            a = b.emit("Sub", b.cut(rest, {columns: (1, 1, left - 1)}), tail)
    assert total is not None
    return b.reshape(total, lead)


MATRICES: dict[str, Importer] = {"Det": _det}
