"""exp, log and their relatives near zero, as straight-line code.

Coefficients are weighted minimax (Remez) fits, refitted after rounding the leading coefficients to the type.
"""

from __future__ import annotations

import math

from stormdrop.codegen.vector import F32, F64, Vector

# (e^r - 1 - r) / r^2 on |r| <= ln 2, lowest degree first, as all tables here.
_EXP = {
    F32: (0.500000358, 0.166666165, 0.0416611694, 0.00833590701, 0.00141062192, 0.000196447712),
    F64: (
        0.4999999999999993,
        0.16666666666666935,
        0.04166666666670213,
        0.008333333333270385,
        0.001388888888357207,
        0.0001984126989235808,
        2.480159083240468e-05,
        2.7557300819701554e-06,
        2.75561574952846e-07,
        2.505500233022099e-08,
        2.1062376575598253e-09,
        1.5937724840432013e-10,
    ),
}

# The same on |r| <= ln(2) / 2, weighted for the relative error of e^r - 1 (f32: of r < 0, all that tanh and erf need).
_EXPM1 = {
    F32: (0.499999851, 0.166665584, 0.0416717306, 0.00836518407, 0.00135781977),
    F64: (
        0.5,
        0.16666666666666677,
        0.04166666666666667,
        0.008333333333321386,
        0.0013888888888886047,
        0.00019841269886817259,
        2.4801587317839357e-05,
        2.7557243450390565e-06,
        2.755728316785302e-07,
        2.510932143766372e-08,
        2.0910797600769927e-09,
    ),
}

# (2 atanh(s) / s - 2) / z with z = s^2, for s = f / (2 + f), 1 + f from sqrt(1/2) to sqrt(2).
_LOG = {
    F32: (0.666667759, 0.399775803, 0.298708618),
    F64: (
        0.6666666666666734,
        0.3999999999941654,
        0.2857142874206536,
        0.22222198600045862,
        0.18183563163685762,
        0.15314075678270603,
        0.14795735621127912,
    ),
}


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
    return v.fma(v.mul(r, r), v.polynomial(r, _EXPM1[v.format]), r)


def exp(v: Vector, x: str) -> str:
    """Emits e^x = p * s * s, reduced by 2 ln 2: only the last product can overflow or be subnormal, so it rounds once.

    That costs one degree more of p, and saves the instructions that would split the exponent in two.
    """
    bottom, top = v.format.exp_range
    r, s = reduce_exp(v, v.at_least(v.at_most(x, top), bottom), step=2)
    p = v.polynomial(r, (1.0, 1.0, *_EXP[v.format]))
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
    correction = v.mul(s, v.sub(v.mul(z, v.polynomial(z, _LOG[v.format])), f))
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
