"""Expressions: interned, immutable trees over scalars.

Equality is identity: two nodes built from equal parts are the same object. Constants keep their type and sign (1, 1.0,
True and -0.0 differ). Index arithmetic is `i64`; data has any type of `dtypes`.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeGuard
from weakref import WeakValueDictionary

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir.dtypes import FLOATS, PAIRS, UNSIGNED, Dtype, integer_range, wrapped
from stormdrop.ir.dtypes import ITEMSIZE as ITEMSIZE
from stormdrop.ir.dtypes import NUMPY as NUMPY

if TYPE_CHECKING:
    from stormdrop.ir.tensor import Tensor

Scalar = bool | int | float
AxisKind = Literal["spatial", "reduce"]
Combiner = Literal["sum", "max", "min", "prod"]

LOGICAL = ("and", "or", "xor")
BITWISE = ("bitand", "bitor", "bitxor", "shl", "shr")
"""Operations on the bits of integers. A shift by a negative number, or by all bits and more, leaves the sign alone:
-1 for `shr` of a negative number, else 0.
"""
_ROUNDED = ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "tanh", "erf", "sigmoid", "sin", "cos")
BITS_AS: dict[str, Dtype] = {f"bits_as_{dtype}": dtype for dtype in NUMPY if dtype not in PAIRS}
"""Functions that reinterpret the bits of a value as another type of the same size."""
UNARY = ("neg", "abs", "not", *_ROUNDED, "floor", "ceil", "round")

_table: WeakValueDictionary[tuple[object, ...], Expr] = WeakValueDictionary()


def interned_count() -> int:
    """Returns the number of expressions in this process."""
    return len(_table)


def _operator(op: str) -> Callable[[Expr, Expr | Scalar], Expr]:
    def method(self: Expr, other: Expr | Scalar) -> Expr:
        return binary(op, self, other)

    return method


def _reflected(op: str) -> Callable[[Expr, Scalar], Expr]:
    def method(self: Expr, other: Scalar) -> Expr:
        return binary(op, lift(other, self.dtype), self)

    return method


def _comparison(op: str) -> Callable[[Expr, Expr | Scalar], Expr]:
    def method(self: Expr, other: Expr | Scalar) -> Expr:
        return compare(op, self, other)

    return method


class Expr:
    """A scalar value; its subclasses are a closed set."""

    __slots__ = ("__weakref__", "dtype")
    __match_args__: tuple[str, ...] = ()
    __array_ufunc__ = None
    """Disables NumPy's operators, so that arithmetic with NumPy scalars uses this class."""
    dtype: Dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), tuple(getattr(self, name) for name in self.__match_args__))

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected("div")
    __floordiv__, __rfloordiv__ = _operator("floordiv"), _reflected("floordiv")
    __mod__, __rmod__ = _operator("mod"), _reflected("mod")
    __lt__, __le__ = _comparison("lt"), _comparison("le")
    __gt__, __ge__ = _comparison("gt"), _comparison("ge")
    __and__, __or__ = _operator("and"), _operator("or")

    def __pow__(self, other: Expr | Scalar) -> Expr:
        from stormdrop.ir.build import power

        return power(self, _exponent(other, self))

    def __rpow__(self, other: Scalar) -> Expr:
        return lift(other, self.dtype) ** self

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __abs__(self) -> Expr:
        return call("abs", self)

    def __eq__(self, other: object) -> Any:
        return compare("eq", self, other) if _is_value(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return compare("ne", self, other) if _is_value(other) else NotImplemented

    __hash__ = object.__hash__

    def __invert__(self) -> Expr:
        return call("not", self)

    def __bool__(self) -> bool:
        raise UserError(
            f"the expression {self} has no truth value while it is being built: use sd.where(condition, a, b), "
            "& instead of `and`, | instead of `or`, ~ instead of `not`"
        )

    def __str__(self) -> str:
        from stormdrop.ir.printer import show, with_distinct_names

        return show(with_distinct_names(self))

    __repr__ = __str__


def _intern(cls: type[Expr], dtype: Dtype, key: tuple[object, ...], values: tuple[object, ...]) -> Any:
    full = (cls, dtype, *key)
    interned = _table.get(full)
    if interned is None:
        node = object.__new__(cls)
        node.dtype = dtype
        for name, value in zip(cls.__match_args__, values):
            object.__setattr__(node, name, value)
        # Two threads may both build the node; setdefault keeps one.
        interned = _table.setdefault(full, node)
    return interned


class Const(Expr):
    """A literal: `Const(0.0, "f32")`."""

    __slots__ = ("value",)
    __match_args__ = ("value", "dtype")
    value: Scalar

    def __bool__(self) -> bool:
        return bool(self.value) if self.dtype == "bool" else super().__bool__()

    def __new__(cls, value: Scalar, dtype: Dtype) -> Const:
        value = float(value) if dtype in FLOATS else bool(value) if dtype == "bool" else int(value)
        if dtype in UNSIGNED:
            value = wrapped(int(value), dtype)
        return _intern(cls, dtype, (repr(value),), (value,))


class Var(Expr):
    """A named integer: a knob of a sketch or a loop of a lowered program."""

    __slots__ = __match_args__ = ("name",)
    name: str

    def __new__(cls, name: str) -> Var:
        return _intern(cls, "i64", (name,), (name,))


_serial = itertools.count()


class Axis(Expr):
    """One dimension that a compute iterates over. Axes are compared by identity: two axes of equal extent differ."""

    __slots__ = __match_args__ = ("name", "extent", "kind", "serial")
    name: str
    extent: int
    kind: AxisKind
    serial: int

    def __new__(cls, name: str, extent: int, kind: AxisKind = "spatial", serial: int | None = None) -> Axis:
        serial = next(_serial) if serial is None else serial
        return _intern(cls, "i64", (name, extent, kind, serial), (name, extent, kind, serial))


class Bin(Expr):
    """An arithmetic or logical operation on two values of one type.

    Loop programs add two operations: `pair` joins two bf16 or i16 numbers to one element, and `dot` sums the products
    of two pairs in f32 or i32.
    """

    __slots__ = __match_args__ = ("op", "a", "b")
    op: str
    a: Expr
    b: Expr

    def __new__(cls, op: str, a: Expr, b: Expr) -> Bin:
        return _intern(cls, _RESULTS.get((op, a.dtype), a.dtype), (op, a, b), (op, a, b))


_RESULTS: dict[tuple[str, Dtype], Dtype] = {
    ("pair", "bf16"): "bf16x2",
    ("pair", "i16"): "i16x2",
    ("dot", "bf16x2"): "f32",
    ("dot", "i16x2"): "i32",
}


class Cmp(Expr):
    """A comparison of two values of one type; its own type is bool.

    `==` and `!=` of axes and variables also have a truth value, identity, so that `axis in axes` works.
    """

    __slots__ = __match_args__ = ("op", "a", "b")
    op: str
    a: Expr
    b: Expr

    def __bool__(self) -> bool:
        if self.op in ("eq", "ne") and isinstance(self.a, (Axis, Var)) and isinstance(self.b, (Axis, Var)):
            return (self.a is self.b) == (self.op == "eq")
        return super().__bool__()

    def __new__(cls, op: str, a: Expr, b: Expr) -> Cmp:
        return _intern(cls, "bool", (op, a, b), (op, a, b))


class Select(Expr):
    """`a` if `condition` holds, else `b`; the other branch is not read."""

    __slots__ = __match_args__ = ("condition", "a", "b")
    condition: Expr
    a: Expr
    b: Expr

    def __new__(cls, condition: Expr, a: Expr, b: Expr) -> Select:
        return _intern(cls, a.dtype, (condition, a, b), (condition, a, b))


class Call(Expr):
    """A function of one value: exp, log, sqrt, tanh, neg, not, …"""

    __slots__ = __match_args__ = ("fn", "a")
    fn: str
    a: Expr

    def __new__(cls, fn: str, a: Expr) -> Call:
        return _intern(cls, BITS_AS.get(fn, a.dtype), (fn, a), (fn, a))


class Cast(Expr):
    """The value in another type, by C's rules; to bool it is `!= 0`."""

    __slots__ = ("a",)
    __match_args__ = ("a", "dtype")
    a: Expr

    def __new__(cls, a: Expr, dtype: Dtype) -> Cast:
        return _intern(cls, dtype, (a,), (a,))


class Load(Expr):
    """One element of a tensor."""

    __slots__ = __match_args__ = ("tensor", "indices")
    tensor: Tensor
    indices: tuple[Expr, ...]

    def __new__(cls, tensor: Tensor, indices: Sequence[Expr]) -> Load:
        return _intern(cls, tensor.dtype, (tensor, *indices), (tensor, tuple(indices)))


class Reduce(Expr):
    """A reduction over axes; stands only at the top of a compute's body."""

    __slots__ = __match_args__ = ("combiner", "axes", "body")
    combiner: Combiner
    axes: tuple[Axis, ...]
    body: Expr

    def __new__(cls, combiner: Combiner, axes: Sequence[Axis], body: Expr) -> Reduce:
        return _intern(cls, body.dtype, (combiner, *axes, body), (combiner, tuple(axes), body))


def identity_of(combiner: Combiner, dtype: Dtype) -> Scalar:
    """Returns the identity element of a reduction, its start value: 0, 1, or the type's own extreme."""
    if combiner in ("sum", "prod"):
        one = combiner == "prod"
        return bool(one) if dtype == "bool" else float(one) if dtype in FLOATS else int(one)
    if dtype in FLOATS:
        return -math.inf if combiner == "max" else math.inf
    least, most = (False, True) if dtype == "bool" else integer_range(dtype)
    return least if combiner == "max" else most


def lift(value: Expr | Scalar, dtype: Dtype) -> Expr:
    """Returns a Python number as a constant of `dtype`, and an expression unchanged.

    Raises UserError for other Python objects, and for a number that does not fit in `dtype`.
    """
    if isinstance(value, Expr):
        return value
    if not isinstance(value, _NUMBERS):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"{value!r} is neither an expression nor a number, but {type(value).__name__}")
    if dtype not in FLOATS:
        if isinstance(value, (float, np.floating)):
            raise UserError(f"{value!r} is a float, but stands where a value of type {dtype} is needed; use sd.cast")
        if dtype != "bool" and wrapped(int(value), dtype) != value:
            raise UserError(f"{value!r} does not fit the type {dtype}")
    return Const(value, dtype)


