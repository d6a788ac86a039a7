"""Donors: winners of other tasks whose schedules can be re-fitted to a task (`stormdrop.space.refit`).

    class     the donor's variant is of the class of a variant of the task
    anchor    the anchor stages are of one class, the epilogues differ

Donors measured with the target's threads and at its temperature come first; among these, and among the others, those of
the class before those of the anchor class, then the nearest. The distance of two tasks is the Euclidean distance of the
log2 of their anchor stages' extents: a factor of two in one extent is 1.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stormdrop.errors import UserError
from stormdrop.ir.keys import extents
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.record import Record
from stormdrop.reservoir.rows import TrialRow, record_of, task_of
from stormdrop.reservoir.sql import TRIALS, VERDICTS, allowed_rules
from stormdrop.reservoir.verdict import NO_CHALLENGER, VerdictRow
from stormdrop.space.rules import Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

Key = Literal["class", "anchor"]


@dataclass(frozen=True, slots=True)
class Kinship:
    """How a schedule can be carried to a task, and how far that is."""

    key: Key
    distance: float

    @property
    def order(self) -> tuple[bool, float]:
        return self.key != "class", self.distance


@dataclass(frozen=True, slots=True)
class Donor:
    """A winner of another task, or of this one on other threads or at the other temperature."""

    record: Record
    kinship: Kinship
    is_equal: bool
    """Measured with as many threads and at the same temperature."""

    @property
    def order(self) -> tuple[object, ...]:
        return not self.is_equal, *self.kinship.order, self.record.task.digest

    def __str__(self) -> str:
        of = f" of {self.record.model}" if self.record.model else ""
        return f"{self.record.task.name}{of}"


def winners(c: sqlite3.Connection, task: Task, models: Collection[str] | None, rules: Sequence[Rule]) -> list[TrialRow]:
    """The fastest verified record of every task that shares a key with this one, for each machine and temperature.

    `models` are names of models or keys of machines: only records measured while such a model was tuned, or on such a
    machine.
    """
    values: list[str] = [task.class_key, task.anchor_key]
    measured = ""
    if models is not None:
        places = ", ".join("?" * len(models))
        measured = f"AND (model IN ({places}) OR machine_id IN (SELECT id FROM machine WHERE key IN ({places})))"
        values += [*models, *models]
    query = f"""SELECT {TRIALS.row} FROM {TRIALS.source}
        WHERE trial.id IN (SELECT id FROM (SELECT id, min(seconds) FROM trial
        WHERE task_id IN (SELECT id FROM task WHERE class_key = ? OR (anchor_key = ? AND anchor_key <> ''))
        {measured} AND verified = 1 AND stopped_early = 0 AND seconds > 0 AND rules_id IN ({allowed_rules(c, rules)})
        GROUP BY task_id, machine_id, cold))"""
    return [TrialRow(*row) for row in c.execute(query, values)]


def decided(c: sqlite3.Connection, rules: Sequence[Rule]) -> list[tuple[VerdictRow, str]]:
    """The newest verdict for each task, machine and temperature, and the model in which the task was measured last.

    Without imported verdicts, and without those for an incumbent that nothing challenged.
    """
    query = f"""SELECT {VERDICTS.row}, coalesce((SELECT trial.model FROM trial WHERE trial.task_id = verdict.task_id
            AND trial.model <> '' ORDER BY trial.id DESC LIMIT 1), '')
        FROM {VERDICTS.source} WHERE verdict.id IN (SELECT max(id) FROM verdict
            WHERE model = '' AND provenance <> 'imported' AND rules_id IN ({allowed_rules(c, rules)})
            GROUP BY task_id, machine_id, cold)
        AND NOT (verdict.method = '{NO_CHALLENGER}' AND verdict.schedule = verdict.against) ORDER BY verdict.id"""
    return [(VerdictRow(*row[:-1]), row[-1]) for row in c.execute(query)]


def donors_of(
    rows: Iterable[TrialRow], task: Task, target: Target, models: Collection[str] | None = None
) -> list[Donor]:
    """The donors for a task on a target among `rows`, the best first. Left out: records that this version cannot read,
    and those measured on another kind of machine, unless the machine's key is among `models`.
    """
    found: list[Donor] = []
    for row in rows:
        try:
            record = record_of(row, task_of(row.task_json), target)
        except UserError:
            continue
        is_own = record.task.digest == task.digest
        is_equal = record.target.key() == target.key() and record.target.is_cold == target.is_cold
        is_alike = record.target.with_threads(target.threads).key() == target.key()
        if (is_own and is_equal) or not (is_alike or record.target.key() in (models or ())):
            continue
        kin = kinship(record.task, record.schedule, task)
        if kin is not None:
            found.append(Donor(record, kin, is_equal))
    return sorted(found, key=lambda d: d.order)


def kinship(origin: Task, schedule: Schedule, task: Task) -> Kinship | None:
    """How a schedule of one task can be carried to another; None where they share no key."""
    if not 0 <= schedule.variant < len(origin.variants):
        return None
    donor = origin.variants[schedule.variant]
    same_class = [v for v in task.variants if v.class_key == donor.class_key]
    same_anchor = [v for v in task.variants if donor.anchor_key and v.anchor_key == donor.anchor_key]
    for variant in (*same_class, *same_anchor):
        return Kinship("class" if same_class else "anchor", distance(extents(donor), extents(variant)))
    return None


def distance(a: Sequence[int], b: Sequence[int]) -> float:
    """Of the extents of two variants that share a key."""
    return float(np.linalg.norm(np.log2(np.maximum(a, 1)) - np.log2(np.maximum(b, 1))))
