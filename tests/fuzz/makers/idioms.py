"""Norms and activations written out, gates, recurrent cells, casts."""

from __future__ import annotations

import numpy as np

from tests.fuzz.draft import FLOATS, INTEGERS, Draft, Maker, Refused
from tests.fuzz.makers.layers import linear, reduced, sequence
from tests.fuzz.makers.operands import (
    affordable,
    anything,
    axis_of,
    cast,
    companion,
    long_axis,
    moderate,
    scalar,
    signed,
    size,
    swapped,
)


def _softmax(d: Draft) -> str:
    """exp(x - max) / Σ, with and without the maximum; or its logarithm."""
    x = moderate(d, anything(d, FLOATS, least_rank=1))
    axes = [signed(d, long_axis(d, x), d.rank(x))]
    if d.chance(0.8):
        x = d.one("Sub", x, reduced(d, x, axes, "ReduceMax"))
    e = d.one("Exp", x)
    total = reduced(d, e, axes, "ReduceSum")
    match d.among("divide", "divide", "reciprocal", "log"):
        case "divide":
            return d.one("Div", e, total)
        case "reciprocal":
            return d.one("Mul", *swapped(d, e, d.one("Reciprocal", total)))
        case _:
            return d.one("Sub", x, d.one("Log", total))


def _norm(d: Draft) -> str:
    """Layer norm, or norm by the mean square, of one or several axes, as exporters write it."""
    x = moderate(d, anything(d, FLOATS, least_rank=1))
    rank, dtype = d.rank(x), d.dtype(x)
    first = long_axis(d, x)
    axes = [signed(d, a, rank) for a in (range(first, rank) if d.chance(0.7) else [first])]
    centred = x if d.chance(0.3) else d.one("Sub", x, reduced(d, x, axes))
    squares = d.one("Pow", centred, scalar(d, 2, dtype)) if d.chance(0.5) else d.one("Mul", centred, centred)
    spread = d.one("Add", reduced(d, squares, axes), scalar(d, d.among(1e-5, 1e-2, 0.1), dtype))
    root = d.one("Sqrt", spread)
    match d.among("divide", "reciprocal", "power"):
        case "divide":
            y = d.one("Div", centred, root)
        case "reciprocal":
            y = d.one("Mul", *swapped(d, centred, d.one("Reciprocal", root)))
        case _:
            y = d.one("Mul", *swapped(d, centred, d.one("Pow", spread, scalar(d, -0.5, dtype))))
    if d.chance(0.7):
        y = d.one("Mul", *swapped(d, y, d.weights(*d.shape(x)[first:], dtype=dtype, scale=0.2, centre=1.0)))
    if d.chance(0.6):
        y = d.one("Add", *swapped(d, y, d.weights(*d.shape(x)[first:], dtype=dtype, scale=0.2)))
    return y


def _group_norm(d: Draft) -> str:
    """Groups as instances: Reshape, InstanceNormalization, Reshape, then scale and shift of channels."""
    x = moderate(d, anything(d, FLOATS, least_rank=3))
    n, c, *sizes = d.shape(x)
    groups = d.among(1, *(g for g in (2, 3, 4) if c % g == 0))
    if not size(d.shape(x)):
        raise Refused("a norm of nothing")
    dtype = d.dtype(x)
    flat = d.one("Reshape", x, d.integers([d.among(n, 0), groups, -1]))
    ones, zeros = d.constant(np.ones(groups, dtype)), d.constant(np.zeros(groups, dtype))
    y = d.one("InstanceNormalization", flat, ones, zeros, epsilon=1e-3)
    y = d.one("Reshape", y, d.integers(d.shape(x)))
    shape = (c, *(1 for _ in sizes))
    y = d.one("Mul", y, d.weights(*shape, dtype=dtype, centre=1.0, scale=0.3))
    return d.one("Add", y, d.weights(*shape, dtype=dtype))


