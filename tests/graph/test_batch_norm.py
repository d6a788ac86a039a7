"""Scales and shifts go into the weights, for every kind of product, layout and group; and stay where they must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stormdrop.graph.batch_norm import fold_scales
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph
from stormdrop.operators.node import Array, Value
from tests.support.graphs import floats, graph_of, ops, rewritten, window

RNG = np.random.default_rng(11)


def folded(graph: Graph) -> dict[str, int]:
    """The operators that are left; the values are the same up to rounding."""
    return dict(ops(rewritten(fold_scales, graph, within=2e-6)))


def channel(array: Array, rank: int, layout: str) -> Array:
    return array.reshape([-1 if d == (1 if layout == "NCHW" else rank - 1) else 1 for d in range(rank)])


class Image:
    """A product of an image with constant weights, and constants per channel to put before and behind it."""

    def __init__(self, op: str, layout: str, groups: int, pad: int = 0, ci: int = 4, co: int = 6) -> None:
        self.b, self.layout, self.groups, self.ci, self.co = GraphBuilder(), layout, groups, ci, co
        self.op, self.pad = op, pad
        self.x = self.b.input("x", (2, ci, 5, 4) if layout == "NCHW" else (2, 5, 4, ci), "f32")

    def product(self, x: Value) -> Value:
        g, kernel = self.groups, (3, 2)
        outer, inner = (self.co, self.ci // g) if self.op == "Conv" else (self.ci, self.co // g)
        if self.layout == "NCHW":
            shape = (outer, inner, *kernel)
        else:
            shape = (*kernel, inner, outer) if self.op == "Conv" else (*kernel, outer, inner)
        more: dict[str, Any] = {"groups": g, "layout": self.layout, **window(kernel, (self.pad, self.pad))}
        if self.op == "ConvTranspose":
            more |= {"extents": (7 - 2 * self.pad, 5 - 2 * self.pad), "after": (0, 0)}
        return self.b.emit(self.op, x, self.b.constant(floats(RNG, *shape)), **more)

    def constant(self, count: int) -> Value:
        return self.b.constant(channel(floats(RNG, count) + 1.5, 4, self.layout))


IMAGES = [
    ("Conv", "NCHW", 1),
    ("Conv", "NCHW", 2),
    ("Conv", "NHWC", 1),
    ("Conv", "NHWC", 2),
    ("ConvTranspose", "NCHW", 1),
    ("ConvTranspose", "NCHW", 2),
    ("ConvTranspose", "NHWC", 1),
]


@pytest.mark.parametrize(("op", "layout", "groups"), IMAGES)
def test_a_batch_norm_behind_a_window_goes_into_its_weights(op: str, layout: str, groups: int) -> None:
    i = Image(op, layout, groups, pad=1)
    y = i.b.emit("Add", i.product(i.x), i.constant(6))
    y = i.b.emit("Add", i.b.emit("Mul", y, i.constant(6)), i.constant(6))
    assert folded(graph_of(i.b, i.b.emit("Relu", y))) == {op: 1, "Add": 1, "Relu": 1}


@pytest.mark.parametrize(("op", "layout", "groups"), IMAGES)
def test_a_scale_before_a_window_goes_into_its_weights_though_it_is_padded(op: str, layout: str, groups: int) -> None:
    i = Image(op, layout, groups, pad=1)
    assert folded(graph_of(i.b, i.product(i.b.emit("Mul", i.x, i.constant(4))))) == {op: 1}


@pytest.mark.parametrize(("op", "layout", "groups"), IMAGES)
def test_scales_on_both_sides_go_into_the_weights_together(op: str, layout: str, groups: int) -> None:
    i = Image(op, layout, groups)
    y = i.product(i.b.emit("Div", i.x, i.constant(4)))
    assert folded(graph_of(i.b, i.b.emit("Mul", y, i.constant(6)))) == {op: 1}


@pytest.mark.parametrize(("layout", "groups"), [("NCHW", 1), ("NCHW", 2), ("NHWC", 1), ("NHWC", 2)])
def test_a_batch_norm_before_a_window_without_padding_becomes_a_shift_behind(layout: str, groups: int) -> None:
    i = Image("Conv", layout, groups)
    x = i.b.emit("Sub", i.b.emit("Mul", i.x, i.constant(4)), i.constant(4))
    y = i.b.emit("Add", i.b.emit("Mul", i.product(x), i.constant(6)), i.constant(6))
    assert folded(graph_of(i.b, y)) == {"Conv": 1, "Add": 1}
    assert folded(graph_of(i.b, i.product(x))) == {"Conv": 1, "Add": 1}


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_shift_before_a_border_stays(op: str) -> None:
    i = Image(op, "NCHW", 1, pad=1 if op == "Conv" else 0)
    g = graph_of(i.b, i.product(i.b.emit("Add", i.b.emit("Mul", i.x, i.constant(4)), i.constant(4))))
    assert fold_scales(g) is g


def test_depthwise_filters_take_both_sides() -> None:
    i = Image("Conv", "NHWC", 4, ci=4, co=8)
    x = i.b.emit("Add", i.b.emit("Mul", i.x, i.constant(4)), i.constant(4))
    y = i.b.emit("Mul", i.product(x), i.constant(8))
    assert folded(graph_of(i.b, y)) == {"Conv": 1, "Add": 1}


@pytest.mark.parametrize("ta", [0, 1])
@pytest.mark.parametrize("tb", [0, 1])
@pytest.mark.parametrize("constant_side", [0, 1])
@pytest.mark.parametrize("batched", [False, True])
def test_matrices_take_scales_and_shifts_of_their_rows_and_columns(
    ta: int, tb: int, constant_side: int, batched: bool
) -> None:
    """a [n, k] · b [k, m] with either one constant, stored either way."""
    n, k, m, b = 3, 5, 4, GraphBuilder()
    shapes = [(k, n) if ta else (n, k), (m, k) if tb else (k, m)]
    x = b.input("x", (2, *shapes[1 - constant_side]), "f32")
    w = b.constant(floats(RNG, *((2,) if batched else ()), *shapes[constant_side]))
    per_k = floats(RNG, k) + 2
    reads_last = (tb == 1) if constant_side == 0 else (ta == 0)
    before = b.constant(per_k if reads_last else per_k[:, None])
    data = b.emit("Add", b.emit("Mul", x, before), before)
    y = b.emit("MatMul", *((w, data) if constant_side == 0 else (data, w)), transpose_a=ta, transpose_b=tb)
    behind = b.constant(floats(RNG, m) if constant_side else floats(RNG, n, 1))
    y = b.emit("Add", b.emit("Mul", b.emit("Add", y, behind), behind), behind)
    assert folded(graph_of(b, y)) == {"MatMul": 1, "Add": 1}


def dense(
    behind: Callable[[GraphBuilder, Value], Value], before: Callable[[GraphBuilder, Value], Value] = lambda b, x: x
) -> Graph:
    b = GraphBuilder()
    x = b.input("x", (3, 5), "f32")
    w = b.constant(floats(RNG, 5, 4))
    return graph_of(b, behind(b, b.emit("MatMul", before(b, x), w)))


def test_differences_quotients_and_signs_count_as_sums_and_products() -> None:
    def behind(b: GraphBuilder, y: Value) -> Value:
        y = b.emit("Sub", b.constant(floats(RNG, 4)), b.emit("Div", y, b.constant(floats(RNG, 1, 4) + 3)))
        return b.emit("Sub", b.emit("Neg", y), b.number(2, y))

    assert folded(dense(behind)) == {"MatMul": 1, "Add": 1}


def test_a_scale_moves_across_reshapes_into_the_next_product() -> None:
    """A mean over an image: its factor is the classifier's."""
    b = GraphBuilder()
    x = b.input("x", (2, 5, 3, 3), "f32")
    total = b.emit("ReduceSum", x, axes=(2, 3), keepdims=1)
    mean = b.reshape(b.emit("Mul", total, b.number(1 / 9, total)), (2, 5))
    assert folded(graph_of(b, b.emit("MatMul", mean, b.constant(floats(RNG, 5, 4))))) == {
        "ReduceSum": 1,
        "Reshape": 1,
        "MatMul": 1,
    }


