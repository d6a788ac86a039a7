"""Operands that makers draw: types that ONNX allows, shapes that broadcast, axes, data in a function's domain."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from onnx import defs, helper

from tests.fuzz import values
from tests.fuzz.draft import TYPES, Draft, Refused, Shape

MOST_MACS = 3_000_000
NAMES: dict[str, DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(bool)": np.bool_,
}


def types_of(d: Draft, op: str, k: int = 0) -> Sequence[DTypeLike]:
    """The claimed types of an operator's input k in the draft's operator set. Raises Refused where there is none."""
    found = _types(op, d.opset, k)
    if not found:
        raise Refused(f"{op} is newer than operator set {d.opset}")
    return found


@cache
def _types(op: str, opset: int, k: int) -> tuple[DTypeLike, ...]:
    try:
        schema: Any = defs.get_schema(op, opset, "")
    except Exception:  # SchemaError, which is no public class
        return ()
    allowed = [NAMES[t] for t in schema.inputs[k].types if t in NAMES]
    return tuple(t for t in TYPES if t in allowed)


def anything(d: Draft, types: Sequence[DTypeLike], least_rank: int = 0, most_rank: int = 5) -> str:
    """A value of one of these types with any shape of these ranks: one that is there, or a new input."""

    def shape() -> Shape:
        s = d.dims()
        return s if least_rank <= len(s) <= most_rank else d.dims(d.whole(least_rank, most_rank))

    return d.take(shape, types, lambda s: least_rank <= len(s) <= most_rank)


# ---- broadcasting ----------------------------------------------------------------------------------------------------


def broadcast(*shapes: Shape) -> Shape | None:
    """The shape that these broadcast to; None where they do not."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def narrower(d: Draft, shape: Shape) -> Shape:
    """A shape that broadcasts to `shape`: dimensions kept, made 1, or left off in front."""
    kept = tuple(e if d.chance(0.6) else 1 for e in shape)
    return kept[d.whole(0, len(kept)) :] if d.chance(0.35) else kept


def partner(d: Draft, shape: Shape) -> Shape:
    """A shape that broadcasts with `shape`, in both directions: dimensions of 1 grow, and there may be more of them."""
    other = tuple((d.dim(9) if d.chance(0.5) else 1) if e == 1 else e if d.chance(0.7) else 1 for e in shape)
    if other and d.chance(0.25):
        return other[d.whole(0, len(other)) :]
    if len(other) < 5 and d.chance(0.25):
        return (*(d.dim(5) for _ in range(d.whole(1, 5 - len(other)))), *other)
    return other


def companion(d: Draft, x: str, dtype: DTypeLike | None = None) -> str:
    """A second operand for x: x itself, a value that is there, a constant or an input; it broadcasts with x."""
    shape, dtype = d.shape(x), d.dtype(x) if dtype is None else dtype
    match d.among("self", "same", "there", "there", "partner", "partner", "constant", "constant", "narrower", "scalar"):
        case "self" if dtype == d.dtype(x):
            return x
        case "same":
            return d.value(shape, dtype)
        case "there":
            try:
                return d.pick(lambda s: broadcast(s, shape) is not None, [dtype])
            except Refused:
                return d.value(partner(d, shape), dtype)
        case "constant":
            return d.constant(values.draw(d.rng, partner(d, shape), np.dtype(dtype), d.special))
        case "narrower":
            return d.value(narrower(d, shape), dtype)
        case "scalar":
            return d.value(d.among((), (), (1,), (1, 1)), dtype)
        case _:
            return d.value(partner(d, shape), dtype)


def swapped(d: Draft, a: str, b: str) -> tuple[str, str]:
    """Both, in either order."""
    return (a, b) if d.chance(0.5) else (b, a)


def together(d: Draft, *names: str) -> Shape:
    """The shape of all operands together. Raises Refused where they do not broadcast."""
    shape = broadcast(*(d.shape(name) for name in names))
    if shape is None:
        raise Refused("the operands do not broadcast")
    return shape


