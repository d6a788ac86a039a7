"""Dense layers next to images: constants take the order of the flattened image, and the data is not transposed."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.dense import Shuffle, without_transposes_of_dense
from stormdrop.operators.node import Value
from tests.support.graphs import assert_same, graph_of, ops

RNG = np.random.default_rng(0)


def weights(b: GraphBuilder, *shape: int) -> Value:
    return b.constant(RNG.standard_normal(shape).astype(np.float32))


def flattened(b: GraphBuilder, batch: int = 2) -> Value:
    """An image held [n, h, w, c], flattened as if it were [n, c, h, w]."""
    x = b.input("x", (batch, 2, 3, 4), "f32")
    return b.reshape(b.emit("Transpose", x, perm=(0, 3, 1, 2)), (batch, 24))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("transposed", [0, 1])
def test_rows_of_weights_take_the_order_of_a_flattened_image(batch: int, transposed: int) -> None:
    b = GraphBuilder()
    w = weights(b, 5, 24) if transposed else weights(b, 24, 5)
    g = graph_of(b, b.emit("MatMul", flattened(b, batch), w, transpose_b=transposed))
    h = without_transposes_of_dense(g)
    assert ops(h) == {"Reshape": 1, "MatMul": 1}
    assert_same(g, h, 1e-5)


def test_elementwise_nodes_may_stand_between() -> None:
    b = GraphBuilder()
    x = flattened(b)
    y = b.emit("Mul", b.emit("Relu", x), weights(b, 24))
    y = b.emit("Add", b.emit("Add", y, x), b.input("per_row", (2, 1), "f32"))
    heads = [b.emit("MatMul", b.emit("Tanh", y), weights(b, 24, 5)), b.emit("MatMul", y, weights(b, 24, 3))]
    g = graph_of(b, *heads)
    h = without_transposes_of_dense(g)
    assert ops(h)["Transpose"] == 0
    assert_same(g, h, 1e-5)


def test_shared_weights_are_reordered_once() -> None:
    b = GraphBuilder()
    x, w = flattened(b), weights(b, 24, 5)
    g = graph_of(b, b.emit("MatMul", x, w), b.emit("MatMul", b.emit("Neg", x), w))
    assert len(without_transposes_of_dense(g).constants) == 1


def test_columns_of_weights_take_the_order_of_the_image_they_become() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 5), "f32")
    y = b.emit("Relu", b.emit("Add", weights(b, 24), b.emit("MatMul", x, weights(b, 24, 5), transpose_b=1)))
    g = graph_of(b, b.emit("Transpose", b.reshape(y, (2, 4, 2, 3)), perm=(0, 2, 3, 1)))
    h = without_transposes_of_dense(g)
    assert ops(h) == {"MatMul": 1, "Add": 1, "Relu": 1, "Reshape": 1}
    assert_same(g, h, 1e-5)


def test_weights_between_two_images_are_reordered_on_both_sides() -> None:
    b = GraphBuilder()
    y = b.emit("MatMul", flattened(b), weights(b, 24, 30))
    g = graph_of(b, b.emit("Transpose", b.reshape(y, (2, 5, 3, 2)), perm=(0, 2, 3, 1)))
    h = without_transposes_of_dense(g)
    assert ops(h) == {"Reshape": 2, "MatMul": 1}
    assert len(h.constants) == 1
    assert_same(g, h, 1e-5)


def test_a_transpose_that_would_stay_leaves_the_weights_alone() -> None:
    b = GraphBuilder()
    x = flattened(b)
    product = b.emit("MatMul", x, weights(b, 24, 5))
    run_time = b.emit("MatMul", b.emit("Relu", x), b.input("w", (24, 5), "f32"))
    for outputs in (
        [product, x],
        [product, run_time],
        [product, b.emit("Softmax", x, axis=1)],
        [product, b.emit("Add", x, x)],
    ):
        g = graph_of(b, *outputs)
        assert without_transposes_of_dense(g) is g


def test_a_transpose_of_the_batch_stays() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 2, 4), "f32")
    y = b.reshape(b.emit("Transpose", x, perm=(1, 0, 2)), (2, 12))
    g = graph_of(b, b.emit("MatMul", y, weights(b, 12, 5)))
    assert without_transposes_of_dense(g) is g


def test_a_shuffle_reorders_one_dimension() -> None:
    a = np.arange(12).reshape(2, 6)
    assert Shuffle((2, 3), (1, 0)).apply(a, 1).tolist() == [[0, 3, 1, 4, 2, 5], [6, 9, 7, 10, 8, 11]]