def test_a_scale_per_channel_does_not_move_across_a_reshape() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 5, 1), "f32")
    y = b.reshape(b.emit("Mul", x, b.constant(floats(RNG, 5, 1))), (2, 5))
    g = graph_of(b, b.emit("MatMul", y, b.constant(floats(RNG, 5, 4))))
    assert fold_scales(g) is g


def test_a_mean_over_windows_stays_together() -> None:
    i = Image("Conv", "NCHW", 1)
    pooled = i.b.emit("SumPool", i.x, layout="NCHW", **window((2, 1)))
    g = graph_of(i.b, i.product(i.b.emit("Mul", pooled, i.b.number(0.5, pooled))))
    assert fold_scales(g) is g


STAYS: dict[str, Callable[[GraphBuilder, Value], Value]] = {
    "one bias": lambda b, y: b.emit("Add", y, b.constant(floats(RNG, 4))),
    "nothing": lambda b, y: y,
    "a factor per row": lambda b, y: b.emit("Mul", y, b.constant(floats(RNG, 3, 1))),
    "a factor that enlarges": lambda b, y: b.emit("Mul", y, b.constant(floats(RNG, 2, 1, 4))),
    "a relu between": lambda b, y: b.emit("Mul", b.emit("Relu", y), b.constant(floats(RNG, 4))),
    "a quotient of it": lambda b, y: b.emit("Div", b.number(2, y), y),
    "a factor that is no constant": lambda b, y: b.emit("Mul", y, b.input("s", (4,), "f32")),
    "another reader": lambda b, y: b.emit("Concat", b.emit("Mul", y, b.number(2, y)), y, axis=0),
    "its square": lambda b, y: b.emit("Mul", y, y),
    "an infinite factor": lambda b, y: b.emit("Mul", y, b.constant(np.inf, "f32")),
    "a factor that overflows": lambda b, y: b.emit(
        "Mul", b.emit("Mul", y, b.constant(1e38, "f32")), b.constant(1e30, "f32")
    ),
    "rounding by a huge number": lambda b, y: b.emit(
        "Sub", b.emit("Add", y, b.constant(3e7, "f32")), b.constant(3e7, "f32")
    ),
}


