"""Trials of a machine with their tasks and schedules: for computing features anew and for fitting the estimate."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import StormdropError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.space.rules import Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch, replay
from stormdrop.store.record import group_name
from stormdrop.store.rows import read, task_of
from stormdrop.store.sample import sampled
from stormdrop.store.sql import allowed_rules, id_of
from stormdrop.target.machine import Target


@dataclass(frozen=True, slots=True)
class TimedTrial:
    """One trial; `seconds` is None if it failed."""

    task: Task
    schedule: Schedule
    cold: bool
    seconds: float | None

    @property
    def group(self) -> str:
        return group_name(self.task.digest, self.cold)


def measured(c: sqlite3.Connection, target: Target, limit: int, rules: Sequence[Rule]) -> list[TimedTrial]:
    """Returns timed trials of a machine that were not stopped early; beyond `limit`, a sample over all tasks."""
    machine = id_of(c, "machine", key=target.key())
    which = f"machine_id = ? AND seconds > 0 AND stopped_early = 0 AND rules_id IN ({allowed_rules(c, rules)})"
    known = c.execute(f"SELECT id, 2 * task_id + cold, seconds FROM trial WHERE {which} ORDER BY id", (machine,))
    rows = known.fetchall()
    groups, seconds = np.array([r[1] for r in rows], np.int64), np.array([r[2] for r in rows], np.float64)
    return list(trials_of(c, [rows[k][0] for k in sampled(groups, seconds, limit).tolist()]).values())


def trials_of(c: sqlite3.Connection, ids: Sequence[int]) -> dict[int, TimedTrial]:
    """Returns trials by id, in ascending order, without trials with tasks or schedules that this version
    cannot read.
    """
    query = """SELECT trial.id, task.json, schedule, cold, seconds FROM trial JOIN task ON task.id = task_id
        WHERE trial.id IN (SELECT value FROM json_each(?)) ORDER BY trial.id"""
    found: dict[int, TimedTrial] = {}
    for id, task_json, schedule, cold, seconds in c.execute(query, (json.dumps(ids),)).fetchall():
        try:
            task = task_of(task_json)
            found[id] = TimedTrial(task, read("schedule", Schedule.from_json, schedule).of(task), bool(cold), seconds)
        except UserError:
            continue
    return found


@dataclass(frozen=True, slots=True)
class SketchRows:
    """Points of one sketch; `places` are the indices of their trials in the sequence given to `by_sketch`."""

    sketch: Sketch
    points: NDArray[np.int64]
    places: NDArray[np.int64]


def by_sketch(trials: Sequence[TimedTrial], target: Target, rules: Sequence[Rule]) -> Iterable[SketchRows]:
    """Returns the replayable trials, sketch by sketch, on the target at the trials' temperatures."""
    found: dict[tuple[Sketch, bool], list[tuple[int, NDArray[np.int64]]]] = {}
    for k, trial in enumerate(trials):
        try:
            sketch, point = replay(trial.task, trial.schedule, target.with_cold_weights(trial.cold), rules)
        except StormdropError:
            continue
        found.setdefault((sketch, trial.cold), []).append((k, point))
    for (sketch, _), rows in found.items():
        yield SketchRows(sketch, np.stack([point for _, point in rows]), np.array([k for k, _ in rows]))
