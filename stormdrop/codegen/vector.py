"""Instructions on floats of an IEEE format and lane count, from which `vecmath` and its neighbours compose functions.

No later pass contracts or reassociates operations, so error-free transformations stay error-free.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stormdrop.codegen.text import LLVM, Writer, splat, suffix, vector_type
from stormdrop.ir.expr import Dtype


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """An IEEE format, with the constants that depend only on the format."""

    dtype: Dtype
    int_name: str  # LLVM's name of the integer as wide
    mantissa_bits: int
    bias: int
    exp_range: tuple[float, float]  # exp is 0 below and inf above
    expm1_bottom: float  # expm1 rounds to -1 here and below
    sigmoid_end: float  # from here on sigmoid rounds to 1,
    tanh_end: float  # tanh too,
    erf_end: float  # and erf
    ln2: tuple[float, float]  # high part short enough that its product with any exponent is exact

    @property
    def rounder(self) -> float:
        """1.5 * 2^mantissa_bits: adding it rounds to an integer, which the sum's lowest bits then hold."""
        return 1.5 * 2.0**self.mantissa_bits

    def bits(self, value: float) -> int:
        """Returns the bit pattern of `value` rounded to this format."""
        float_code, int_code = ("f", "i") if self.int_name == "i32" else ("d", "q")
        return int(struct.unpack(int_code, struct.pack(float_code, value))[0])


F32 = FloatFormat(
    dtype="f32",
    int_name="i32",
    mantissa_bits=23,
    bias=127,
    exp_range=(-104.0, 89.0),
    expm1_bottom=-20.0,
    sigmoid_end=20.0,
    tanh_end=10.0,
    erf_end=4.0,
    ln2=(0.693145751953125, 1.4286068203094173e-06),
)
F64 = FloatFormat(
    dtype="f64",
    int_name="i64",
    mantissa_bits=52,
    bias=1023,
    exp_range=(-746.0, 710.0),
    expm1_bottom=-40.0,
    sigmoid_end=40.0,
    tanh_end=20.0,
    erf_end=6.0,
    ln2=(0.6931471803691238, 1.9082149292705877e-10),
)
FORMATS = {"f32": F32, "f64": F64}


