"""The innermost step of a register tile: every accumulator takes up the product of two operands.

This is the one place where the multiply-add of a matrix product is spelled. An instruction that multiplies more at once
(pairs of bf16, say) is another `OuterProduct`, under the name by which a target asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from stormdrop.codegen import values as v
from stormdrop.codegen.text import Value, Writer
from stormdrop.target.machine import Target


class OuterProduct(Protocol):
    """Writes `acc + x·y` for each accumulator and its pair of operands, in this order.

    The operands of the tile's rows and columns are written when they are first asked for.
    """

    def __call__(
        self, w: Writer, operands: Iterable[tuple[Value, Value]], accumulators: Sequence[Value]
    ) -> Iterator[Value]: ...


def fused(w: Writer, operands: Iterable[tuple[Value, Value]], accumulators: Sequence[Value]) -> Iterator[Value]:
    """In one rounding."""
    for (x, y), acc in zip(operands, accumulators):
        yield v.multiply_add(w, x, y, acc, True)


def separate(w: Writer, operands: Iterable[tuple[Value, Value]], accumulators: Sequence[Value]) -> Iterator[Value]:
    """By a multiplication and an addition."""
    for (x, y), acc in zip(operands, accumulators):
        yield v.multiply_add(w, x, y, acc, False)


OUTER_PRODUCTS: dict[str, OuterProduct] = {"fma": fused, "mul-add": separate}


def outer_product_of(target: Target) -> OuterProduct:
    return OUTER_PRODUCTS["fma" if target.has_fma else "mul-add"]
