"""An operator of the catalogue is the task that a model of the same nodes has: what one tunes, the other finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.operators.catalogue import OPERATORS, build

Node = tuple[str, dict[str, Any]]
CHANNELS_FIRST = {3: (0, 2, 1), 4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}
NO_MODEL = {"CAP", "CBR", "TBG"}
"""ONNX has no capsules, a batch norm is folded into the weights, and attention is several kernels."""


def _model(inputs: Sequence[Sequence[int]], weights: Sequence[int] | None, nodes: Sequence[Node]) -> ModelProto:
    """A chain of nodes; the first reads all inputs and the constant weights."""
    rng = np.random.default_rng(0)
    names = [f"x{k}" for k in range(len(inputs))]
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(names, inputs)]
    constants = [numpy_helper.from_array(rng.standard_normal(weights).astype(np.float32), "w")] if weights else []
    made: list[Any] = []
    for k, (op, attributes) in enumerate(nodes):
        read = [*names, *(["w"] if weights and op.startswith(("Conv", "MatMul")) else [])]
        if op == "Einsum" and weights:
            read = ["w", *names]
        if op == "ReduceL2":
            constants.append(numpy_helper.from_array(np.array(attributes.pop("axes")), "axes"))
            read.append("axes")
        made.append(helper.make_node(op, read, [f"y{k}"], **attributes))
        names = [f"y{k}"]
    wanted = [helper.make_tensor_value_info(names[0], TensorProto.FLOAT, None)]
    graph = helper.make_graph(made, "one", given, wanted, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _image(shape: Sequence[int], weights: Sequence[int] | None, op: str, **attributes: Any) -> ModelProto:
    """A window operator between two transposes, so that the model's arrays are channels-last as the catalogue's."""
    first = CHANNELS_FIRST[len(shape)]
    last = tuple(int(d) for d in np.argsort(first))
    return _model([shape], weights, [("Transpose", {"perm": first}), (op, attributes), ("Transpose", {"perm": last})])


def _window(rank: int, kernel: int, stride: int, pad: int, dilation: int = 1) -> dict[str, Any]:
    window: dict[str, Any] = {"kernel_shape": [kernel] * rank, "strides": [stride] * rank, "pads": [pad] * 2 * rank}
    return window | ({"dilations": [dilation] * rank} if dilation > 1 else {})


CASES: dict[str, tuple[list[int], ModelProto]] = {
    "GMM": ([2, 5, 7, 3], _model([(2, 5, 3)], (2, 3, 7), [("MatMul", {})])),
    "GMM of one matrix": ([1, 5, 7, 3], _model([(1, 5, 3)], (1, 3, 7), [("MatMul", {})])),
    "DEN": ([3, 4, 5, 17], _model([(3, 4, 17), (3, 17, 5)], None, [("MatMul", {})])),
    "C1D": ([2, 11, 3, 5, 3, 2, 1], _image((2, 11, 3), (5, 3, 3), "Conv", **_window(1, 3, 2, 1))),
    "C2D": ([2, 7, 9, 3, 5, 3, 1, 1], _image((2, 7, 9, 3), (5, 3, 3, 3), "Conv", **_window(2, 3, 1, 1))),
    "C3D": ([1, 3, 5, 4, 2, 3, 3, 2, 1], _image((1, 3, 5, 4, 2), (3, 2, 3, 3, 3), "Conv", **_window(3, 3, 2, 1))),
    "GRP": ([1, 5, 7, 6, 9, 3, 2, 1, 3], _image((1, 5, 7, 6), (9, 2, 3, 3), "Conv", group=3, **_window(2, 3, 2, 1))),
    "DIL": ([1, 9, 8, 2, 3, 3, 2, 1, 2], _image((1, 9, 8, 2), (3, 2, 3, 3), "Conv", **_window(2, 3, 2, 1, 2))),
    "DEP": ([1, 9, 9, 32, 3, 1, 1], _image((1, 9, 9, 32), (32, 1, 3, 3), "Conv", group=32, **_window(2, 3, 1, 1))),
    "T2D": ([2, 3, 5, 3, 2, 4, 2, 1], _image((2, 3, 5, 3), (3, 2, 4, 4), "ConvTranspose", **_window(2, 4, 2, 1))),
    "T2D of uneven taps": (
        [1, 4, 3, 2, 3, 3, 2, 0],
        _image((1, 4, 3, 2), (2, 3, 3, 3), "ConvTranspose", **_window(2, 3, 2, 0)),
    ),
    "MXP": ([2, 7, 8, 3, 3, 2, 1], _image((2, 7, 8, 3), None, "MaxPool", **_window(2, 3, 2, 1))),
    "NRM": ([3, 5, 7], _model([(3, 5, 7)], None, [("ReduceL2", {"axes": [1, 2], "keepdims": 0})])),
    "SFM": ([5, 13], _model([(5, 13)], None, [("Softmax", {"axis": 1})])),
    "ADR": ([1, 3, 5, 7], _model([(1, 3, 5, 7)] * 2, None, [("Add", {}), ("Relu", {})])),
    "GMV": ([7, 13], _model([(13,)], (7, 13), [("Einsum", {"equation": "nk,k->n"})])),
    "DOT": ([37], _model([(37,)] * 2, None, [("Einsum", {"equation": "k,k->"})])),
    "TRN": ([5, 7], _model([(5, 7)], None, [("Transpose", {"perm": [1, 0]})])),
}


@pytest.mark.parametrize("title", CASES)
def test_an_operator_is_the_task_of_a_model_of_this_node(title: str) -> None:
    args, model = CASES[title]
    (use,) = tasks_of(read_graph(model), winograd=False).tasks
    assert use.task.digest == build(title.partition(" ")[0], args).digest


def test_every_operator_that_onnx_has_is_compared() -> None:
    assert {title.partition(" ")[0] for title in CASES} == set(OPERATORS) - NO_MODEL
