"""Functions for writing tensor expressions: `sd.sum`, `sd.exp`, `sd.where`, …"""

from __future__ import annotations

from collections.abc import Callable

from stormdrop.errors import UserError
from stormdrop.ir import expr
from stormdrop.ir.dtypes import HALVES
from stormdrop.ir.expr import Axis, Cast, Combiner, Const, Dtype, Expr, Reduce, Scalar, binary, call, compare, select


def reduce(combiner: Combiner, body: Expr, *axes: Axis) -> Reduce:
    if not axes:
        raise UserError(f"{combiner} needs at least one reduce axis")
    return Reduce(combiner, axes, body)


def sum(body: Expr, *axes: Axis) -> Reduce:
    return reduce("sum", body, *axes)


def prod(body: Expr, *axes: Axis) -> Reduce:
    return reduce("prod", body, *axes)


def reduce_max(body: Expr, *axes: Axis) -> Reduce:
    return reduce("max", body, *axes)


def reduce_min(body: Expr, *axes: Axis) -> Reduce:
    return reduce("min", body, *axes)


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
    """`max(a, 0)` that keeps NaN, as NumPy's maximum does."""
    return select(compare("gt", Const(0, a.dtype), a), 0, a)


where = select


def equal(a: Expr, b: Expr | Scalar) -> Expr:
    return compare("eq", a, b)


def cast(a: Expr, dtype: Dtype) -> Expr:
    """The value in another type; between a half and another type than f32 it is rounded to f32 on the way."""
    if dtype not in expr.NUMPY:
        raise UserError(f"unknown element type {dtype!r}; known: {', '.join(expr.NUMPY)}")
    if a.dtype != dtype and not {a.dtype, dtype}.isdisjoint(HALVES) and a.dtype != "f32":
        a = Cast(a, "f32")
    return a if a.dtype == dtype else Cast(a, dtype)
