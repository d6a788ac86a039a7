"""The backend of `torch.compile`: functions and modules return what eager PyTorch does, and share the same memory.

Skipped where torch is not installed, as it is not by `make env`.
"""

# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import importlib
import tomllib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install '.[torch]'")
nn: Any = torch.nn


def entry_point() -> Any:
    """The backend as the package registers it."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["stormdrop"].partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=entry_point(), **options)


def natively(function: Any) -> Any:
    """As `compiled`, where a remark that something runs in PyTorch is an error."""
    fast = compiled(function)

    def call(*arguments: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*runs in PyTorch")
            return fast(*arguments)

    return call


def both(function: Callable[..., Any], *arguments: Any, call: Any = natively) -> tuple[Any, Any]:
    """Arguments and results of eager and compiled calls, each on copies of the arguments, after comparing them."""
    copies = [[a.clone() if isinstance(a, torch.Tensor) else a for a in arguments] for _ in range(2)]
    want, have = function(*copies[0]), call(function)(*copies[1])
    torch.testing.assert_close((copies[1], have), (copies[0], want), atol=1e-4, rtol=1e-4)
    return copies[1], have


@pytest.fixture(scope="module")
def x() -> Any:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def test_a_function_computes_what_pytorch_does(x: Any) -> None:
    both(lambda a, b: torch.softmax(a @ b.T, -1) * 2, x, x + 1)


def test_results_of_all_kinds_are_returned(x: Any) -> None:
    both(lambda a: (a.relu(), a.shape[0], None, {"twice": a * 2}), x)


def test_a_view_of_an_argument_shares_its_memory(x: Any) -> None:
    (argument,), (_, view, same) = both(lambda a: (a.exp(), a.view(-1)[2:], a), x)
    view.zero_()
    assert float(argument.reshape(-1)[2:].abs().sum()) == 0
    assert same is argument


def test_a_view_of_a_result_shares_its_memory(x: Any) -> None:
    def twice(a: Any) -> Any:
        y = a * 3
        return y, y.view(-1), y

    _, (first, view, second) = both(twice, x)
    view.zero_()
    assert float(first.abs().sum()) == 0
    assert first is second


def test_parts_of_a_tensor_that_do_not_overlap_are_results(x: Any) -> None:
    both(lambda a: (a * 3).split(2, 1), x)


def overlapping(a: Any) -> Any:
    y = a * 3
    return y[:3], y[1:]


def writing(a: Any) -> Any:
    a.add_(1)
    return a * 2


@pytest.mark.parametrize("function", [overlapping, writing, torch.linalg.inv])
def test_what_cannot_be_compiled_runs_in_pytorch_with_a_remark(function: Any, x: Any) -> None:
    with pytest.warns(UserWarning, match="a graph of torch.compile runs in PyTorch"):
        both(function, x[:, :4] + torch.eye(4), call=compiled)


def test_random_numbers_are_drawn_anew(x: Any) -> None:
    fast = compiled(lambda a: a + torch.rand_like(a))
    with pytest.warns(UserWarning, match="random numbers"):
        assert not torch.equal(fast(x), fast(x))


def test_a_graph_break_makes_two_graphs(x: Any) -> None:
    def broken(a: Any) -> Any:
        y = (a @ a.T).tanh()
        torch._dynamo.graph_break()
        return y.sigmoid() if y.sum() > -1e9 else y

    both(broken, x)


def test_open_dimensions_are_compiled_for_each_size(x: Any) -> None:
    fast = natively(lambda a: (a * 2 + 1, a.shape[0] * 2))
    for rows in (4, 3, 2, 3, 1):
        y, n = fast(x[:rows])
        assert torch.equal(y, x[:rows] * 2 + 1)
        assert n == 2 * rows


def test_parameters_are_followed_when_they_change(x: Any) -> None:
    module = nn.Linear(6, 3)
    fast = natively(module)
    for _ in range(3):
        torch.testing.assert_close(fast(x), module(x))
        module.weight.mul_(1.5)


def test_parameters_that_change_all_the_time_stay_in_pytorch(x: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stormdrop.pytorch.backend.MOST_REFREEZES", 1)
    module = nn.Linear(6, 3)
    fast = compiled(module)

    def train() -> None:
        for _ in range(4):
            module.bias.add_(1)
            torch.testing.assert_close(fast(x), module(x))

    with pytest.warns(UserWarning, match="changed more than"):
        train()


def test_modules_of_one_class_keep_their_own_parameters(x: Any) -> None:
    first, second = nn.Linear(6, 3), nn.Linear(6, 3)

    def apply(module: Any, a: Any) -> Any:
        return module(a)

    fast = natively(apply)
    for module in (first, second, first):
        torch.testing.assert_close(fast(module, x), module(x))


def test_training_runs_in_pytorch_and_has_gradients(x: Any) -> None:
    module = nn.Linear(6, 3)
    fast = compiled(module)
    with torch.enable_grad(), pytest.warns(UserWarning, match="gradients are enabled"):
        fast(x).sum().backward()
    assert module.weight.grad is not None
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(x)


def test_inference_mode_is_taken(x: Any) -> None:
    with torch.inference_mode():
        both(lambda a: a.cos(), x)


def test_options_are_those_of_compile(x: Any) -> None:
    fast = compiled(lambda a: a + 1, options={"threads": 1})
    torch.testing.assert_close(fast(x), x + 1)


def test_modes_of_other_backends_are_refused(x: Any) -> None:
    with pytest.raises(Exception, match="mode='max-autotune' is not supported"):
        compiled(lambda a: a + 1, mode="max-autotune")(x)
