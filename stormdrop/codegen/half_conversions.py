"""Conversions between f32 and the halves, f16 and bf16, which are held as their bits.

Both roundings are to nearest even. Machines without conversions of f16 (x86 before F16C) use integer operations: LLVM
would call a run-time library there.
"""

from __future__ import annotations

from stormdrop.codegen.text import SsaValue, Writer
from stormdrop.codegen.vector import F32, Vector
from stormdrop.ir.dtypes import Dtype


def widened(w: Writer, x: SsaValue, has_f16: bool) -> SsaValue:
    """Emits a half as f32: exact."""
    v = Vector(w, F32, x.lanes, has_fma=False)
    if x.dtype == "f16" and has_f16:
        half = w.op(f"bitcast {x} to {v.kind('half')}")
        return SsaValue(w.op(f"fpext {v.kind('half')} {half} to {v.floats}"), "f32", x.lanes)
    bits = w.op(f"zext {x} to {v.ints}")
    bits = v.integer("shl", bits, 16) if x.dtype == "bf16" else _from_f16(v, bits)
    return SsaValue(v.from_bits(bits), "f32", x.lanes)


def rounded(w: Writer, x: SsaValue, dtype: Dtype, has_f16: bool) -> SsaValue:
    """Emits the nearest half of an f32; every NaN becomes one bf16."""
    v = Vector(w, F32, x.lanes, has_fma=False)
    if dtype == "f16" and has_f16:
        half = w.op(f"fptrunc {x} to {v.kind('half')}")
        return SsaValue(w.op(f"bitcast {v.kind('half')} {half} to {v.kind('i16')}"), dtype, x.lanes)
    bits = v.to_bits(x.name)
    bits = _to_f16(v, bits) if dtype == "f16" else _to_bf16(v, bits, x.name)
    return SsaValue(w.op(f"trunc {v.ints} {bits} to {v.kind('i16')}"), dtype, x.lanes)


def _to_bf16(v: Vector, bits: str, x: str) -> str:
    """Emits the upper half of an f32, rounded to nearest even; every NaN is 0x7FC0 (see `text.bf16_bits`)."""
    odd = v.integer("and", v.integer("lshr", bits, 16), 1)
    upper = v.integer("lshr", v.integers("add", bits, v.integer("add", odd, 0x7FFF)), 16)
    return v.select_bits(v.is_true("une", x, x), v.int_const(0x7FC0), upper)


def _from_f16(v: Vector, half: str) -> str:
    """Emits the bits of f16 as the bits of f32.

    A product with 2^112 moves the exponent and makes subnormals normal; infinity and NaN are special cases.
    """
    magnitude = v.integer("shl", v.integer("and", half, 0x7FFF), 13)
    scaled = v.to_bits(v.mul(v.from_bits(magnitude), v.const(2.0**112)))
    special = v.integer("or", magnitude, 0x7F800000)
    value = v.select_bits(v.integer("icmp ult", magnitude, 0x7C00 << 13), scaled, special)
    sign = v.integer("shl", v.integer("and", half, 0x8000), 16)
    return v.integers("or", value, sign)


def _to_f16(v: Vector, bits: str) -> str:
    """Emits f32 to f16. For normal results, the exponent is moved and the mantissa rounded as an integer. For subnormal
    results, adding 1/2 rounds to 2^-24.

    From 65520 on, the carry of the rounding makes infinity; from 65536 on it is written out.
    """
    magnitude = v.integer("and", bits, 0x7FFFFFFF)
    odd = v.integer("and", v.integer("lshr", magnitude, 13), 1)
    moved = v.integer("add", magnitude, 0xFFF - (112 << 23))
    normal = v.integer("lshr", v.integers("add", moved, odd), 13)
    small = v.integer("sub", v.to_bits(v.add(v.from_bits(magnitude), v.const(0.5))), 126 << 23)
    value = v.select_bits(v.integer("icmp ult", magnitude, 113 << 23), small, normal)
    value = v.select_bits(v.integer("icmp ult", magnitude, 143 << 23), value, v.int_const(0x7C00))
    value = v.select_bits(v.integer("icmp ugt", magnitude, 0x7F800000), v.int_const(0x7E00), value)
    return v.integers("or", value, v.integer("and", v.integer("lshr", bits, 16), 0x8000))
