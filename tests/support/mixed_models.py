"""Small models that need another runtime, from ONNX's helpers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper

from tests.support.abused_onnx import model as make_model
from tests.support.abused_onnx import port

RNG = np.random.default_rng(1)
W = RNG.standard_normal((8, 8)).astype(np.float32)
X = RNG.standard_normal((3, 8)).astype(np.float32)
INT, FLOAT, BOOL, STRING = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL, TensorProto.STRING
Shapes = Mapping[str, tuple[int, Sequence[int | str]]]
OURS, THEIRS = "stormdrop", "onnxruntime"


def model(
    nodes: Sequence[Any], inputs: Shapes, outputs: Shapes, constants: Mapping[str, NDArray[Any]], opset: int = 18
) -> ModelProto:
    starts, ends = ([port(name, shape, kind) for name, (kind, shape) in ports.items()] for ports in (inputs, outputs))
    return make_model(nodes, starts, ends, constants, opset, "mixed", ["com.microsoft"])


def positives() -> ModelProto:
    """The positive elements of a product, and the product times their sum: a scalar, of known shape again."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("NonZero", ["r"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["h", "rows"], ["values"]),
        helper.make_node("ReduceSum", ["values"], ["total"], keepdims=0),
        helper.make_node("Mul", ["h", "total"], ["scaled"]),
        helper.make_node("Tanh", ["scaled"], ["y"]),
    ]
    return model(nodes, {"x": (FLOAT, (3, 8))}, {"y": (FLOAT, (3, 8)), "values": (FLOAT, ("n",))}, {"w": W})


def opened(proto: ModelProto) -> ModelProto:
    """The model with any number of rows."""
    for info in (proto.graph.input[0], proto.graph.output[0]):
        info.type.tensor_type.shape.dim[0].dim_param = "batch"
    return proto


def detections() -> tuple[ModelProto, dict[str, NDArray[Any]]]:
    nodes = [
        helper.make_node("Sigmoid", ["logits"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "iou"], ["chosen"]),
        helper.make_node("Gather", ["chosen", "two"], ["at"], axis=1),
        helper.make_node("Gather", ["boxes", "at"], ["kept"], axis=1),
    ]
    constants = {"most": np.array([5]), "iou": np.array([0.4], np.float32), "two": np.array(2)}
    proto = model(
        nodes,
        {"boxes": (FLOAT, (1, 20, 4)), "logits": (FLOAT, (1, 2, 20))},
        {"kept": (FLOAT, (1, "n", 4)), "scores": (FLOAT, (1, 2, 20))},
        constants,
    )
    corners = RNG.uniform(0, 5, (1, 20, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + RNG.uniform(1, 3, (1, 20, 2)).astype(np.float32)], -1)
    return proto, {"boxes": boxes, "logits": RNG.standard_normal((1, 2, 20)).astype(np.float32)}