def _activation(d: Draft) -> str:
    """GELU, SiLU, hard swish, softplus and Mish from their parts, in the orders that exporters have."""
    x = anything(d, FLOATS)
    dtype = d.dtype(x)

    def number(value: float) -> str:
        return scalar(d, value, dtype)

    match d.among("erf", "erf", "tanh", "silu", "hard", "softplus", "mish", "quick"):
        case "erf":
            t = d.one("Erf", d.one("Div", x, number(2**0.5)) if d.chance(0.5) else d.one("Mul", x, number(0.5**0.5)))
            t = d.one("Add", *swapped(d, t, number(1)))
            if d.chance(0.5):
                return d.one("Mul", d.one("Mul", x, t), number(0.5))
            return d.one("Mul", *swapped(d, d.one("Mul", x, number(0.5)), t))
        case "tanh":
            cube = d.one("Pow", x, number(3)) if d.chance(0.5) else d.one("Mul", d.one("Mul", x, x), x)
            t = d.one("Mul", d.one("Add", x, d.one("Mul", cube, number(0.044715))), number((2 / np.pi) ** 0.5))
            return d.one("Mul", d.one("Mul", number(0.5), x), d.one("Add", d.one("Tanh", t), number(1)))
        case "silu":
            return d.one("Mul", *swapped(d, x, d.one("Sigmoid", x)))
        case "quick":
            return d.one("Mul", x, d.one("Sigmoid", d.one("Mul", x, number(1.702))))
        case "hard":
            t = d.one("Clip", d.one("Add", x, number(3)), number(0), number(6))
            return d.one("Mul", x, d.one("Div", t, number(6)) if d.chance(0.5) else d.one("Mul", t, number(1 / 6)))
        case "softplus":
            return d.one("Log", d.one("Add", d.one("Exp", x), number(1)))
        case _:
            return d.one("Mul", x, d.one("Tanh", d.one("Softplus", x)))


def _centred(d: Draft) -> str:
    """A value with one of its own reductions: the reduction's result broadcasts back."""
    x = anything(d, FLOATS, least_rank=1)
    axes = sorted({long_axis(d, x) for _ in range(d.whole(1, 3))})
    r = reduced(d, x, axes, d.among("ReduceMean", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "ReduceL2"))
    return d.one(d.among("Sub", "Sub", "Add", "Mul", "Max"), *swapped(d, x, r))


def _unit_length(d: Draft) -> str:
    """Cosine similarity: rows of length 1, and perhaps their products."""
    x = moderate(d, anything(d, FLOATS, least_rank=2))
    dtype = d.dtype(x)
    squares = reduced(d, d.one("Mul", x, x), [-1], "ReduceSum")
    if d.chance(0.5):
        length = d.one("Max", d.one("Sqrt", squares), scalar(d, 1e-3, dtype))
    else:
        length = d.one("Sqrt", d.one("Add", squares, scalar(d, 0.1, dtype)))
    y = d.one("Div", x, d.one("Expand", length, d.integers(d.shape(x))) if d.chance(0.3) else length)
    if d.chance(0.5):
        return y
    rank, (*_, t, _) = d.rank(x), d.shape(x)
    affordable(size(d.shape(x)) * t)
    return d.one("MatMul", y, d.one("Transpose", y, perm=[*range(rank - 2), rank - 1, rank - 2]))


def _distances(d: Draft) -> str:
    """Every row against every other: differences broadcast, squares are summed; the nearest."""
    x = moderate(d, d.take(lambda: d.dims(2, 400), FLOATS))
    k = d.shape(x)[1]
    y = d.value((d.dim(13), k), d.dtype(x))
    gap = d.one("Sub", d.one("Unsqueeze", x, d.integers([1])), d.one("Unsqueeze", y, d.integers([0])))
    far = reduced(d, d.one("Mul", gap, gap), [-1], "ReduceSum", keepdims=0)
    if d.chance(0.4) or not size(d.shape(far)) or np.isnan(d.held[far].plain).any():
        return far
    return d.one("Gather", y, d.one("ArgMin", far, axis=1, keepdims=d.whole(0, 1)))


# ---- gates, cells, casts -------------------------------------------------------------------------------------------


def _gated(d: Draft) -> str:
    """A linear unit with a gate: one product split in two, or two products."""
    x = anything(d, FLOATS, least_rank=2, most_rank=4)
    n = d.dim(17)
    if d.chance(0.5):
        y = linear(d, x, 2 * n)
        a, b = d.emit("Split", y, d.integers([n, n]), results=2, axis=d.among(-1, d.rank(y) - 1))
    else:
        a, b = linear(d, x, n), linear(d, x, n)
    gate = d.one(d.among("Sigmoid", "Sigmoid", "Tanh", "Relu"), b)
    if d.chance(0.3):
        gate = d.one("Mul", b, gate)
    y = d.one("Mul", *swapped(d, a, gate))
    return linear(d, y, d.shape(x)[-1]) if d.chance(0.5) else y


