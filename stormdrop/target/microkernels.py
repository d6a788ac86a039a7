"""Micro-kernels: the innermost step of a matrix product, as a machine offers it.

One step combines a register tile of accumulators with `rows` operands that are broadcast and `columns` operands that
are vectors: acc[m, n] += sum over k of a[m, k] * b[k, n]. `codegen.outer_product` spells each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from stormdrop.ir.expr import Dtype


@dataclass(frozen=True, slots=True)
class Microkernel:
    """What the space and lowering must know to use an instruction."""

    name: str
    operand: Dtype
    accumulator: Dtype
    m: int
    """Rows of the tile that one instruction takes."""
    n: int
    """Vectors of the tile that one instruction takes."""
    k: int
    """Products that one lane sums: so many neighbours along k lie side by side in both operands."""
    registers: int
    """Vector registers that a step needs beside the accumulators and one column operand."""


MULTIPLY_ADD = Microkernel("multiply-add", "f32", "f32", m=1, n=1, k=1, registers=1)
BF16_DOT = Microkernel("bf16 dot", "bf16", "f32", m=1, n=1, k=2, registers=1)
I16_DOT = Microkernel("i16 dot", "i16", "i32", m=1, n=1, k=2, registers=1)
