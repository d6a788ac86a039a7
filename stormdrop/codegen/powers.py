"""x to the y, for floats: C's `pow` with all its special cases.

    |x|^y = exp(y · ln |x|)

The absolute error of the exponent is the relative error of the result, and the exponent may be 745. Hence ln |x| needs
ten bits more than the result. The f32 power is therefore computed in f64. In f64 the logarithm, its product with y and
the terms of the exponential are sums of two floats; only the last addition rounds to a single float. The error of the
result is little more than half an ulp: representable powers (5^3, 16^0.75) are exact.
"""

from __future__ import annotations

import math

from stormdrop.codegen.exponential import exp, exponent_and_fraction, log_of_positive
from stormdrop.codegen.vector import F64, Vector

HUGE_EXPONENT = 2.0**64
"""|ln x| is 2^-53 or more unless x is 1, so that every larger |y| gives 0, 1 or infinity just like this one."""

# (2 atanh(s) - 2s - 2/3 s^3) / s^5 by powers of s^2, |s| <= 3 - 2 sqrt(2).
_LOG = (
    0.4,
    0.28571428571429364,
    0.22222222221656232,
    0.18181818335314404,
    0.15384594970895457,
    0.13334804238225345,
    0.11706248540922383,
    0.11723051028097778,
)
_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
# (e^r - 1 - r - r^2 / 2) / r^3, |r| <= ln(2) / 2.
_EXP = (
    0.16666666666666669,
    0.041666666666666664,
    0.008333333333330063,
    0.0013888888888886552,
    0.00019841269863050506,
    2.4801587317142276e-05,
    2.7557268464831627e-06,
    2.7557282973002415e-07,
    2.510038319586702e-08,
    2.091123498804083e-09,
)


def power(v: Vector, x: str, y: str) -> str:
    """Emits C's pow.

    The result is 1 for y = 0 or x = 1, even with NaN. A negative x requires an integer y; its parity decides the sign.
    """
    zero, one, infinity, nan = (v.const(c) for c in (0.0, 1.0, math.inf, math.nan))
    a = v.call("fabs", x)
    bounded = v.at_least(v.at_most(y, HUGE_EXPONENT), -HUGE_EXPONENT)
    size = _size_in_two(v, a, bounded) if v.format is F64 else _size_by_f64(v, a, bounded)

    falls = v.is_true("olt", y, zero)
    size = v.select(v.is_true("oeq", a, zero), v.select(falls, infinity, zero), size)
    size = v.select(v.is_true("oeq", a, infinity), v.select(falls, zero, infinity), size)

    half = v.mul(y, v.const(0.5))
    is_whole = v.is_true("oeq", y, v.call("floor", y))
    is_odd = v.both(is_whole, v.is_true("one", half, v.call("floor", half)))
    size = v.select(is_odd, v.call("copysign", size, x), size)

    is_finite_negative = v.both(v.is_true("olt", x, zero), v.is_true("olt", a, infinity))
    is_fraction = v.is_true("one", y, v.call("floor", y))
    size = v.select(v.both(is_finite_negative, is_fraction), nan, size)
    size = v.select(v.is_true("uno", x, y), nan, size)
    return v.select(v.either(v.is_true("oeq", y, zero), v.is_true("oeq", x, one)), one, size)


def _size_by_f64(v: Vector, a: str, y: str) -> str:
    wide = v.wide
    return v.narrowed(exp(wide, wide.mul(v.widened(y), log_of_positive(wide, v.widened(a)))))


def _size_in_two(v: Vector, a: str, y: str) -> str:
    high, low = _log_in_two(v, a)
    product, rest = v.product_of(y, high)
    return _exp_of_two(v, product, v.fma(y, low, rest))


def _log_in_two(v: Vector, x: str) -> tuple[str, str]:
    """Emits ln x as two floats, right to about 2^-66 of it: k ln 2 + 2s + s^3 (2/3 + s^2 P(s^2)), s = f / (2 + f)."""
    k, f = exponent_and_fraction(v, x)
    one = v.const(1.0)
    divisor, divisor_low = v.sum_of_ordered(one, v.add(f, one))
    s = v.div(f, divisor)
    product, rest = v.product_of(s, divisor)
    left = v.sub(v.sub(v.sub(f, product), rest), v.mul(s, divisor_low))
    s_low = v.div(left, divisor)

    z, rest = v.product_of(s, s)
    z_low = v.fma(v.add(s, s), s_low, rest)
    cube, rest = v.product_of(s, z)
    cube_low = v.fma(s, z_low, v.fma(s_low, z, rest))
    first, first_low = (v.const(c) for c in _TWO_THIRDS)
    slope, rest = v.sum_of_ordered(first, v.mul(z, v.polynomial(z, _LOG)))
    slope_low = v.add(rest, first_low)
    tail, rest = v.product_of(cube, slope)
    tail_low = v.fma(cube, slope_low, v.fma(cube_low, slope, rest))

    high, rest = v.sum_of_ordered(v.add(s, s), tail)
    low = v.add(v.add(rest, tail_low), v.add(s_low, s_low))
    ln2, ln2_low = (v.const(c) for c in v.format.ln2)
    high, rest = v.sum_of_ordered(v.mul(k, ln2), high)
    return v.sum_of_ordered(high, v.add(rest, v.fma(k, ln2_low, low)))


def _exp_of_two(v: Vector, x: str, x_low: str) -> str:
    """Emits e^(x + x_low) = 2^n (1 + r + r^2/2 + r^3 P(r)), of which the first three terms are summed in two floats."""
    fmt = v.format
    bottom, top = fmt.exp_range
    is_bounded = v.is_true("olt", v.call("fabs", x), v.const(-bottom))
    x_low = v.select(is_bounded, x_low, v.const(0.0))
    x = v.at_least(v.at_most(x, top), bottom)
    rounder = v.const(fmt.rounder)
    rounded = v.fma(x, v.const(math.log2(math.e)), rounder)
    n = v.sub(rounded, rounder)
    ln2, ln2_low = (v.const(-c) for c in fmt.ln2)
    r, rest = v.sum_of(v.add(x, v.mul(n, ln2)), v.mul(n, ln2_low))
    r, r_low = v.sum_of(r, v.add(rest, x_low))

    square, rest = v.product_of(r, r)
    half = v.const(0.5)
    square_low = v.fma(r, r_low, v.mul(rest, half))
    cube = v.mul(v.mul(square, r), v.polynomial(r, _EXP))
    total, rest = v.sum_of_ordered(v.const(1.0), r)
    total, more = v.sum_of_ordered(total, v.mul(square, half))
    low = v.add(v.add(cube, v.add(square_low, r_low)), v.add(rest, more))
    result = v.add(total, low)

    # 2^n in two factors, so that only the last product can overflow or be subnormal.
    doubled = v.integer("add", v.to_bits(rounded), 2 * fmt.bias - fmt.bits(fmt.rounder))
    field = v.integer("lshr", doubled, 1)
    other = v.integers("sub", doubled, field)
    for part in (field, other):
        result = v.mul(result, v.from_bits(v.integer("shl", part, fmt.mantissa_bits)))
    return result
