"""Powers of scalars: `x ** y`, built from products and square roots if the exponent is a short constant."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from stormdrop.ir import build
from stormdrop.ir.dtypes import is_exact
from stormdrop.ir.expr import FLOATS, Const, Dtype, Expr, binary, compare, select


def power(x: Expr, y: Expr) -> Expr:
    """Returns x to the power y, in the type of x.

    - Floats: C's pow, computed in f64 unless both are f32.
    - Integers: exact modulo 2^bits. A negative exponent gives 1 / x^-y in integer division: 0 unless x is 1 or -1.
    - An integer to the power of a float: computed in f64, then cast.
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
    """Returns whether a number is representable as f32; NaN is."""
    with np.errstate(over="ignore"):
        return math.isnan(value) or float(np.float32(value)) == value


MOST_UNROLLED = 64
"""The largest constant exponent of an integer power that is unrolled into products."""


def _product(x: Expr, times: int) -> Expr:
    """Returns x · x · …, by squaring."""
    if times < 2:
        return x if times else Const(1, x.dtype)
    half = _product(x, times // 2)
    return half * half * x if times % 2 else half * half


def _root(x: Expr) -> Expr:
    """Returns pow(x, 1/2), which differs from the square root for -0 and minus infinity."""
    return select(compare("eq", x, Const(-math.inf, x.dtype)), Const(math.inf, x.dtype), build.sqrt(x) + 0.0)


def _quarters(x: Expr, count: int) -> Expr:
    """Returns x to the 1/4, 2/4 or 3/4; local response normalisation takes x to the -3/4."""
    half = _root(x)
    return half if count == 2 else build.sqrt(half) if count == 1 else half * build.sqrt(half)


_SHORT: dict[float, Callable[[Expr], Expr]] = {
    **{float(n): lambda x, n=n: _product(x, n) for n in (1, 2, 3, 4)},
    **{n / 4: lambda x, n=n: _quarters(x, n) for n in (1, 2, 3)},
    **{-n / 4: lambda x, n=n: 1.0 / _quarters(x, n) for n in (1, 2, 3)},
    -1.0: lambda x: 1.0 / x,
    1.5: lambda x: _product(_root(x), 3),
}
"""Exponents computed without a logarithm; exact within 4 ulps."""