def _cell(d: Draft) -> str:
    """Some steps of a recurrent cell, written out: plain, GRU or LSTM."""
    x = sequence(d)
    b, t, c = d.shape(x)
    if not t:
        raise Refused("no step")
    n, dtype = d.dim(9), d.dtype(x)
    kind = d.among("plain", "gru", "lstm")
    gates = {"plain": 1, "gru": 3, "lstm": 4}[kind]
    w, r = (d.weights(k, gates * n, dtype=dtype, scale=max(k, 1) ** -0.5) for k in (c, n))
    affordable(3 * b * (c + n) * gates * n)
    h = d.value((b, n), dtype)
    memory = d.value((b, n), dtype)
    parts = d.integers([n] * gates)
    for step in range(min(t, d.whole(1, 3))):
        now = d.one("Gather", x, d.constant(np.int64(step)), axis=1)
        a, u = d.one("MatMul", now, w), d.one("MatMul", h, r)
        match kind:
            case "plain":
                h = d.one("Tanh", d.one("Add", a, u))
            case "gru":
                (az, ar, an), (uz, ur, un) = (d.emit("Split", v, parts, results=3, axis=-1) for v in (a, u))
                z, k = d.one("Sigmoid", d.one("Add", az, uz)), d.one("Sigmoid", d.one("Add", ar, ur))
                new = d.one("Tanh", d.one("Add", an, d.one("Mul", k, un)))
                rest = d.one("Sub", scalar(d, 1, dtype), z)
                h = d.one("Add", d.one("Mul", rest, new), d.one("Mul", z, h))
            case _:
                i, f, o, g = d.emit("Split", d.one("Add", a, u), parts, results=4, axis=-1)
                i, f, o = (d.one("Sigmoid", v) for v in (i, f, o))
                memory = d.one("Add", d.one("Mul", f, memory), d.one("Mul", i, d.one("Tanh", g)))
                h = d.one("Mul", o, d.one("Tanh", memory))
    return h


def _upcast(d: Draft) -> str:
    """Up to f64, something there, and down again."""
    x = anything(d, [np.float32])
    y = cast(d, x, np.float64)
    op = d.among("Exp", "Mul", "ReduceSum", "ReduceMean", "Softmax", "Tanh", "MatMul")
    if op in ("Exp", "Tanh"):
        y = d.one(op, y)
    elif op == "Mul":
        y = d.one("Mul", *swapped(d, y, companion(d, y)))
    elif not d.rank(y):
        y = d.one("Neg", y)
    elif op == "Softmax":
        y = d.one("Softmax", y, axis=axis_of(d, y))
    elif op == "MatMul":
        y = linear(d, y, d.dim(9))
    else:
        y = reduced(d, y, [axis_of(d, y)], op)
    return cast(d, y, np.float32)


def _steps(d: Draft) -> str:
    """Rounded to a grid: scaled, rounded, clipped, perhaps through integers, and scaled back."""
    x = anything(d, FLOATS)
    dtype = d.dtype(x)
    scale = scalar(d, d.among(0.1, 0.25, 1.0), dtype)
    y = d.one(d.among("Round", "Floor", "Ceil"), d.one("Div", x, scale))
    y = d.one("Clip", y, scalar(d, -128, dtype), scalar(d, 127, dtype))
    if d.chance(0.5):
        y = cast(d, cast(d, y, d.among(*INTEGERS)), dtype)
    return d.one("Mul", y, scale)


MAKERS: dict[str, tuple[float, Maker]] = {
    "activation by hand": (1.5, _activation),
    "cell": (0.7, _cell),
    "centred": (1.2, _centred),
    "distances": (0.5, _distances),
    "gated unit": (0.8, _gated),
    "grid": (0.6, _steps),
    "group norm by hand": (0.7, _group_norm),
    "norm by hand": (1.5, _norm),
    "softmax by hand": (1.2, _softmax),
    "unit length": (0.6, _unit_length),
    "upcast": (0.7, _upcast),
}
