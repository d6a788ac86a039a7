"""Quantised models: exact in ONNX's integer arithmetic, and within one quantum of onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from stormdrop.compare.interpreter import interpret
from stormdrop.compiler.compile import compile as compile_model
from stormdrop.compiler.compile import tasks_of
from stormdrop.frontend.onnx import load
from stormdrop.graph.passes import optimise
from tests.fuzz.numpy_quantized import convolved, requantized
from tests.support.one_node import OneNode
from tests.support.quantization import network, quantized

Array = NDArray[Any]
RNG = np.random.default_rng(0)


def _whole(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _f32(value: Any) -> Array:
    return np.asarray(value, np.float32)


CONVOLUTIONS = {
    "padded": (7, 12, (3, 3), (1, 1, 1, 1), 1, 1),
    "one pixel": (16, 32, (1, 1), (0, 0, 0, 0), 1, 1),
    "uneven pads and stride": (3, 20, (5, 3), (2, 0, 1, 1), 2, 1),
    "by channel": (24, 24, (3, 3), (1, 1, 1, 1), 1, 24),
    "in groups": (8, 12, (3, 3), (0, 1, 0, 1), 1, 4),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize(
    ("of_x", "of_w", "per_channel"),
    [(np.uint8, np.int8, False), (np.uint8, np.int8, True), (np.int8, np.int8, True), (np.uint8, np.uint8, True)],
)
def test_a_convolution_is_exact(name: str, of_x: Any, of_w: Any, per_channel: bool) -> None:
    """The border holds the zero point: a pixel outside the image adds nothing."""
    ci, co, kernel, pads, stride, groups = CONVOLUTIONS[name]
    x, w = _whole(of_x, 2, ci, 9, 11), _whole(of_w, co, ci // groups, *kernel)
    bias = RNG.integers(-5000, 5000, co).astype(np.int32)
    count = co if per_channel else 1
    w_scale = RNG.uniform(0.005, 0.02, count).astype(np.float32)
    w_zero = _whole(of_w, count) if of_w == np.uint8 else np.zeros(count, of_w)
    if not per_channel:
        w_scale, w_zero = w_scale.reshape(()), w_zero.reshape(())
    x_scale, x_zero, y_zero = _f32(0.03), np.array(RNG.integers(3, 99), of_x), np.array(RNG.integers(0, 99), of_x)
    by_channel = (1, -1, 1, 1) if per_channel else ()
    centred = w.astype(np.int64) - w_zero.astype(np.int64).reshape((-1, 1, 1, 1) if per_channel else ())
    total = convolved(x.astype(np.int64) - int(x_zero), centred, pads, stride, groups) + bias.reshape(1, -1, 1, 1)
    y_scale = _f32(0.03 * 0.01 * np.abs(total).mean() / 60)
    factor = x_scale * w_scale / y_scale
    node = OneNode(
        "QLinearConv",
        [x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias],
        known=range(1, 9),
        pads=list(pads),
        strides=[stride, stride],
        group=groups,
    )
    wanted = requantized(total, factor.reshape(by_channel), y_zero)
    assert wanted.std() > 10
    (found,) = node.compiled()
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(node.interpreted()[0], wanted)
    if not (of_x == np.int8 and of_w == np.uint8):
        apart = node.on_onnxruntime()[0].astype(int) - found
        assert np.abs(apart).max() <= 1
        assert np.mean(apart != 0) < 0.001


@pytest.mark.parametrize(("of_x", "of_w"), [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)])
@pytest.mark.parametrize("is_constant", [False, True])
def test_a_matrix_product_is_exact(of_x: Any, of_w: Any, is_constant: bool) -> None:
    x, w = _whole(of_x, 2, 13, 75), _whole(of_w, 75, 33)
    x_zero, w_zero, y_zero = (
        np.array(z, t) for z, t in ((9, of_x), (-3 if of_w == np.int8 else 120, of_w), (77, of_x))
    )
    scales = [_f32(0.02), _f32(0.03), _f32(0.6)]
    total = (x.astype(np.int64) - int(x_zero)) @ (w.astype(np.int64) - int(w_zero))
    given = [x, scales[0], x_zero, w, scales[1], w_zero, scales[2], y_zero]
    node = OneNode("QLinearMatMul", given, known=range(1, 8) if is_constant else ())
    wanted = requantized(total, scales[0] * scales[1] / scales[2], y_zero)
    np.testing.assert_array_equal(node.compiled()[0], wanted)
    integer = OneNode("MatMulInteger", [x, w, x_zero, w_zero], known=[1] if is_constant else ())
    np.testing.assert_array_equal(integer.compiled()[0], total.astype(np.int32))


def test_numbers_are_quantised_to_the_nearest_even_and_saturate() -> None:
    x = _f32([-1e9, -64.25, -0.75, -0.25, 0.25, 0.75, 1.25, 63.5, 1e9, np.inf, -np.inf])
    for dtype, zero in ((np.uint8, 3), (np.int8, -7), (np.uint16, 9), (np.int16, 0)):
        node = OneNode("QuantizeLinear", [x, _f32(0.5), np.array(zero, dtype)], opset=21)
        limits = np.iinfo(dtype)
        wanted = np.clip(np.rint(x.astype(np.float64) / 0.5) + zero, limits.min, limits.max).astype(dtype)
        np.testing.assert_array_equal(node.compiled()[0], wanted)
        back = OneNode("DequantizeLinear", [wanted, _f32(0.5), np.array(zero, dtype)], opset=21)
        np.testing.assert_array_equal(back.compiled()[0], (wanted.astype(np.float32) - zero) * np.float32(0.5))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scales_of_channels_and_of_blocks_spread_along_their_axis(axis: int) -> None:
    x = RNG.standard_normal((6, 4, 10)).astype(np.float32)
    for block in (0, 2):
        shape = [x.shape[axis]] if not block else [n // 2 if d == axis % 3 else n for d, n in enumerate(x.shape)]
        scale, zero = RNG.uniform(0.01, 0.1, shape).astype(np.float32), _whole(np.int8, *shape)
        node = OneNode("QuantizeLinear", [x, scale, zero], opset=21, axis=axis, block_size=block)
        np.testing.assert_array_equal(node.compiled()[0], node.on_reference()[0])


@pytest.mark.parametrize("as_operators", [False, True])
@pytest.mark.parametrize(
    ("activations", "weights", "per_channel"),
    [("u8", "i8", True), ("i8", "i8", False), ("u8", "u8", False)],
)
def test_a_network_that_onnxruntime_quantised_is_exact(
    tmp_path: Path, as_operators: bool, activations: str, weights: str, per_channel: bool
) -> None:
    model = quantized(network(np.random.default_rng(1)), tmp_path, as_operators, per_channel, activations, weights)
    x = np.random.default_rng(9).standard_normal((2, 5, 12, 12)).astype(np.float32)
    found: Any = compile_model(model)(x)
    graph = load(model)
    np.testing.assert_array_equal(found, interpret(graph, [x])[0])
    np.testing.assert_array_equal(found, interpret(optimise(graph), [x])[0])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted: Any = session.run(None, {"x": x})[0]
    levels = np.diff(np.unique(wanted))
    assert np.abs(found - wanted).max() <= 1.001 * levels.min()
    if not as_operators:
        reference: Any = ReferenceEvaluator(model).run(None, {"x": x})
        assert np.abs(found - reference[0]).max() <= 1.001 * levels.min()


def test_only_quantised_numbers_lie_between_kernels(tmp_path: Path) -> None:
    model = quantized(network(np.random.default_rng(1)), tmp_path, False, True, "u8", "i8")
    parts = tasks_of(load(model))
    assert [c.output.dtype for c in parts.calls[:-1]] == ["u8"] * (len(parts.calls) - 1)
    assert not any(n.op == "Dequantize" and v in parts.graph.constants for n in parts.graph.nodes for v in n.inputs[:1])
    sums = [n.output.dtype for n in parts.graph.nodes if n.op in ("Conv", "MatMul")]
    assert sums == ["i32"] * 4


def _chain(middle: onnx.NodeProto, scale: float, zero: int) -> onnx.ModelProto:
    """x u8 -> dequantised by 0.1 and 5 -> a node -> quantised by these."""
    held = {"s": _f32(0.1), "z": np.array(5, np.uint8), "t": _f32(scale), "u": np.array(zero, np.uint8)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        middle,
        helper.make_node("QuantizeLinear", ["b", "t", "u"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 4, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
        [onnx.numpy_helper.from_array(a, k) for k, a in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(("scale", "zero", "is_moved"), [(0.1, 5, True), (0.1, 6, False), (0.2, 5, False)])
def test_a_movement_between_equal_scales_is_one_of_integers(scale: float, zero: int, is_moved: bool) -> None:
    for middle in (
        helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 3, 1]),
    ):
        model = _chain(middle, scale, zero)
        graph = optimise(load(model))
        assert any(n.op == "Quantize" for n in graph.nodes) is not is_moved
        x = _whole(np.uint8, 1, 4, 6, 6)
        found: Any = compile_model(model)(x)
        wanted: Any = ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_array_equal(found, wanted[0])
