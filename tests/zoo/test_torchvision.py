"""The zoo against the definitions it restates: torchvision's networks and transformers' BERT, with the zoo's weights in
them.

Skipped where torch is not installed, as it is not by `make env`. Shapes are compared name by name, outputs with
onnxruntime's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from stormdrop import zoo

torch: Any = pytest.importorskip("torch")

Runs = Callable[..., list[NDArray[np.float32]]]
WITH_SPECIAL_NAMES: dict[str, tuple[str, dict[str, bool]]] = {
    "resnet3d_18": ("video.r3d_18", {}),
    "googlenet": ("googlenet", {"aux_logits": False, "init_weights": False}),
    "inception_v3": ("inception_v3", {"init_weights": False}),
}
ELSEWHERE = ("bert_base_seq128", "dcgan_generator")


@pytest.fixture(scope="module")
def vision() -> Any:
    """torchvision.models, also where its compiled operators do not fit this torch: no classifier needs them."""
    pytest.importorskip("PIL")
    try:
        return pytest.importorskip("torchvision").models
    except RuntimeError:  # an operator that it describes does not exist: declare those, and import it again
        for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        models = import_module("torchvision").models
        models.kept_alive = library
        return models


def weights(model: onnx.ModelProto) -> dict[str, NDArray[np.float32]]:
    """The parameters and running statistics, in torch's layout; what names end in .T is stored transposed."""
    found = {
        t.name: numpy_helper.to_array(t)
        for t in model.graph.initializer
        if t.data_type == onnx.TensorProto.FLOAT and t.dims
    }
    return {
        name.removesuffix(".T"): np.array(value.T if name.endswith(".T") else value, order="C")
        for name, value in found.items()
    }


def filled(network: Any, values: dict[str, NDArray[np.float32]]) -> Any:
    """The torch network with the zoo's values, after a comparison of all names and shapes."""
    state = network.state_dict()
    wanted = {
        name: tuple(t.shape) for name, t in state.items() if not name.endswith(("num_batches_tracked", "position_ids"))
    }
    assert {name: value.shape for name, value in values.items()} == wanted
    state.update({name: torch.from_numpy(value) for name, value in values.items()})
    network.load_state_dict(state, assign=True)
    return network.eval()


def assert_near(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert expected.std() > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * expected.std())


@pytest.mark.parametrize("name", [n for n in zoo.names() if n not in ELSEWHERE])
def test_torchvision_has_the_same_parameters_and_gives_the_same_outputs(name: str, vision: Any, run: Runs) -> None:
    path, options = WITH_SPECIAL_NAMES.get(name, (name, {}))
    constructor: Any = vision
    for part in path.split("."):
        constructor = getattr(constructor, part)
    with torch.device("meta"):
        network = constructor(weights=None, **options)
    assert sum(p.numel() for p in network.parameters()) == zoo.parameters(name)
    if name == "inception_v3":
        network.AuxLogits = None  # only training has it
    model = zoo.build(name)
    network = filled(network, weights(model))
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    with torch.no_grad():
        expected = network(torch.from_numpy(x)).numpy()
    assert_near(run(model, {"input": x})[0], expected)


def test_dcgan_in_torch_gives_the_same_images(run: Runs) -> None:
    model = zoo.build("dcgan_generator", batch=2)
    layers: list[Any] = []
    for inputs, outputs, stride, pad in ((100, 512, 1, 0), (512, 256, 2, 1), (256, 128, 2, 1), (128, 64, 2, 1)):
        layers += [
            torch.nn.ConvTranspose2d(inputs, outputs, 4, stride, pad, bias=False),
            torch.nn.BatchNorm2d(outputs),
            torch.nn.ReLU(),
        ]
    layers += [torch.nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), torch.nn.Tanh()]
    generator = torch.nn.Sequential()
    generator.add_module("main", torch.nn.Sequential(*layers))
    x = np.random.default_rng(0).standard_normal((2, 100, 1, 1), np.float32)
    with torch.no_grad():
        expected = filled(generator, weights(model))(torch.from_numpy(x)).numpy()
    assert expected.shape == (2, 3, 64, 64)
    assert_near(run(model, {"input": x})[0], expected)


def test_transformers_bert_has_the_same_parameters_and_gives_the_same_outputs(run: Runs) -> None:
    transformers: Any = pytest.importorskip("transformers")
    model = zoo.build("bert_base_seq128", batch=2)
    network = filled(transformers.BertModel(transformers.BertConfig()), weights(model))
    assert sum(p.numel() for p in network.parameters()) == zoo.parameters("bert_base_seq128")
    stream = np.random.default_rng(0)
    given = {
        "input_ids": stream.integers(0, 30522, (2, 128)),
        "attention_mask": (np.arange(128) < np.array([[128], [77]])).astype(np.int64),
        "token_type_ids": stream.integers(0, 2, (2, 128)),
    }
    with torch.no_grad():
        expected = network(**{name: torch.from_numpy(value) for name, value in given.items()})
    hidden, pooled = run(model, given)
    assert_near(pooled, expected.pooler_output.numpy())
    # Rows of masked tokens are nobody's business.
    assert_near(hidden[0], expected.last_hidden_state[0].numpy())
    assert_near(hidden[1, :77], expected.last_hidden_state[1, :77].numpy())