@dataclass(frozen=True, slots=True)
class Vector:
    """A writer of instructions on values of a format and lane count."""

    out: Writer
    format: FloatFormat
    lanes: int
    has_fma: bool

    # Types and constants

    def kind(self, element: str) -> str:
        return vector_type(element, self.lanes)

    @property
    def floats(self) -> str:
        return self.kind(LLVM[self.format.dtype])

    @property
    def ints(self) -> str:
        return self.kind(self.format.int_name)

    @property
    def suffix(self) -> str:
        return suffix(self.format.dtype, self.lanes)

    def const(self, value: float) -> str:
        return splat(value, self.format.dtype, self.lanes)

    # Arithmetic

    def call(self, intrinsic: str, *args: str) -> str:
        return self.out.intrinsic(f"{intrinsic}.{self.suffix}", self.floats, *((self.floats, a) for a in args))

    def binary(self, op: str, a: str, b: str) -> str:
        return self.out.op(f"{op} {self.floats} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        return self.binary("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        return self.binary("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.binary("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        return self.binary("fdiv", a, b)

    def neg(self, a: str) -> str:
        return self.out.op(f"fneg {self.floats} {a}")

    def fma(self, a: str, b: str, c: str) -> str:
        """Emits a·b + c, with a single rounding if the machine has such an instruction."""
        return self.call("fma", a, b, c) if self.has_fma else self.add(self.mul(a, b), c)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Emits a polynomial by Horner's rule: the fewest instructions, and neighbouring vectors fill the latency."""
        *rest, last = coefficients
        total = self.const(last)
        for c in reversed(rest):
            total = self.fma(total, x, self.const(c))
        return total

    # Error-free transformations: the rounded result and its rounding error

    def sum_of_ordered(self, a: str, b: str) -> tuple[str, str]:
        """Emits a + b and its rounding error, for |a| >= |b| or a = 0 (Dekker)."""
        total = self.add(a, b)
        return total, self.sub(b, self.sub(total, a))

    def sum_of(self, a: str, b: str) -> tuple[str, str]:
        """Emits a + b and its rounding error (Knuth)."""
        total = self.add(a, b)
        part = self.sub(total, a)
        return total, self.add(self.sub(a, self.sub(total, part)), self.sub(b, part))

    def product_of(self, a: str, b: str) -> tuple[str, str]:
        """Emits a·b and its rounding error, without fma by halves of the mantissas (Dekker).

        No part of the product may overflow or be subnormal.
        """
        product = self.mul(a, b)
        if self.has_fma:
            return product, self.call("fma", a, b, self.neg(product))
        (a1, a0), (b1, b0) = self._halves(a), self._halves(b)
        rest = self.sub(self.mul(a1, b1), product)
        rest = self.add(self.add(rest, self.mul(a1, b0)), self.mul(a0, b1))
        return product, self.add(rest, self.mul(a0, b0))

    def _halves(self, a: str) -> tuple[str, str]:
        """Emits the upper half of the mantissa, and the rest."""
        keep = -(1 << (self.format.mantissa_bits + 2) // 2)
        high = self.from_bits(self.integer("and", self.to_bits(a), keep))
        return high, self.sub(a, high)

    # Choices

    def is_true(self, predicate: str, a: str, b: str) -> str:
        return self.out.op(f"fcmp {predicate} {self.floats} {a}, {b}")

    def both(self, a: str, b: str) -> str:
        return self.out.op(f"and {self.kind('i1')} {a}, {b}")

    def either(self, a: str, b: str) -> str:
        return self.out.op(f"or {self.kind('i1')} {a}, {b}")

    def any(self, mask: str) -> str:
        """Emits the test whether a lane of a mask is set."""
        if self.lanes == 1:
            return mask
        bits = self.out.op(f"bitcast {self.kind('i1')} {mask} to i{self.lanes}")
        return self.out.op(f"icmp ne i{self.lanes} {bits}, 0")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.out.op(f"select {self.kind('i1')} {condition}, {self.floats} {a}, {self.floats} {b}")

    def at_most(self, x: str, limit: float) -> str:
        """Emits min(x, limit), but NaN stays; in this operand order the code is a single minps."""
        top = self.const(limit)
        return self.select(self.is_true("ogt", x, top), top, x)

    def at_least(self, x: str, limit: float) -> str:
        bottom = self.const(limit)
        return self.select(self.is_true("olt", x, bottom), bottom, x)

    # Bits

    def int_const(self, value: int) -> str:
        return str(value) if self.lanes == 1 else f"splat ({self.format.int_name} {value})"

    def integer(self, op: str, a: str, b: int) -> str:
        return self.integers(op, a, self.int_const(b))

    def integers(self, op: str, a: str, b: str) -> str:
        return self.out.op(f"{op} {self.ints} {a}, {b}")

    def select_bits(self, condition: str, a: str, b: str) -> str:
        return self.out.op(f"select {self.kind('i1')} {condition}, {self.ints} {a}, {self.ints} {b}")

    def to_bits(self, x: str) -> str:
        return self.out.op(f"bitcast {self.floats} {x} to {self.ints}")

    def from_bits(self, i: str) -> str:
        return self.out.op(f"bitcast {self.ints} {i} to {self.floats}")

    # f32 computed in f64

    @property
    def wide(self) -> Vector:
        """The same lanes in f64."""
        return replace(self, format=F64)

    def widened(self, x: str) -> str:
        return x if self.format is F64 else self.out.op(f"fpext {self.floats} {x} to {self.wide.floats}")

    def narrowed(self, x: str) -> str:
        return x if self.format is F64 else self.out.op(f"fptrunc {self.wide.floats} {x} to {self.floats}")
