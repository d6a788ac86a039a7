"""Which tasks a float64 reference can judge with given data: those in which no rounding decides a jump.

A comparison, a conversion to an integer or a floor may turn out differently for two values that differ by a rounding
error. So every value is followed through the task as an interval and a grain: with grain g it is a multiple of 2⁻ᵍ,
computed without rounding; without one it is rounded. A task is judged if only exact values are compared, converted or
cut, and if nothing overflows, divides by zero or leaves the domain of a function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.expr import FLOATS, Axis, Bin, Call, Cast, Cmp, Const, Dtype, Expr, Load, Select
from stormdrop.ir.tensor import Task, Tensor

Array = NDArray[Any]
EXACT_BITS = {"f32": 24, "f64": 50}
MOST_GRAIN = 40
LARGEST = 1e30
SMALLEST_DIVISOR = 2.0**-20


class Unjudged(Exception):
    """Rounding decides, or a value leaves what floats can hold."""


@dataclass(frozen=True, slots=True)
class Span:
    """All values of an expression: between `low` and `high`, and multiples of 2⁻ᵍʳᵃⁱⁿ if they are exact."""

    low: float
    high: float
    grain: int | None = 0

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))


TRUTH = Span(0, 1)


def is_judged(task: Task, arrays: Mapping[str, Array]) -> bool:
    """Whether every variant computes the same with these inputs, but for rounding."""
    try:
        for variant in task.variants:
            known = {t: _of_array(arrays[t.name], t.dtype) for t in task.inputs}
            for t in variant.stages:
                known[t] = _stage(t, known)
    except Unjudged:
        return False
    return True


def _of_array(a: Array, dtype: Dtype) -> Span:
    if a.size == 0:
        return Span(0, 0)
    if dtype not in FLOATS:
        return Span(int(a.min()), int(a.max()))
    grain = next((g for g in range(12) if np.array_equal(a * 2.0**g, np.rint(a * 2.0**g))), None)
    return _checked(Span(float(a.min()), float(a.max()), grain), dtype)


def _checked(s: Span, dtype: Dtype) -> Span:
    """What a type makes of a value: integers wrap, floats that need more bits than they have are rounded."""
    if dtype not in FLOATS:
        bits = 1 if dtype == "bool" else 31 if dtype == "i32" else 63
        return s if s.size < 2**bits else Span(-(2**bits), 2**bits - 1)
    if not s.size < LARGEST:
        raise Unjudged
    exact = s.grain is not None and s.grain <= MOST_GRAIN and s.size * 2.0**s.grain <= 2.0 ** EXACT_BITS[dtype]
    return s if exact else Span(s.low, s.high, None)


def _stage(t: Tensor, known: Mapping[Tensor, Span]) -> Span:
    c = t.compute
    assert c is not None
    one = _Stage(known).span(c.body)
    n = math.prod(a.extent for a in c.reduce_axes)
    match c.combiner:
        case "sum" if t.dtype != "bool":
            return _checked(Span(one.low * n, one.high * n, one.grain), t.dtype)
        case "prod" if t.dtype != "bool":
            size = one.size**n if one.size <= 1 or n * math.log2(one.size) < 200 else math.inf
            return _checked(Span(-size, size, None if one.grain is None else one.grain * n), t.dtype)
        case "max" | "min" if n == 0:
            raise Unjudged
        case _:
            return one


class _Stage:
    """The spans of one compute's expressions."""

    def __init__(self, known: Mapping[Tensor, Span]) -> None:
        self.known = known
        self.memo: dict[Expr, Span] = {}

    def span(self, e: Expr) -> Span:
        if e not in self.memo:
            self.memo[e] = _checked(self._span(e), e.dtype)
        return self.memo[e]

    def _exactly(self, e: Expr) -> Span:
        s = self.span(e)
        if s.grain is None:
            raise Unjudged
        return s

    def _span(self, e: Expr) -> Span:
        match e:
            case Const(value):
                return _of_array(np.asarray(value), e.dtype)
            case Axis():
                return Span(0, e.extent - 1)
            case Load(tensor, indices):
                for i in indices:
                    self.span(i)
                return self.known[tensor]
            case Bin(op, a, b):
                return _binary(op, e.dtype, self.span(a), self.span(b), a is b)
            case Cmp(_, a, b):
                self._exactly(a)
                self._exactly(b)
                return TRUTH
            case Select(Cmp(_, Const() as bound, x), a, b) if a is bound and b is x:  # relu: no jump
                return _either(self.span(a), self.span(b))
            case Select(c, a, Const(value)) if e.dtype in FLOATS and math.isinf(value):
                self.span(c)
                return self.span(a)  # the border of a maximum, which is never the only element
            case Select(c, a, b):
                self.span(c)
                return _either(self.span(a), self.span(b))
            case Call(fn, a):
                return _function(fn, self._exactly(a) if fn in ("floor", "ceil", "round") else self.span(a))
            case Cast(a, dtype):
                return self._cast(a, dtype)
            case _:
                raise AssertionError(e)

    def _cast(self, a: Expr, dtype: Dtype) -> Span:
        s = self.span(a)
        if a.dtype == "f32" and dtype == "f64":
            return self._exactly(a)  # errors of f64 are measured in its own units
        if a.dtype in FLOATS and dtype not in FLOATS:
            self._exactly(a)
            return TRUTH if dtype == "bool" else Span(math.trunc(s.low), math.trunc(s.high))
        return TRUTH if dtype == "bool" else s


