"""Functions for writing tensor expressions: `sd.sum`, `sd.exp`, `sd.where`, …"""

from __future__ import annotations

import math
from collections.abc import Callable

from stormdrop.base.errors import UserError
from stormdrop.ir.dtypes import HALVES, DtypeLike, dtype_of
from stormdrop.ir.expr import Axis, Cast, Combiner, Const, Expr, Reduce, Scalar, binary, call, compare, select


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
