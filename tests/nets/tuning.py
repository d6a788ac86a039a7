"""The events of two scripted tunings: of a small model, and of one operator. A formula takes the place of timings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stormdrop.codegen.fingerprint import digest
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.partition import Partition, partition
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.schedule import Schedule
from stormdrop.target.cpu import Cpu, cross
from stormdrop.testing.tables import AnsweringMeasurer, Request
from stormdrop.tuning.api import tune
from tests.support.graphs import floats, graph_of
from tests.support.tuning import tune_models

TARGET = cross("avx2").with_threads(2)
WIDTHS = (32, 48, 40)
SEARCH = "droplet"
REAL_TIMES = ("elapsed", "tuning_seconds", "spent", "created")
"""Fields that no script decides."""
TRIALS = 60


@dataclass
class Scripted(AnsweringMeasurer):
    """A measurer with a clock of its own: larger knobs take longer, and every eleventh candidate fails."""

    now: float = 0.0
    measured: int = 0

    def clock(self) -> float:
        return self.now

    def answers(self, asked: Request) -> list[Result]:
        self.now += 0.05 * len(asked.candidates)
        return [self._answer(asked, candidate) for candidate in asked.candidates]

    def _answer(self, asked: Request, candidate: Schedule) -> Result:
        if asked.kind == "measure":
            self.measured += 1
            if not self.measured % 11:
                return Failure("build", "a scripted failure")
        seconds = asked.task.flops * 1e-9 * (1 + 0.1 * sum(value for _, value in candidate.values))
        return Timing(seconds, 0.0, 10, 0.02, samples=(seconds,) * 9)


def tuning() -> dict[str, str]:
    """Returns the order of the events of both tunings, and by kind of event the number, the fields and a hash of the
    contents.
    """
    return {
        f"{name} {key}": value
        for name, events in (("model", model_events()), ("task", task_events()))
        for key, value in described(events).items()
    }


def model_events() -> list[object]:
    events: list[object] = []
    scripted = Scripted()
    models, clock = [products(*WIDTHS)], scripted.clock
    tune_models(models, TARGET, measurer=scripted, clock=clock, search=SEARCH, trials=TRIALS, listen=events.append)
    return events


def task_events() -> list[object]:
    events: list[object] = []
    task = build("GMM", (1, 24, 32, 48))
    tune(task, TARGET, measurer=Scripted(), search=SEARCH, trials=TRIALS, listen=events.append)
    return events


def products(*widths: int) -> Partition:
    """relu(x @ w) for each pair of neighbouring widths."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    x = b.input("x", (24, widths[0]), "f32")
    for k, n in pairwise(widths):
        x = b.emit("Relu", b.emit("MatMul", x, b.constant(floats(rng, k, n)), transpose_a=False, transpose_b=False))
    return partition(graph_of(b, x))


def described(events: Sequence[object]) -> dict[str, str]:
    """Returns the order of the events, and for each kind the number, the fields and a hash of the contents."""
    names = [_kind(event) for event in events]
    results = {"order": f"{len(names)} events, {digest(' '.join(names))}"}
    for name in dict.fromkeys(names):
        own = [event for event, kind in zip(events, names) if kind == name]
        results[f"{name}: count"] = str(len(own))
        results[f"{name}: fields"] = " ".join(field.name for field in fields(_as_dataclass(own[0])))
        results[f"{name}: contents"] = digest(json.dumps([content(event) for event in own], sort_keys=True))
    return results


def _kind(event: object) -> str:
    """Returns the name of an event's class, with the class of the event inside."""
    inside = getattr(event, "event", None)
    return type(event).__name__ + (f" of {type(inside).__name__}" if inside is not None else "")


def _as_dataclass(event: object) -> Any:
    assert is_dataclass(event)
    return event


def content(value: object) -> object:
    """Returns a value of an event as JSON, without the times of this process."""
    match value:
        case Task():
            return value.digest
        case Schedule():
            return value.to_json()
        case Cpu():
            return value.isa
        case float():
            return f"{value:.6g}"
        case list() | tuple():
            return [content(element) for element in value]
        case _ if is_dataclass(value):
            return {f.name: content(getattr(value, f.name)) for f in fields(value) if f.name not in REAL_TIMES}
        case _:
            return repr(value)
