"""Donors: winners of other tasks whose schedules can be re-fitted to a task (`stormdrop.space.refit`).

The winner of a task is the schedule of its newest verdict here, else of its newest imported verdict, else its fastest
verified trial.

    class     the donor's variant is of the class of a variant of the task
    anchor    the anchor stages are of one class, the epilogues differ

Donors of the class come before donors of the anchor class, then the nearest first. The distance of two tasks is the
Euclidean distance of the log2 of their anchor stages' extents: a factor of two in one extent is 1. Another number of
threads or another temperature is one unit more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir.keys import extents
from stormdrop.ir.tensor import Task
from stormdrop.space.rules import Rule
from stormdrop.space.schedule import Schedule
from stormdrop.store.record import Record
from stormdrop.store.rows import TrialRow, record_of, task_of
from stormdrop.store.sql import TRIALS, VERDICTS, allowed_rules
from stormdrop.store.verdict import NO_CHALLENGER, VerdictRow, verdict_of
from stormdrop.target.machine import Target

Key = Literal["class", "anchor"]
Winner = tuple[VerdictRow | TrialRow, str]
"""A row, and the model in which the task was measured last; empty for a single operator."""
MODEL_OF_VERDICT = """coalesce((SELECT trial.model FROM trial WHERE trial.task_id = verdict.task_id
    AND trial.model <> '' ORDER BY trial.id DESC LIMIT 1), '')"""
CONFIRMED = """EXISTS (SELECT 1 FROM verdict AS earlier WHERE earlier.id < verdict.id
    AND earlier.task_id = verdict.task_id AND earlier.machine_id = verdict.machine_id AND earlier.cold = verdict.cold
    AND earlier.model = verdict.model AND (earlier.provenance = 'imported') = (verdict.provenance = 'imported')
    AND earlier.schedule = verdict.schedule AND earlier.schedule <> earlier.against)"""
"""The SQL condition that an earlier verdict decided for the same schedule, against another schedule."""
UNCHALLENGED = f"(verdict.method = '{NO_CHALLENGER}' AND verdict.schedule = verdict.against AND NOT {CONFIRMED})"
"""A default schedule that nothing seemed faster than: it has not won anything."""


@dataclass(frozen=True, slots=True)
class Kinship:
    """The way to carry a schedule to a task, and its distance."""

    key: Key
    distance: float

    @property
    def order(self) -> tuple[bool, float]:
        return self.key != "class", self.distance

    def units(self, is_equal: bool) -> float:
        """Returns the distance of a donor: one more if it was measured with other threads or at the other
        temperature.
        """
        return self.distance + (not is_equal)


@dataclass(frozen=True, slots=True)
class Donor:
    """A winner of another task, or of the same task on other threads or at the other temperature."""

    task: Task
    schedule: Schedule
    target: Target
    """The machine and the temperature at which it won."""
    model: str
    """The model in which the task was measured last; empty for a single operator."""
    kinship: Kinship
    is_equal: bool
    """Measured with as many threads and at the same temperature."""

    @property
    def order(self) -> tuple[object, ...]:
        return self.kinship.key != "class", self.kinship.units(self.is_equal), self.task.digest

    def __str__(self) -> str:
        of = f" of {self.model}" if self.model else ""
        return f"{self.task.name}{of}"


def winners(c: sqlite3.Connection, task: Task, models: Collection[str] | None, rules: Sequence[Rule]) -> list[Winner]:
    """Returns the winner of every task that shares a key with `task`, for each machine and temperature.

    `models` are names of models or keys of machines. They limit the winners to measurements made while tuning such a
    model, or on such a machine. A default schedule without challengers has not won anything.
    """
    kin = "task_id IN (SELECT id FROM task WHERE class_key = ? OR (anchor_key = ? AND anchor_key <> ''))"
    readable = f"rules_id IN ({allowed_rules(c, rules)})"
    values: tuple[str, ...] = (task.class_key, task.anchor_key)
    wanted = wanted_verdict = ""
    if models is not None:
        places = ", ".join("?" * len(models))
        on_machine = f"machine_id IN (SELECT id FROM machine WHERE key IN ({places}))"
        in_model = f"SELECT 1 FROM trial WHERE trial.task_id = verdict.task_id AND trial.model IN ({places})"
        wanted = f"AND (model IN ({places}) OR {on_machine})"
        wanted_verdict = f"AND (EXISTS ({in_model}) OR {on_machine})"
        values += (*models, *models)
    timed = f"""SELECT {TRIALS.row} FROM {TRIALS.source}
        WHERE trial.id IN (SELECT id FROM (SELECT id, min(seconds) FROM trial
        WHERE {kin} {wanted} AND verified = 1 AND stopped_early = 0 AND seconds > 0 AND {readable}
        AND NOT EXISTS (SELECT 1 FROM verdict WHERE verdict.task_id = trial.task_id AND model = ''
            AND verdict.machine_id = trial.machine_id AND verdict.cold = trial.cold)
        GROUP BY task_id, machine_id, cold))"""
    by_verdict: list[Winner] = [*_newest(c, rules, f"{kin} {wanted_verdict}", values)]
    by_trial: list[Winner] = [(row, row.model) for row in (TrialRow(*row) for row in c.execute(timed, values))]
    return [*by_verdict, *by_trial]


def decided(c: sqlite3.Connection, rules: Sequence[Rule]) -> list[tuple[VerdictRow, str]]:
    """Returns the newest verdict for each task, machine and temperature, and the model in which the task was measured
    last.

    Imported verdicts and default schedules without challengers are left out.
    """
    return _newest(c, rules, "provenance <> 'imported'")


def _newest(
    c: sqlite3.Connection, rules: Sequence[Rule], condition: str, values: Sequence[str] = ()
) -> list[tuple[VerdictRow, str]]:
    """Returns, for each task, machine and temperature, the newest verdict that fulfils a condition.

    Verdicts made here come before imported verdicts. Default schedules without challengers are left out.
    """
    query = f"""SELECT {VERDICTS.row}, {MODEL_OF_VERDICT} FROM {VERDICTS.source}
        WHERE verdict.id IN (SELECT id FROM (SELECT id, max(((provenance <> 'imported') << 60) + id) FROM verdict
            WHERE {condition} AND model = '' AND rules_id IN ({allowed_rules(c, rules)})
            GROUP BY task_id, machine_id, cold))
        AND NOT {UNCHALLENGED} ORDER BY verdict.id"""
    return [(VerdictRow(*row), model) for *row, model in c.execute(query, values)]


def donors_of(rows: Iterable[Winner], task: Task, target: Target, models: Collection[str] | None = None) -> list[Donor]:
    """Returns the donors for a task on a target among `rows`, the best first.

    Rows that this version cannot read are left out. So are rows of another kind of machine, unless the machine's key is
    among `models`.
    """
    found: list[Donor] = []
    for row, model in rows:
        try:
            won = (
                verdict_of(row, task_of(row.task_json), target) if isinstance(row, VerdictRow) else _trial(row, target)
            )
        except UserError:
            continue
        is_own = won.task.digest == task.digest
        is_equal = won.target.key() == target.key() and won.target.is_cold == target.is_cold
        is_alike = won.target.with_threads(target.threads).key() == target.key()
        if (is_own and is_equal) or not (is_alike or won.target.key() in (models or ())):
            continue
        kin = kinship(won.task, won.schedule, task)
        if kin is not None:
            found.append(Donor(won.task, won.schedule, won.target, model, kin, is_equal))
    return sorted(found, key=lambda d: d.order)


def _trial(row: TrialRow, target: Target) -> Record:
    return record_of(row, task_of(row.task_json), target)


def kinship(origin: Task, schedule: Schedule, task: Task) -> Kinship | None:
    """Returns the way to carry a schedule of one task to another; None if they share no key."""
    if not 0 <= schedule.variant < len(origin.variants):
        return None
    donor = origin.variants[schedule.variant]
    same_class = [v for v in task.variants if v.class_key == donor.class_key]
    same_anchor = [v for v in task.variants if donor.anchor_key and v.anchor_key == donor.anchor_key]
    for variant in (*same_class, *same_anchor):
        return Kinship("class" if same_class else "anchor", distance(extents(donor), extents(variant)))
    return None


def distance(a: Sequence[int], b: Sequence[int]) -> float:
    """Returns the distance of the extents of two variants that share a key."""
    return float(np.linalg.norm(np.log2(np.maximum(a, 1)) - np.log2(np.maximum(b, 1))))
