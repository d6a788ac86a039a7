"""Choices of schedules: the border to callers, and the origins in the compiled model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stormdrop as sd
from stormdrop.base.errors import UserError
from stormdrop.builder.building import code_of
from stormdrop.compiler.choose import Choice, Origin, choice_of
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.compiler.model_build import build_model
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.store.record import Versions
from stormdrop.store.store import Store
from stormdrop.store.verdict import Verdict
from tests.support.tiny_onnx import conv


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))


def verdict(task: Task) -> Verdict:
    schedule = default_schedule(task, detect(1))
    decided = schedule, 1e-3, schedule, 1e-3, "duel", 12, "reference values"
    return Verdict(task, detect(1), *decided, Versions("0", "0", 0), code_of(task, schedule, detect(1)))


def test_each_task_has_the_origin_of_its_choice(tmp_path: Path) -> None:
    path = conv(tmp_path)
    parts = tasks_of(read_graph(path), winograd=False)
    decided, given, default = (use.task for use in parts.tasks[:3])
    by_digest = {decided.digest: verdict(decided), given.digest: default_schedule(given, detect(1))}

    def schedules(task: Task) -> Schedule | Verdict | None:
        return by_digest.get(task.digest)

    expected = {decided.digest: "verdict", given.digest: "given", default.digest: "default"}
    public = sd.compile(path, schedules=schedules, target=detect(1), winograd=False)
    internal = build_model(parts, detect(1), lambda task: choice_of(schedules(task)))
    with Store.open() as store:
        store.add_verdicts([verdict(decided)])
    stored = sd.compile(path, target=detect(1), winograd=False)
    assert public.origins == internal.origins == expected
    assert stored.origins == expected | {given.digest: "default"}
    assert json.loads(json.dumps(public.origins)) == expected
    assert {type(origin) for origin in public.origins.values()} == {str}


def test_the_code_of_a_verdict_is_compared_and_other_code_is_not(tmp_path: Path) -> None:
    task = tasks_of(read_graph(conv(tmp_path))).tasks[0].task
    decided = verdict(task)
    assert choice_of(decided) == Choice(decided.schedule, Origin.VERDICT, decided.code)
    assert choice_of(decided.schedule) == Choice(decided.schedule, Origin.GIVEN, None)
    assert choice_of(None) == Choice(None, Origin.DEFAULT, None)


def test_a_function_that_returns_no_schedule_is_refused(tmp_path: Path) -> None:
    def schedules(task: Task) -> Any:
        return "fast"

    with pytest.raises(UserError, match="schedule"):
        sd.compile(conv(tmp_path), schedules=schedules)
