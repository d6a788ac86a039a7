"""exp, log, their relatives near zero, and pow, as straight-line code."""

from __future__ import annotations

import math

from stormdrop.codegen.polynomials import COEFFICIENTS
from stormdrop.codegen.vector import F64, Vector


def reduce_exp(v: Vector, x: str, step: int = 1, lift: int = 0) -> tuple[str, str]:
    """Splits e^x = e^r * 2^(step * n), with |r| <= step * ln(2) / 2; returns r and 2^(n + lift)."""
    high, low = v.format.ln2
    # The exponent's bias rides on the rounder, so that a shift alone makes the power of two.
    rounder = v.const(v.format.rounder + v.format.bias + lift)
    rounded = v.fma(x, v.const(math.log2(math.e) / step), rounder)
    n = v.sub(rounded, rounder)
    r = v.fma(n, v.const(-step * high), x)
    r = v.fma(n, v.const(-step * low), r)
    return r, v.from_bits(v.integer("shl", v.to_bits(rounded), v.format.mantissa_bits))


def reduced_expm1(v: Vector, r: str) -> str:
    """Emits e^r - 1 for |r| <= ln(2) / 2, good relative to itself."""
    return v.fma(v.mul(r, r), v.polynomial(r, COEFFICIENTS["expm1", v.format.dtype]), r)


def exp(v: Vector, x: str) -> str:
    """Emits e^x = p * s * s, reduced by 2 ln 2: only the last product can overflow or be subnormal, so it rounds once.

    That costs one degree more of p, and saves the instructions that would split the exponent in two.
    """
    bottom, top = v.format.exp_range
    r, s = reduce_exp(v, v.at_least(v.at_most(x, top), bottom), step=2)
    p = v.polynomial(r, (1.0, 1.0, *COEFFICIENTS["exp", v.format.dtype]))
    return v.mul(v.mul(p, s), s)


def expm1(v: Vector, x: str) -> str:
    """Emits e^x - 1 = 2 (s q + (s - 1/2)), where e^x = 2 s e^r and q = e^r - 1.

    The half keeps s finite for every finite result. If e^x - 1 rounds to x, the result is x: q / 2 may be subnormal.
    """
    clamped = v.at_least(v.at_most(x, v.format.exp_range[1]), v.format.expm1_bottom)
    r, s = reduce_exp(v, clamped, lift=-1)
    half = v.fma(s, reduced_expm1(v, r), v.sub(s, v.const(0.5)))
    is_tiny = v.is_true("olt", v.call("fabs", x), v.const(2.0 ** -(v.format.mantissa_bits + 2)))
    return v.select(is_tiny, x, v.add(half, half))


def exponent_and_fraction(v: Vector, x: str) -> tuple[str, str]:
    """Emits k and f, as floats, of x = 2^k (1 + f), with 1 + f from sqrt(1/2) to sqrt(2).

    The argument x must be positive and finite.
    """
    fmt = v.format
    lift = fmt.mantissa_bits + 2
    is_tiny = v.is_true("olt", x, v.const(2.0 ** (1 - fmt.bias)))
    normal = v.select(is_tiny, v.mul(x, v.const(2.0**lift)), x)
    # Shift the bit pattern so that the mantissa starts at sqrt(1/2) and the exponent field is k + bias.
    start, bias_field = fmt.bits(math.sqrt(0.5)), fmt.bias << fmt.mantissa_bits
    shifted = v.integer("add", v.to_bits(normal), bias_field - start)
    # An integer below 2^mantissa_bits, put in the mantissa of that power of two, is a float: no conversion needed.
    carrier = 2.0**fmt.mantissa_bits
    exponent = v.integer("lshr", shifted, fmt.mantissa_bits)
    exponent = v.from_bits(v.integer("or", exponent, fmt.bits(carrier)))
    k = v.sub(exponent, v.select(is_tiny, v.const(carrier + fmt.bias + lift), v.const(carrier + fmt.bias)))
    mantissa = v.integer("and", shifted, (1 << fmt.mantissa_bits) - 1)
    return k, v.add(v.from_bits(v.integer("add", mantissa, start)), v.const(-1.0))


def log_of_positive(v: Vector, x: str) -> str:
    """Emits ln x = k ln 2 + ln(1 + f). With s = f / (2 + f), ln(1 + f) = 2 atanh(s) = f - s (f - R(s^2)).

    x must be positive and finite.
    """
    k, f = exponent_and_fraction(v, x)
    s = v.div(f, v.add(f, v.const(2.0)))
    z = v.mul(s, s)
    correction = v.mul(s, v.sub(v.mul(z, v.polynomial(z, COEFFICIENTS["log", v.format.dtype])), f))
    high, low = v.format.ln2
    return v.fma(k, v.const(high), v.add(f, v.fma(k, v.const(low), correction)))


def log(v: Vector, x: str) -> str:
    zero, infinity = v.const(0.0), v.const(math.inf)
    result = v.select(v.is_true("olt", x, infinity), log_of_positive(v, x), x)
    result = v.select(v.is_true("olt", x, zero), v.const(math.nan), result)
    return v.select(v.is_true("oeq", x, zero), v.const(-math.inf), result)


def log1p(v: Vector, x: str) -> str:
    """Emits ln(1 + x) = ln w + c / w: w is 1 + x rounded, c the rounding error. c / w is NaN for w = 0 and infinite
    w.
    """
    w, c = v.sum_of(v.const(1.0), x)
    rough, rest = log(v, w), v.div(c, w)
    result = v.select(v.is_true("ord", rest, rest), v.add(rough, rest), rough)
    return v.call("copysign", result, x)


# ---- x to the y ------------------------------------------------------------------------------------------------------

# |ln x| is 2^-53 or more unless x is 1, so that every larger |y| gives 0, 1 or infinity just like this one.
_HUGE_EXPONENT = 2.0**64
_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)


def power(v: Vector, x: str, y: str) -> str:
    """Emits C's pow, with all its special cases: |x|^y = exp(y · ln |x|).

    The absolute error of the exponent is the relative error of the result, and the exponent may be 745. Hence ln |x|
    needs ten bits more than the result. The f32 power is therefore computed in f64. In f64 the logarithm, its product
    with y and the terms of the exponential are sums of two floats; only the last addition rounds to a single float. The
    error of the result is little more than half an ulp: representable powers (5^3, 16^0.75) are exact.

    The result is 1 for y = 0 or x = 1, even with NaN. A negative x requires an integer y; its parity decides the sign.
    """
    zero, one, infinity, nan = (v.const(c) for c in (0.0, 1.0, math.inf, math.nan))
    a = v.call("fabs", x)
    bounded = v.at_least(v.at_most(y, _HUGE_EXPONENT), -_HUGE_EXPONENT)
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
    slope, rest = v.sum_of_ordered(first, v.mul(z, v.polynomial(z, COEFFICIENTS["exact_log", "f64"])))
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
    cube = v.mul(v.mul(square, r), v.polynomial(r, COEFFICIENTS["exact_exp", "f64"]))
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
