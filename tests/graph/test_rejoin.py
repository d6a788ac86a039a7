"""Dimensions joined for a while: kept apart where nothing tells the difference."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.layout import keep_apart, pieces
from stormdrop.operators.node import Value
from tests.support.graphs import assert_same, graph_of, ops

SHAPE = (2, 4, 3, 5)


def joined(b: GraphBuilder) -> Value:
    return b.reshape(b.input("x", SHAPE, "f32"), (2, 2, 30))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((1, 64, 8, 8), (1, 32, 128), ((1,), (32,), (2, 8, 8))),
        ((2, 4, 3, 5), (2, 60), ((2,), (4, 3, 5))),
        ((2, 4, 3, 5), (8, 15), ((2, 4), (3, 5))),
        ((2, 4, 3, 5), (2, 1, 4, 15), ((2,), (1,), (4,), (3, 5))),
        ((2, 6, 5), (2, 2, 3, 5), None),  # splits only
        ((4, 6), (6, 4), None),  # 4 and 6 share no cut
        ((0, 6), (0,), None),
    ],
)
def test_joined_dimensions_have_pieces(source: tuple[int, ...], target: tuple[int, ...], expected: object) -> None:
    assert pieces(source, target) == expected


def test_a_group_norm_works_on_the_dimensions_themselves() -> None:
    b = GraphBuilder()
    y = b.emit("Standardize", joined(b), axes=(2,), epsilon=1e-3)
    y = b.emit("Mul", y, b.constant(np.array([[2.0], [3.0]], np.float32)))
    y = b.emit("Add", y, b.constant(np.random.default_rng(0).standard_normal((2, 30)).astype(np.float32)))
    g = graph_of(b, b.reshape(y, SHAPE))
    h = keep_apart(g)
    (norm,) = (n for n in h.nodes if n.op == "Standardize")
    assert norm.output.shape == (2, 2, 2, 3, 5)
    assert norm.integers("axes") == (2, 3, 4)
    assert ops(h) == ops(g)
    assert_same(g, h, 1e-5)


def test_a_norm_written_out_is_kept_apart_too() -> None:
    b = GraphBuilder()
    x = joined(b)
    gap = b.emit("Sub", x, b.emit("Mul", b.reduce("Sum", x, (2,)), b.number(1 / 30, x)))
    spread = b.reduce("Sum", b.emit("Mul", gap, gap), (2,))
    g = graph_of(b, b.reshape(b.emit("Div", gap, b.emit("Sqrt", spread)), SHAPE))
    h = keep_apart(g)
    assert h is not g
    assert all(n.output.rank in (4, 5) for n in h.nodes)
    assert_same(g, h, 1e-5)


def test_what_tells_the_difference_stays_joined() -> None:
    b = GraphBuilder()
    x = joined(b)
    y = b.emit("Standardize", x, axes=(2,), epsilon=1e-3)
    back = b.reshape(y, SHAPE)
    others = [
        b.emit("Softmax", y, axis=2),
        b.emit("MatMul", y, y, transpose_b=1),
        b.reduce("Sum", y, (2,), keepdims=False),
        y,
        b.emit("Add", y, b.input("v", (30,), "f32")),
        b.emit("Add", y, b.constant(np.ones((2, 2, 2, 30), np.float32))),
    ]
    for other in others:
        g = graph_of(b, back, other)
        assert keep_apart(g) is g


def test_a_reshape_with_nothing_behind_it_is_left_alone() -> None:
    b = GraphBuilder()
    g = graph_of(b, b.reshape(joined(b), (60, 2)))
    assert keep_apart(g) is g
    h = graph_of(b, b.emit("Neg", b.reshape(b.input("y", (4, 6), "f32"), (6, 4))))
    assert keep_apart(h) is h
