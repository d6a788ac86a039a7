"""Integers, casts and bounds at the edges: what wraps, what saturates, and that no integer passes through a float.

Where it matters every model runs compiled, on each instruction set of this machine, and in the reference interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import stormdrop as sd
from tests.support.abused_onnx import NUMPY, B, D, F, I, L, model, node, port
from tests.support.special_values import MACHINES, all_at_once, pairs_of, same, specials

Array = NDArray[Any]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


# ---- constants of integer type

LARGE = (2**53 + 1, -(2**53) - 1, 2**62 + 3, 2**63 - 1, -(2**63))


def wrapped(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def filled(value: int) -> Any:
    return node("ConstantOfShape", "s", "t", value=numpy_helper.from_array(np.array([value])))


WHOLE: dict[
    str, tuple[Callable[[int], list[Any]], Callable[[int], dict[str, Any]], Callable[[list[int], int], Any]]
] = {
    "Pad": (lambda v: [node("Pad", "x p v", "y")], lambda v: {"p": [1, 2], "v": v}, lambda x, v: [v, *x, v, v]),
    "two Pads": (
        lambda v: [node("Pad", "x p v", "t"), node("Pad", "t p w", "y")],
        lambda v: {"p": [1, 0], "v": v, "w": v ^ 1},
        lambda x, v: [v ^ 1, v, *x],
    ),
    "Pad of nothing": (
        lambda v: [node("Slice", "x z z", "t"), node("Pad", "t p v", "y")],
        lambda v: {"z": [0], "p": [0, 2], "v": v},
        lambda x, v: [v, v],
    ),
    "Clip from below": (lambda v: [node("Clip", "x v", "y")], lambda v: {"v": v}, lambda x, v: [max(k, v) for k in x]),
    "Clip from above": (
        lambda v: [node("Clip", "x _ v", "y")],
        lambda v: {"v": v},
        lambda x, v: [min(k, v) for k in x],
    ),
    "Max": (lambda v: [node("Max", "x v", "y")], lambda v: {"v": v}, lambda x, v: [max(k, v) for k in x]),
    "Add": (lambda v: [node("Add", "x v", "y")], lambda v: {"v": v}, lambda x, v: [wrapped(k + v) for k in x]),
    "Mul": (lambda v: [node("Mul", "x v", "y")], lambda v: {"v": v}, lambda x, v: [wrapped(k * v) for k in x]),
    "Where": (
        lambda v: [node("Less", "x z", "c"), node("Where", "c v x", "y")],
        lambda v: {"z": 0, "v": v},
        lambda x, v: [v if k < 0 else k for k in x],
    ),
    "ConstantOfShape": (
        lambda v: [filled(v), node("Add", "t x", "y")],
        lambda v: {"s": [3]},
        lambda x, v: [wrapped(k + v) for k in x],
    ),
    "OneHot": (
        lambda v: [node("OneHot", "x d v", "y")],
        lambda v: {"d": 6, "v": [v, v ^ 1]},
        lambda x, v: [[v ^ 1 if k == c else v for c in range(6)] for k in x],
    ),
    "Range": (
        lambda v: [node("Range", "a b c", "t"), node("Add", "t x", "y")],
        lambda v: {"a": v, "b": v - 3 if v > 0 else v + 3, "c": -1 if v > 0 else 1},
        lambda x, v: [wrapped(k + v + (-step if v > 0 else step)) for step, k in enumerate(x)],
    ),
    "CumSum": (
        lambda v: [node("Add", "x v", "t"), node("CumSum", "t z", "y")],
        lambda v: {"v": v, "z": 0},
        lambda x, v: [wrapped(sum(x[: n + 1]) + (n + 1) * v) for n in range(len(x))],
    ),
}


@pytest.mark.parametrize(("start", "limit"), [(-1.7e308, 1.7e308), (0.0, 1e300)])
def test_a_range_of_too_many_numbers_is_refused_by_name(start: float, limit: float) -> None:
    """The count of the first one is infinite."""
    ends = {"a": np.array(start), "b": np.array(limit), "c": np.array(1.0)}
    with pytest.raises(sd.UserError, match="node n: would make"):
        sd.read_graph(model([node("Range", "a b c", "y", name="n")], [], [port("y", None, D)], ends))
    backwards = {**ends, "a": ends["b"], "b": ends["a"]}
    assert sd.read_graph(model([node("Range", "a b c", "y")], [], [port("y", None, D)], backwards)).outputs[
        0
    ].shape == (0,)


@pytest.mark.parametrize("value", LARGE)
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_beyond_the_digits_of_f64_stay_themselves(name: str, value: int) -> None:
    """The value of a Pad once went through a float: 2^53 + 1 lost its last bit, 2^63 - 1 was refused."""
    nodes, weights, right = WHOLE[name]
    x = [5, -7, 2**60 + 1]
    held = {k: np.array(a, np.int64) for k, a in weights(value).items()}
    found = sd.compile(model(nodes(value), [port("x", (3,), L)], [port("y", None, L)], held))(np.array(x))
    assert found.tolist() == right(x, value)


# ---- bounds


@pytest.mark.parametrize("kind", [F, D, I, L], ids=["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("known", ["", "low", "high", "low high"])
def test_where_the_lower_bound_is_above_the_upper_one_all_is_the_upper_one(kind: int, known: str) -> None:
    """The bounds may be constants or inputs, in any combination: a constant lower bound was once applied last."""
    x = np.array([-9, -3, 0, 4, 7, 20], NUMPY[kind])
    for low, high in ((-4, 5), (5, -4), (3, 3)):
        bounds = {"low": np.array(low, x.dtype), "high": np.array(high, x.dtype)}
        weights = {name: a for name, a in bounds.items() if name in known.split()}
        inputs = {"x": x, **{name: a for name, a in bounds.items() if name not in weights}}
        ports = [port(name, a.shape, kind) for name, a in inputs.items()]
        m = model([node("Clip", "x low high", "y")], ports, [port("y", None, kind)], weights)
        assert sd.compile(m)(*inputs.values()).tolist() == [min(max(v, low), high) for v in x.tolist()]


@pytest.mark.parametrize("kind", [F, D], ids=["f32", "f64"])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_bound_that_is_nan_makes_all_nan_as_in_numpy(kind: int, is_known: bool) -> None:
    x = specials(kind)
    for low, high in ((np.nan, 1.0), (-1.0, np.nan), (-np.inf, np.inf), (-1.0, np.inf), (-0.0, 0.5)):
        bounds = {"low": np.array(low, x.dtype), "high": np.array(high, x.dtype)}
        ports = [port("x", x.shape, kind), *([] if is_known else [port(name, (), kind) for name in bounds])]
        m = model([node("Clip", "x low high", "y")], ports, [port("y", None, kind)], bounds if is_known else {})
        found = sd.compile(m)(x, *([] if is_known else bounds.values()))
        np.testing.assert_array_equal(found, np.clip(x, bounds["low"], bounds["high"]))


# ---- casts

KINDS = {F: "f32", D: "f64", I: "i32", L: "i64", B: "bool"}


def cast_values(kind: int) -> Array:
    if kind == B:
        return np.array([False, True])
    if kind in (I, L):
        span = np.iinfo(NUMPY[kind])
        more = [2**53 + 1, -(2**53) - 1, 2**31, -(2**31) - 1, 2**32 + 5, 2**63 - 513] if kind == L else []
        return np.array([0, 1, -1, 2**24 + 1, -(2**24) - 1, span.min, span.max, *more], NUMPY[kind])
    edges = [2.0**31, 2.0**31 - 1, 2.0**31 - 0.5, 2.0**32 + 1, 2.0**53, 2.0**63, 2.0**64, 1e10, 2.5, 3.5, 0.9999999]
    return np.concatenate([specials(kind), np.array([*edges, *(-e for e in edges)], NUMPY[kind])])


def cast_right(v: Any, to: int) -> Any:
    """Floats towards zero, saturating, NaN to 0; integers modulo 2^bits; anything but zero, NaN included, is true."""
    if to == B:
        return v != 0
    if to in (F, D):
        return NUMPY[to](v)
    span = np.iinfo(NUMPY[to])
    if isinstance(v, float):
        return 0 if math.isnan(v) else span.min if v <= span.min else span.max if v >= span.max else int(v)
    bits = 32 if to == I else 64
    return (int(v) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", KINDS, ids=list(KINDS.values()))
def test_casts_saturate_floats_and_wrap_integers(kind: int, machine: str) -> None:
    x = cast_values(kind)
    others = [to for to in KINDS if to != kind]
    nodes = [node("Cast", "x", KINDS[to], to=to) for to in others]
    results = all_at_once(nodes, {"x": (kind, x)}, {KINDS[to]: to for to in others}, machine)
    for to in others:
        found, right = results[KINDS[to]], np.array([cast_right(v, to) for v in x.tolist()], NUMPY[to])
        wrong = np.flatnonzero(~same(found, right) if to in (F, D) else found != right)
        assert not len(wrong), [(KINDS[to], x[k], found[k], right[k]) for k in wrong]


# ---- integers


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", [I, L], ids=["i32", "i64"])
def test_integers_wrap_and_never_trap(kind: int, machine: str) -> None:
    span, bits = np.iinfo(NUMPY[kind]), 8 * np.dtype(NUMPY[kind]).itemsize
    a, b = pairs_of(np.array([span.min, span.min + 1, -7, -2, -1, 0, 1, 2, 3, 7, span.max - 1, span.max], NUMPY[kind]))

    def quotient(x: int, y: int) -> int:
        return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)

    rules: dict[str, Callable[[int, int], int]] = {
        "Add": lambda x, y: x + y,
        "Sub": lambda x, y: x - y,
        "Mul": lambda x, y: x * y,
        "Div": quotient,
        "Mod": lambda x, y: 0 if y == 0 else x % y,
        "FMod": lambda x, y: 0 if y == 0 else x - quotient(x, y) * y,
        "Max": max,
        "Min": min,
        "Abs": lambda x, _: abs(x),
        "Neg": lambda x, _: -x,
        "Sign": lambda x, _: (x > 0) - (x < 0),
        "Relu": lambda x, _: max(x, 0),
        "BitwiseNot": lambda x, _: ~x,
    }
    one_input = ("Abs", "Neg", "Sign", "Relu", "BitwiseNot")
    nodes = [
        node("Mod", "a b", op, fmod=1) if op == "FMod" else node(op, "a" if op in one_input else "a b", op)
        for op in rules
    ]
    results = all_at_once(nodes, {"a": (kind, a), "b": (kind, b)}, dict.fromkeys(rules, kind), machine)
    for op, rule in rules.items():
        right = [(rule(x, y) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) for x, y in zip(a.tolist(), b.tolist())]
        assert results[op].tolist() == right, op
