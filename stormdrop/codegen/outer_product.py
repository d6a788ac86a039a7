"""The innermost step of a register tile: every accumulator adds the product of two operands.

The multiply-add of a matrix product is written here only. Another dot-product instruction (pairs of bf16, say) is
another `OuterProduct`, registered under the name of the target's microkernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from stormdrop.codegen import values as v
from stormdrop.codegen.text import SsaValue, Writer
from stormdrop.errors import BuildError
from stormdrop.target.machine import Target
from stormdrop.target.microkernels import BF16_DOT

Pairs = Iterable[tuple[SsaValue, SsaValue]]
OuterProduct = Callable[[Writer, Pairs, Sequence[SsaValue]], Iterator[SsaValue]]
"""Writes `acc + x·y` for each accumulator and its pair of operands, in this order.

The pairs are lazy: advancing to the next writes the code that loads it.
"""


def fused(w: Writer, operands: Pairs, accumulators: Sequence[SsaValue]) -> Iterator[SsaValue]:
    """A fused multiply-add: one rounding."""
    for (x, y), acc in zip(operands, accumulators):
        yield v.multiply_add(w, x, y, acc, True)


def separate(w: Writer, operands: Pairs, accumulators: Sequence[SsaValue]) -> Iterator[SsaValue]:
    """A multiplication and an addition: two roundings."""
    for (x, y), acc in zip(operands, accumulators):
        yield v.multiply_add(w, x, y, acc, False)


def bf16_dot(w: Writer, operands: Pairs, accumulators: Sequence[SsaValue]) -> Iterator[SsaValue]:
    """Two bf16 products per lane by AVX512_BF16's vdpbf16ps, which treats denormals as zero."""
    for (x, y), acc in zip(operands, accumulators):
        pairs = [w.op(f"bitcast {v.broadcast(w, z, acc.lanes)} to <{2 * acc.lanes} x bfloat>") for z in (x, y)]
        operands_of_one = [(acc.type, acc.name), *((f"<{2 * acc.lanes} x bfloat>", pair) for pair in pairs)]
        name = f"x86.avx512bf16.dpbf16ps.{32 * acc.lanes}"
        yield SsaValue(w.intrinsic(name, acc.type, *operands_of_one), acc.dtype, acc.lanes)


OUTER_PRODUCTS: dict[str, OuterProduct] = {"fma": fused, "mul-add": separate, "bf16 dot": bf16_dot}


def outer_product_of(target: Target, op: str) -> OuterProduct:
    """The outer product for `op`: "mul" of two numbers or "dot" of two bf16 pairs. Raises BuildError."""
    if op == "mul":
        return OUTER_PRODUCTS["fma" if target.has_fma else "mul-add"]
    if BF16_DOT not in target.microkernels:
        raise BuildError(f"{target.name} has no dot products of bf16 (AVX512_BF16), which the schedule asks for")
    return OUTER_PRODUCTS[BF16_DOT.name]
