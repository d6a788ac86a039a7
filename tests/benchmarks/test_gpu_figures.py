"""How the benchmarks of a GPU take times, on a GPU that is not there."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import gpu, tensor
from stormdrop.target.gpu import gpu as gpu_target


@dataclass
class Timed:
    """A kernel, and its own recording, that notes when it is timed and takes as long as it is told."""

    log: list[str]
    name: str
    seconds: float

    def __call__(self, *inputs: Any) -> Any:
        return np.zeros((1, 64, 64), np.float32)

    def _record(self) -> Timed:
        return self

    def bind(self, inputs: Any, outputs: Any) -> None: ...

    def run(self) -> None: ...

    def bench(self, repeats: int) -> Any:
        self.log.append(self.name)
        return np.full(repeats, self.seconds)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was tuned and timed, in order, where the tuned schedule is the slower one."""
    found: list[str] = []

    def tune(task: Any, target: Any, trials: int) -> Any:
        found.append("tune")
        return SimpleNamespace(best=SimpleNamespace(steps=(), values=()), trials=trials)

    def build(task: Any, constants: Any, schedule: Any, target: Any) -> Timed:
        return Timed(found, *(("default", 1.0) if schedule is None else ("tuned", 2.0)))

    def gpu_of(name: str) -> Any:
        return gpu_target()

    monkeypatch.setattr("stormdrop.tune", tune)
    monkeypatch.setattr("stormdrop.build", build)
    monkeypatch.setattr(tensor, "target_for", gpu_of)
    monkeypatch.setitem(sys.modules, "benchmarks.gpu_torch", None)
    return found


def test_an_operators_default_and_winner_are_timed_in_turns_after_tuning(log: list[str]) -> None:
    row = gpu.operator_row("GMM", (1, 64, 64, 64), 8)
    assert log == ["tune", *(["default", "tuned"] * 5)]
    assert (row["default"], row["tuned"], row["trials"]) == (1.0, 2.0, 8)


def test_an_operator_that_is_not_tuned_has_the_defaults_time_alone(log: list[str]) -> None:
    row = gpu.operator_row("GMM", (1, 64, 64, 64), None)
    assert set(log) == {"default"}
    assert row["default"] == 1.0
    assert "tuned" not in row


def test_a_products_default_and_winner_are_timed_in_turns_after_tuning(log: list[str]) -> None:
    row = tensor.row("bf16", 64, 8)
    assert log == ["tune", *(["default", "tuned"] * 5)]
    assert (row["default"], row["tuned"]) == (1.0, 2.0)
    assert row["tflops"] == row["flops"] / 2.0 * 1e-12


def test_an_untuned_and_a_tuned_model_are_timed_in_turns_after_tuning(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class Model:
        kernel: Timed

        def __call__(self, *inputs: Any) -> Any:
            return np.ones(3)

        def bench(self, *inputs: Any, repeats: int) -> Any:
            return self.kernel.bench(repeats)

        def profile(self, *inputs: Any, repeats: int) -> Any:
            return SimpleNamespace(rows=[SimpleNamespace(seconds=0.5), SimpleNamespace(seconds=0.25)])

    def compiled(proto: Any, target: str = "cpu", schedules: Any = None) -> Model:
        return Model(Timed(log, *(("untuned", 1.0) if schedules is gpu._defaults else ("tuned", 2.0))))

    def tune(proto: Any, target: str, seconds: float) -> Any:
        log.append("tune")
        return SimpleNamespace(schedules=dict)

    monkeypatch.setattr("stormdrop.compile", compiled)
    monkeypatch.setattr("stormdrop.tune", tune)
    row = gpu.model_row("squeezenet1_0", 9.0)
    assert log == ["tune", *(["untuned", "tuned"] * 5)]
    assert row == {"untuned": 1.0, "kernels": 0.75, "error": 0.0, "tuned": 2.0, "tuning": 9.0}
    assert "tuned" not in gpu.model_row("squeezenet1_0", None)
