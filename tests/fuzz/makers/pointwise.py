"""Elementwise operators: of one value, of two that broadcast, of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper

from tests.fuzz.draft import TYPES, Draft, Maker, Refused
from tests.fuzz.makers.operands import (
    anything,
    broadcast,
    companion,
    divisor,
    narrower,
    partner,
    positive,
    scalar,
    swapped,
    together,
    types_of,
    within_one,
)

Attributes = dict[str, Any]


def _given(d: Draft, **draws: Callable[[], Any]) -> Attributes:
    """Attributes, each of them often left out."""
    return {key: draw() for key, draw in draws.items() if d.chance(0.6)}


# ---- of one value ----------------------------------------------------------------------------------------------------


def _attributes(d: Draft, op: str) -> Attributes:
    def some(low: float, high: float) -> Callable[[], float]:
        return lambda: float(d.among(low, high, 0.0, 1.0, *d.rng.uniform(low, high, 4).tolist()))

    def flag() -> int:
        return d.whole(0, 1)

    match op:
        case "Celu":
            return _given(d, alpha=lambda: float(d.rng.uniform(0.1, 3.0)))
        case "Elu":
            return _given(d, alpha=some(-1.0, 3.0))
        case "Gelu":
            return _given(d, approximate=lambda: d.among("none", "tanh"))
        case "HardSigmoid":
            return _given(d, alpha=some(-1.0, 1.0), beta=some(-1.0, 1.0))
        case "IsInf":
            return _given(d, detect_positive=flag, detect_negative=flag)
        case "LeakyRelu":
            return _given(d, alpha=some(-1.0, 2.0))
        case "Selu":
            return _given(d, alpha=some(-1.0, 3.0), gamma=some(0.5, 2.0))
        case "Shrink":
            return _given(d, lambd=some(0.0, 1.5), bias=some(-1.0, 1.5))
        case "Swish":
            return _given(d, alpha=some(-1.0, 3.0))
        case "ThresholdedRelu":
            return _given(d, alpha=some(-1.0, 1.5))
        case _:
            return {}


def _in_domain(d: Draft, op: str, x: str) -> str:
    if d.dtype(x).kind != "f" or d.chance(0.5 if d.special else 0.1):
        return x
    match op:
        case "Acos" | "Asin" | "Atanh":
            return within_one(d, x)
        case "Acosh":
            return d.one("Add", positive(d, x), scalar(d, 1, d.dtype(x)))
        case "Log" | "Sqrt" | "Reciprocal":
            return positive(d, x)
        case _:
            return x


def _unary(op: str) -> Maker:
    def maker(d: Draft) -> str:
        x = anything(d, types_of(d, op))
        attributes = _attributes(d, op)
        if "bias" in attributes and d.dtype(x).kind == "i":  # ONNX does not say where a fraction is rounded
            attributes["bias"] = float(round(attributes["bias"]))
        return d.one(op, _in_domain(d, op, x), **attributes)

    return maker


def _cast(d: Draft) -> str:
    """From any type to any type."""
    x = anything(d, TYPES)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(d.type_among()))
    extra = {"saturate": d.whole(0, 1)} if d.opset >= 19 and d.chance(0.2) else {}  # of 8-bit floats only
    return d.one("Cast", x, to=int(code), **extra)


def _cast_like(d: Draft) -> str:
    types = types_of(d, "CastLike")
    x = anything(d, types)
    like = anything(d, types) if d.chance(0.5) else d.constant(np.zeros(d.among((), (1,), (2, 3)), d.type_among()))
    return d.one("CastLike", x, like)


def _clip(d: Draft) -> str:
    """Bounds that are constant, known at run time, or absent; the lower one may lie above the upper one."""
    x = anything(d, types_of(d, "Clip"))
    dtype = d.dtype(x)

    def bound() -> str:
        kind = d.among("constant", "constant", "input", "there", "")
        array = np.asarray(d.rng.normal(0, 2)).astype(dtype)
        match kind:
            case "constant":
                return d.constant(array)
            case "input":
                return d.input((), array=array)
            case "there":
                return d.value((), dtype)
            case _:
                return ""

    low, high = bound(), bound()
    if low and high and d.held[low].plain > d.held[high].plain and d.chance(0.7):
        low, high = high, low
    bounds = [low, high] if high or d.chance(0.3) else [low] if low or d.chance(0.3) else []
    return d.one("Clip", x, *bounds)


def _dropout(d: Draft) -> list[str]:
    """At inference; in training mode only with a ratio of 0, with which nothing is random."""
    x = anything(d, types_of(d, "Dropout"))
    training = d.chance(0.2)
    ratio = scalar(d, 0.0 if training else d.among(0.0, 0.3, 0.9), d.dtype(x))
    if not training and d.chance(0.3):
        ratio = d.among("", d.value((), d.dtype(x)))
    inputs = (
        [x, ratio, d.constant(np.array(training))]
        if training or d.chance(0.3)
        else [x, ratio]
        if d.chance(0.5)
        else [x]
    )
    seed = {"seed": 7} if d.chance(0.2) else {}
    return d.emit("Dropout", *inputs, results=d.whole(1, 2), **seed)


UNARY = {
    **dict.fromkeys(
        (
            "Acos",
            "Acosh",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "BitwiseNot",
            "Celu",
            "Cos",
            "Cosh",
            "Elu",
            "Gelu",
            "HardSigmoid",
        ),
        0.4,
    ),
    **dict.fromkeys(
        (
            "HardSwish",
            "IsInf",
            "IsNaN",
            "Mish",
            "Selu",
            "Shrink",
            "Sin",
            "Sinh",
            "Softplus",
            "Softsign",
            "Swish",
            "Tan",
        ),
        0.4,
    ),
    **dict.fromkeys(
        ("Abs", "Ceil", "Floor", "Identity", "LeakyRelu", "Log", "Not", "Reciprocal", "Round", "Sign"), 0.6
    ),
    **dict.fromkeys(("Erf", "Exp", "Neg", "Relu", "Sigmoid", "Sqrt", "Tanh", "ThresholdedRelu"), 1.0),
}

# ---- of several values -----------------------------------------------------------------------------------------------


def _binary(op: str) -> Maker:
    def maker(d: Draft) -> str:
        x = anything(d, types_of(d, op))
        return d.one(op, *swapped(d, x, companion(d, x)))

    return maker


def _equal(d: Draft) -> str:
    """With ties: against itself, a copy with some elements changed, or the value's own middle."""
    x = anything(d, types_of(d, "Equal"))
    array = d.held[x].plain
    if not array.size or d.chance(0.4):
        return d.one("Equal", *swapped(d, x, companion(d, x)))
    changed = np.where(d.rng.random(array.shape) < 0.5, array, np.roll(array, 1))
    y = d.among(
        d.constant(changed),
        d.input(array.shape, array=changed),
        d.constant(array.reshape(-1)[d.whole(0, array.size - 1)]),
    )
    return d.one("Equal", *swapped(d, x, y))


