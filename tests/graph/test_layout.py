"""The layout pass: which transposes remain, and that nothing but the order changes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from stormdrop import zoo
from stormdrop.frontend.onnx import load
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph, verify
from stormdrop.graph.layout import channels_last
from stormdrop.graph.layout_rules import blocks_of, carried, completed, matched, returned
from stormdrop.ir.expr import NUMPY
from stormdrop.operators.node import Attribute, Value
from tests.support.graphs import assert_same, graph_of, ops
from tests.support.graphs import window as window_attributes

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
Layer = Callable[[GraphBuilder, Value], Value]
RNG = np.random.default_rng(0)


def weights(b: GraphBuilder, *shape: int) -> Value:
    return b.constant(RNG.standard_normal(shape).astype(np.float32))


def window(rank: int, kernel: int, stride: int = 1, pad: int = 0) -> dict[str, Any]:
    return window_attributes((kernel,) * rank, (pad,) * rank, strides=(stride,) * rank) | {"layout": "NCHW"}


def conv(
    b: GraphBuilder, x: Value, out: int = 4, kernel: int = 1, groups: int = 1, stride: int = 1, pad: int = 0
) -> Value:
    rank = x.rank - 2
    w = weights(b, out, x.shape[1] // groups, *(kernel,) * rank)
    return b.emit("Conv", x, w, groups=groups, **window(rank, kernel, stride, pad))


def image(b: GraphBuilder, *shape: int) -> Value:
    return b.input("x", shape or (2, 3, 4, 5), "f32")


def lrn(b: GraphBuilder, x: Value) -> Value:
    flat = b.reshape(b.emit("Mul", x, x), (x.shape[0], 1, x.shape[1], x.shape[2] * x.shape[3]))
    total = b.reshape(b.emit("SumPool", flat, layout="NCHW", **window_attributes((3, 1), (1, 0))), x.shape)
    return b.emit("Mul", x, b.emit("PowConst", b.emit("Add", total, b.number(2, x)), exponent=-0.75))


def shuffle(b: GraphBuilder, x: Value) -> Value:
    n, c, h, w = x.shape
    apart = b.transpose(b.reshape(x, (n, 2, c // 2, h, w)), (0, 2, 1, 3, 4))
    return b.reshape(apart, x.shape)


def excite(b: GraphBuilder, x: Value) -> Value:
    mean = b.reduce("Sum", x, (2, 3), keepdims=False)
    gate = b.emit("Sigmoid", b.emit("MatMul", mean, weights(b, x.shape[1], x.shape[1])))
    return b.emit("Mul", x, b.reshape(gate, (*gate.shape, 1, 1)))


def indices(b: GraphBuilder, *values: int) -> Value:
    return b.constant(np.array(values, np.int64))


FOLLOWING: dict[str, Layer] = {
    "relu": lambda b, x: b.emit("Relu", x),
    "bias": lambda b, x: b.emit("Add", x, weights(b, x.shape[1], 1, 1)),
    "bias of full rank": lambda b, x: b.emit("Add", weights(b, 1, x.shape[1], 1, 1), x),
    "a number": lambda b, x: b.emit("Mul", x, b.constant(np.full((1, 1), 3, np.float32))),
    "a share of each pixel": lambda b, x: b.emit("Mul", x, weights(b, *x.shape[2:])),
    "a whole constant": lambda b, x: b.emit("Sub", x, weights(b, *x.shape)),
    "residual": lambda b, x: b.emit("Add", b.emit("Tanh", x), x),
    "where": lambda b, x: b.emit("Where", b.emit("Greater", x, b.number(0, x)), x, b.emit("Neg", x)),
    "concat of channels": lambda b, x: b.emit("Concat", x, conv(b, x, 3), axis=1),
    "concat of rows": lambda b, x: b.emit("Concat", x, b.emit("Neg", x), axis=2),
    "slice": lambda b, x: b.emit("Slice", x, starts=(0, 1, 2, 1), steps=(1, 2, -1, 1), shape=(2, 2, 3, 3)),
    "pad": lambda b, x: b.emit("Pad", x, before=(0, 1, 0, 2), after=(0, 0, 3, 1), mode="constant", value=0.5),
    "pad by reflection": lambda b, x: b.emit(
        "Pad", x, before=(0, 0, 1, 2), after=(0, 0, 2, 1), mode="reflect", value=0.0
    ),
    "repeat": lambda b, x: b.emit("Repeat", x, axis=2, times=2),
    "tile": lambda b, x: b.emit("Tile", x, times=(1, 2, 1, 2)),
    "gather of channels": lambda b, x: b.emit("Gather", x, indices(b, 3, 0, -1), axis=1),
    "gather of rows": lambda b, x: b.emit("Gather", x, indices(b, 1, 1, 0), axis=2),
    "interpolate": lambda b, x: b.emit(
        "Interpolate", x, b.constant(np.array([[0, 1], [1, 2]])), weights(b, 2, 2), axis=3
    ),
    "softmax over channels": lambda b, x: b.emit("Softmax", x, axis=1),
    "log softmax over columns": lambda b, x: b.emit("LogSoftmax", x, axis=3),
    "cumulative sum": lambda b, x: b.emit("CumSum", x, axis=1),
    "instance norm": lambda b, x: b.emit("Standardize", x, axes=(2, 3), epsilon=1e-3),
    "norm over channels": lambda b, x: b.emit("RmsNormalize", x, axes=(1,), epsilon=1e-3),
    "reduction": lambda b, x: b.emit("ReduceMax", x, axes=(1, 2), keepdims=1),
    "reduction that is undone": lambda b, x: b.reshape(
        b.reduce("Sum", x, (1,), keepdims=False), (x.shape[0], 1, *x.shape[2:])
    ),
    "position of the largest": lambda b, x: b.cast(b.emit("ArgMax", x, axis=1), "f32"),
    "elements by position": lambda b, x: b.emit("GatherElements", x, b.emit("ArgMin", x, axis=2), axis=2),
    "max pool": lambda b, x: b.emit("MaxPool", x, **window(2, 2, 2, 1)),
    "sum pool": lambda b, x: b.emit("SumPool", x, **window(2, 3, 1)),
    "transposed convolution": lambda b, x: b.emit(
        "ConvTranspose",
        x,
        weights(b, x.shape[1], 3, 2, 2),
        groups=1,
        extents=(x.shape[2] * 2, x.shape[3] * 2),
        **window(2, 2, 2),
    ),
    "grouped convolution": lambda b, x: conv(b, x, 6, 3, groups=2, pad=1),
    "depthwise convolution": lambda b, x: conv(b, x, x.shape[1], 3, groups=x.shape[1], pad=1),
    "response normalisation": lrn,
    "squeeze and excite": excite,
    "group norm": lambda b, x: b.reshape(
        b.emit("Standardize", b.reshape(x, (x.shape[0], 2, x.size // x.shape[0] // 2)), axes=(2,), epsilon=1e-3),
        x.shape,
    ),
    "group norm with channels apart": lambda b, x: b.reshape(
        b.emit(
            "Standardize", b.reshape(x, (x.shape[0], 2, x.shape[1] // 2, *x.shape[2:])), axes=(2, 3, 4), epsilon=1e-3
        ),
        x.shape,
    ),
    "swapped height and width": lambda b, x: b.emit("Transpose", x, perm=(0, 1, 3, 2)),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_nothing_is_transposed_between_two_convolutions(name: str) -> None:
    b = GraphBuilder()
    y = conv(b, FOLLOWING[name](b, conv(b, image(b))))
    g = graph_of(b, y)
    h = channels_last(g)
    assert_same(g, h, 1e-5)
    assert ops(h)["Transpose"] == 2  # of the input and of the output
    assert {n.text("layout") for n in h.nodes if n.op in ("Conv", "ConvTranspose", "MaxPool")} == {"NHWC"}


@pytest.mark.parametrize("seed", range(24))
def test_random_networks_compute_the_same(seed: int) -> None:
    pick = random.Random(seed)
    layers: list[Layer] = [*FOLLOWING.values(), shuffle]
    b = GraphBuilder()
    values = [image(b)]
    for _ in range(pick.randint(2, 6)):
        x = pick.choice(values[-2:])
        y = pick.choice(layers)(b, conv(b, x) if x.shape[1] != 4 or min(x.shape[2:]) < 4 else x)
        if y.rank == 4 and y.size < 800 and min(y.shape[2:]) > 3:
            values.append(y)
    g = graph_of(b, *dict.fromkeys([values[-1], pick.choice(values)]))
    h = channels_last(g)
    assert_same(g, h, 1e-4, seed=seed)
    assert_same(g, channels_last(h), 1e-4, seed=seed)


def test_a_convolution_alone_stands_between_two_transposes() -> None:
    b = GraphBuilder()
    g = graph_of(b, conv(b, image(b), 7, 3))
    h = channels_last(g)
    assert [n.op for n in h.nodes] == ["Transpose", "Conv", "Transpose"]
    assert h.nodes[1].inputs[1].shape == (3, 3, 3, 7)
    assert h.outputs == g.outputs
    assert_same(g, h, 1e-5)


@pytest.mark.parametrize("sizes", [(6,), (3, 4, 2)])
def test_windows_over_any_number_of_dimensions_are_turned(sizes: tuple[int, ...]) -> None:
    b = GraphBuilder()
    y = conv(b, image(b, 2, 3, *sizes), 4, 2, pad=1)
    y = b.emit("MaxPool", y, **window(len(sizes), 2))
    g = graph_of(b, conv(b, y, 2))
    h = channels_last(g)
    assert ops(h)["Transpose"] == 2
    assert_same(g, h, 1e-5)


def test_uneven_windows_keep_their_sides() -> None:
    b = GraphBuilder()
    x = image(b)
    w = weights(b, 2, 3, 2, 3)
    odd: dict[str, Attribute] = {
        "kernel": (2, 3),
        "strides": (2, 1),
        "dilations": (1, 2),
        "before": (1, 0),
        "after": (0, 2),
    }
    g = graph_of(b, b.emit("Conv", b.emit("Transpose", x, perm=(0, 1, 3, 2)), w, groups=1, **odd, layout="NCHW"))
    assert_same(g, channels_last(g), 1e-5)
    h = graph_of(b, conv(b, b.emit("Transpose", conv(b, x), perm=(0, 1, 3, 2)), 2, 2, pad=1))
    assert_same(h, channels_last(h), 1e-5)
    assert ops(channels_last(h))["Transpose"] == 2


def test_transposes_around_convolutions_vanish() -> None:
    """As TensorFlow's exporter writes: channels last at the edges, a pair of transposes around each layer."""
    b = GraphBuilder()
    x = image(b, 2, 4, 5, 3)
    for out in (4, 6):
        y = conv(b, b.emit("Transpose", x, perm=(0, 3, 1, 2)), out, 2)
        x = b.emit("Relu", b.emit("Add", b.emit("Transpose", y, perm=(0, 2, 3, 1)), weights(b, out)))
    g = graph_of(b, x)
    h = channels_last(g)
    assert ops(h) == {"Conv": 2, "Add": 2, "Relu": 2}
    assert_same(g, h, 1e-5)


