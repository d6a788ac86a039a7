"""The nine "light" models of ONNX's suite as graphs: they import, verify, and become few kinds of nodes.

Their weights are a constant each and so is their expected output: nothing can be learnt from running them as they are.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stormdrop.frontend.onnx import load
from stormdrop.graph.verify import verify

onnx = pytest.importorskip("onnx")
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# Expand: a constant too large to be made at import
KINDS = {
    "light_bvlc_alexnet": {"Expand", "Conv", "Add", "Relu", "MaxPool", "Mul", "PowConst", "SumPool", "Reshape", "MatMul", "Softmax"},
    "light_densenet121": {"Conv", "Mul", "Add", "Relu", "MaxPool", "SumPool", "Concat", "ReduceSum"},
    "light_inception_v1": {"Conv", "Add", "Relu", "MaxPool", "Mul", "PowConst", "SumPool", "Concat", "Reshape", "MatMul", "Softmax"},
    "light_inception_v2": {"Conv", "Add", "Mul", "Relu", "MaxPool", "SumPool", "Concat", "Reshape", "MatMul", "Softmax"},
    "light_resnet50": {"Conv", "Add", "Mul", "Relu", "MaxPool", "SumPool", "Reshape", "MatMul", "Softmax"},
    "light_shufflenet": {"Conv", "Add", "Mul", "Relu", "MaxPool", "SumPool", "Concat", "Reshape", "Transpose", "MatMul", "Softmax"},
    "light_squeezenet": {"Conv", "Add", "Relu", "MaxPool", "Concat", "Mul", "ReduceSum", "Softmax", "Reshape"},
    "light_vgg19": {"Expand", "Conv", "Add", "Relu", "MaxPool", "Reshape", "MatMul", "Softmax"},
    "light_zfnet512": {"Expand", "Conv", "Add", "Relu", "MaxPool", "Mul", "PowConst", "SumPool", "Reshape", "MatMul", "Softmax"},
}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_light_model_becomes_a_small_set_of_operators(name: str) -> None:
    path = FOLDER / f"{name}.onnx"
    if not path.exists():
        pytest.skip("this version of onnx does not bring it")
    g = load(path)
    verify(g)
    assert {n.op for n in g.nodes} == KINDS[name]
    assert all(n.text("layout") == "NCHW" for n in g.nodes if n.op == "Conv")
