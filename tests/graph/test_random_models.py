"""Random small models through the whole compiler, against onnxruntime: `python -m tests.support.random_models` runs thousands."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.support.random_models import compiled, difference, failure, random_model, unfused

PER_GROUP = 10
SEEDS = 60


@pytest.mark.parametrize("first", range(0, SEEDS, PER_GROUP))
def test_a_compiled_random_model_computes_what_onnxruntime_computes(first: int) -> None:
    found = {seed: failure(seed, compiled) for seed in range(first, first + PER_GROUP)}
    assert {seed: why for seed, why in found.items() if why is not None} == {}


@pytest.mark.parametrize("seed", [3, 8])
def test_a_random_model_is_right_node_by_node_too(seed: int) -> None:
    assert failure(seed, unfused) is None


def test_a_seed_gives_one_model() -> None:
    first, again, other = (random_model(seed) for seed in (5, 5, 6))
    assert first[0] == again[0]
    assert first[0] != other[0]
    assert all(np.array_equal(a, again[1][k]) for k, a in first[1].items())


def test_random_models_are_varied() -> None:
    models = [random_model(seed)[0] for seed in range(100)]
    used = {n.op_type for m in models for n in m.graph.node}
    assert len(used) > 65
    assert any(len(m.graph.output) > 3 for m in models)
    assert any(o.name in {i.name for i in m.graph.input} for m in models for o in m.graph.output)
    assert any(n.input[0] == n.input[1] for m in models for n in m.graph.node if n.op_type == "Concat")
    assert any({o.name for o in m.graph.output} & {name for n in m.graph.node for name in n.input} for m in models)


def test_a_wrong_result_is_found() -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    inputs = {"x": np.arange(4, dtype=np.float32)}
    assert difference(model, inputs, lambda m, given: {"y": -given["x"]}) is None
    assert "differs by" in (difference(model, inputs, lambda m, given: {"y": -1.001 * given["x"]}) or "")
    assert "outputs" in (difference(model, inputs, lambda m, given: {"z": -given["x"]}) or "")
    assert "float64" in (difference(model, inputs, lambda m, given: {"y": -given["x"].astype(np.float64)}) or "")