# ---- axes and sizes --------------------------------------------------------------------------------------------------


def signed(d: Draft, axis: int, rank: int) -> int:
    """The axis, or counted from behind."""
    return axis - rank if d.chance(0.4) else axis


def axis_of(d: Draft, x: str) -> int:
    """An axis, never negative."""
    return d.whole(0, d.rank(x) - 1)


def long_axis(d: Draft, x: str) -> int:
    """An axis, mostly one of more than one element: what is left of a lone element less its own mean says little."""
    some = [axis for axis, n in enumerate(d.shape(x)) if n > 1]
    return d.among(*some) if some and d.chance(0.9) else axis_of(d, x)


def affordable(macs: float) -> None:
    if macs > MOST_MACS:
        raise Refused("too much work")


def size(shape: Sequence[int]) -> int:
    return int(np.prod(shape, dtype=np.int64))


# ---- domains ---------------------------------------------------------------------------------------------------------


def scalar(d: Draft, value: float, dtype: DTypeLike) -> str:
    return d.constant(np.asarray(value, dtype))


def cast(d: Draft, x: str, dtype: DTypeLike) -> str:
    return d.one("Cast", x, to=int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype))))


def moderate(d: Draft, x: str) -> str:
    """x, or among special data an input like it whose finite numbers have squares: NaN and infinities stay."""
    array = d.held[x].plain
    size = np.abs(array)
    extreme = np.isfinite(array) & ((size > 1e6) | ((size < 1e-6) & (size > 0)))
    if not d.special or d.chance(0.1) or not extreme.any():
        return x
    return d.input(array.shape, array=np.where(extreme, np.copysign(1, array), array).astype(array.dtype))


def positive(d: Draft, x: str) -> str:
    """A function of the floats x without zeros and negative numbers."""
    half = scalar(d, 0.5, d.dtype(x))
    match d.among("abs", "square", "exp", "sigmoid", "softplus", "max", "input"):
        case "abs":
            return d.one("Add", d.one("Abs", x), half)
        case "square":
            return d.one("Add", d.one("Mul", x, x), half)
        case "exp":
            return d.one("Exp", x)
        case "sigmoid":
            return d.one("Sigmoid", x)
        case "softplus":
            return d.one("Softplus", x)
        case "max":
            return d.one("Max", *swapped(d, x, half))
        case _:
            array = np.asarray(d.rng.uniform(0.1, 4.0, d.shape(x))).astype(d.dtype(x))
            return d.constant(array) if d.chance(0.4) else d.input(d.shape(x), array=array)


def within_one(d: Draft, x: str) -> str:
    """A function of the floats x that stays inside (-1, 1)."""
    match d.among("tanh", "sin", "sigmoid", "softsign", "input", "input"):
        case "input":
            return d.input(d.shape(x), array=np.asarray(d.rng.uniform(-0.99, 0.99, d.shape(x))).astype(d.dtype(x)))
        case op:
            return d.one(op.capitalize(), x)


def divisor(d: Draft, y: str, x: str) -> str:
    """y, or something else of its shape, by which x may be divided."""
    array, dividend = d.held[y].plain, d.held[x].plain
    if array.dtype.kind == "f":
        return y if d.special or d.chance(0.2) else positive(d, y)
    info = np.iinfo(array.dtype)
    overflows = bool((dividend == info.min).any() and (array == -1).any())
    if not (array == 0).any() and not overflows and d.chance(0.7):
        return y
    if d.chance(0.3):
        z = d.one("Max", d.one("Abs", y), scalar(d, 1, array.dtype))
        if (d.held[z].plain > 0).all():  # the absolute value of the least integer is itself
            return z
    drawn = np.asarray(d.rng.integers(1, d.among(3, 10, 100, info.max), array.shape, array.dtype))
    drawn = drawn * (1 if (dividend == info.min).any() else d.among(1, -1))
    return (
        d.constant(drawn.astype(array.dtype))
        if d.chance(0.5)
        else d.input(array.shape, array=drawn.astype(array.dtype))
    )