_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


def _is_value(other: object) -> TypeGuard[Expr | Scalar]:
    return isinstance(other, (Expr, *_NUMBERS))


def _exponent(value: Expr | Scalar, base: Expr) -> Expr:
    """Returns an exponent as an expression: a float may stand over an integer base."""
    if isinstance(value, float) and base.dtype not in FLOATS:
        return Const(value, "f64")
    return lift(value, base.dtype)


def index(value: Expr | Scalar) -> Expr:
    """Returns an index, given as an integer expression or a Python int."""
    if isinstance(value, Expr):
        if value.dtype not in ("i64", "i32"):
            raise UserError(f"an index must be an integer, but {value} is {value.dtype}")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise UserError(f"an index must be an integer, but {value!r} is {type(value).__name__}")
    return Const(int(value), "i64")


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "rounded_mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": np.minimum,
    "max": np.maximum,
    "and": operator.and_,
    "or": operator.or_,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
"""The operations of indices and conditions, for numbers and for arrays alike."""


def _same_type(op: str, a: Expr, b: Expr | Scalar) -> Expr:
    b = lift(b, a.dtype)
    if a.dtype != b.dtype:
        raise UserError(f"{op} needs operands of one type, not {a.dtype} and {b.dtype} in {a} and {b}; use sd.cast")
    return b


