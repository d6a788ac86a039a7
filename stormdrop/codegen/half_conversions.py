"""Conversions between f32 and the halves, f16 and bf16, which are held as their bits.

Both roundings are to nearest even. Machines without conversions of f16 (x86 before F16C) use integer operations: LLVM
would call a run-time library there.
"""

from __future__ import annotations

from stormdrop.codegen.text import SsaValue, Writer, splat, vector_type
from stormdrop.ir.dtypes import Dtype


def widened(w: Writer, x: SsaValue, has_f16: bool) -> SsaValue:
    """Emits a half as f32: exact."""
    bits = _Bits(w, x.lanes)
    if x.dtype == "bf16":
        return bits.float(bits.op("shl", bits.extended(x), 16))
    if has_f16:
        half = w.op(f"bitcast {x} to {vector_type('half', x.lanes)}")
        type = vector_type("float", x.lanes)
        return SsaValue(w.op(f"fpext {vector_type('half', x.lanes)} {half} to {type}"), "f32", x.lanes)
    return _from_f16(bits, bits.extended(x))


def rounded(w: Writer, x: SsaValue, dtype: Dtype, has_f16: bool) -> SsaValue:
    """Emits the nearest half of an f32; every NaN becomes one bf16."""
    if dtype == "f16" and has_f16:
        half = w.op(f"fptrunc {x} to {vector_type('half', x.lanes)}")
        bits = w.op(f"bitcast {vector_type('half', x.lanes)} {half} to {vector_type('i16', x.lanes)}")
        return SsaValue(bits, dtype, x.lanes)
    bits = _Bits(w, x.lanes)
    given = w.op(f"bitcast {x} to {bits.type}")
    result = _to_f16(bits, given) if dtype == "f16" else _to_bf16(bits, given, x)
    return SsaValue(w.op(f"trunc {bits.type} {result} to {vector_type('i16', x.lanes)}"), dtype, x.lanes)


class _Bits:
    """Operations on 32-bit patterns, one per lane."""

    def __init__(self, w: Writer, lanes: int) -> None:
        self.w, self.lanes, self.type = w, lanes, vector_type("i32", lanes)

    def extended(self, x: SsaValue) -> str:
        return self.w.op(f"zext {x} to {self.type}")

    def literal(self, value: int) -> str:
        return splat(value, "i32", self.lanes)

    def op(self, name: str, a: str, b: int | str) -> str:
        return self.w.op(f"{name} {self.type} {a}, {self.literal(b) if isinstance(b, int) else b}")

    def is_true(self, predicate: str, a: str, b: int) -> str:
        return self.w.op(f"icmp {predicate} {self.type} {a}, {self.literal(b)}")

    def select(self, condition: str, a: int | str, b: str) -> str:
        first = self.literal(a) if isinstance(a, int) else a
        mask = vector_type("i1", self.lanes)
        return self.w.op(f"select {mask} {condition}, {self.type} {first}, {self.type} {b}")

    def float(self, a: str) -> SsaValue:
        name = self.w.op(f"bitcast {self.type} {a} to {vector_type('float', self.lanes)}")
        return SsaValue(name, "f32", self.lanes)

    def of(self, x: str) -> str:
        return self.w.op(f"bitcast {vector_type('float', self.lanes)} {x} to {self.type}")


def _to_bf16(b: _Bits, given: str, x: SsaValue) -> str:
    """Emits the upper half of an f32, rounded to nearest even; every NaN is 0x7FC0 (see `text.bf16_bits`)."""
    odd = b.op("and", b.op("lshr", given, 16), 1)
    upper = b.op("lshr", b.op("add", given, b.op("add", odd, 0x7FFF)), 16)
    return b.select(b.w.op(f"fcmp une {x}, {x.name}"), 0x7FC0, upper)


def _from_f16(b: _Bits, half: str) -> SsaValue:
    """Emits f16 to f32.

    A product with 2^112 moves the exponent and makes subnormals normal; infinity and NaN are special cases.
    """
    magnitude = b.op("shl", b.op("and", half, 0x7FFF), 13)
    scale = splat(2.0**112, "f32", b.lanes)
    scaled = b.of(b.w.op(f"fmul {b.float(magnitude)}, {scale}"))
    special = b.op("or", magnitude, 0x7F800000)
    value = b.select(b.is_true("ult", magnitude, 0x7C00 << 13), scaled, special)
    sign = b.op("shl", b.op("and", half, 0x8000), 16)
    return b.float(b.op("or", value, sign))


def _to_f16(b: _Bits, given: str) -> str:
    """Emits f32 to f16. For normal results, the exponent is moved and the mantissa rounded as an integer. For subnormal
    results, adding 1/2 rounds to 2^-24.

    From 65520 on, the carry of the rounding makes infinity; from 65536 on it is written out.
    """
    magnitude = b.op("and", given, 0x7FFFFFFF)
    odd = b.op("and", b.op("lshr", magnitude, 13), 1)
    moved = b.op("add", magnitude, 0xFFF - (112 << 23))
    normal = b.op("lshr", b.op("add", moved, odd), 13)
    sum_of = b.w.op(f"fadd {b.float(magnitude)}, {splat(0.5, 'f32', b.lanes)}")
    small = b.op("sub", b.of(sum_of), 126 << 23)
    value = b.select(b.is_true("ult", magnitude, 113 << 23), small, normal)
    value = b.select(b.is_true("ult", magnitude, 143 << 23), value, b.literal(0x7C00))
    value = b.select(b.is_true("ugt", magnitude, 0x7F800000), 0x7E00, value)
    return b.op("or", value, b.op("and", b.op("lshr", given, 16), 0x8000))
