"""What a file of lines claims is never what runs: a schedule is used only where this machine has timed it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.compiler.stored import StoredSchedules
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.store.record import Record
from stormdrop.store.store import Store
from stormdrop.target.machine import Target
from tests.support.records import VERSIONS, timing
from tests.tuning.test_tune_model import with_a_tiny_one


def slow_schedule(task: Task, target: Target) -> Schedule:
    """The legal schedule with the largest estimate of a few hundred."""
    found: list[tuple[float, Schedule]] = []
    for sketch in sketches(task, target):
        points = sketch.sample_legal(100, np.random.default_rng(0))
        seconds = sketch.prior(points)
        found.append((float(seconds.max()), sketch.schedule(points[int(np.argmax(seconds))])))
    return max(found, key=lambda pair: pair[0])[1]


def test_a_forged_import_does_not_win_where_a_task_is_too_small_to_be_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path))
    target, parts = detect(1), with_a_tiny_one()
    small = min((use.task for use in parts.tasks), key=lambda task: task.flops)
    slow, default = slow_schedule(small, target), default_schedule(small, target)
    claims = ((slow, 1.05e-8, "storm", True), (default, 1.1e-8, "default", False))
    lines = io.StringIO()
    with Store.in_memory() as elsewhere, Store.in_memory() as store:
        for schedule, seconds, strategy, is_verified in claims:
            measured = small, schedule, target, timing(seconds), VERSIONS, strategy
            elsewhere.add([Record(*measured, 0, 1, 0.1, "", is_verified, 1.7e9, None)])
        elsewhere.export(lines)
        assert store.import_(io.BytesIO(lines.getvalue().encode()), target).kept == len(claims)
        tuned = sd.tune(parts, target, trials=3, search="random", store=store)
        (task,) = [t for t in tuned.tasks if t.task.digest == small.digest]
        assert (task.ended, task.schedule) == ("small", default)
        decided = store.verdict(small, tuned.target)
        assert decided is not None
        assert decided.schedule == default
        assert decided.seconds > 1.1e-8
        for model in (parts.digest, ""):
            assert StoredSchedules(store, tuned.target, model=model)(small).schedule == default
