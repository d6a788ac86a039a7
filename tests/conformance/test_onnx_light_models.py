"""The nine "light" models of ONNX's suite: they import, verify, become few kinds of nodes, and compute what onnxruntime
computes.

Their weights are a constant each and so is their expected output: nothing can be learnt from running them as they are.
So they run with random weights (`tests.support.light_models`), and what their softmax reads is compared as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

from stormdrop.compiler.compile import compile as compile_model
from stormdrop.frontend.onnx import load
from stormdrop.graph.graph import verify
from tests.support.float64 import reference64, relative_error
from tests.support.inputs import inputs_for
from tests.support.light_models import light, session_of, with_logits

Array = NDArray[Any]
FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

# Expand: a constant too large to be made at import
KINDS = {
    "bvlc_alexnet": "Expand Conv Add Relu MaxPool Mul PowConst SumPool Reshape MatMul Softmax",
    "densenet121": "Conv Mul Add Relu MaxPool SumPool Concat ReduceSum",
    "inception_v1": "Conv Add Relu MaxPool Mul PowConst SumPool Concat Reshape MatMul Softmax",
    "inception_v2": "Conv Add Mul Relu MaxPool SumPool Concat Reshape MatMul Softmax",
    "resnet50": "Conv Add Mul Relu MaxPool SumPool Reshape MatMul Softmax",
    "shufflenet": "Conv Add Mul Relu MaxPool SumPool Concat Reshape Transpose MatMul Softmax",
    "squeezenet": "Conv Add Relu MaxPool Concat Mul ReduceSum Softmax Reshape",
    "vgg19": "Expand Conv Add Relu MaxPool Reshape MatMul Softmax",
    "zfnet512": "Expand Conv Add Relu MaxPool Mul PowConst SumPool Reshape MatMul Softmax",
}
LARGE = {"bvlc_alexnet", "vgg19", "zfnet512"}  # 61 to 144 million weights
AGAINST_FLOAT64 = {"inception_v2", "resnet50", "shufflenet", "squeezenet"}  # others take longer than they teach


def _path(name: str) -> Path:
    path = FOLDER / f"light_{name}.onnx"
    if not path.exists():
        pytest.skip("this version of onnx does not bring it")
    return path


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_light_model_becomes_a_small_set_of_operators(name: str) -> None:
    g = load(_path(name))
    verify(g)
    assert {n.op for n in g.nodes} == set(KINDS[name].split())
    assert all(n.text("layout") == "NCHW" for n in g.nodes if n.op == "Conv")


@dataclass(frozen=True)
class Filled:
    """A light model with random weights, and what onnxruntime makes of an image."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Array]
    wanted: Mapping[str, Array]


@pytest.fixture(scope="module", params=sorted(KINDS))
def filled(request: pytest.FixtureRequest) -> Filled:
    name: str = request.param
    _path(name)
    model = with_logits(light(name))
    inputs = inputs_for(model, seed=3)
    names = [o.name for o in model.graph.output]
    return Filled(name, model, inputs, dict(zip(names, session_of(model, 2).run(names, inputs))))


def test_random_weights_keep_activations_in_range_and_the_output_follows_the_input(filled: Filled) -> None:
    if filled.name in LARGE:
        pytest.skip("nothing that the smaller ones do not show")
    seen = onnx.ModelProto()
    seen.CopyFrom(filled.model)
    held = {o.name for o in seen.graph.output} | {out for n in seen.graph.node for out in n.output[1:]}
    seen.graph.output.extend(
        helper.make_empty_tensor_value_info(out) for n in seen.graph.node for out in n.output if out not in held
    )
    names = [o.name for o in seen.graph.output]
    session = session_of(seen, 2)
    one, other = (dict(zip(names, session.run(names, inputs_for(filled.model, seed)))) for seed in (3, 4))
    deviations = {name: float(a.std()) for name, a in one.items() if name != filled.model.graph.output[0].name}
    assert all(1e-3 < d < 1e3 for d in deviations.values()), deviations
    logits = filled.model.graph.output[-1].name
    a, b = one[logits], other[logits]
    assert float(np.linalg.norm(a - b)) > 0.05 * float(np.linalg.norm(a - a.mean()))


def test_a_compiled_light_model_computes_what_onnxruntime_computes(filled: Filled) -> None:
    found = compile_model(filled.model, schedules=lambda task: None).run(filled.inputs)
    errors = {name: relative_error(found[name], wanted) for name, wanted in filled.wanted.items()}
    assert max(errors.values()) < 1e-3, errors
    if filled.name not in AGAINST_FLOAT64:
        return
    # What the softmax reads: its result is one large number and its error that of one element, which varies tenfold.
    logits, exact = list(reference64(filled.model, filled.inputs).items())[-1]
    ours, theirs = relative_error(found[logits], exact), relative_error(filled.wanted[logits], exact)
    assert ours < max(5 * theirs, 1e-5), f"{ours} against float64, onnxruntime {theirs}"
