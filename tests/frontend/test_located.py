"""What is wrong with a model is a ModelError that says where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import stormdrop as sd
from tests.support.tiny_onnx import saved


def test_an_error_names_file_and_node(tmp_path: Path) -> None:
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 0], name="turn")
    path = saved(tmp_path, [node], {"x": [2, 3]}, {"y": TensorProto.FLOAT})
    with pytest.raises(sd.ModelError, match="Transpose node turn") as caught:
        sd.read_graph(path)
    assert (caught.value.file, caught.value.node) == (str(path), "turn")
    assert str(caught.value).startswith(f"{path}: ")


def test_a_model_from_memory_has_no_file(tmp_path: Path) -> None:
    node = helper.make_node("Transpose", ["x"], ["y"], perm=[0, 0], name="turn")
    data = saved(tmp_path, [node], {"x": [2, 3]}, {"y": TensorProto.FLOAT}).read_bytes()
    with pytest.raises(sd.ModelError) as caught:
        sd.read_graph(data)
    assert (caught.value.file, caught.value.node) == (None, "turn")


@pytest.mark.parametrize("content", [None, b"", b"nothing of the kind"])
def test_files_that_are_no_models_are_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(sd.ModelError) as caught:
        sd.compile(path)
    assert (caught.value.file, caught.value.node) == (str(path), None)
    with pytest.raises(sd.ModelError) as caught:
        sd.load(path)
    assert caught.value.file == str(path)


def test_an_input_that_must_be_known_is_located_too(tmp_path: Path) -> None:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x, shape], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(sd.ModelError, match="constants=") as caught:
        sd.read_graph(model)
    assert caught.value.node == "reshape"
    assert sd.read_graph(model, constants={"shape": np.array([3, 2])}).outputs[0].shape == (3, 2)
