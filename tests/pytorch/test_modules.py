"""Modules given to `sd.compile`: they return what PyTorch does, in every structure, and follow their parameters.

Skipped where torch is not installed, as it is not by `make env`.
"""

# pyright: reportUntypedBaseClass=false, reportUnknownParameterType=false

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import stormdrop as sd

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
nn: Any = torch.nn
Module: Any = nn.Module


class Convolutions(Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(x).mean((2, 3)))


class Attention(Module):
    """Token numbers and a mask in, by name; a mapping out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids: Any, mask: Any = None, scale: float = 1.0) -> Any:
        x = self.layer(self.embed(ids) * scale, src_key_padding_mask=mask)
        return {"hidden": x, "pooled": x.mean(1), "scale": scale, "nothing": None}


class Recurrent(Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)

    def forward(self, x: Any) -> Any:
        y, (h, c) = self.lstm(x)
        return y, (h, c)


def made(kind: Any) -> Any:
    torch.manual_seed(0)
    return kind().eval()


def agrees(have: Any, want: Any) -> None:
    """Equal structures, numbers and tensors of types; values as close as sums in another order are."""
    torch.testing.assert_close(have, want, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def images() -> Any:
    return torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def network() -> tuple[Any, Any]:
    module = made(Convolutions)
    return module, sd.compile(module, (torch.zeros(2, 3, 12, 12),))


def test_a_convolutional_network_computes_what_pytorch_does(network: tuple[Any, Any], images: Any) -> None:
    module, compiled = network
    agrees(compiled(images), module(images).detach())


def test_results_are_tensors_of_their_own_memory(network: tuple[Any, Any], images: Any) -> None:
    _, compiled = network
    first = compiled(images)
    kept = first.clone()
    second = compiled(images + 1)
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, kept)


def test_arguments_of_any_memory_layout_are_taken(network: tuple[Any, Any], images: Any) -> None:
    module, compiled = network
    last = images.contiguous(memory_format=torch.channels_last)
    agrees(compiled(last), module(images).detach())


def test_another_shape_is_compiled_when_it_is_called(network: tuple[Any, Any], images: Any) -> None:
    module, compiled = network
    one = images[:1]
    agrees(compiled(one), module(one).detach())
    agrees(compiled(one * 2), module(one * 2).detach())
    assert [model.inputs[0].shape[0] for model in compiled.models] == [2, 1]


def test_structures_of_arguments_and_results_are_the_module_s() -> None:
    module = made(Attention)
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])
    mask = torch.tensor([[False] * 4, [False, False, False, True]])
    compiled = sd.compile(module, {"ids": ids, "mask": mask, "scale": 2.0})
    with torch.no_grad():
        agrees(compiled(ids=ids, mask=mask, scale=2.0), module(ids=ids, mask=mask, scale=2.0))


def test_a_recurrent_network_returns_its_states() -> None:
    module, x = made(Recurrent), torch.randn(2, 3, 6)
    with torch.no_grad():
        agrees(sd.compile(module, x)(x), module(x))


def test_an_exported_program_needs_no_examples() -> None:
    module, x = made(Recurrent), torch.randn(2, 3, 6)
    compiled: Any = sd.compile(torch.export.export(module, (x,)))
    with torch.no_grad():
        agrees(compiled(x), module(x))


def test_a_module_is_loaded_as_a_graph() -> None:
    graph = sd.read_graph(nn.Linear(4, 3).eval(), example_inputs=torch.zeros(2, 4))
    assert [v.shape for v in graph.outputs] == [(2, 3)]


class Flattens(Module):
    """Of a scalar, its only argument's value is its result."""

    def forward(self, x: Any) -> Any:
        return torch.logsumexp(x, 0)


def test_a_result_that_is_an_argument_s_value_is_computed() -> None:
    x = torch.tensor(2.5)
    agrees(sd.compile(Flattens().eval(), x)(x), x)


def test_writing_into_a_parameter_is_noticed() -> None:
    module, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    compiled = sd.compile(module, (x,))
    with torch.no_grad():
        module.weight.mul_(2)
        with pytest.warns(UserWarning, match="have changed"):
            agrees(compiled(x), module(x))


@pytest.mark.parametrize("change", ["data", "parameter", "part", "state"])
def test_other_parameters_in_a_module_are_noticed(change: str) -> None:
    module, x = nn.Sequential(nn.Linear(4, 4)).eval(), torch.randn(2, 4)
    compiled = sd.compile(module, (x,))
    other = nn.Linear(4, 4)
    match change:
        case "data":
            module[0].weight.data = other.weight.data
        case "parameter":
            module[0].weight = other.weight
        case "part":
            module[0] = other
        case _:
            module[0].load_state_dict(other.state_dict())
    with torch.no_grad(), pytest.warns(UserWarning, match="have changed"):
        agrees(compiled(x), module(x))


def test_training_and_gradients_run_in_pytorch_with_one_remark(recwarn: pytest.WarningsRecorder) -> None:
    module, x = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)).eval(), torch.randn(2, 4)
    compiled = sd.compile(module, (x,))
    y = x.clone().requires_grad_()
    compiled(y).sum().backward()
    assert y.grad is not None
    module.train()
    assert compiled(x).grad_fn is not None
    assert compiled(x).grad_fn is not None
    told = [str(w.message) for w in recwarn if "runs in PyTorch" in str(w.message)]
    assert len(told) == 2
    assert "requires gradients" in told[0]
    assert "training mode" in told[1]


class Writes(Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Any) -> Any:
        self.count += 1
        return x * self.count


class Draws(Module):
    def forward(self, x: Any) -> Any:
        return x + torch.rand_like(x)


class Branches(Module):
    def forward(self, x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x - 1


class Inverts(Module):
    def forward(self, x: Any) -> Any:
        return torch.linalg.inv(x)


class Divides(Module):
    def forward(self, x: Any) -> Any:
        return nn.functional.avg_pool2d(x[None, None], 2, divisor_override=3)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Divides, "divisor of its own"),
        (Writes, "writes into an argument"),
        (Draws, "draws random numbers"),
        (Branches, "PyTorch cannot export"),
        (Inverts, "linalg_inv"),
    ],
)
def test_what_is_no_supported_function_is_refused(kind: Any, said: str) -> None:
    with pytest.raises(sd.UserError, match=said):
        sd.compile(kind().eval(), (torch.ones(3, 3),))


def test_a_module_in_training_mode_and_one_without_examples_are_refused() -> None:
    with pytest.raises(sd.UserError, match="eval"):
        sd.compile(nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(sd.UserError, match="example inputs"):
        sd.compile(nn.Linear(2, 2).eval())
    with pytest.raises(sd.UserError, match="example_inputs"):
        sd.compile(nn.Linear(2, 2).eval(), (torch.ones(1, 2),), shapes={"x": (1, 2)})


def test_only_pytorch_modules_take_examples() -> None:
    with pytest.raises(sd.UserError, match="PyTorch"):
        sd.compile("zoo:resnet18", (torch.ones(1, 2),))


def test_compiling_an_onnx_model_does_not_load_torch() -> None:
    script = "import sys, stormdrop as sd; sd.compile; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