def _div(d: Draft) -> str:
    """No integer is divided by 0, nor the least one by -1: ONNX does not say what that gives."""
    x = anything(d, types_of(d, "Div"))
    y = companion(d, x)
    x, y = swapped(d, x, y)
    return d.one("Div", x, divisor(d, y, x))


def _mod(d: Draft) -> str:
    """C's fmod or Python's %, which ONNX has for integers only."""
    x = anything(d, types_of(d, "Mod"))
    y = companion(d, x)
    x, y = swapped(d, x, y)
    fmod = {"fmod": 1} if d.dtype(x).kind == "f" else d.among({}, {"fmod": 0}, {"fmod": 1})
    return d.one("Mod", x, divisor(d, y, x), **fmod)


def _pow(d: Draft) -> str:
    """The exponent has a type of its own. Integers to negative powers are left out, and those beyond what f64 holds."""
    x = anything(d, types_of(d, "Pow"))
    of_floats = d.dtype(x).kind == "f"
    dtype = np.dtype(d.type_among(types_of(d, "Pow", 1)))
    if d.chance(0.6):
        some = (0, 1, 2, 2, 3, 4, 7) if not of_floats else (-2, -1, 0, 1, 2, 2, 3, 4, 5)
        fractions = (-0.5, 0.5, 0.5, 1.5, 0.25, 2.3) if of_floats and dtype.kind == "f" else ()
        y = scalar(d, d.among(*some, *fractions), dtype)
    else:
        shape = partner(d, d.shape(x))
        array = (
            d.rng.integers(-3 if of_floats else 0, 5, shape)
            if d.chance(0.5)
            else d.rng.uniform(-2 if of_floats else 0, 3, shape)
        )
        y = (
            d.constant(np.asarray(array).astype(dtype))
            if d.chance(0.5)
            else d.input(shape, array=np.asarray(array).astype(dtype))
        )
    fractional = bool((d.held[y].plain % 1 != 0).any())
    if of_floats:
        x = positive(d, x) if (fractional or d.chance(0.2)) and not d.special else x
    else:
        together(d, x, y)
        with np.errstate(all="ignore"):
            size = np.abs(d.held[x].plain.astype(np.float64)) ** d.held[y].plain.astype(np.float64)
        if fractional or float(np.max(size, initial=0.0)) >= min(2.0**53, np.iinfo(d.dtype(x)).max):
            raise Refused("the power of integers is not determined")
    return d.one("Pow", x, y)