def binary(op: str, a: Expr, b: Expr | Scalar) -> Expr:
    """Returns `a op b`, folding integer constants and the neutral elements of index arithmetic."""
    b = _same_type(op, a, b)
    if op in LOGICAL and a.dtype != "bool":
        raise UserError(f"{op} needs conditions, not {a.dtype}")
    if op in BITWISE and (a.dtype in FLOATS or a.dtype == "bool"):
        raise UserError(f"{op} needs integers, not {a.dtype}")
    if op == "div" and a.dtype not in FLOATS:
        raise UserError(f"/ is for floats; use // for {a.dtype}")
    if op in ("fmod", "copysign") and a.dtype not in FLOATS:
        raise UserError(f"{op} is for floats, not for {a.dtype}")
    if a.dtype not in FLOATS:
        match op, a, b:
            case _, Const(x), Const(y) if op in ARITHMETIC and not (op in ("floordiv", "mod") and y == 0):
                return Const(wrapped(int(ARITHMETIC[op](x, y)), a.dtype), a.dtype)
            case (("add" | "sub"), _, Const(0)):
                return a
            case "add", Const(0), _:
                return b
            case "mul", _, Const(1):
                return a
            case "mul", Const(1), _:
                return b
            case "and", Const(True), _:
                return b
            case "and", _, Const(True):
                return a
            case _:
                pass
    return Bin(op, a, b)


