"""Small ONNX models with open dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]
TYPES = {"f32": TensorProto.FLOAT, "i64": TensorProto.INT64, "bool": TensorProto.BOOL}


def open_onnx(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, tuple[str, Sequence[int | str]]],
    outputs: Mapping[str, tuple[str, Sequence[int | str]]],
    constants: Mapping[str, Array],
    name: str = "net",
) -> ModelProto:
    """A model; a dimension given as a text is open."""
    taken, made = (
        [helper.make_tensor_value_info(key, TYPES[kind], list(dims)) for key, (kind, dims) in some.items()]
        for some in (inputs, outputs)
    )
    given = [numpy_helper.from_array(value, key) for key, value in constants.items()]
    graph = helper.make_graph(list(nodes), name, taken, made, given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def perceptron(seed: int = 0, width: int = 48) -> ModelProto:
    """Two dense layers on any number of rows."""
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "second"], ["c"]),
        helper.make_node("Add", ["c", "shift"], ["y"]),
    ]
    constants = {
        "first": rng.standard_normal((32, width)).astype(np.float32),
        "second": rng.standard_normal((width, 20)).astype(np.float32),
        "shift": rng.standard_normal(20).astype(np.float32),
    }
    return open_onnx(nodes, {"x": ("f32", ["rows", 32])}, {"y": ("f32", ["rows", 20])}, constants)
