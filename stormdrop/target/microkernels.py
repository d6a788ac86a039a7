"""Micro-kernels: the innermost step of a matrix product, as instructions of a machine.

One step combines a register tile of accumulators with `rows` broadcast operands and `columns` vector operands: acc[m,
n] += sum over k of a[m, k] * b[k, n]. `codegen.tile` spells the steps of a thread, `codegen.matrix_product`
the steps of a warp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from stormdrop.ir.expr import Dtype

Precision = Literal["f32", "tf32", "3xtf32", "bf16", "fp16"]
"""The precision of f32 products on a GPU: exact factors, or factors rounded for matrix instructions."""
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True, slots=True)
class Microkernel:
    """The properties of an instruction that the space and lowering need."""

    name: str
    operand: Dtype
    accumulator: Dtype
    m: int
    """Rows of the tile that one instruction takes."""
    n: int
    """Vectors of the tile that one instruction takes."""
    k: int
    """Products that one lane sums: this many neighbours along k lie side by side in both operands."""
    registers: int
    """Vector registers that a step needs beside the accumulators and one column operand."""
    products: int = 1
    """Instructions per step: more than one if an operand is split into a large and a small part."""
    roundoff: float = 0.0
    """The largest relative error of rounding an f32 to the operand's format."""


MULTIPLY_ADD = Microkernel("multiply-add", "f32", "f32", m=1, n=1, k=1, registers=1)
BF16_DOT = Microkernel("bf16 dot", "bf16", "f32", m=1, n=1, k=2, registers=1)
I16_DOT = Microkernel("i16 dot", "i16", "i32", m=1, n=1, k=2, registers=1)

MATRIX_KERNELS: dict[Precision, Microkernel] = {
    "tf32": Microkernel("mma tf32", "f32", "f32", m=16, n=8, k=8, registers=6, roundoff=2.0**-11),
    "3xtf32": Microkernel("mma 3xtf32", "f32", "f32", m=16, n=8, k=8, registers=12, products=3, roundoff=2.0**-21),
    "bf16": Microkernel("mma bf16", "bf16", "f32", m=16, n=8, k=16, registers=6, roundoff=2.0**-9),
    "fp16": Microkernel("mma fp16", "f16", "f32", m=16, n=8, k=16, registers=6, roundoff=2.0**-11),
}
"""Matrix instructions of a warp (mma.sync): 16 rows times 8 columns over k, both operands in fragments of its lanes."""
