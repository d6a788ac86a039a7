"""The points of a task's sketches as candidates: numbered sketches, and schedules found among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import ScheduleError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.space.rules import Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch, replay
from stormdrop.target.machine import Target
from stormdrop.tuning.strategy import Candidate, candidate


class CandidateSpace:
    """The sketches that a session searches. A schedule of a further sketch adds that sketch to them."""

    def __init__(self, task: Task, target: Target, rules: tuple[Rule, ...], sketches: Sequence[Sketch]) -> None:
        self._task, self._target, self._rules = task, target, rules
        self.sketches = list(sketches)
        self._numbers = {(s.variant, s.structure.steps): k for k, s in enumerate(self.sketches)}
        self._schedules: dict[Candidate, Schedule] = {}

    def schedule(self, c: Candidate) -> Schedule:
        if c not in self._schedules:
            self._schedules[c] = self.sketches[c.sketch].schedule(c.point)
        return self._schedules[c]

    def locate(self, schedule: Schedule) -> Candidate:
        """Returns the candidate of a schedule. Raises UserError if the schedule does not belong to the task."""
        try:
            sketch, point = replay(self._task, schedule, self._target, self._rules)
        except ScheduleError as error:
            raise UserError(str(error)) from error
        key = sketch.variant, sketch.structure.steps
        if key not in self._numbers:
            self._numbers[key] = len(self.sketches)
            self.sketches.append(sketch)
        return candidate(self._numbers[key], point)

    def unasked(self, schedules: Sequence[Schedule]) -> list[Candidate]:
        """Returns the candidates of schedules of the task, without other sketches and without candidates proposed
        before.
        """
        unasked: list[Candidate] = []
        for schedule in schedules:
            sketch, point = replay(self._task, schedule, self._target, self._rules)
            number = self._numbers.get((sketch.variant, sketch.structure.steps))
            if number is not None and candidate(number, point) not in self._schedules:
                unasked.append(candidate(number, point))
        return unasked

    def features(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Returns one row of features for each candidate."""
        rows: dict[Candidate, NDArray[np.float64]] = {}
        for k in {c.sketch for c in candidates}:
            some = [c for c in candidates if c.sketch == k]
            rows |= zip(some, self.sketches[k].features(np.array([c.point for c in some], dtype=np.int64)))
        return np.stack([rows[c] for c in candidates])
