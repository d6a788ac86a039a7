"""What the zoo's models compute: outputs of a sensible size that depend on the input, alike at every batch and
opset.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from stormdrop import zoo

Runs = Callable[..., list[NDArray[np.float32]]]
SMALL = (
    "googlenet",
    "mnasnet1_0",
    "mobilenet_v2",
    "resnet18",
    "shufflenet_v2_x1_0",
    "squeezenet1_0",
    "densenet121",
    "dcgan_generator",
    "efficientnet_b0",
)


def images(model: onnx.ModelProto, count: int = 1) -> NDArray[np.float32]:
    _, *sizes = (d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    return np.random.default_rng(5).standard_normal((count, *sizes), np.float32)


@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_finite_spread_and_follow_the_input(name: str, run: Runs) -> None:
    model = zoo.build(name, batch=2)
    one, other = run(model, {"input": images(model, 2)})[0]
    assert np.isfinite(one).all()
    assert 0.1 < one.std() < 100
    assert np.linalg.norm(one - other) > 0.05 * np.linalg.norm(one - one.mean())


@pytest.mark.parametrize("name", ["shufflenet_v2_x1_0", "mnasnet1_0"])
def test_a_symbolic_batch_takes_any_number_of_inputs(name: str, run: Runs) -> None:
    model = zoo.build(name, batch=None)
    x = images(model, 3)
    together = run(model, {"input": x})[0]
    single = run(zoo.build(name), {"input": x[1:2]})[0]
    np.testing.assert_allclose(together[1:2], single, rtol=1e-4, atol=1e-4)


# ReduceMean takes its axes as an input since 18; Swish is one node since 24.
@pytest.mark.parametrize(("name", "older", "newer"), [("mnasnet1_0", 17, 18), ("efficientnet_b0", 18, 24)])
def test_opsets_write_the_same_function(name: str, older: int, newer: int, run: Runs) -> None:
    models = [zoo.build(name, opset=opset) for opset in (older, newer)]
    assert list(models[0].graph.node) != list(models[1].graph.node)
    first, second = (run(model, {"input": images(model)})[0] for model in models)
    np.testing.assert_allclose(first, second, rtol=1e-3, atol=1e-3 * first.std())
