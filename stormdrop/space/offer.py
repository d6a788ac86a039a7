"""An offer: schedules of other tasks that a task may take unmeasured, and what decides whether it does.

Each schedule is re-fitted to the task (`stormdrop.space.refit`), which gives candidates. A scorer compares these with
the default schedule. The best candidate is taken if its predicted gain reaches the margin; otherwise the default stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.errors import ScheduleError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.space.default import default_point
from stormdrop.space.judge import judge_of
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.scorer import Scorer
from stormdrop.space.sketch import Points, Sketch, replay
from stormdrop.target.machine import Target


@dataclass(frozen=True, slots=True)
class OfferedSchedule:
    """A schedule and the task it was found for, as JSON: most are parsed in another process than that which offers."""

    task: Mapping[str, Any]
    schedule: Mapping[str, Any]
    name: str
    """The names of the task and of the model it was measured in, for people."""

    def source(self) -> tuple[Task, Schedule]:
        """Raises UserError where this version cannot read them."""
        return Task.from_json(self.task), Schedule.from_json(self.schedule)


@dataclass(frozen=True, slots=True)
class Offer:
    """Schedules that one task may take unmeasured, with the scorer and the margin that decide."""

    schedules: tuple[OfferedSchedule, ...]
    scorer: Scorer
    margin: float
    """How many times faster than the default a candidate must be predicted to be, at least."""
    origin: str
    """Where the schedules come from: `donor`, the store; or `portfolio`."""

    def to_json(self) -> dict[str, object]:
        rows = [[s.task, s.schedule, s.name] for s in self.schedules]
        return {"schedules": rows, "scorer": self.scorer.to_json(), "margin": self.margin, "origin": self.origin}

    @staticmethod
    def from_json(data: Mapping[str, Any], target: Target) -> Offer:
        schedules = tuple(OfferedSchedule(*row) for row in data["schedules"])
        scorer = Scorer.from_json(data["scorer"], judge_of(target).features)
        return Offer(schedules, scorer, data["margin"], data["origin"])


@dataclass(frozen=True, slots=True)
class Taken:
    """A re-fitted schedule that a task takes, although nobody measured it for this task."""

    schedule: Schedule
    donor: str
    predicted: float
    """The predicted gain: how many times faster than the default schedule."""
    origin: str

    def to_json(self) -> dict[str, object]:
        values = {"donor": self.donor, "predicted": self.predicted, "origin": self.origin}
        return {"schedule": self.schedule.to_json(), **values}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Taken:
        return Taken(Schedule.from_json(data["schedule"]), data["donor"], data["predicted"], data["origin"])


@dataclass(frozen=True, slots=True)
class Refitted:
    """A candidate for a task, re-fitted from the schedule of another one, with its predicted gain."""

    schedule: Schedule
    donor: str
    predicted: float


def pick(
    task: Task, offer: Offer, target: Target, rules: Sequence[Rule] = RULES
) -> tuple[Sketch, Points, Taken | None]:
    """The point to build: a re-fitted one where enough gain is predicted, else that of the default schedule.

    Raises ScheduleError where the task has no sketch.
    """
    default = default_point(task, target, rules)
    found = predictions(task, offer.schedules, offer.scorer, default, rules)
    if not found or found[0].predicted < offer.margin:
        return *default, None
    best = found[0]
    return *replay(task, best.schedule, target, rules), Taken(best.schedule, best.donor, best.predicted, offer.origin)


def predictions(
    task: Task,
    offered: Sequence[OfferedSchedule],
    scorer: Scorer,
    default: tuple[Sketch, Points],
    rules: Sequence[Rule] = RULES,
) -> list[Refitted]:
    """The distinct candidates that re-fitting gives, other than the default schedule; the best prediction first."""
    target = default[0].target
    default_schedule = default[0].schedule(default[1])
    donors: dict[Schedule, str] = {}
    for one in offered:
        try:
            source_task, schedule = one.source()
            donors = dict.fromkeys(refit(schedule, source_task, task, target, rules), one.name) | donors
        except (UserError, ScheduleError):
            continue  # written by another version, with rules or a format that this one does not have
    donors.pop(default_schedule, None)
    candidates = [default, *(replay(task, schedule, target, rules) for schedule in donors)]
    rows = _features(candidates)
    gains = 2.0 ** scorer.gains(rows[1:], rows[0], judge_of(target).features)
    found = [Refitted(schedule, name, float(gain)) for (schedule, name), gain in zip(donors.items(), gains)]
    return sorted(found, key=lambda f: -f.predicted)


def _features(candidates: Sequence[tuple[Sketch, Points]]) -> NDArray[np.float32]:
    """A row of features for each point. Those of one structure are computed together: tracing its formulas takes most
    of the time.
    """
    groups: dict[object, list[int]] = {}
    for k, (sketch, _) in enumerate(candidates):
        groups.setdefault((sketch.variant, sketch.structure.steps), []).append(k)
    rows: dict[int, NDArray[np.float64]] = {}
    for same in groups.values():
        matrix = candidates[same[0]][0].features(np.stack([candidates[k][1] for k in same]))
        rows |= dict(zip(same, matrix))
    return np.stack([rows[k] for k in range(len(candidates))]).astype(np.float32)
