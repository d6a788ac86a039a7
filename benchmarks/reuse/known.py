"""What a table knows of one of its tasks, as a store has it: the default, re-fitted donors, and a verdict.

A table without the trials of its searches (the file beside it that ends in .sqlite) still teaches with this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.reuse.table import Recipient, Table, mark_of
from stormdrop.base.errors import ScheduleError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Timing
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import refit
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import replay
from stormdrop.store.record import DEFAULT, DONOR, Record, versions
from stormdrop.store.verdict import NO_CHALLENGER, Verdict
from stormdrop.target.machine import Target
from stormdrop.tuning.session import CHECKED


@dataclass(frozen=True, slots=True)
class Known:
    """Of one task at a temperature."""

    default: Record
    donated: Mapping[str, Record]
    """Re-fitted donors, by mark."""
    verdict: Verdict


def known_of(table: Table, recipient: Recipient, tasks: Mapping[str, Task], target: Target, is_best: bool) -> Known:
    """`target` at the recipient's temperature. The verdict is for the best known schedule, or, without `is_best`, for
    the winner of the search from nothing, which knew no other task.
    """
    task, seconds = tasks[recipient.id], table.default_seconds[recipient.id]
    default = default_schedule(task, target)
    model = next(iter(recipient.calls))

    def record(schedule: Schedule, ratio: float, strategy: str) -> Record:
        sketch, point = replay(task, schedule, target)
        features = sketch.features(point[None])[0].astype(np.float32)
        timing = Timing(ratio * seconds, 0.0, 1, 0.0, samples=(ratio * seconds,))
        return Record(task, schedule, target, timing, versions(target), strategy, model=model, features=features)

    marks = table.ratios.get(recipient.id, {})
    donated: dict[str, Record] = {}
    for link in table.links.get(recipient.id, ()):
        search = table.searches.get((link.donor, "nothing"))
        if search is None or link.donor not in tasks:
            continue
        try:
            candidates = {mark_of(s): s for s in refit(search.winner, tasks[link.donor], task, target)}
        except ScheduleError:
            continue  # a schedule that this version cannot replay
        wanted = [mark for mark in candidates if mark in marks and mark not in donated]
        donated |= {mark: record(candidates[mark], marks[mark].both, DONOR) for mark in wanted}
    search = table.searches[recipient.id, "nothing"]
    chosen, ratio = search.winner, search.ratio
    if is_best and (best := table.best.get(recipient.id)) is not None:
        chosen, ratio = best.schedule, best.ratio
    if ratio >= 1:
        chosen, ratio = default, 1.0
    method = NO_CHALLENGER if chosen == default else "duel"
    decided = chosen, ratio * seconds, default, seconds, method, 1, CHECKED
    return Known(record(default, 1.0, DEFAULT), donated, Verdict(task, target, *decided, versions(target), ""))
