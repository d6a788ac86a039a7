"""Functions of scalars that the core lacks, built from the functions it has.

Results are right to a few units in the last place of the type for every argument, f64 included; odd functions keep the
sign of zero. docs/numerics.md lists the results for NaN, infinities and integers without an answer.
"""

from __future__ import annotations

import math

from stormdrop.ir import build
from stormdrop.ir.expr import FLOATS, Const, Dtype, Expr, binary, call, compare, select


def number(value: float, like: Expr) -> Const:
    return Const(value, like.dtype)


def is_nan(x: Expr) -> Expr:
    return compare("ne", x, x)


def with_sign_of(result: Expr, x: Expr) -> Expr:
    """Returns |result| with the sign of x, zeros included, for odd functions computed from |x|."""
    return binary("copysign", result, x)


def sign(x: Expr) -> Expr:
    """Returns 1, 0 or -1; zeros and NaN stay unchanged."""
    zero = number(0, x)
    return select(compare("gt", x, zero), number(1, x), select(compare("lt", x, zero), number(-1, x), x))


def _half_of_exp(a: Expr) -> Expr:
    """Returns exp(a) / 2, without overflow before the result itself overflows."""
    root = build.exp(a * 0.5)
    return (root * 0.5) * root


def sinh(x: Expr) -> Expr:
    """Returns (e + e / (e + 1)) / 2 with e = expm1|x|; far out exp|x| / 2."""
    a = call("abs", x)
    e = call("expm1", a)
    return with_sign_of(select(compare("lt", a, number(20, x)), (e + e / (e + 1.0)) * 0.5, _half_of_exp(a)), x)


def cosh(x: Expr) -> Expr:
    """Returns (e + 1 / e) / 2 with e = exp|x|; far out e / 2."""
    a = call("abs", x)
    e = build.exp(a)
    return select(compare("lt", a, number(20, x)), (e + 1.0 / e) * 0.5, _half_of_exp(a))


def asinh(x: Expr) -> Expr:
    """Returns log1p(a + a² / (1 + √(a² + 1))), a = |x|; if a² would overflow, log a + log 2."""
    a = call("abs", x)
    near = compare("lt", a, number(1e9, x))
    b = select(near, a, 1.0)
    usual = call("log1p", b + b * b / (build.sqrt(b * b + 1.0) + 1.0))
    return with_sign_of(select(near, usual, build.log(a) + math.log(2)), x)


def acosh(x: Expr) -> Expr:
    """Returns log1p(t + √(2t + t²)), t = x - 1; NaN below 1."""
    near = compare("gt", x, number(1e9, x))
    t = select(near, 1.0, x - 1.0)
    usual = select(near, build.log(x) + math.log(2), call("log1p", t + build.sqrt(t * 2.0 + t * t)))
    return select(compare("lt", x, number(1, x)), number(math.nan, x), usual)


def atanh(x: Expr) -> Expr:
    """Returns log1p(2a / (1 - a)) / 2, a = |x|."""
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
    """Returns atan x: a polynomial on |z| <= tan(π/8).

    Larger arguments are reduced by atan a = π/2 - atan(1/a) and π/4 + atan((a - 1) / (a + 1)).
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
    return with_sign_of(base + y, x)


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
    return x * build.tanh(softplus(x))


def gelu(x: Expr, approximate: bool) -> Expr:
    if approximate:
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
    up = compare("ne", r, zero) & compare("ne", compare("lt", a, zero), compare("lt", b, zero))
    return select(up, q + 1, q)


def remainder(a: Expr, b: Expr, like_c: bool) -> Expr:
    """Returns Python's % (sign of the divisor) or C's fmod (sign of the dividend), exact; for integers, x % 0 is 0."""
    if a.dtype in FLOATS:
        return binary("fmod" if like_c else "mod", a, b)
    m = binary("mod", a, b)
    zero = number(0, a)
    if not like_c:
        return m
    wrong = compare("ne", m, zero) & compare("ne", compare("lt", a, zero), compare("lt", b, zero))
    return select(wrong, m - b, m)
