"""A store and a compiled model from an earlier version: they are read, or refused by naming the version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormdrop.device.host import unfit
from stormdrop.ir.tensor import Task
from stormdrop.model.open_model import load
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import replay
from stormdrop.store.store import Store
from stormdrop.target.machine import target_from_json
from tests.replay.files import ARRAYS, BEST, MODEL, STORE, THREADS
from tests.replay.machines import machine


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """SQLite writes beside the files that it opens."""
    return Path(shutil.copy(STORE, tmp_path))


def recorded() -> tuple[Any, list[tuple[Task, int, Schedule]]]:
    data = json.loads(BEST.read_text())
    tasks = [Task.from_json(line["task"]) for line in data["tasks"]]
    return target_from_json(data["target"]), [
        (task, line["trials"], Schedule.from_json(line["best"]).of(task)) for task, line in zip(tasks, data["tasks"])
    ]


def test_an_earlier_store_has_the_best_schedules_it_had(copied: Path) -> None:
    target, tasks = recorded()
    with Store.open(copied) as store:
        assert store.integrity() == []
        for task, trials, schedule in tasks:
            best = store.best(task, target)
            assert best is not None, task.name
            assert best.schedule == schedule, task.name
            assert store.known(task, target) == len(store.trials(task, target)) == trials


def test_schedules_of_an_earlier_store_are_replayed_as_they_are() -> None:
    target, tasks = recorded()
    for task, _, schedule in tasks:
        sketch, point = replay(task, schedule, target)
        assert sketch.schedule(point) == schedule, task.name


def test_an_earlier_compiled_model_computes_what_it_did() -> None:
    target = machine("avx2", THREADS)
    if (reason := unfit(target.triple, target.cpu, target.features)) is not None:
        pytest.skip(reason)
    model = load(MODEL)
    with np.load(ARRAYS) as arrays:
        results = model.run({port.name: arrays[port.name] for port in model.inputs})
        for port in model.outputs:
            assert results[port.name].tobytes() == arrays[port.name].tobytes()
            assert np.ptp(results[port.name]) > 0
