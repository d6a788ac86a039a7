"""The float64 reference that errors are measured against: right on what onnxruntime computes in float32, and exact
where it can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from stormdrop import zoo
from tests.support.float64 import doubled, reference64, relative_error
from tests.support.inputs import inputs_for

Runs = Callable[..., list[NDArray[Any]]]


@pytest.mark.parametrize("name", ["dcgan_generator", "mobilenet_v2", "shufflenet_v2_x1_0", "squeezenet1_0"])
def test_onnxruntime_is_a_few_roundings_away(name: str, run: Runs) -> None:
    model = zoo.build(name)
    inputs = inputs_for(model, seed=2)
    (exact,), (found,) = reference64(model, inputs).values(), run(model, inputs)
    assert exact.dtype == np.float64
    assert 0 < relative_error(found, exact) < 5e-5


def test_no_number_of_the_model_is_rounded_to_float32() -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    w = numpy_helper.from_array(np.array([3.0], np.float32), "w")
    nodes = [helper.make_node("Div", ["one", "w"], ["third"]), helper.make_node("Mul", ["x", "third"], ["y"])]
    one = numpy_helper.from_array(np.array([1.0], np.float32), "one")
    graph = helper.make_graph(nodes, "g", [x], [y], [w, one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    assert reference64(model, {"x": np.ones(2, np.float32)})["y"].tolist() == [1 / 3, 1 / 3]
    assert doubled(model).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def test_an_error_is_relative_to_the_largest_magnitude() -> None:
    wanted = np.array([1.0, -4.0])
    assert relative_error(np.array([1.1, -4.0]), wanted) == pytest.approx(0.025)
    assert relative_error(np.array([1.0, np.nan]), wanted) == np.inf
    assert relative_error(np.array([1.0]), wanted) == np.inf