@pytest.mark.parametrize("what", STAYS)
def test_what_is_not_the_weights_own_stays(what: str) -> None:
    g = dense(STAYS[what])
    assert fold_scales(g) is g


def test_a_value_that_is_also_an_output_is_not_changed() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 5), "f32")
    y = b.emit("MatMul", x, b.constant(floats(RNG, 5, 4)))
    g = graph_of(b, b.emit("Mul", y, b.number(2, y)), y)
    assert fold_scales(g) is g


def test_weights_that_two_products_share_are_scaled_for_one_of_them() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 5), "f32")
    w = b.constant(floats(RNG, 5, 4))
    y, z = b.emit("MatMul", x, w), b.emit("MatMul", b.emit("Relu", x), w)
    g = graph_of(b, b.emit("Mul", y, b.number(2, y)), z)
    after = rewritten(fold_scales, g, within=2e-6)
    assert ops(after) == {"MatMul": 2, "Relu": 1}
    assert len(after.constants) == 2
    np.testing.assert_array_equal(after.constants[w], g.constants[w])


def test_large_weights_that_others_read_are_not_doubled() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 600), "f32")
    w = b.constant(floats(RNG, 600, 600))
    y, z = b.emit("MatMul", x, w), b.emit("MatMul", b.emit("Relu", x), w)
    g = graph_of(b, b.emit("Mul", y, b.number(2, y)), z)
    assert fold_scales(g) is g


def test_a_chain_of_products_hands_its_shifts_on() -> None:
    """Behind the last product there is one addition for all of them."""
    b = GraphBuilder()
    y = b.input("x", (3, 5), "f32")
    for _ in range(3):
        y = b.emit("MatMul", y, b.constant(floats(RNG, 5, 5)))
        y = b.emit("Add", b.emit("Mul", y, b.constant(floats(RNG, 5))), b.constant(floats(RNG, 5)))
    assert folded(graph_of(b, y)) == {"MatMul": 3, "Add": 1}


def test_an_addition_of_an_image_keeps_its_shape() -> None:
    i = Image("Conv", "NCHW", 1, pad=1)
    y = i.product(i.x)
    y = i.b.emit("Add", i.b.emit("Mul", y, i.constant(6)), i.b.constant(floats(RNG, 1, *y.shape[1:])))
    y = i.b.emit("Add", i.b.emit("Mul", y, i.constant(6)), i.constant(6))
    assert folded(graph_of(i.b, y)) == {"Conv": 1, "Add": 1}


def test_an_addition_per_pixel_does_not_take_a_factor_per_channel() -> None:
    """(y + p) · s would need a constant as large as the image."""
    i = Image("Conv", "NCHW", 1)
    y = i.product(i.x)
    y = i.b.emit("Mul", i.b.emit("Add", y, i.b.constant(floats(RNG, 1, 1, *y.shape[2:]))), i.constant(6))
    g = graph_of(i.b, y)
    assert fold_scales(g) is g


def test_weights_are_rounded_once() -> None:
    """Two factors that f32 would round in between."""
    a, c = np.float32(1.1), np.float32(1.3)
    b = GraphBuilder()
    x = b.input("x", (2, 3), "f32")
    w = floats(RNG, 3, 4)
    y = b.emit("MatMul", b.emit("Mul", x, b.constant(a)), b.constant(w))
    g = fold_scales(graph_of(b, b.emit("Mul", y, b.constant(c))))
    (found,) = g.constants.values()
    np.testing.assert_array_equal(found, (w.astype(np.float64) * (np.float64(a) * np.float64(c))).astype(np.float32))


def test_integers_are_left_alone() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 3), "i64")
    y = b.emit("MatMul", x, b.constant(np.arange(12).reshape(3, 4)))
    g = graph_of(b, b.emit("Mul", y, b.constant(3, "i64")))
    assert fold_scales(g) is g


def test_the_graph_it_came_from_is_not_touched() -> None:
    g = dense(lambda b, y: b.emit("Mul", y, b.constant(floats(RNG, 4))))
    kept = {v: a.copy() for v, a in g.constants.items()}
    fold_scales(g)
    for v, array in kept.items():
        np.testing.assert_array_equal(g.constants[v], array)
