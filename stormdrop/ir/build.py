"""Functions for writing tensor expressions: `sd.sum`, `sd.exp`, `sd.where`, …, powers `x ** y`, names of axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir.dtypes import HALVES, DtypeLike, dtype_of, is_exact
from stormdrop.ir.expr import (
    FLOATS,
    Axis,
    Cast,
    Combiner,
    Const,
    Dtype,
    Expr,
    Reduce,
    Scalar,
    binary,
    call,
    compare,
    rewrite,
    select,
)


def reduce(combiner: Combiner, body: Expr, *axes: Axis, **unknown: object) -> Reduce:
    """Raises UserError for NumPy's form `sd.sum(x, axis=1)`; the message states the right form."""
    spelling = f"write sd.{combiner}(x[i, k], k) with k = sd.reduce_axis(…)"
    if unknown:
        raise UserError(f"sd.{combiner} has no argument {', '.join(unknown)}=: {spelling}")
    if not isinstance(body, Expr):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"sd.{combiner} reduces an expression, not {body!r}: {spelling}")
    if not axes:
        raise UserError(f"sd.{combiner} needs at least one reduce axis: {spelling}")
    for axis in axes:
        if not isinstance(axis, Axis):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f"sd.{combiner} reduces over axes, not over {axis!r}: {spelling}")
    return Reduce(combiner, axes, body)


def sum(body: Expr, *axes: Axis, **unknown: object) -> Reduce:
    return reduce("sum", body, *axes, **unknown)


def prod(body: Expr, *axes: Axis, **unknown: object) -> Reduce:
    return reduce("prod", body, *axes, **unknown)


def reduce_max(body: Expr, *axes: Axis, **unknown: object) -> Reduce:
    return reduce("max", body, *axes, **unknown)


def reduce_min(body: Expr, *axes: Axis, **unknown: object) -> Reduce:
    return reduce("min", body, *axes, **unknown)


def mean(body: Expr, *axes: Axis, **unknown: object) -> Expr:
    """Returns the sum over `axes`, divided by the number of summands."""
    return reduce("sum", body, *axes, **unknown) / math.prod(axis.extent for axis in axes)


def maximum(a: Expr, b: Expr | Scalar) -> Expr:
    return binary("max", a, b)


def minimum(a: Expr, b: Expr | Scalar) -> Expr:
    return binary("min", a, b)


def _function(name: str) -> Callable[[Expr], Expr]:
    def function(a: Expr) -> Expr:
        return call(name, a)

    function.__name__ = function.__qualname__ = name
    return function


exp = _function("exp")
log = _function("log")
sqrt = _function("sqrt")
rsqrt = _function("rsqrt")
tanh = _function("tanh")
erf = _function("erf")
sigmoid = _function("sigmoid")


def relu(a: Expr) -> Expr:
    """Returns `max(a, 0)` that keeps NaN, as NumPy's maximum does."""
    return select(compare("gt", Const(0, a.dtype), a), 0, a)


where = select


def equal(a: Expr, b: Expr | Scalar) -> Expr:
    return compare("eq", a, b)


def cast(a: Expr, dtype: DtypeLike) -> Expr:
    """Returns the value in another type; conversions between a half and a type other than f32 round to f32 first."""
    dtype = dtype_of(dtype)
    if a.dtype != dtype and not {a.dtype, dtype}.isdisjoint(HALVES) and a.dtype != "f32":
        a = Cast(a, "f32")
    return a if a.dtype == dtype else Cast(a, dtype)


def power(x: Expr, y: Expr) -> Expr:
    """Returns x to the power y, in the type of x.

    - Floats: C's pow, computed in f64 unless both are f32.
    - Integers: exact modulo 2^bits. A negative exponent gives 1 / x^-y in integer division: 0 unless x is 1 or -1.
    - An integer to the power of a float: computed in f64, then cast.
    """
    if x.dtype in FLOATS or y.dtype in FLOATS:
        wide: Dtype = "f32" if x.dtype == "f32" and _is_f32(y) else "f64"
        base = cast(x, wide)
        if isinstance(y, Const) and float(y.value) in _SHORT:
            return cast(_SHORT[float(y.value)](base), x.dtype)
        exponent = Const(y.value, wide) if isinstance(y, Const) else cast(y, wide)
        return cast(binary("pow", base, exponent), x.dtype)
    if isinstance(y, Const) and 0 <= y.value <= MOST_UNROLLED:
        return _product(x, int(y.value))
    wide = "i32" if is_exact(x.dtype, "i32") and is_exact(y.dtype, "i32") else "i64"
    return cast(binary("pow", cast(x, wide), cast(y, wide)), x.dtype)


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
    return select(compare("eq", x, Const(-math.inf, x.dtype)), Const(math.inf, x.dtype), sqrt(x) + 0.0)


def _quarters(x: Expr, count: int) -> Expr:
    """Returns x to the 1/4, 2/4 or 3/4; local response normalisation takes x to the -3/4."""
    half = _root(x)
    return half if count == 2 else sqrt(half) if count == 1 else half * sqrt(half)


_SHORT: dict[float, Callable[[Expr], Expr]] = {
    **{float(n): lambda x, n=n: _product(x, n) for n in (1, 2, 3, 4)},
    **{n / 4: lambda x, n=n: _quarters(x, n) for n in (1, 2, 3)},
    **{-n / 4: lambda x, n=n: 1.0 / _quarters(x, n) for n in (1, 2, 3)},
    -1.0: lambda x: 1.0 / x,
    1.5: lambda x: _product(_root(x), 3),
}
"""Exponents computed without a logarithm; exact within 4 ulps."""


_LETTERS = {"spatial": "ijlmnopqs", "reduce": "krtuvw"}


def distinct(axes: Iterable[Axis]) -> dict[Axis, Axis]:
    """Returns a renamed axis for each axis that shares its name with an earlier axis."""
    used: set[str] = set()
    renamed: dict[Axis, Axis] = {}
    for a in axes:
        free = (name for name in (a.name, *_LETTERS[a.kind]) if name not in used)
        name = next(free, f"{a.name}{len(used)}")
        used.add(name)
        if name != a.name:
            renamed[a] = Axis(name, a.extent, a.kind, a.serial)
    return renamed


def renamed_axes(e: Expr, renamed: dict[Axis, Axis]) -> Expr:
    """Returns the expression with renamed axes, in bodies and in reductions."""

    def visit(node: Expr) -> Expr | None:
        if isinstance(node, Reduce):
            return Reduce(node.combiner, [renamed.get(a, a) for a in node.axes], renamed_axes(node.body, renamed))
        return renamed.get(node) if isinstance(node, Axis) else None

    return rewrite(e, visit) if renamed else e
