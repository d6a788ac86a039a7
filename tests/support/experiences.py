"""Experiences that were not learned: what they take is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stormdrop.ir.tensor import Task
from stormdrop.reservoir.experience import Experience, entry_of, judged_by, rules_text
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import RULES
from stormdrop.space.schedule import Schedule
from stormdrop.space.scorer import Scorer
from stormdrop.space.sketch import sketches
from stormdrop.target.machine import Target

INDIFFERENT = Scorer((((0.0,),),), 0.0)
"""Every schedule is predicted to be as fast as the default: a margin of 1 takes whatever is offered."""


def random_schedule(task: Task, target: Target, seed: int = 0) -> Schedule:
    """A legal point of any sketch."""
    rng = np.random.default_rng(seed)
    found = sketches(task, target)
    sketch = found[int(rng.integers(len(found)))]
    return sketch.schedule(sketch.sample_legal(1, rng)[0])


def experience(
    donors: Sequence[tuple[Task, Schedule]], target: Target, margin: float | None = 1.0, scorer: Scorer = INDIFFERENT
) -> Experience:
    """That takes a re-fit of the donors wherever one is offered, unless the margin is larger than 1."""
    entries = [entry_of(task, schedule, target, "other") for task, schedule in donors]
    stamp = target.key(), judged_by(target), judge_of(target).features.version, rules_text(RULES)
    return Experience(*stamp, tuple(e for e in entries if e is not None), scorer, margin)
