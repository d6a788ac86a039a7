"""Scalar functions composed of the functions of `ir/expr.py`, such as asinh of log and log1p.

Only `number`, `sign`, `divide` and `remainder` also take integers. Float results are right to a few units in the last
place for every argument, f64 included. Odd functions keep the sign of zero. docs/numerics.md lists the results for NaN,
infinities and integer division by zero.
"""

from __future__ import annotations

import math

from stormdrop.ir import build
from stormdrop.ir.expr import FLOATS, Const, Dtype, Expr, binary, call, compare, select


def number(value: float, like: Expr) -> Const:
    """Returns a constant of the type of `like`."""
    return Const(value, like.dtype)


def is_nan(x: Expr) -> Expr:
    return compare("ne", x, x)


def with_sign_of(x: Expr, magnitude: Expr) -> Expr:
    """Returns |magnitude| with the sign of x, zeros included: the result of an odd function, computed from |x|."""
    return binary("copysign", magnitude, x)


def sign(x: Expr) -> Expr:
    """Returns 1, 0 or -1; zeros and NaN stay unchanged."""
    zero = number(0, x)
    return select(compare("gt", x, zero), number(1, x), select(compare("lt", x, zero), number(-1, x), x))


def _half_of_exp(a: Expr) -> Expr:
    """Returns exp(a) / 2, without overflow before the result itself overflows."""
    root = build.exp(a * 0.5)
    return (root * 0.5) * root


def sinh(x: Expr) -> Expr:
    """Returns (e + e / (e + 1)) / 2 with e = expm1|x|; exp|x| / 2 if |x| >= 20."""
    a = call("abs", x)
    e = call("expm1", a)
    return with_sign_of(x, select(compare("lt", a, number(20, x)), (e + e / (e + 1.0)) * 0.5, _half_of_exp(a)))


def cosh(x: Expr) -> Expr:
    """Returns (e + 1 / e) / 2 with e = exp|x|; e / 2 if |x| >= 20."""
    a = call("abs", x)
    e = build.exp(a)
    return select(compare("lt", a, number(20, x)), (e + 1.0 / e) * 0.5, _half_of_exp(a))


def asinh(x: Expr) -> Expr:
    """Returns log1p(a + a² / (1 + √(a² + 1))), a = |x|; log a + log 2 if a >= 1e9."""
    a = call("abs", x)
    is_small = compare("lt", a, number(1e9, x))
    b = select(is_small, a, 1.0)  # b² cannot overflow
    of_small = call("log1p", b + b * b / (build.sqrt(b * b + 1.0) + 1.0))
    return with_sign_of(x, select(is_small, of_small, build.log(a) + math.log(2)))


def acosh(x: Expr) -> Expr:
    """Returns log1p(t + √(2t + t²)), t = x - 1; log x + log 2 if x > 1e9; NaN below 1."""
    is_large = compare("gt", x, number(1e9, x))
    t = select(is_large, 1.0, x - 1.0)  # t² cannot overflow
    from_one = select(is_large, build.log(x) + math.log(2), call("log1p", t + build.sqrt(t * 2.0 + t * t)))
    return select(compare("lt", x, number(1, x)), number(math.nan, x), from_one)


def atanh(x: Expr) -> Expr:
    """Returns log1p(2a / (1 - a)) / 2, a = |x|."""
    a = call("abs", x)
    return with_sign_of(x, call("log1p", a * 2.0 / (1.0 - a)) * 0.5)


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
"""The coefficients of (atan(z) / z - 1) / z² by powers of z², for |z| <= tan(π/8)."""


def atan(x: Expr) -> Expr:
    """Returns the arctangent: a polynomial of |x| up to tan(π/8), and above, with a = |x|,

    atan a = π/4 + atan((a - 1) / (a + 1))        a <= tan(3π/8)
    atan a = π/2 - atan(1 / a)                    a > tan(3π/8)
    """
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
    return with_sign_of(x, base + y)


def asin(x: Expr) -> Expr:
    """Returns atan(x / √((1 - x)(1 + x))); at ±1 the quotient is infinite and atan is ±π/2."""
    return atan(x / build.sqrt((1.0 - x) * (x + 1.0)))


def acos(x: Expr) -> Expr:
    """Returns 2 · atan √((1 - x) / (1 + x))."""
    return atan(build.sqrt((1.0 - x) / (x + 1.0))) * 2.0


def tan(x: Expr) -> Expr:
    return call("sin", x) / call("cos", x)


def softplus(x: Expr) -> Expr:
    """Returns max(x, 0) + log1p(exp(-|x|))."""
    return build.relu(x) + call("log1p", build.exp(call("neg", call("abs", x))))


def mish(x: Expr) -> Expr:
    """Returns x · tanh(softplus(x))."""
    return x * build.tanh(softplus(x))


def gelu(x: Expr, by_tanh: bool) -> Expr:
    """Returns x · Φ(x), with Φ the normal distribution function: by erf, or approximated by tanh."""
    if by_tanh:
        return x * 0.5 * (build.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0)
    return x * 0.5 * (build.erf(x * math.sqrt(0.5)) + 1.0)


def divide(a: Expr, b: Expr) -> Expr:
    """Returns a / b: for floats by IEEE, for integers rounded towards zero.

    An integer over 0 is 0, and the most negative integer over -1 is itself.
    """
    if a.dtype in FLOATS:
        return a / b
    zero = number(0, a)
    q, r = binary("floordiv", a, b), binary("mod", a, b)
    is_rounded_away = compare("ne", r, zero) & compare("ne", compare("lt", a, zero), compare("lt", b, zero))
    return select(is_rounded_away, q + 1, q)


def remainder(a: Expr, b: Expr, is_fmod: bool) -> Expr:
    """Returns the exact remainder of a / b: Python's %, with the sign of b, or C's fmod, with the sign of a.

    The remainder of an integer over 0 is 0.
    """
    if a.dtype in FLOATS:
        return binary("fmod" if is_fmod else "mod", a, b)
    m = binary("mod", a, b)
    zero = number(0, a)
    if not is_fmod:
        return m
    has_sign_of_b_only = compare("ne", m, zero) & compare("ne", compare("lt", a, zero), compare("lt", b, zero))
    return select(has_sign_of_b_only, m - b, m)
