"""Fusion: what becomes one kernel, and what must not."""

from __future__ import annotations

import numpy as np

from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.fuse import groups, post_dominators
from stormdrop.graph.graph import Graph
from stormdrop.operators.node import Value


def _ops(graph: Graph) -> list[list[str]]:
    return [[n.op for n in g] for g in groups(graph)]


def _conv(b: GraphBuilder, x: Value, outs: int, kernel: int = 1, pad: int = 0) -> Value:
    w = b.constant(np.ones((kernel, kernel, x.shape[-1], outs), np.float32))
    both = (pad, pad)
    return b.emit(
        "Conv",
        x,
        w,
        kernel=(kernel, kernel),
        strides=(1, 1),
        dilations=(1, 1),
        before=both,
        after=both,
        groups=1,
        layout="NHWC",
    )


def _graph(b: GraphBuilder, *outputs: Value) -> Graph:
    return b.graph(outputs, [v.name for v in outputs], "g", 20)


def test_bias_residual_and_activation_join_the_convolution_before_them() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 8, 8, 16), "f32")
    bias = b.constant(np.ones(16, np.float32))
    y = b.emit("Relu", b.emit("Add", b.emit("Add", _conv(b, x, 16, 3, 1), bias), x))
    assert _ops(_graph(b, y)) == [["Conv", "Add", "Add", "Relu"]]


def test_a_value_read_twice_inside_an_epilogue_stays_inside() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 8), "f32")
    y = b.emit("MatMul", x, b.constant(np.ones((8, 8), np.float32)))
    y = b.emit("Mul", b.emit("Add", b.emit("Erf", y), y), y)
    assert _ops(_graph(b, y)) == [["MatMul", "Erf", "Add", "Mul"]]


def test_a_value_that_leaves_the_model_ends_its_kernel() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 8), "f32")
    y = b.emit("MatMul", x, b.constant(np.ones((8, 8), np.float32)))
    z = b.emit("Relu", y)
    assert _ops(_graph(b, z, y)) == [["MatMul"], ["Relu"]]


def test_of_two_anchors_that_meet_in_a_sum_the_later_takes_it() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 8, 8, 16), "f32")
    left, right = _conv(b, x, 16), _conv(b, x, 16, 3, 1)
    y = b.emit("Add", left, right)
    assert _ops(_graph(b, y)) == [["Conv"], ["Conv", "Add"]]


def test_a_sum_that_waits_for_another_anchor_cannot_be_fused_around_it() -> None:
    """y = a + f(a) where f is a convolution: `a` leaves its kernel, the sum joins f."""
    b = GraphBuilder()
    x = b.input("x", (1, 8, 8, 16), "f32")
    a = b.emit("Relu", _conv(b, x, 16))
    y = b.emit("Add", a, _conv(b, a, 16, 3, 1))
    assert _ops(_graph(b, y)) == [["Conv", "Relu"], ["Conv", "Add"]]


def test_a_cheap_chain_becomes_the_prologue_of_a_pointwise_convolution_but_not_of_a_wide_one() -> None:
    for kernel, pad, expected in ((1, 0, [["Mul", "Relu", "Conv"]]), (3, 1, [["Mul", "Relu"], ["Conv"]])):
        b = GraphBuilder()
        x = b.input("x", (1, 8, 8, 16), "f32")
        chain = b.emit("Relu", b.emit("Mul", x, b.constant(np.ones(16, np.float32))))
        assert _ops(_graph(b, _conv(b, chain, 16, kernel, pad))) == expected


def test_a_dear_chain_is_computed_once() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 8, 8, 16), "f32")
    assert _ops(_graph(b, _conv(b, b.emit("Exp", x), 16))) == [["Exp"], ["Conv"]]


def test_a_chain_with_a_second_reader_is_computed_once() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 8, 8, 16), "f32")
    chain = b.emit("Relu", x)
    assert _ops(_graph(b, _conv(b, chain, 16), _conv(b, chain, 8))) == [["Relu"], ["Conv"], ["Conv"]]


def test_a_transposed_operand_is_read_transposed() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (1, 4, 8), "f32"), b.input("w", (1, 6, 8), "f32")
    y = b.emit("MatMul", x, b.emit("Transpose", w, perm=(0, 2, 1)))
    assert _ops(_graph(b, y)) == [["Transpose", "MatMul"]]


def test_what_only_renames_memory_is_in_no_group() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 4, 8), "f32")
    y = b.emit("Relu", x)
    halves = [b.emit("Slice", y, starts=(0, 0, s), steps=(1, 1, 1), shape=(2, 4, 4)) for s in (0, 4)]
    joined = b.emit("Concat", *reversed(halves), axis=2)
    turned = b.emit("Transpose", joined, perm=(1, 0, 2))
    assert _ops(_graph(b, b.reshape(turned, (8, 8)))) == [["Relu"]]


def test_a_padded_value_is_gathered_from_memory() -> None:
    b = GraphBuilder()
    x, at = b.input("x", (4, 2), "f32"), b.input("at", (3,), "i64")
    padded = b.emit("Pad", x, before=(1, 0), after=(0, 0), mode="constant", value=0.0)
    assert _ops(_graph(b, b.emit("Gather", padded, at, axis=0))) == [["Pad"], ["Gather"]]


def test_groups_stand_in_an_order_in_which_they_can_run() -> None:
    b = GraphBuilder()
    x = b.input("x", (1, 8, 8, 16), "f32")
    left = b.emit("Sigmoid", _conv(b, x, 16))
    right = b.emit("Exp", _conv(b, x, 16, 3, 1))
    y = b.emit("Mul", b.emit("Sub", right, left), left)
    graph = _graph(b, y)
    done = {*graph.inputs, *graph.constants}
    for group in groups(graph):
        inside = {n.output for n in group}
        assert all(v in done or v in inside for n in group for v in n.inputs)
        done.add(group[-1].output)
    assert y in done


def test_post_dominators_of_a_diamond() -> None:
    b = GraphBuilder()
    x = b.input("x", (4,), "f32")
    top = b.emit("Exp", x)
    left, right = b.emit("Neg", top), b.emit("Abs", top)
    bottom = b.emit("Add", left, right)
    graph = _graph(b, b.emit("Sqrt", bottom))
    by_op = {n.op: n for n in graph.nodes}
    meeting = post_dominators(graph)
    assert meeting[by_op["Exp"]] is by_op["Add"]
    assert meeting[by_op["Neg"]] is meeting[by_op["Abs"]] is by_op["Add"]
    assert meeting[by_op["Add"]] is by_op["Sqrt"]
    assert by_op["Sqrt"] not in meeting
