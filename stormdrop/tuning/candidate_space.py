"""The sketches that a session searches, numbered; translation between schedules and candidates.

A `Candidate` is a sketch number and a point of this sketch. Invariant: sketch numbers never change.
"""

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
    """The sketches that a session searches. `locate` appends the sketches of schedules from elsewhere."""

    def __init__(self, task: Task, target: Target, rules: tuple[Rule, ...], sketches: Sequence[Sketch]) -> None:
        self._task, self._target, self._rules = task, target, rules
        self.sketches = list(sketches)
        self._numbers = {(s.variant, s.structure.steps): k for k, s in enumerate(self.sketches)}
        self._schedules: dict[Candidate, Schedule] = {}

    def schedule(self, c: Candidate) -> Schedule:
        """Returns the schedule of a candidate, which then is no longer new."""
        if c not in self._schedules:
            self._schedules[c] = self.sketches[c.sketch].schedule(c.point)
        return self._schedules[c]

    def locate(self, schedule: Schedule) -> Candidate:
        """Returns the candidate of a schedule; appends the sketch of the schedule if the sketch is not searched yet.

        Raises UserError if the schedule is illegal for the task.
        """
        try:
            sketch, point = replay(self._task, schedule, self._target, self._rules)
        except ScheduleError as error:
            raise UserError(str(error)) from error
        key = sketch.variant, sketch.structure.steps
        if key not in self._numbers:
            self._numbers[key] = len(self.sketches)
            self.sketches.append(sketch)
        return candidate(self._numbers[key], point)

    def new_candidates(self, schedules: Sequence[Schedule]) -> list[Candidate]:
        """Returns the candidates of legal schedules: points of the searched sketches that `schedule` never returned."""
        candidates: list[Candidate] = []
        for schedule in schedules:
            sketch, point = replay(self._task, schedule, self._target, self._rules)
            number = self._numbers.get((sketch.variant, sketch.structure.steps))
            if number is not None and candidate(number, point) not in self._schedules:
                candidates.append(candidate(number, point))
        return candidates

    def features(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Returns one row of features for each candidate, in their order."""
        rows: dict[Candidate, NDArray[np.float64]] = {}
        for k in {c.sketch for c in candidates}:
            of_sketch = [c for c in candidates if c.sketch == k]
            rows |= zip(of_sketch, self.sketches[k].features(np.array([c.point for c in of_sketch], dtype=np.int64)))
        return np.stack([rows[c] for c in candidates])