def _either(x: Span, y: Span) -> Span:
    return Span(min(x.low, y.low), max(x.high, y.high), _coarsest(x, y))


def _coarsest(x: Span, y: Span) -> int | None:
    return None if x.grain is None or y.grain is None else max(x.grain, y.grain)


def _binary(op: str, dtype: Dtype, x: Span, y: Span, same: bool) -> Span:
    match op:
        case "and" | "or" | "xor":
            return TRUTH
        case "add":
            return Span(x.low + y.low, x.high + y.high, _coarsest(x, y))
        case "sub":
            return Span(x.low - y.high, x.high - y.low, _coarsest(x, y))
        case "mul":
            ends = [a * b for a in (x.low, x.high) for b in (y.low, y.high)]
            grain = None if x.grain is None or y.grain is None else x.grain + y.grain
            return Span(0 if same else min(ends), max(ends), grain)
        case "min" | "max":
            pick = min if op == "min" else max
            return Span(pick(x.low, y.low), pick(x.high, y.high), _coarsest(x, y))
        case "floordiv" | "mod" if dtype not in FLOATS:
            return Span(-y.size, y.size) if op == "mod" else Span(-x.size - 1, x.size + 1)
        case "div" if min(abs(y.low), abs(y.high)) >= SMALLEST_DIVISOR and (y.low > 0) == (y.high > 0):
            size = x.size / min(abs(y.low), abs(y.high))
            return Span(-size, size, None)
        case _:
            raise Unjudged


def _function(fn: str, x: Span) -> Span:
    match fn:
        case "not":
            return TRUTH
        case "neg":
            return Span(-x.high, -x.low, x.grain)
        case "abs":
            return Span(max(0, x.low, -x.high), x.size, x.grain)
        case "floor" | "ceil" | "round":
            return Span(math.floor(x.low), math.ceil(x.high))
        case "exp" if x.size <= 40:
            return Span(math.exp(x.low), math.exp(x.high), None)
        case "log" if x.low >= 2.0**-10:
            return Span(math.log(x.low), math.log(x.high), None)
        case "sqrt" if x.low >= 0:
            return Span(math.sqrt(x.low), math.sqrt(x.high), None)
        case "rsqrt" if x.low >= 2.0**-20:
            return Span(1 / math.sqrt(x.high), 1 / math.sqrt(x.low), None)
        case "tanh" | "erf":
            return Span(-1, 1, None)
        case "sin" | "cos" if x.size <= 100:
            return Span(-1, 1, None)
        case "sigmoid" if x.size <= 40:
            return Span(0, 1, None)
        case _:
            raise Unjudged
