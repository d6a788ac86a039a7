"""The integers that a model can use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.index_ranges import MASK, NUMBERS, index_ranges
from stormdrop.operators.node import Value
from tests.support.graphs import graph_of

Use = Callable[[GraphBuilder, Value], Value]


def table(b: GraphBuilder, rows: int) -> Value:
    return b.constant(np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32), name="table")


def gathered(b: GraphBuilder, x: Value, rows: int = 257) -> Value:
    return b.emit("Gather", table(b, rows), x, axis=0)


def compared(b: GraphBuilder, x: Value, *numbers: int) -> Value:
    return b.emit("Equal", b.emit("Reshape", x, shape=(6, 1)), b.constant(np.array(numbers), x.dtype))


def number(b: GraphBuilder, x: Value, value: int) -> Value:
    return b.constant(value, x.dtype)


USES: dict[str, tuple[Use, tuple[int, int]]] = {
    "an index": (gathered, (0, 256)),
    "a moved index": (
        lambda b, x: gathered(b, b.emit("Transpose", b.emit("Reshape", x, shape=(3, 2)), perm=(1, 0))),
        (0, 256),
    ),
    "a cast index": (lambda b, x: gathered(b, b.emit("Cast", x, to="i64")), (0, 256)),
    "an index plus 2": (lambda b, x: gathered(b, b.emit("Add", x, number(b, x, 2))), (0, 254)),
    "an index minus 2": (lambda b, x: gathered(b, b.emit("Sub", x, number(b, x, 2))), (2, 258)),
    "a wrapped index": (
        lambda b, x: gathered(
            b,
            b.emit("Where", b.emit("Less", x, number(b, x, 0)), b.emit("Add", x, number(b, x, 257)), x),
        ),
        (0, 256),
    ),
    "two indices": (lambda b, x: b.emit("Add", gathered(b, x), gathered(b, x, 30)), (0, 29)),
    "an index that is computed": (lambda b, x: gathered(b, b.emit("Mul", x, x), 5), MASK),
    "one of 257 bytes": (lambda b, x: compared(b, x, *range(257)), (0, 256)),
    "one of two numbers": (lambda b, x: compared(b, x, 8000, 16000), (8000, 16000)),
    "one number": (lambda b, x: compared(b, x, 8000), (8000, 8001)),
    "equal to 0": (lambda b, x: compared(b, x, 0), MASK),
    "a mask": (lambda b, x: b.emit("Cast", x, to="f32"), MASK),
    "a number": (lambda b, x: b.emit("Mul", x, x), NUMBERS),
    "an output": (lambda b, x: b.emit("Reshape", x, shape=(3, 2)), NUMBERS),
}


@pytest.mark.parametrize("name", USES)
def test_a_range_follows_from_the_nodes_that_read_an_input(name: str) -> None:
    use, wanted = USES[name]
    b = GraphBuilder()
    y = use(b, b.input("x", (6,), "i32"))
    assert index_ranges(graph_of(b, y)) == {"x": wanted}


def test_an_index_counts_before_comparisons_and_arithmetic() -> None:
    b = GraphBuilder()
    x = b.input("ids", (6,), "i64")
    graph = graph_of(b, gathered(b, x, 30), compared(b, x, 900), b.emit("Mul", x, x))
    assert index_ranges(graph) == {"ids": (0, 29)}


def test_bytes_have_a_range_only_as_indices() -> None:
    b = GraphBuilder()
    image, ids = b.input("image", (6,), "u8"), b.input("ids", (6,), "u8")
    outputs = b.emit("Cast", image, to="f32"), gathered(b, b.emit("Cast", ids, to="i64"), 300)
    assert index_ranges(graph_of(b, *outputs)) == {"ids": (0, 255)}


def test_floats_truth_values_and_unread_inputs_have_none() -> None:
    b = GraphBuilder()
    x, _, unread = b.input("x", (6,), "f32"), b.input("m", (6,), "bool"), b.input("unread", (6,), "i64")
    assert index_ranges(graph_of(b, b.emit("Relu", x))) == {}
    assert unread.dtype == "i64"


def test_operators_beside_gather_bound_their_indices() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 3), "f32")
    at, nd, lengths = b.input("at", (4, 2), "i64"), b.input("nd", (5, 2), "i64"), b.input("lengths", (3,), "i64")
    outputs = (
        b.emit("GatherElements", x, at, axis=1),
        b.emit("GatherND", x, nd, batch_dims=0),
        b.emit("ReverseSequence", x, lengths, time_axis=0, batch_axis=1),
    )
    assert index_ranges(graph_of(b, *outputs)) == {"at": (0, 2), "nd": (0, 2), "lengths": (0, 4)}