def compare(op: str, a: Expr, b: Expr | Scalar) -> Expr:
    """Returns `a op b` as a condition."""
    b = _same_type(op, a, b)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(ARITHMETIC[op](a.value, b.value), "bool")
    return Cmp(op, a, b)


def call(fn: str, a: Expr) -> Expr:
    """Applies one function of `UNARY` or `BITS_AS` to `a`, after a check of its type."""
    if not isinstance(a, Expr):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"{fn} takes an expression such as x[i, j], not {a!r}")
    if fn not in UNARY and fn not in BITS_AS:
        raise UserError(f"unknown function {fn!r}; known: {', '.join((*UNARY, *BITS_AS))}")
    if fn == "not" and a.dtype != "bool":
        raise UserError(f"not needs a condition, not {a.dtype}")
    if fn in BITS_AS:
        if ITEMSIZE[BITS_AS[fn]] != ITEMSIZE[a.dtype]:
            raise UserError(f"{fn} needs a value of {8 * ITEMSIZE[BITS_AS[fn]]} bits, not {a.dtype}")
        return a if BITS_AS[fn] == a.dtype else Call(fn, a)
    if fn not in ("neg", "abs", "not") and a.dtype not in FLOATS:
        raise UserError(f"{fn} needs a float, not {a.dtype}; use sd.cast")
    if fn == "abs" and a.dtype in UNSIGNED:
        return a
    return Call(fn, a)


def select(condition: Expr, a: Expr | Scalar, b: Expr | Scalar) -> Expr:
    """Returns `a` if the condition holds, else `b`."""
    if condition.dtype != "bool":
        raise UserError(f"a condition must be bool, but {condition} is {condition.dtype}")
    dtype = a.dtype if isinstance(a, Expr) else b.dtype if isinstance(b, Expr) else None
    if dtype is None:
        raise UserError("one side of a selection must be an expression, so that its type is known")
    a = lift(a, dtype)
    return Select(condition, a, _same_type("where", a, b))


def children(e: Expr) -> tuple[Expr, ...]:
    """Returns the direct subexpressions."""
    match e:
        case Bin(_, a, b) | Cmp(_, a, b):
            return (a, b)
        case Select(c, a, b):
            return (c, a, b)
        case Call(_, a) | Cast(a):
            return (a,)
        case Load(_, indices):
            return indices
        case Reduce(_, _, body):
            return (body,)
        case _:
            return ()


def walk(e: Expr) -> Iterator[Expr]:
    """Yields every node once, parents before children, in reading order."""
    seen: set[Expr] = set()
    stack = [e]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(reversed(children(node)))


def loads(e: Expr) -> list[Load]:
    """Returns every distinct load of the expression, in reading order."""
    return [n for n in walk(e) if isinstance(n, Load)]


def rewrite(e: Expr, visit: Callable[[Expr], Expr | None], memo: dict[Expr, Expr] | None = None) -> Expr:
    """Rebuilds an expression with each node for which `visit` returns a replacement; unchanged nodes stay."""
    memo = {} if memo is None else memo
    if e in memo:
        return memo[e]
    replaced = visit(e)
    if replaced is None:
        replaced = _rebuild(e, tuple(rewrite(c, visit, memo) for c in children(e)))
    memo[e] = replaced
    return replaced


def _rebuild(e: Expr, parts: tuple[Expr, ...]) -> Expr:
    if all(map(operator.is_, parts, children(e))):
        return e
    match e:
        case Bin(op):
            return binary(op, *parts)
        case Cmp(op):
            return compare(op, *parts)
        case Select():
            return select(*parts)
        case Call(fn):
            return call(fn, *parts)
        case Cast(_, dtype):
            return Cast(parts[0], dtype)
        case Load(tensor, _):
            return Load(tensor, parts)
        case Reduce(combiner, axes, _):
            return Reduce(combiner, axes, parts[0])
        case _:
            return e


def substitute(e: Expr, values: Mapping[Any, Expr]) -> Expr:
    """Replaces nodes (axes, variables, loads) by other expressions."""
    return rewrite(e, lambda node: values.get(node))
