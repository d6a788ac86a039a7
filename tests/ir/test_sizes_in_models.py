"""ONNX graphs that differ in sizes alone: all their kernels have equal keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from stormdrop.compiler.compile import read_graph, tasks_of

Array = NDArray[Any]
Build = Callable[..., onnx.ModelProto]
node: Callable[..., onnx.NodeProto] = helper.make_node


def model(
    nodes: list[onnx.NodeProto], inputs: Mapping[str, tuple[int, ...]], constants: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    """Of the output `y`."""
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    arrays = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", values, [output], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def weights(*shape: int) -> Array:
    return np.random.default_rng(0).random(shape, np.float32)


def keys(made: onnx.ModelProto) -> list[tuple[str, str]]:
    """Of the direct variant of each kernel."""
    return [(call.task.class_key, call.task.anchor_key) for call in tasks_of(read_graph(made)).calls]


def mean_pool(size: int, kernel: int, stride: int, pad: int = 0) -> onnx.ModelProto:
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    return model([node("AveragePool", ["x"], ["y"], **window)], {"x": (1, 16, size, size)})


def global_pool(size: int, channels: int) -> onnx.ModelProto:
    return model([node("GlobalAveragePool", ["x"], ["y"])], {"x": (1, channels, size, size)})


def mean(width: int) -> onnx.ModelProto:
    return model([node("ReduceMean", ["x"], ["y"], axes=[1])], {"x": (8, width)})


def layer_norm(width: int) -> onnx.ModelProto:
    norm = node("LayerNormalization", ["x", "scale", "shift"], ["y"])
    return model([norm], {"x": (1, 8, width)}, {"scale": weights(width), "shift": weights(width)})


def attention(width: int, length: int = 16, op: str = "Div") -> onnx.ModelProto:
    scale = np.float32(width**0.5 if op == "Div" else width**-0.5)
    nodes = [
        node("MatMul", ["q", "k"], ["s"]),
        node(op, ["s", "c"], ["t"]),
        node("Softmax", ["t"], ["y"], axis=-1),
    ]
    return model(nodes, {"q": (2, length, width), "k": (2, width, length)}, {"c": scale})


def scalar(op: str, number: float) -> onnx.ModelProto:
    return model([node(op, ["x", "c"], ["y"])], {"x": (1, 16, 8, 8)}, {"c": np.float32(number)})


def gelu(width: int, factor: float, op: str) -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node(op, ["m", "c"], ["a"]),
        node("Erf", ["a"], ["b"]),
        node("Add", ["b", "one"], ["d"]),
        node("Mul", ["m", "d"], ["e"]),
        node("Mul", ["e", "half"], ["y"]),
    ]
    numbers = {"c": np.float32(factor), "one": np.float32(1), "half": np.float32(0.5)}
    return model(nodes, {"x": (4, width)}, {"w": weights(width, 24), **numbers})


def resize(scale: float) -> onnx.ModelProto:
    how = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    scales = np.array([1, 1, scale, scale], np.float32)
    return model([node("Resize", ["x", "", "s"], ["y"], **how)], {"x": (1, 8, 8, 8)}, {"s": scales})


def local_response(size: int) -> onnx.ModelProto:
    return model([node("LRN", ["x"], ["y"], size=size)], {"x": (1, 16, 8, 8)})


def convolution(size: int, kernel: int, stride: int, pad: int, dilation: int = 1, batch: int = 1) -> onnx.ModelProto:
    window = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4, "dilations": [dilation] * 2}
    nodes = [node("Conv", ["x", "w", "b"], ["c"], **window), node("Relu", ["c"], ["y"])]
    constants = {"w": weights(64, 32, kernel, kernel), "b": weights(64)}
    return model(nodes, {"x": (batch, 32, size, size)}, constants)


CASES: list[tuple[Build, list[tuple[Any, ...]]]] = [
    (mean_pool, [(14, 2, 2), (15, 3, 2), (13, 7, 1)]),
    (mean_pool, [(14, 3, 1, 1), (14, 5, 2, 1), (28, 3, 2, 1)]),
    (global_pool, [(7, 32), (8, 32), (14, 48)]),
    (mean, [(10,), (64,), (77,)]),
    (layer_norm, [(768,), (1024,)]),
    (attention, [(32,), (64,), (80, 24), (64, 16, "Mul"), (80, 24, "Mul")]),
    (scalar, [("Mul", 0.5), ("Mul", 3.0), ("Div", 0.5), ("Div", 3.0)]),
    (scalar, [("Add", 0.5), ("Add", 3.0)]),
    (gelu, [(8, 2**0.5, "Div"), (30, 2.0, "Div"), (30, 2**-0.5, "Mul")]),
    (resize, [(2.0,), (3.0,)]),
    (local_response, [(3,), (5,)]),
    (convolution, [(14, 3, 2, 1), (15, 3, 1, 1), (16, 5, 2, 0), (28, 3, 1, 2, 2), (28, 1, 1, 0, 1, 4)]),
]


@pytest.mark.parametrize(("build", "sizes"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_no_key_of_a_kernel_sees_a_size(build: Build, sizes: list[tuple[Any, ...]]) -> None:
    first, *others = [keys(build(*each)) for each in sizes]
    assert first
    for each, found in zip(sizes[1:], others):
        assert found == first, each


def test_other_computations_have_other_classes() -> None:
    made = [scalar(op, 3.0) for op in ("Mul", "Add", "Max", "Pow")] + [scalar("Mul", 0.0), scalar("Pow", 0.5)]
    assert len({str(keys(each)) for each in made}) == len(made)
