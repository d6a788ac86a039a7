"""Functions of scalars that the core lacks, built from those it has.

They are right to a few units in the last place of the type for every argument, f64 included; odd functions keep the
sign of zero. docs/numerics.md says what NaN, infinities and integers without an answer give.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from stormdrop.ir import build
from stormdrop.ir.dtypes import is_exact
from stormdrop.ir.expr import FLOATS, Const, Dtype, Expr, binary, call, compare, select


def number(value: float, like: Expr) -> Const:
    return Const(value, like.dtype)


def is_nan(x: Expr) -> Expr:
    return compare("ne", x, x)


def with_sign_of(result: Expr, x: Expr) -> Expr:
    """|result| with the sign of x, zeros included: for odd functions computed of |x|."""
    return binary("copysign", result, x)


def sign(x: Expr) -> Expr:
    """1, 0 or -1; zeros and NaN stay what they are."""
    zero = number(0, x)
    return select(compare("gt", x, zero), number(1, x), select(compare("lt", x, zero), number(-1, x), x))


def _half_of_exp(a: Expr) -> Expr:
    """exp(a) / 2, which overflows no earlier than it must."""
    root = build.exp(a * 0.5)
    return (root * 0.5) * root


def sinh(x: Expr) -> Expr:
    """(e + e / (e + 1)) / 2 with e = expm1|x|; far out exp|x| / 2."""
    a = call("abs", x)
    e = call("expm1", a)
    return with_sign_of(select(compare("lt", a, number(20, x)), (e + e / (e + 1.0)) * 0.5, _half_of_exp(a)), x)


def cosh(x: Expr) -> Expr:
    """(e + 1 / e) / 2 with e = exp|x|; far out e / 2."""
    a = call("abs", x)
    e = build.exp(a)
    return select(compare("lt", a, number(20, x)), (e + 1.0 / e) * 0.5, _half_of_exp(a))


def asinh(x: Expr) -> Expr:
    """log1p(a + a² / (1 + √(a² + 1))), a = |x|; where a² would overflow, log a + log 2."""
    a = call("abs", x)
    near = compare("lt", a, number(1e9, x))
    b = select(near, a, 1.0)
    usual = call("log1p", b + b * b / (build.sqrt(b * b + 1.0) + 1.0))
    return with_sign_of(select(near, usual, build.log(a) + math.log(2)), x)


def acosh(x: Expr) -> Expr:
    """log1p(t + √(2t + t²)), t = x - 1; NaN below 1."""
    near = compare("gt", x, number(1e9, x))
    t = select(near, 1.0, x - 1.0)
    usual = select(near, build.log(x) + math.log(2), call("log1p", t + build.sqrt(t * 2.0 + t * t)))
    return select(compare("lt", x, number(1, x)), number(math.nan, x), usual)


def atanh(x: Expr) -> Expr:
    """log1p(2a / (1 - a)) / 2, a = |x|."""
    a = call("abs", x)
    return with_sign_of(call("log1p", a * 2.0 / (1.0 - a)) * 0.5, x)


# (atan(z) / z - 1) / z² by powers of z², |z| <= tan(π/8).
_ATAN: dict[Dtype, tuple[float, ...]] = {
    "f32": (-1 / 3, 1 / 5, -1 / 7, 1 / 9, -1 / 11, 1 / 13, -1 / 15, 1 / 17, -1 / 19),
    "f64": (
        -0.3333333333333333,
        0.1999999999999552,
        -0.14285714284666542,
        0.11111111015256361,
        -0.09090904578123903,
        0.07692183190826087,
        -0.06664511447381948,
        0.0585814891280221,
        -0.0508544973794026,
        0.03923165829558718,
        -0.01917688711906225,
    ),
}


def atan(x: Expr) -> Expr:
    """Reduced to |z| <= tan(π/8) by atan a = π/2 - atan(1/a) and π/4 + atan((a - 1) / (a + 1)), then a polynomial."""
    a = call("abs", x)
    big = compare("gt", a, number(math.tan(3 * math.pi / 8), x))
    middle = compare("gt", a, number(math.tan(math.pi / 8), x))
    z = select(big, -1.0 / a, select(middle, (a - 1.0) / (a + 1.0), a))
    z2 = z * z
    *rest, last = _ATAN[x.dtype]
    polynomial: Expr = number(last, x)
    for c in reversed(rest):
        polynomial = polynomial * z2 + c
    y = z + z * z2 * polynomial
    base = select(big, number(math.pi / 2, x), select(middle, number(math.pi / 4, x), number(0, x)))
    return with_sign_of(base + y, x)


def asin(x: Expr) -> Expr:
    """atan(x / √((1 - x)(1 + x))); at ±1 the quotient is infinite and atan is ±π/2."""
    return atan(x / build.sqrt((1.0 - x) * (x + 1.0)))


def acos(x: Expr) -> Expr:
    """2 · atan √((1 - x) / (1 + x))."""
    return atan(build.sqrt((1.0 - x) / (x + 1.0))) * 2.0


def tan(x: Expr) -> Expr:
    return call("sin", x) / call("cos", x)


def softplus(x: Expr) -> Expr:
    """max(x, 0) + log1p(exp(-|x|))."""
    return build.relu(x) + call("log1p", build.exp(call("neg", call("abs", x))))


def mish(x: Expr) -> Expr:
    return x * build.tanh(softplus(x))


def gelu(x: Expr, approximate: bool) -> Expr:
    if approximate:
        return x * 0.5 * (build.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0)
    return x * 0.5 * (build.erf(x * math.sqrt(0.5)) + 1.0)


def divide(a: Expr, b: Expr) -> Expr:
    """Floats: IEEE. Integers: towards zero; x / 0 is 0 and the most negative number over -1 is itself."""
    if a.dtype in FLOATS:
        return a / b
    zero = number(0, a)
    q, r = binary("floordiv", a, b), binary("mod", a, b)
    up = compare("ne", r, zero) & compare("ne", compare("lt", a, zero), compare("lt", b, zero))
    return select(up, q + 1, q)


def remainder(a: Expr, b: Expr, like_c: bool) -> Expr:
    """Python's % (sign of the divisor) or C's fmod (sign of the dividend), exact; for integers, x % 0 is 0."""
    if a.dtype in FLOATS:
        return binary("fmod" if like_c else "mod", a, b)
    m = binary("mod", a, b)
    zero = number(0, a)
    if not like_c:
        return m
    wrong = compare("ne", m, zero) & compare("ne", compare("lt", a, zero), compare("lt", b, zero))
    return select(wrong, m - b, m)


def power(x: Expr, y: Expr) -> Expr:
    """x to the y, in the type of x.

    Floats: C's pow; in f64 unless both are f32. Integers: exactly, modulo 2^bits; to a negative power 1 / x^-y as
    integers divide, which is 0 unless x is 1 or -1. An integer to the power of a float: in f64, then cast.
    """
    if x.dtype in FLOATS or y.dtype in FLOATS:
        wide: Dtype = "f32" if x.dtype == "f32" and _is_f32(y) else "f64"
        base = build.cast(x, wide)
        if isinstance(y, Const) and float(y.value) in _SHORT:
            return build.cast(_SHORT[float(y.value)](base), x.dtype)
        exponent = Const(y.value, wide) if isinstance(y, Const) else build.cast(y, wide)
        return build.cast(binary("pow", base, exponent), x.dtype)
    if isinstance(y, Const) and 0 <= y.value <= MOST_UNROLLED:
        return _product(x, int(y.value))
    wide = "i32" if is_exact(x.dtype, "i32") and is_exact(y.dtype, "i32") else "i64"
    return build.cast(binary("pow", build.cast(x, wide), build.cast(y, wide)), x.dtype)


def _is_f32(y: Expr) -> bool:
    return y.dtype == "f32" or (isinstance(y, Const) and fits_f32(float(y.value)))


def fits_f32(value: float) -> bool:
    """Whether a number is an f32, NaN included."""
    with np.errstate(over="ignore"):
        return math.isnan(value) or float(np.float32(value)) == value


MOST_UNROLLED = 64
"""The largest exponent of an integer whose power is written as products."""


def _product(x: Expr, times: int) -> Expr:
    """x · x · …, by squaring."""
    if times < 2:
        return x if times else number(1, x)
    half = _product(x, times // 2)
    return half * half * x if times % 2 else half * half


def _root(x: Expr) -> Expr:
    """pow(x, 1/2), which is not the square root of -0 and of minus infinity."""
    return select(compare("eq", x, number(-math.inf, x)), number(math.inf, x), build.sqrt(x) + 0.0)


def _quarters(x: Expr, count: int) -> Expr:
    """x to the 1/4, 2/4 or 3/4; local response normalisation takes x to the -3/4."""
    half = _root(x)
    return half if count == 2 else build.sqrt(half) if count == 1 else half * build.sqrt(half)


_SHORT: dict[float, Callable[[Expr], Expr]] = {
    **{float(n): lambda x, n=n: _product(x, n) for n in (1, 2, 3, 4)},
    **{n / 4: lambda x, n=n: _quarters(x, n) for n in (1, 2, 3)},
    **{-n / 4: lambda x, n=n: 1.0 / _quarters(x, n) for n in (1, 2, 3)},
    -1.0: lambda x: 1.0 / x,
    1.5: lambda x: _product(_root(x), 3),
}
"""Exponents that need no logarithm; within 4 ulps."""