def _prelu(d: Draft) -> str:
    """The slope broadcasts to the value, not the other way."""
    x = anything(d, types_of(d, "PRelu"))
    shape = narrower(d, d.shape(x))
    if d.chance(0.3):
        shape = tuple(1 for _ in shape)
    return d.one("PRelu", x, d.value(shape, d.dtype(x)))


def _variadic(op: str) -> Maker:
    """Of one to five values."""

    def maker(d: Draft) -> str:
        inputs = [anything(d, types_of(d, op))]
        for _ in range(d.among(0, 1, 1, 1, 2, 2, 3, 4)):
            inputs.append(companion(d, inputs[0]))
        together(d, *inputs)
        return d.one(op, *(inputs[int(k)] for k in d.rng.permutation(len(inputs))))

    return maker


def _where(d: Draft) -> str:
    """Condition and both choices broadcast; any of them may be constant, or the same."""
    x = anything(d, types_of(d, "Where", 1))
    y = companion(d, x)
    condition = companion(d, x, np.bool_)
    if broadcast(d.shape(x), d.shape(y), d.shape(condition)) is None:
        condition = d.value(narrower(d, together(d, x, y)), np.bool_)
    return d.one("Where", condition, *swapped(d, x, y))


BINARY = {
    **dict.fromkeys(("Add", "Mul"), 2.0),
    "Sub": 1.5,
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual"), 0.5),
    **dict.fromkeys(("And", "Or", "Xor"), 0.4),
}

MAKERS: dict[str, tuple[float, Maker]] = {
    **{op: (weight, _unary(op)) for op, weight in UNARY.items()},
    **{op: (weight, _binary(op)) for op, weight in BINARY.items()},
    **{op: (0.6, _variadic(op)) for op in ("Max", "Min", "Sum", "Mean")},
    "Cast": (1.0, _cast),
    "CastLike": (0.4, _cast_like),
    "Clip": (1.0, _clip),
    "Div": (1.0, _div),
    "Dropout": (0.3, _dropout),
    "Equal": (0.5, _equal),
    "Mod": (0.4, _mod),
    "PRelu": (0.5, _prelu),
    "Pow": (0.7, _pow),
    "Where": (1.0, _where),
}
