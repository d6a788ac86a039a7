"""Claims: statements of a file of lines about schedules, and the check whether they can be true.

A claim states that a schedule is a program of its task on a target, and its time. It is refused if the schedule is no
legal point of a sketch, or if its time is shorter than the machine needs. A schedule with unknown rules cannot be
checked, so it is left unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stormdrop.base.errors import ScheduleError
from stormdrop.ir.tensor import Task
from stormdrop.space.derive import derive
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch, replay
from stormdrop.store.rows import rules_of, unknown_rules
from stormdrop.target.machine import Target

REASON_CHARACTERS = 200
LEAST_SECONDS = 1e-8
"""No call of a kernel takes less."""
FLOOR_SHARE = 0.5
"""No time below this share of the judge's lower bound is accepted: clocks vary after the peak was timed."""
THREAD_BYTES_PER_SECOND = 2 * 64 * 6.5e9
"""More than any thread stores: two vectors of 64 bytes a cycle, at a clock that no CPU has. A multiprocessor of a GPU,
which counts as a thread, stores no more in a cycle, at less than half of this clock."""


class Refused(Exception):
    """The error for a line that is not kept; the message has the reason."""


def shortened(reason: str) -> str:
    return reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 1]}…"


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that `schedule` computes `task` on `target`, in `seconds`; None if nothing was timed."""

    task: Task
    target: Target
    schedule: Schedule
    seconds: float | None


def replayed(claims: Sequence[Claim], here: Target) -> list[Schedule | Refused]:
    """Returns the schedule of each claim in its sketch's form, or the reason for the refusal.

    Claims of one sketch are checked together, as a matrix of points, since single checks take a millisecond each.
    """
    sketches: dict[object, list[int]] = {}
    for k, claim in enumerate(claims):
        schedule = claim.schedule
        if not unknown_rules(rules_of(schedule.to_json())):
            sketches.setdefault((claim.task, claim.target, schedule.variant, schedule.steps), []).append(k)
    answers: list[Schedule | Refused] = [claim.schedule for claim in claims]
    for places in sketches.values():
        for k, answer in zip(places, _replayed_together([claims[k] for k in places], here)):
            answers[k] = answer
    return answers


def _replayed_together(claims: Sequence[Claim], here: Target) -> list[Schedule | Refused]:
    """Checks claims of one sketch together; one by one if a claim broke the computation for all."""
    first = claims[0]
    try:
        schedule, task = first.schedule, first.task
        if not 0 <= schedule.variant < len(task.variants):
            raise ScheduleError(f"the task has no variant {schedule.variant}")
        sketch = Sketch(task, schedule.variant, derive(task.variants[schedule.variant], schedule.steps), first.target)
        values = [claim.schedule.by_name for claim in claims]
        points = np.array([[v.get(name, 0) for name in sketch.names] for v in values], dtype=np.int64)
        points = points.reshape(len(claims), len(sketch.names))
        least, most = (np.array([k.choices[end] for k in sketch.knobs], dtype=np.int64) for end in (0, -1))
        good = np.asarray(((points >= least) & (points <= most)).all(axis=1))
        tried = np.where(good[:, None], points, least)  # outside of their choices knobs mean nothing
        with np.errstate(all="ignore"):
            good &= sketch.legal(tried) & (sketch.canonical(tried) == tried).all(axis=1)
        floor = floor_seconds(sketch, here)
    except Exception as error:  # the content of a file need not meet the code's assumptions
        if len(claims) > 1:
            return [_replayed_together([claim], here)[0] for claim in claims]
        return [Refused(shortened(f"the schedule cannot be replayed: {error}"))]
    answers: list[Schedule | Refused] = []
    for claim, named, point, is_good in zip(claims, values, points, good):
        if claim.seconds is not None and claim.seconds < floor:
            answers.append(Refused(f"{claim.seconds:.3g} seconds are fewer than the {floor:.3g} that it needs"))
        elif is_good and set(named) == set(sketch.names):
            answers.append(sketch.schedule(point))
        else:
            answers.append(Refused("the schedule cannot be replayed: its values are no legal point of its sketch"))
    return answers


def is_believable(claim: Claim, rules: Sequence[Rule]) -> bool:
    """Returns whether the claim's target can be so fast; True for a schedule that cannot be replayed."""
    try:
        sketch, _ = replay(claim.task, claim.schedule, claim.target, rules)
    except ScheduleError:
        return True
    return claim.seconds is None or claim.seconds >= floor_seconds(sketch, claim.target)


def floor_seconds(sketch: Sketch, here: Target) -> float:
    """Returns the least believable seconds of any point. A line's own description of a machine like `here` is not
    trusted.

    Multiply-adds take time, and so do the bytes of the results. The bytes of inputs may not: a gather reads little of
    its table.
    """
    target = here.with_threads(sketch.target.threads) if sketch.target.cpu == here.cpu else sketch.target
    computing = FLOOR_SHARE * judge_of(target).least_seconds(sketch.structure)
    storing = sum(t.nbytes for t in sketch.task.outputs) / (THREAD_BYTES_PER_SECOND * target.threads)
    return max(LEAST_SECONDS, computing, storing)
