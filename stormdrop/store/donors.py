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

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir.keys import extents
from stormdrop.ir.tensor import Task
from stormdrop.space.schedule import Schedule
from stormdrop.store.rows import TrialRow, VerdictRow, record_of, task_of
from stormdrop.store.verdict import verdict_of
from stormdrop.target.machine import Target

Key = Literal["class", "anchor"]
Winner = tuple[VerdictRow | TrialRow, str]
"""A row, and the model in which the task was measured last; empty for a single operator."""


@dataclass(frozen=True, slots=True)
class Kinship:
    """The way to carry a schedule to a task, and its distance."""

    key: Key
    distance: float

    @property
    def order(self) -> tuple[bool, float]:
        return self.key != "class", self.distance


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
        return self.kinship.key != "class", self.kinship.distance + (not self.is_equal), self.task.digest

    def __str__(self) -> str:
        of = f" of {self.model}" if self.model else ""
        return f"{self.task.name}{of}"


def donors_of(rows: Iterable[Winner], task: Task, target: Target, models: Collection[str] | None = None) -> list[Donor]:
    """Returns the donors for a task on a target among `rows`, the best first.

    Rows that this version cannot read are left out. So are rows of another kind of machine, unless the machine's key is
    among `models`.
    """
    donors: list[Donor] = []
    for row, model in rows:
        try:
            origin = task_of(row.task_json)
            won = verdict_of(row, origin, target) if isinstance(row, VerdictRow) else record_of(row, origin, target)
        except UserError:
            continue
        is_own = won.task.digest == task.digest
        is_equal = won.target.key() == target.key() and won.target.is_cold == target.is_cold
        is_alike = won.target.with_threads(target.threads).key() == target.key()
        if (is_own and is_equal) or not (is_alike or won.target.key() in (models or ())):
            continue
        kin = kinship(won.task, won.schedule, task)
        if kin is not None:
            donors.append(Donor(won.task, won.schedule, won.target, model, kin, is_equal))
    return sorted(donors, key=lambda d: d.order)


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
