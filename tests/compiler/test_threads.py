"""As many threads as the caller says; else as the target has; else as STORMDROP_THREADS says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import stormdrop as sd
from stormdrop.device.host import detect
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.graph import Graph
from stormdrop.measure.result import Result, Timing
from stormdrop.store.store import Store
from stormdrop.testing.tables import AnsweringMeasurer, Request


def task(n: int = 8) -> sd.Task:
    X, i = sd.tensor("X", (n,)), sd.axis(n)
    return sd.Task([sd.compute("Y", i, X[i] * 2)])


def graph() -> Graph:
    b = GraphBuilder()
    return b.graph([b.emit("Relu", b.input("x", (8, 8), "f32"))], ["y"], "g", 1)


class Instant(AnsweringMeasurer):
    """A measurer that measures nothing."""

    def answers(self, asked: Request) -> list[Result]:
        return [Timing(1e-3, 0.0, 10, 0.0, samples=(1e-3,) * 9) for _ in asked.candidates]


def tuned(what: sd.Task | Graph, given: Any) -> int:
    with Store.in_memory() as store:
        return sd.tune(what, trials=1, measurer=Instant(), store=store, **given).target.threads


def compiled(given: Any) -> int:
    model: sd.Model = sd.compile(graph(), schedules=lambda _: None, **given)
    return model.threads


DOORS: dict[str, Callable[[Any], int]] = {
    "build": lambda given: sd.build(task(), **given).threads,
    "build of nothing": lambda given: sd.build(task(0), **given).threads,
    "compile": compiled,
    "tune a task": lambda given: tuned(task(), given),
    "tune a model": lambda given: tuned(graph(), given),
}


@pytest.mark.parametrize("door", DOORS)
def test_an_argument_comes_before_the_target_and_the_target_before_the_environment(
    door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = detect(3)
    monkeypatch.setenv("STORMDROP_THREADS", "1")
    threads = DOORS[door]
    assert threads({"target": target, "threads": 2}) == 2
    assert threads({"target": target}) == 3
    assert threads({"threads": 2}) == 2
    assert threads({}) == 1