def test_a_channel_shuffle_stays_one_transpose_of_channels() -> None:
    b = GraphBuilder()
    g = graph_of(b, conv(b, shuffle(b, conv(b, image(b)))))
    h = channels_last(g)
    perms = [n.integers("perm") for n in h.nodes if n.op == "Transpose"]
    assert perms == [(0, 2, 3, 1), (0, 1, 2, 4, 3), (0, 3, 1, 2)]
    assert_same(g, h, 1e-5)


def test_pixels_made_of_channels_cost_one_transpose() -> None:
    b = GraphBuilder()
    x = conv(b, image(b))
    n, c, h, w = x.shape
    y = b.transpose(b.reshape(x, (n, c // 4, 2, 2, h, w)), (0, 1, 4, 2, 5, 3))
    g = graph_of(b, conv(b, b.reshape(y, (n, c // 4, 2 * h, 2 * w))))
    after = channels_last(g)
    assert ops(after)["Transpose"] == 3
    assert_same(g, after, 1e-5)


def test_response_normalisation_sums_along_the_last_dimension() -> None:
    b = GraphBuilder()
    g = graph_of(b, conv(b, lrn(b, conv(b, image(b)))))
    (pool,) = (n for n in channels_last(g).nodes if n.op == "SumPool")
    assert pool.inputs[0].shape == (2, 1, 20, 4)
    assert pool.integers("kernel") == (1, 3)


def test_a_mean_over_all_pixels_needs_no_transpose() -> None:
    b = GraphBuilder()
    x = conv(b, image(b, 1, 1, 4, 5))
    mean = b.reshape(b.emit("Mul", b.reduce("Sum", x, (2, 3)), b.number(0.05, x)), (1, 4))
    g = graph_of(b, b.emit("MatMul", mean, weights(b, 4, 6)))
    h = channels_last(g)
    assert ops(h)["Transpose"] == 0  # one channel, one batch: a view
    assert_same(g, h, 1e-5)


def test_an_image_flattened_into_pixels_and_channels_needs_no_transpose() -> None:
    """As the first layer of a vision transformer."""
    b = GraphBuilder()
    x = conv(b, image(b, 2, 1, 4, 4), 5, 2, stride=2)
    tokens = b.emit("Transpose", b.reshape(x, (2, 5, 4)), perm=(0, 2, 1))
    g = graph_of(b, b.emit("MatMul", tokens, weights(b, 5, 3)))
    h = channels_last(g)
    assert ops(h)["Transpose"] == 0
    assert_same(g, h, 1e-5)


def test_a_product_takes_a_matrix_held_the_other_way_round() -> None:
    b = GraphBuilder()
    x = b.reshape(conv(b, image(b, 2, 1, 4, 4), 5), (2, 5, 16))
    g = graph_of(b, b.emit("MatMul", x, b.emit("Relu", x), transpose_b=1))
    h = channels_last(g)
    assert ops(h)["Transpose"] == 0
    (product,) = (n for n in h.nodes if n.op == "MatMul")
    assert (product.integer("transpose_a"), product.integer("transpose_b")) == (1, 0)
    assert_same(g, h, 1e-5)


def test_nodes_that_know_one_order_only_keep_it() -> None:
    b = GraphBuilder()
    x = conv(b, image(b))
    up = b.emit("ConvTranspose", x, weights(b, 4, 3, 2, 2), groups=2, extents=(8, 10), **window(2, 2, 2))
    g = graph_of(b, conv(b, up), b.emit("MaxPoolIndices", x, column_major=0, **window(2, 2)))
    h = channels_last(g)
    assert {n.op: n.text("layout") for n in h.nodes if "layout" in n.attributes} == {
        "Conv": "NHWC",
        "ConvTranspose": "NCHW",
        "MaxPoolIndices": "NCHW",
    }
    assert ops(h)["Transpose"] == 4  # in, to channels first once for both, back, out
    assert_same(g, h, 1e-5)


def test_what_several_readers_need_is_transposed_once() -> None:
    b = GraphBuilder()
    t = b.emit("Transpose", image(b, 3, 4, 5), perm=(0, 2, 1))
    g = graph_of(b, *(b.emit("MatMul", t, b.emit(op, t), transpose_b=1) for op in ("Relu", "Neg", "Tanh")))
    assert ops(channels_last(g))["Transpose"] <= 1
    assert_same(g, channels_last(g), 1e-5)


def test_an_attention_layer_is_left_alone() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 6, 8), "f32")

    def heads(perm: tuple[int, ...]) -> Value:
        y = b.emit("Add", b.emit("MatMul", x, weights(b, 8, 8)), weights(b, 8))
        return b.emit("Transpose", b.reshape(y, (1, 6, 2, 4)), perm=perm)

    scores = b.emit("Softmax", b.emit("MatMul", heads((0, 2, 1, 3)), heads((0, 2, 3, 1))), axis=3)
    mixed = b.emit("Transpose", b.emit("MatMul", scores, heads((0, 2, 1, 3))), perm=(0, 2, 1, 3))
    g = graph_of(b, b.emit("MatMul", b.reshape(mixed, (1, 6, 8)), weights(b, 8, 8)))
    assert channels_last(g) is g


def test_inverse_transposes_vanish_without_any_window() -> None:
    b = GraphBuilder()
    x = b.emit("Relu", b.emit("Transpose", image(b), perm=(0, 2, 3, 1)))
    g = graph_of(b, b.emit("Transpose", b.emit("Softmax", x, axis=3), perm=(0, 3, 1, 2)))
    h = channels_last(g)
    assert ops(h) == {"Relu": 1, "Softmax": 1}
    assert_same(g, h, 1e-5)


def test_the_pass_leaves_its_own_result_alone() -> None:
    b = GraphBuilder()
    h = channels_last(graph_of(b, conv(b, shuffle(b, lrn(b, conv(b, image(b)))))))
    assert channels_last(h) is h


def test_weights_are_views_and_turned_once() -> None:
    b = GraphBuilder()
    x = image(b, 1, 4, 5, 5)
    w = weights(b, 4, 4, 3, 3)
    y = x
    for _ in range(3):
        y = b.emit("Conv", y, w, groups=1, **window(2, 3, 1, 1))
    h = channels_last(graph_of(b, y))
    ((turned, array),) = h.constants.items()
    assert turned.shape == (3, 3, 4, 4)
    assert np.shares_memory(array, b.constants[w])


def test_weights_that_are_no_constants_are_transposed_as_well() -> None:
    b = GraphBuilder()
    x, w = image(b), b.input("w", (4, 3, 2, 2), "f32")
    bias = b.input("bias", (4,), "f32")
    y = b.emit("Add", b.emit("Conv", x, w, groups=1, **window(2, 2)), b.reshape(bias, (4, 1, 1)))
    made = b.emit("Expand", b.emit("Relu", b.input("v", (1,), "f32")), shape=(4, 4, 1, 1))
    g = graph_of(b, b.emit("Conv", y, made, groups=1, **window(2, 1)))
    h = channels_last(g)
    assert ops(h)["Transpose"] == 3
    assert_same(g, h, 1e-5)


def test_empty_images_pass() -> None:
    b = GraphBuilder()
    y = b.emit("Relu", conv(b, image(b, 0, 3, 4, 4)))
    g = graph_of(b, b.reshape(y, (0, 64)))
    assert_same(g, channels_last(g))


def test_inputs_and_constants_may_be_outputs() -> None:
    b = GraphBuilder()
    x = image(b)
    t = b.emit("Transpose", x, perm=(0, 2, 3, 1))
    g = graph_of(b, conv(b, x), x, t, weights(b, 2, 2), t)
    assert_same(g, channels_last(g), 1e-5)


def test_a_deep_network_passes() -> None:
    b = GraphBuilder()
    y = image(b, 1, 2, 2, 2)
    w = weights(b, 2, 2, 1, 1)
    for _ in range(3000):
        y = b.emit("Relu", b.emit("Conv", y, w, groups=1, **window(2, 1)))
    assert ops(channels_last(graph_of(b, y)))["Transpose"] == 2


@pytest.mark.parametrize(
    ("source", "target", "blocks"),
    [
        ((2, 6, 5), (2, 2, 3, 5), (((0,), (0,)), ((1,), (1, 2)), ((2,), (3,)))),
        ((2, 3, 4, 5), (2, 3, 20), (((0,), (0,)), ((1,), (1,)), ((2, 3), (2,)))),
        ((1, 4, 1, 6), (4, 1, 3, 2), (((1,), (0,)), ((3,), (2, 3)))),
        ((4, 6), (6, 4), (((0, 1), (0, 1)),)),
        ((0, 6), (3, 0), None),
    ],
)
def test_a_reshape_keeps_runs_of_dimensions_together(
    source: tuple[int, ...], target: tuple[int, ...], blocks: object
) -> None:
    assert matched(source, target) == blocks


def test_orders_go_through_a_reshape_and_back() -> None:
    blocks = matched((2, 6, 4, 5), (2, 2, 3, 4, 5))
    assert blocks is not None
    assert carried(blocks, (0, 2, 3, 1), 5) == ((0, 2, 3, 1), (0, 3, 4, 1, 2))
    assert returned(blocks, (0, 3, 4, 1, 2)) == (0, 2, 3, 1)
    assert returned(blocks, (0, 1, 3, 4, 2)) is None
    assert carried((((0,), (0,)), ((1, 2), (1,))), (0, 2, 1), 2) == ((0, 1, 2), (0, 1))


def test_missing_dimensions_follow_their_predecessors() -> None:
    assert completed((3, 2), 4) == (0, 1, 3, 2)
    assert completed((2, 1), 4) == (0, 2, 3, 1)
    assert completed((), 2) == (0, 1)


def test_a_reduction_that_drops_a_dimension_renumbers_the_others() -> None:
    b = GraphBuilder()
    y = b.reduce("Sum", image(b), (1,), keepdims=False)
    assert blocks_of(graph_of(b, y).nodes[0]) == (((0,), (0,)), ((1,), ()), ((2,), (1,)), ((3,), (2,)))


def with_constants(model: onnx.ModelProto, kept: tuple[str, ...]) -> Graph:
    """A skeleton whose parameters are constants of no memory."""
    g = load(model)
    inputs = tuple(v for v in g.inputs if v.name in kept)
    assert inputs
    made = {v: np.broadcast_to(np.zeros((), NUMPY[v.dtype]), v.shape) for v in g.inputs if v not in inputs}
    return replace(g, inputs=inputs, constants={**g.constants, **made})


@pytest.mark.parametrize(
    ("name", "transposes"),
    [
        ("alexnet", 1),
        ("vgg11", 1),
        ("resnet18", 1),
        ("resnet50", 1),
        ("squeezenet1_0", 1),
        ("mobilenet_v2", 1),
        ("densenet121", 1),
        ("googlenet", 1),
        ("inception_v3", 1),
        ("efficientnet_b0", 1),
        ("resnet3d_18", 1),
        ("dcgan_generator", 1),
        ("shufflenet_v2_x1_0", 17),
    ],
)
def test_only_the_edges_of_a_network_are_transposed(name: str, transposes: int) -> None:
    """ShuffleNet has sixteen shuffles; the generator's input is one pixel, its output an image."""
    g = with_constants(zoo.skeleton(name), ("input",))
    h = channels_last(g)
    verify(h)
    assert ops(h)["Transpose"] == transposes
    assert {n.text("layout") for n in h.nodes if "layout" in n.attributes} == {"NHWC"}


def test_a_transformer_is_as_it_was() -> None:
    g = load(zoo.skeleton("bert_base_seq128"))
    assert channels_last(g) is g


@pytest.mark.parametrize(
    ("name", "transposes"),
    [("inception_v1", 1), ("inception_v2", 1), ("resnet50", 1), ("squeezenet", 1), ("shufflenet", 17)],
)
def test_older_networks_are_transposed_at_their_edges(name: str, transposes: int) -> None:
    path = FOLDER / f"light_{name}.onnx"
    if not path.exists():
        pytest.skip("this version of onnx does not bring it")
    h = channels_last(load(path))
    verify(h)
    assert ops(h)["Transpose"] == transposes


def test_a_constant_that_gives_the_result_its_rank_keeps_it() -> None:
    b = GraphBuilder()
    x = b.input("x", (3, 4, 5), "f32")
    y = conv(b, b.emit("Mul", x, weights(b, 1, 3, 1, 1)), 4)
    graph = graph_of(b, y)
    after = channels_last(graph)
    verify(after)
    assert_same(graph, after)
