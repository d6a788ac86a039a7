"""Graphs on the reference interpreter, in f64 and shaken."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop.base.errors import UserError
from stormdrop.compare.interpreter import interpret
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph
from stormdrop.operators.node import Value
from tests.support.graphs import Array, graph_of


def product() -> Graph:
    """x · w for 200 terms, moved, and the index of its largest element."""
    b = GraphBuilder()
    w = np.random.default_rng(0).standard_normal((200, 4)).astype(np.float32)
    y = b.emit("MatMul", b.input("x", (3, 200), "f32"), b.constant(w, name="w"), transpose_a=0, transpose_b=0)
    moved = b.emit("Reshape", y, shape=(12,))
    return graph_of(b, moved, b.emit("ArgMax", y, axis=1, last=0))


X = np.random.default_rng(1).standard_normal((3, 200)).astype(np.float32)


def test_floats_are_float64_from_the_first_node_to_the_outputs() -> None:
    graph = product()
    (w,) = graph.constants.values()
    wide, index = interpret(graph, [X], "f64")
    assert (wide.dtype, index.dtype) == (np.float64, np.int64)
    np.testing.assert_allclose(wide, (X.astype(np.float64) @ w.astype(np.float64)).ravel(), rtol=1e-14, atol=1e-13)
    narrow, _ = interpret(graph, [X])
    assert narrow.dtype == np.float32
    assert 0 < np.abs(narrow - wide).max() < 1e-4


def test_each_float_value_is_shaken_once_with_the_length_of_its_sum() -> None:
    seen: dict[str, int] = {}

    def shaken(value: Value, array: Array, terms: int) -> Array:
        assert value.name not in seen
        assert array.dtype == np.float64
        seen[value.name] = terms
        return array * 2.0

    graph = product()
    y, index = interpret(graph, [X], "f64", shaken)
    plain, same_index = interpret(graph, [X], "f64")
    assert list(seen.values()) == [1, 1, 200]
    np.testing.assert_allclose(y, 8.0 * plain)
    np.testing.assert_array_equal(index, same_index)


def test_a_tick_that_raises_ends_the_run() -> None:
    def tick() -> None:
        raise UserError("time is up")

    with pytest.raises(UserError, match="time is up"):
        interpret(product(), [X], "f64", tick=tick)
