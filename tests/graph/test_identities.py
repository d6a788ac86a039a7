"""Nodes that do nothing vanish, pairs become one, and nothing else does; on hostile numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.identities import identities, joined
from stormdrop.ir.expr import Dtype
from stormdrop.operators.node import Node, Value
from tests.support.graphs import graph_of, ops, rewritten, window

Make = Callable[[GraphBuilder, Value], Value]


def left(make: Make, shape: tuple[int, ...] = (2, 3), dtype: Dtype = "f32") -> dict[str, int]:
    """The operators that are left of make(…) between two others; the values must be the same."""
    b = GraphBuilder()
    first, last = ("Not", "Xor") if dtype == "bool" else ("Neg", "Floor")
    y = make(b, b.emit(first, b.input("x", shape, dtype)))
    end = b.emit(last, y, b.input("z", shape, "bool")) if dtype == "bool" else b.emit(last, y)
    found = ops(rewritten(identities, graph_of(b, end), hostile=True))
    found.subtract((first, last))
    return {op: n for op, n in found.items() if n}


def full(b: GraphBuilder, value: float, *shape: int, dtype: Dtype = "f32") -> Value:
    return b.constant(np.full(shape, value), dtype)


NOTHING: dict[str, tuple[Make, tuple[int, ...], Dtype]] = {
    "x + 0": (lambda b, x: b.emit("Add", x, full(b, 0)), (2, 3), "f32"),
    "0 + x, of its shape": (lambda b, x: b.emit("Add", full(b, 0, 2, 3), x), (2, 3), "f32"),
    "x + -0.0, a row": (lambda b, x: b.emit("Add", x, full(b, -0.0, 1, 3)), (2, 3), "f32"),
    "x - 0": (lambda b, x: b.emit("Sub", x, full(b, 0)), (2, 3), "f32"),
    "x · 1": (lambda b, x: b.emit("Mul", full(b, 1, 3), x), (2, 3), "f32"),
    "x / 1": (lambda b, x: b.emit("Div", x, full(b, 1)), (2, 3), "f32"),
    "x / 1 of integers": (lambda b, x: b.emit("Div", x, full(b, 1, dtype="i64")), (2, 3), "i64"),
    "x ** 1": (lambda b, x: b.emit("Pow", x, full(b, 1)), (2, 3), "f32"),
    "x ** 1 as an attribute": (lambda b, x: b.emit("PowConst", x, exponent=1.0), (2, 3), "f32"),
    "x and true": (lambda b, x: b.emit("And", x, full(b, 1, dtype="bool")), (2, 3), "bool"),
    "x or x": (lambda b, x: b.emit("Or", x, x), (2, 3), "bool"),
    "max(x, x)": (lambda b, x: b.emit("Max", x, x), (2, 3), "f32"),
    "max(x, -inf)": (lambda b, x: b.emit("Max", x, full(b, -np.inf)), (2, 3), "f32"),
    "min(inf, x)": (lambda b, x: b.emit("Min", full(b, np.inf), x), (2, 3), "f32"),
    "max(x, least integer)": (lambda b, x: b.emit("Max", x, full(b, -(2**31), dtype="i32")), (2, 3), "i32"),
    "where(true, x, y)": (lambda b, x: b.emit("Where", full(b, 1, 3, dtype="bool"), x, full(b, 7)), (2, 3), "f32"),
    "where(c, x, x)": (lambda b, x: b.emit("Where", b.input("c", (2, 3), "bool"), x, x), (2, 3), "f32"),
    "transposed by nothing": (lambda b, x: b.emit("Transpose", x, perm=(0, 1)), (2, 3), "f32"),
    "transposed twice": (
        lambda b, x: b.emit("Transpose", b.emit("Transpose", x, perm=(1, 2, 0)), perm=(2, 0, 1)),
        (2, 3, 4),
        "f32",
    ),
    "reshaped to its shape": (lambda b, x: b.emit("Reshape", x, shape=(2, 3)), (2, 3), "f32"),
    "reshaped there and back": (
        lambda b, x: b.emit("Reshape", b.emit("Reshape", x, shape=(6,)), shape=(2, 3)),
        (2, 3),
        "f32",
    ),
    "cast to its type": (lambda b, x: b.emit("Cast", x, to="f32"), (2, 3), "f32"),
    "cast to more and back": (lambda b, x: b.emit("Cast", b.emit("Cast", x, to="f64"), to="f32"), (2, 3), "f32"),
    "expanded to its shape": (lambda b, x: b.emit("Expand", x, shape=(2, 3)), (2, 3), "f32"),
    "all of it": (lambda b, x: b.emit("Slice", x, starts=(0, 0), steps=(1, 1), shape=(2, 3)), (2, 3), "f32"),
    "one part": (lambda b, x: b.emit("Concat", x, axis=1), (2, 3), "f32"),
    "no pad": (lambda b, x: b.emit("Pad", x, before=(0, 0), after=(0, 0), mode="edge", value=0.0), (2, 3), "f32"),
    "no bounds": (lambda b, x: b.emit("Clip", x, min=-np.inf), (2, 3), "f32"),
    "a copy": (lambda b, x: b.emit("Copy", x), (2, 3), "f32"),
    "once": (lambda b, x: b.emit("Tile", b.emit("Repeat", x, axis=0, times=1), times=(1, 1)), (2, 3), "f32"),
    "twice negative": (lambda b, x: b.emit("Neg", b.emit("Neg", x)), (2, 3), "f32"),
    "the largest of one": (lambda b, x: b.emit("ReduceMax", x, axes=(1,), keepdims=1), (3, 1), "f32"),
    "a window of one pixel": (lambda b, x: b.emit("MaxPool", x, layout="NCHW", **window((1,))), (1, 2, 3), "f32"),
}


@pytest.mark.parametrize("what", NOTHING)
def test_what_does_nothing_vanishes(what: str) -> None:
    make, shape, dtype = NOTHING[what]
    assert left(make, shape, dtype) == {}


SOMETHING: dict[str, tuple[Make, dict[str, int]]] = {
    "x + 0 that enlarges": (lambda b, x: b.emit("Add", x, full(b, 0, 4, 1, 1)), {"Add": 1}),
    "1 / x": (lambda b, x: b.emit("Div", full(b, 1), x), {"Div": 1}),
    "x / 3": (lambda b, x: b.emit("Div", x, full(b, 3)), {"Div": 1}),
    "x · almost 1": (lambda b, x: b.emit("Mul", x, b.constant([1, 1, 1.5], "f32")), {"Mul": 1}),
    "max(x, 0)": (lambda b, x: b.emit("Max", x, full(b, 0)), {"Max": 1}),
    "through an integer": (lambda b, x: b.emit("Cast", b.emit("Cast", x, to="i64"), to="f32"), {"Cast": 2}),
    "backwards": (lambda b, x: b.emit("Slice", x, starts=(0, 2), steps=(1, -1), shape=(2, 3)), {"Slice": 1}),
    "a shifted pixel": (
        lambda b, x: b.emit("SumPool", b.reshape(x, (2, 3, 1)), layout="NCHW", **window((1,), (1,), (0,), (2,))),
        {"Reshape": 1, "SumPool": 1},
    ),
}


@pytest.mark.parametrize("what", SOMETHING)
def test_what_does_something_stays(what: str) -> None:
    make, wanted = SOMETHING[what]
    assert left(make) == wanted


def padded(b: GraphBuilder, x: Value, after: tuple[int, ...], value: float) -> Value:
    return b.emit("Pad", x, before=(0, 1, 0), after=after, mode="constant", value=value)


PAIRS: dict[str, tuple[Make, dict[str, int]]] = {
    "transposes": (lambda b, x: b.transpose(b.transpose(x, (1, 2, 0)), (1, 2, 0)), {"Transpose": 1}),
    "a transpose of ones": (lambda b, x: b.transpose(b.reshape(x, (2, 1, 3, 4)), (0, 2, 1, 3)), {"Reshape": 1}),
    "reshapes": (lambda b, x: b.reshape(b.reshape(x, (6, 4)), (4, 6)), {"Reshape": 1}),
    "expansions": (
        lambda b, x: b.expand(b.expand(b.reshape(x, (2, 3, 4, 1)), (2, 3, 4, 5)), (2, 2, 3, 4, 5)),
        {"Reshape": 1, "Expand": 1},
    ),
    "an expansion by ones": (lambda b, x: b.expand(x, (1, 2, 3, 4)), {"Reshape": 1}),
    "an expansion that is broadcast anyway": (
        lambda b, x: b.emit("Add", b.expand(b.emit("ReduceMax", x, axes=(2,), keepdims=1), (2, 3, 4)), x),
        {"ReduceMax": 1, "Add": 1},
    ),
    "slices": (
        lambda b, x: b.emit(
            "Slice",
            b.emit("Slice", x, starts=(1, 2, 0), steps=(1, -1, 1), shape=(1, 3, 4)),
            starts=(0, 1, 3),
            steps=(1, 1, -2),
            shape=(1, 2, 2),
        ),
        {"Slice": 1},
    ),
    "pads": (
        lambda b, x: padded(b, padded(b, x, (0, 0, 0), 2.0), (2, 0, 0), 2.0),
        {"Pad": 1},
    ),
    "pads of other values": (
        lambda b, x: padded(b, padded(b, x, (0, 0, 0), 2.0), (2, 0, 0), 3.0),
        {"Pad": 2},
    ),
    "relus": (lambda b, x: b.emit("Relu", b.emit("Relu", x)), {"Relu": 1}),
    "equal clips": (lambda b, x: b.emit("Clip", b.emit("Clip", x, min=0.0, max=6.0), min=0.0, max=6.0), {"Clip": 1}),
    "a difference": (lambda b, x: b.emit("Sub", x, full(b, 3)), {"Add": 1}),
    "a quotient by powers of two": (
        lambda b, x: b.emit("Div", x, b.constant([8, -0.5, 1, 2.0**100], "f32")),
        {"Mul": 1},
    ),
    "a sum over one": (
        lambda b, x: b.emit("ReduceSum", b.reshape(x, (6, 1, 4)), axes=(1,), keepdims=0),
        {"Reshape": 1},
    ),
}


@pytest.mark.parametrize("what", PAIRS)
def test_pairs_become_one(what: str) -> None:
    make, wanted = PAIRS[what]
    assert left(make, (2, 3, 4)) == wanted


def constants_of(make: Make, dtype: Dtype = "f32") -> tuple[list[Node], list[float]]:
    """What is left of make(x), and the constants of it."""
    b = GraphBuilder()
    g = rewritten(identities, graph_of(b, make(b, b.input("x", (2, 3), dtype))), within=2e-6)
    return list(g.nodes), [a.ravel()[0].item() for a in g.constants.values()]


def test_factors_one_after_the_other_are_multiplied() -> None:
    nodes, found = constants_of(
        lambda b, x: b.emit("Mul", full(b, 3, 1, 3), b.emit("Mul", b.emit("Div", x, full(b, 2)), full(b, 5)))
    )
    assert ([n.op for n in nodes], found) == (["Mul"], [7.5])


def test_terms_one_after_the_other_are_added() -> None:
    nodes, found = constants_of(
        lambda b, x: b.emit("Sub", b.emit("Add", b.emit("Sub", x, full(b, 2)), full(b, 5)), full(b, 4))
    )
    assert ([n.op for n in nodes], found) == (["Add"], [-1])


def test_terms_that_cancel_vanish() -> None:
    nodes, found = constants_of(lambda b, x: b.emit("Relu", b.emit("Sub", b.emit("Add", x, full(b, 2)), full(b, 2))))
    assert ([n.op for n in nodes], found) == (["Relu"], [])


def test_integers_wrap_as_they_did() -> None:
    big = 2**31 - 7
    nodes, _ = constants_of(
        lambda b, x: b.emit("Add", b.emit("Add", x, full(b, big, dtype="i32")), full(b, big, dtype="i32")), "i32"
    )
    assert [n.op for n in nodes] == ["Add"]


def test_rounding_by_adding_a_huge_number_is_kept() -> None:
    huge = 1.5 * 2**23
    b = GraphBuilder()
    x = b.input("x", (2, 3), "f32")
    g = identities(graph_of(b, b.emit("Sub", b.emit("Add", x, full(b, huge)), full(b, huge))))
    assert ops(g) == {"Add": 2}


@pytest.mark.parametrize(("a", "b"), [(1e30, 1e30), (1e-30, 1e-30)])
def test_factors_that_overflow_or_vanish_together_stay_apart(a: float, b: float) -> None:
    first, second = np.array([a], np.float32), np.array([b], np.float32)
    assert joined("Mul", first, second) is None
    assert joined("Mul", first, 0 * second) is not None


def test_constants_that_would_grow_together_stay_apart() -> None:
    assert joined("Add", np.ones((1, 3), np.float32), np.ones((4, 1), np.float32)) is None
    both = joined("Add", np.ones((1, 3), np.float32), np.ones((4, 3), np.float32))
    assert both is not None
    assert both.shape == (4, 3)


def test_a_value_that_others_read_is_not_computed_twice() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "f32")
    once = b.emit("Mul", x, full(b, 3))
    g = graph_of(b, b.emit("Mul", once, full(b, 5)), b.emit("Neg", once))
    assert identities(g) is g


def test_outputs_keep_their_names_where_their_nodes_vanish() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "f32")
    g = rewritten(identities, graph_of(b, b.emit("Copy", x), b.emit("Relu", x)))
    assert g.outputs[0] == x
    assert g.output_names == ("out0", "out1")
