"""The innermost step of a register tile: every accumulator adds the product of two operands.

The multiply-add of a matrix product is written here only. Another dot-product instruction (pairs of bf16, say) is
another `OuterProduct`, registered under the name of the target's microkernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from stormdrop.base.errors import BuildError
from stormdrop.codegen import values as v
from stormdrop.codegen.text import SsaValue, Writer
from stormdrop.ir.dtypes import Dtype
from stormdrop.target.machine import Target
from stormdrop.target.microkernels import BF16_DOT, I16_DOT

Pairs = Iterable[tuple[SsaValue, SsaValue]]
OuterProduct = Callable[[Writer, Pairs, Sequence[SsaValue]], Iterator[SsaValue]]
"""Writes `acc + x·y` for each accumulator and its pair of operands, in this order.

The pairs are lazy: advancing to the next writes the code that loads it.
"""


def multiply_add(has_fma: bool, w: Writer, operands: Pairs, accumulators: Sequence[SsaValue]) -> Iterator[SsaValue]:
    for (x, y), acc in zip(operands, accumulators):
        yield v.multiply_add(w, x, y, acc, has_fma)


def bf16_dot(w: Writer, operands: Pairs, accumulators: Sequence[SsaValue]) -> Iterator[SsaValue]:
    """Yields two bf16 products per lane by AVX512_BF16's vdpbf16ps, which treats denormals as zero."""
    for (x, y), acc in zip(operands, accumulators):
        factors = [_as_pairs(w, z, "bfloat", acc.lanes) for z in (x, y)]
        name = f"x86.avx512bf16.dpbf16ps.{32 * acc.lanes}"
        yield SsaValue(w.intrinsic(name, acc.type, (acc.type, acc.name), *factors), acc.dtype, acc.lanes)


def i16_dot(w: Writer, operands: Pairs, accumulators: Sequence[SsaValue]) -> Iterator[SsaValue]:
    """Yields two i16 products per lane by pmaddwd; with VNNI, LLVM fuses it with the addition into a vpdpwssd.

    A lane's two products overflow i32 only if all four factors are -32768.
    """
    for (x, y), acc in zip(operands, accumulators):
        factors = [_as_pairs(w, z, "i16", acc.lanes) for z in (x, y)]
        products = SsaValue(w.intrinsic(_PMADDWD[acc.lanes], acc.type, *factors), acc.dtype, acc.lanes)
        yield v.arithmetic(w, "add", acc, products)


def _as_pairs(w: Writer, x: SsaValue, element: str, lanes: int) -> tuple[str, str]:
    """Emits a vector of pairs as a vector of their elements; returns its type and name."""
    type = f"<{2 * lanes} x {element}>"
    return type, w.op(f"bitcast {v.broadcast(w, x, lanes)} to {type}")


_PMADDWD = {4: "x86.sse2.pmadd.wd", 8: "x86.avx2.pmadd.wd", 16: "x86.avx512.pmaddw.d.512"}
OUTER_PRODUCTS: dict[str, OuterProduct] = {
    "fma": partial(multiply_add, True),
    "mul-add": partial(multiply_add, False),
    BF16_DOT.name: bf16_dot,
    I16_DOT.name: i16_dot,
}


def outer_product_of(target: Target, op: str, operand: Dtype) -> OuterProduct:
    """Returns the outer product for `op`: "mul" of two numbers or "dot" of two pairs. Raises BuildError."""
    if op == "mul":
        return OUTER_PRODUCTS["fma" if target.has_fma else "mul-add"]
    kernel = I16_DOT if operand == "i16x2" else BF16_DOT
    if kernel not in target.microkernels:
        raise BuildError(f"{target.name} has no dot products of {kernel.operand}; tune a schedule for this target")
    return OUTER_PRODUCTS[kernel.name]
