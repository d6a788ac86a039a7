"""Functions of scalars that the core lacks, built from those it has.

They are right to a few units in the last place of the type wherever the core's own functions are; f64 included. `log1p` and
`expm1` use Kahan's correction, which needs that nobody reassociates: the emitter does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from stormdrop.ir import build
from stormdrop.ir.expr import FLOATS, Const, Expr, binary, call, compare, select


def number(value: float, like: Expr) -> Const:
    return Const(value, like.dtype)


def negative(x: Expr) -> Expr:
    return call("neg", x)


def magnitude(x: Expr) -> Expr:
    return call("abs", x)


def is_nan(x: Expr) -> Expr:
    return compare("ne", x, x)


def with_sign_of(result: Expr, x: Expr) -> Expr:
    """`result` where x >= 0 (or NaN), else its negative: for odd functions computed of |x|."""
    return select(compare("lt", x, number(0, x)), negative(result), result)


def sign(x: Expr) -> Expr:
    """1, 0 or -1; zeros and NaN stay what they are."""
    zero = number(0, x)
    return select(compare("gt", x, zero), number(1, x), select(compare("lt", x, zero), number(-1, x), x))


def log1p(u: Expr) -> Expr:
    """log(1 + u) = log(w) · u / (w - 1), w = 1 + u rounded."""
    w = u + 1.0
    good = compare("ne", w, number(1, u))
    finite = compare("lt", w, number(math.inf, u))
    usual = build.log(w) * (u / select(good, w - 1.0, 1.0))
    return select(good, select(finite, usual, build.log(w)), u)


def expm1(x: Expr) -> Expr:
    """exp(x) - 1 = (e - 1) · x / log(e), e = exp(x) rounded."""
    e = build.exp(x)
    near = compare("lt", magnitude(x), number(1, x))
    change = compare("ne", e, number(1, x))
    corrected = (e - 1.0) * (x / select(change, build.log(e), 1.0))
    return select(near, select(change, corrected, x), e - 1.0)


def sinh(x: Expr) -> Expr:
    """(e + e / (e + 1)) / 2 with e = expm1|x|; far out exp(|x| - log 2), which overflows no earlier than it must."""
    a = magnitude(x)
    e = expm1(a)
    far = build.exp(a - math.log(2))
    return with_sign_of(select(compare("lt", a, number(20, x)), (e + e / (e + 1.0)) * 0.5, far), x)


def cosh(x: Expr) -> Expr:
    a = magnitude(x)
    e = build.exp(a)
    return select(compare("lt", a, number(20, x)), (e + 1.0 / e) * 0.5, build.exp(a - math.log(2)))


def asinh(x: Expr) -> Expr:
    """log1p(a + a² / (1 + √(a² + 1))), a = |x|; where a² would overflow, log a + log 2."""
    a = magnitude(x)
    near = compare("lt", a, number(1e9, x))
    b = select(near, a, 1.0)
    return with_sign_of(select(near, log1p(b + b * b / (build.sqrt(b * b + 1.0) + 1.0)), build.log(a) + math.log(2)), x)


def acosh(x: Expr) -> Expr:
    """log1p(t + √(2t + t²)), t = x - 1; NaN below 1."""
    near = compare("gt", x, number(1e9, x))
    t = select(near, 1.0, x - 1.0)
    usual = select(near, build.log(x) + math.log(2), log1p(t + build.sqrt(t * 2.0 + t * t)))
    return select(compare("lt", x, number(1, x)), number(math.nan, x), usual)


def atanh(x: Expr) -> Expr:
    """log1p(2a / (1 - a)) / 2, a = |x|."""
    a = magnitude(x)
    return with_sign_of(log1p(a * 2.0 / (1.0 - a)) * 0.5, x)


_ATAN = (-1 / 3, 1 / 5, -1 / 7, 1 / 9, -1 / 11, 1 / 13, -1 / 15, 1 / 17, -1 / 19)


def atan(x: Expr) -> Expr:
    """Reduced to |z| <= tan(π/8) by atan a = π/2 - atan(1/a) and π/4 + atan((a - 1) / (a + 1)), then its series.

    The series ends at z¹⁹: 10⁻⁹ off at worst. In f64 a Newton step on tan(y) = z squares that.
    """
    a = magnitude(x)
    big, middle = compare("gt", a, number(math.tan(3 * math.pi / 8), x)), compare("gt", a, number(math.tan(math.pi / 8), x))
    z = select(big, -1.0 / a, select(middle, (a - 1.0) / (a + 1.0), a))
    z2 = z * z
    polynomial: Expr = number(_ATAN[-1], x)
    for c in reversed(_ATAN[:-1]):
        polynomial = polynomial * z2 + c
    y = z + z * z2 * polynomial
    if x.dtype == "f64":
        s, c = call("sin", y), call("cos", y)
        y = y + (z * c - s) * c
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
    return build.relu(x) + log1p(build.exp(negative(magnitude(x))))


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
    """Python's % (sign of the divisor) or C's fmod (sign of the dividend); for integers, x % 0 is 0."""
    if a.dtype in FLOATS:
        return _c_remainder(a, b) if like_c else _python_remainder(a, b)
    m = binary("mod", a, b)
    zero = number(0, a)
    if not like_c:
        return m
    wrong = compare("ne", m, zero) & compare("ne", compare("lt", a, zero), compare("lt", b, zero))
    return select(wrong, m - b, m)


def _c_remainder(a: Expr, b: Expr) -> Expr:
    """The sign of the dividend. f32 goes through f64, in which it is exact while the quotient is below 2²⁹; beyond what a quotient
    can say, it is 0.
    """
    if a.dtype == "f32":
        return build.cast(_c_remainder(build.cast(a, "f64"), build.cast(b, "f64")), "f32")
    x, y, zero = magnitude(a), magnitude(b), number(0, a)
    rest = x - call("floor", x / y) * y
    near = select(compare("lt", rest, zero), rest + y, rest)
    lost = compare("lt", near, zero) | (compare("ge", near, y) & compare("lt", x, number(math.inf, a)))
    return with_sign_of(select(compare("lt", x, y), x, select(lost, zero, near)), a)


def _python_remainder(a: Expr, b: Expr) -> Expr:
    """The sign of the divisor; a finite number modulo an infinite one is itself, or the infinite one where signs differ."""
    zero = number(0, a)
    rest = a - call("floor", a / b) * b
    endless = compare("eq", magnitude(b), number(math.inf, b)) & compare("lt", magnitude(a), number(math.inf, a))
    apart = compare("ne", compare("lt", a, zero), compare("lt", b, zero)) & compare("ne", a, zero)
    signed = select(compare("eq", rest, zero), with_sign_of(zero, b), rest)
    return select(endless, select(apart, b, a), signed)


def power(x: Expr, y: Expr) -> Expr:
    """x to the y. Integers by f64, rounded: exact up to about 2⁵⁰; a negative exponent truncates as C does."""
    if x.dtype not in FLOATS:
        return _wide_power(x, power(build.cast(x, "f64"), build.cast(y, "f64")))
    y = build.cast(y, x.dtype)
    if isinstance(y, Const) and y.value in _SHORT:
        return _SHORT[float(y.value)](x)
    zero, one = number(0, x), number(1, x)
    size = build.exp(y * build.log(magnitude(x)))
    whole = compare("eq", y, call("floor", y))
    half = y * 0.5
    odd = whole & compare("ne", half, call("floor", half))
    signed = select(whole, select(odd, negative(size), size), number(math.nan, x))
    usual = select(compare("lt", x, zero), signed, size)
    trivial = compare("eq", y, zero) | compare("eq", x, one)
    return select(trivial, one, usual)


def _wide_power(x: Expr, wide: Expr) -> Expr:
    whole = call("round", wide)
    return build.cast(select(compare("lt", magnitude(wide), number(0.999999, wide)), whole * 0.0, whole), x.dtype)


_SHORT: dict[float, Callable[[Expr], Expr]] = {
    1.0: lambda x: x, 2.0: lambda x: x * x, 3.0: lambda x: x * x * x, 0.5: build.sqrt, -0.5: build.rsqrt, -1.0: lambda x: 1.0 / x,
}  # fmt: skip
