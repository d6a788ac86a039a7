"""LLVM's arithmetic on NumPy arrays: what an instruction or intrinsic does to the values of all threads at once."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.emulator.faults import Unsupported
from tests.emulator.llvm_types import Array, Type

Binary = Callable[[Any, Any], Any]
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def unsigned(x: Any) -> Any:
    """The same bits; what is a Python integer or a bool is unsigned already."""
    return x if x.dtype.kind in "Ob" else x.view(_UNSIGNED[x.dtype.itemsize])


def _on_bits(op: Binary) -> Binary:
    def apply(a: Any, b: Any) -> Any:
        return op(unsigned(a), unsigned(b)).view(a.dtype)

    return apply


def _truncated_division(a: Any, b: Any) -> Any:
    return np.floor_divide(a - np.fmod(a, b), b)


_BINARY: dict[str, Binary] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "udiv": _on_bits(np.floor_divide),
    "urem": _on_bits(np.remainder),
    "sdiv": _truncated_division,
    "srem": np.fmod,
    "shl": np.left_shift,
    "lshr": _on_bits(np.right_shift),
    "ashr": np.right_shift,
    "fadd": np.add,
    "fsub": np.subtract,
    "fmul": np.multiply,
    "fdiv": np.true_divide,
    "frem": np.fmod,
}
_BOOL: dict[str, Binary] = {"add": np.bitwise_xor, "sub": np.bitwise_xor, "mul": np.bitwise_and}
_COMPARE: dict[str, Binary] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}


def binary(opcode: str, type: Type) -> Binary:
    if type.dtype == object:
        return _wide_binary(opcode, type.bits)
    if type.element == "i1" and opcode in _BOOL:
        return _BOOL[opcode]
    if type.is_integer and type.bits != 1 and type.bits != 8 * type.item_bytes:
        raise Unsupported(f"{opcode} of {type.element}")
    return _BINARY[opcode]


def _wide_binary(opcode: str, bits: int) -> Binary:
    """Of integers wider than 64 bits: arrays of Python integers."""
    modulus, sign = 1 << bits, 1 << (bits - 1)
    ops: dict[str, Binary] = {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "shl": operator.lshift,
        "lshr": operator.rshift,
        "ashr": lambda a, b: (a - np.asarray(a >= sign, object) * modulus) >> b,
        "and": operator.and_,
        "or": operator.or_,
    }
    if opcode not in ops:
        raise Unsupported(f"{opcode} of i{bits}")
    return lambda a, b: ops[opcode](a, b) % modulus


def comparison(predicate: str, is_float: bool) -> Binary:
    if not is_float:
        if predicate.startswith("u"):
            compare = _COMPARE[predicate[1:]]
            return lambda a, b: compare(unsigned(a), unsigned(b))
        return _COMPARE[predicate if predicate in ("eq", "ne") else predicate[1:]]
    if predicate == "ord":
        return lambda a, b: ~(np.isnan(a) | np.isnan(b))
    if predicate == "uno":
        return lambda a, b: np.isnan(a) | np.isnan(b)
    compare = _COMPARE[predicate[1:]]
    if predicate == "one":
        return lambda a, b: np.not_equal(a, b) & ~(np.isnan(a) | np.isnan(b))
    if predicate.startswith("o") or predicate == "une":
        return compare
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)


def cast(opcode: str, source: Type, to: Type) -> Callable[[Any], Any]:
    if source.dtype == object or to.dtype == object:
        return _wide_cast(opcode, source, to)
    if opcode == "bitcast":
        return _bitcast(source, to)
    if opcode == "trunc" and to.element == "i1":
        return lambda x: (x & 1).astype(np.bool_)
    if opcode == "zext":
        return lambda x: unsigned(x).astype(to.dtype)
    if opcode == "sext" and source.element == "i1":
        return lambda x: -x.astype(to.dtype)
    if opcode == "uitofp":
        return lambda x: unsigned(x).astype(to.dtype)
    if opcode == "fptoui":
        return lambda x: x.astype(_UNSIGNED[to.item_bytes]).view(to.dtype)
    if opcode in ("trunc", "sext", "fptrunc", "fpext", "fptosi", "sitofp", "ptrtoint", "inttoptr", "addrspacecast"):
        return lambda x: x.astype(to.dtype)
    raise Unsupported(f"{opcode} from {source} to {to}")


def _wide_cast(opcode: str, source: Type, to: Type) -> Callable[[Any], Any]:
    if opcode == "zext" and to.dtype == object:
        return lambda x: np.asarray(unsigned(x)).astype(object)
    if opcode == "trunc" and source.dtype == object and to.bits == 64:
        return lambda x: np.asarray(x % (1 << 64)).astype(np.uint64).view(np.int64)
    raise Unsupported(f"{opcode} from {source} to {to}")


def _bitcast(source: Type, to: Type) -> Callable[[Any], Any]:
    if source.element == "i1" and source.lanes and to.is_integer and not to.lanes:
        weights = 1 << np.arange(source.lanes, dtype=np.int64)
        return lambda x: (x * weights).sum(axis=-1).astype(to.dtype)
    if source.item_bytes == to.item_bytes:
        return lambda x: x.view(to.dtype)
    if source.lanes and not to.lanes:
        return lambda x: np.ascontiguousarray(x).view(to.dtype)[..., 0]
    if to.lanes and not source.lanes:
        return lambda x: np.ascontiguousarray(np.asarray(x)[..., None]).view(to.dtype)
    return lambda x: np.ascontiguousarray(x).view(to.dtype)


# ---- intrinsics -----------------------------------------------------------------------------------------------------


def fma(a: Any, b: Any, c: Any) -> Any:
    """a·b + c. Of f32 through f64, whose product is exact; of f64 with the product's error by Dekker's method."""
    if a.dtype != np.float64:
        return np.add(np.multiply(a, b, dtype=np.float64), c).astype(a.dtype)
    product = a * b
    (a1, a0), (b1, b0) = _halves(a), _halves(b)
    error = ((a1 * b1 - product) + a1 * b0 + a0 * b1) + a0 * b0
    total = product + c
    part = total - product
    rest = (product - (total - part)) + (c - part)
    result = total + (rest + error)
    return np.where(np.isfinite(result), result, total)[()]


def _halves(x: Any) -> tuple[Any, Any]:
    scaled = x * 134217729.0
    high = scaled - (scaled - x)
    return high, x - high


def saturated(to: Type) -> Callable[[Any], Any]:
    """fptosi.sat: NaN becomes 0."""
    low, high = -(1 << (to.bits - 1)), (1 << (to.bits - 1)) - 1

    def convert(x: Any) -> Any:
        wide = np.asarray(x, np.float64)
        inside = np.clip(np.nan_to_num(wide, nan=0.0, posinf=2.0**70, neginf=-(2.0**70)), low, -(low + 1.0))
        whole = np.trunc(np.where(inside >= -float(low), 0.0, inside)).astype(np.int64)
        return np.where(inside >= -float(low), high, whole).astype(to.dtype)[()]

    return convert


def _funnel_left(a: Any, b: Any, shift: Any) -> Any:
    bits = 8 * a.dtype.itemsize
    amount = unsigned(shift) % bits
    high, low = unsigned(a) << amount, unsigned(b) >> ((bits - amount) % bits)
    return np.where(amount == 0, unsigned(a), high | low).view(a.dtype)[()]


def _absolute(x: Any, _: Any = None) -> Any:
    return np.abs(x)


MATHS: dict[str, Callable[..., Any]] = {
    "fma": fma,
    "fmuladd": fma,
    "sqrt": np.sqrt,
    "fabs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "nearbyint": np.rint,
    "roundeven": np.rint,
    "copysign": np.copysign,
    "minnum": np.fmin,
    "maxnum": np.fmax,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "smin": np.minimum,
    "smax": np.maximum,
    "umin": _on_bits(np.minimum),
    "umax": _on_bits(np.maximum),
    "abs": _absolute,
    "fshl": _funnel_left,
}
"""Intrinsics that act on each element, by the name between `llvm.` and the type."""

REDUCTIONS: dict[str, Callable[[Array], Any]] = {
    "or": lambda x: np.bitwise_or.reduce(x, axis=-1),
    "and": lambda x: np.bitwise_and.reduce(x, axis=-1),
    "add": lambda x: np.add.reduce(x, axis=-1, dtype=x.dtype),
    "smax": lambda x: np.maximum.reduce(x, axis=-1),
    "smin": lambda x: np.minimum.reduce(x, axis=-1),
}
"""llvm.vector.reduce.*"""
