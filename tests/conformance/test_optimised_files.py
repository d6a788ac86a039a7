"""Files that onnxruntime's optimiser has written run here, and compute what onnxruntime computes of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import stormdrop as sd
from stormdrop import zoo
from stormdrop.compare.oracle import agreements
from stormdrop.device.arrays import random_inputs
from stormdrop.zoo.bert import Bert, bert
from stormdrop.zoo.builder import NetworkBuilder
from stormdrop.zoo.export import model as onnx_model

onnxruntime = pytest.importorskip("onnxruntime")


def _network(name: str, size: int) -> Any:
    """A network of the zoo on smaller images: only its input says how large they are."""
    proto = zoo.build(name, 1)
    for dim in proto.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_value = size
    del proto.graph.value_info[:]
    return proto


def _transformer() -> Any:
    shape = Bert(vocabulary=100, positions=32, hidden=64, heads=4, intermediate=128, layers=2, sequence=16)
    return onnx_model(bert(NetworkBuilder("tiny bert", batch=1, opset=18), shape), seed=0)


MODELS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "squeezenet1_0": (lambda: _network("squeezenet1_0", 64), {"FusedConv"}),
    "resnet18": (lambda: _network("resnet18", 64), {"FusedConv"}),
    "mobilenet_v2": (lambda: _network("mobilenet_v2", 64), {"FusedConv"}),
    "shufflenet_v2_x1_0": (lambda: _network("shufflenet_v2_x1_0", 224), {"FusedConv"}),
    "efficientnet_b0": (lambda: _network("efficientnet_b0", 64), {"FusedConv", "QuickGelu"}),
    "transformer": (_transformer, {"SkipLayerNormalization", "FusedMatMul", "Gelu", "FusedGemm"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_an_optimised_file_computes_the_same_here(name: str, tmp_path: Path) -> None:
    build, expected = MODELS[name]
    path = str(tmp_path / "optimised.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = path
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(build().SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert expected <= {n.op_type for n in onnx.load(path).graph.node if n.domain == "com.microsoft"}
    model = sd.compile(path, schedules=lambda task: None)
    inputs = random_inputs(model.inputs, seed=1)
    right = dict(zip((o.name for o in session.get_outputs()), session.run(None, inputs)))
    found = model.run(inputs)
    judged = agreements(list(found), found, {k: np.asarray(v) for k, v in right.items()}, 1e-4)
    assert all(a.ok for a in judged), judged
