"""Shipped stores: of each class in a store, the few winners that serve all tasks of the class within 5 %.

    python -m benchmarks.shipped FILE.sqlite                                  count the winners of a shipped store
    python -m benchmarks.shipped FILE.sqlite -o stormdrop/store/winners              write the file for this kind of CPU
    python -m benchmarks.shipped FILE.sqlite --without resnet50 -o FOLDER     leave out the tasks of a model

For each class and number of threads there is a table (task, schedule) -> time relative to the task's winner. The first
column is the default schedule. The other columns are winners that beat the default by more than 5 %, re-fitted to each
task. A cell is measured if the schedule is among the task's trials, else infinite. Winners are chosen greedily: each
one covers the most tasks that no chosen schedule covers.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import ScheduleError
from stormdrop.device.host import nominal
from stormdrop.measure.result import Timing
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import refit
from stormdrop.space.schedule import Schedule
from stormdrop.store.record import DEFAULT
from stormdrop.store.shipped import shipped_file
from stormdrop.store.store import Store
from stormdrop.store.verdict import Verdict
from stormdrop.target.machine import Target

MOST_SCHEDULES = 10
"""The most schedules of a class, the default among them."""
SLACK = 1.05
"""A schedule covers a task if it takes at most this many times as long as the winner."""
PAGE_BYTES = 512
"""The least of SQLite: most tables of a shipped store have few rows."""


@dataclass(frozen=True, slots=True)
class Winner:
    """The verdict of a task against the task's default schedule, and the seconds of the task's trials."""

    verdict: Verdict
    gain: float
    """The default's seconds over the winner's; infinite if nothing measured the default."""
    seconds: Mapping[Schedule, float]


def cover(seconds: NDArray[np.float64], most: int = MOST_SCHEDULES, slack: float = SLACK) -> tuple[int, ...]:
    """Returns the columns of a greedy set cover, in order. `seconds` has a row for each task and a column for each
    schedule; infinite where a schedule does not fit a task.

    Column 0, the default, comes first, whatever it covers. Ties go to the column with the least sum, over the tasks
    not yet covered, of times relative to the best.
    """
    relative = seconds / seconds.min(axis=1, keepdims=True)
    covers = relative <= slack
    chosen, open_rows = [0], ~covers[:, 0]
    while open_rows.any() and len(chosen) < most:
        more = (covers & open_rows[:, None]).sum(axis=0)
        ties = np.flatnonzero(more == more.max())
        chosen.append(int(ties[np.argmin(np.minimum(relative[open_rows][:, ties], 1e9).sum(axis=0))]))
        open_rows &= ~covers[:, chosen[-1]]
    return tuple(chosen)


def chosen_winners(store: Store, target: Target, without: Collection[str] = ()) -> list[Winner]:
    """Returns the winners of a shipped store for a kind of CPU. Tasks of models in `without` have no part."""
    left_out = store.digests(without)
    classes: dict[tuple[str, int], list[Winner]] = {}
    for verdict, _ in store.decided(target):
        if verdict.task.digest not in left_out:
            winner = _winner(store, verdict)
            if winner.gain > SLACK:
                classes.setdefault((verdict.task.class_key, verdict.target.threads), []).append(winner)
    return [members[k - 1] for _, members in sorted(classes.items()) for k in cover(_table(members))[1:]]


def _winner(store: Store, verdict: Verdict) -> Winner:
    default = default_schedule(verdict.task, verdict.target)
    seconds: dict[Schedule, float] = {}
    former: Schedule | None = None  # the default of an earlier version
    for trial in store.trials(verdict.task, verdict.target):
        if isinstance(trial.result, Timing) and not trial.result.stopped_early:
            seconds[trial.schedule] = min(trial.result.floor, seconds.get(trial.schedule, inf))
            former = trial.schedule if trial.strategy == DEFAULT else former
    if verdict.schedule == default:
        gain = 1.0
    elif verdict.against == default:
        gain = verdict.against_seconds / verdict.seconds
    else:
        timed = seconds.get(default, seconds.get(former, inf) if former is not None else inf)
        gain = timed / seconds.get(verdict.schedule, verdict.seconds)
    return Winner(verdict, gain, seconds)


def _table(winners: Sequence[Winner]) -> NDArray[np.float64]:
    """Returns the times of the default and of each winner, re-fitted to each task, relative to the task's winner."""
    table = np.full((len(winners), 1 + len(winners)), inf)
    for row, winner in enumerate(winners):
        table[row, 0] = winner.gain
        for column, donor in enumerate(winners, 1):
            table[row, column] = 1.0 if donor is winner else _relative(winner, donor.verdict)
    return table


def _relative(winner: Winner, donor: Verdict) -> float:
    own = winner.verdict
    try:
        candidates = refit(donor.schedule, donor.task, own.task, own.target)
    except ScheduleError:
        return inf
    best = min((winner.seconds[c] for c in candidates if c in winner.seconds), default=inf)
    return best / winner.seconds.get(own.schedule, own.seconds)


def write(path: Path, winners: Sequence[Winner]) -> None:
    """Writes a shipped store: a file without a log, with verdicts against default schedules and nothing else."""
    path.unlink(missing_ok=True)
    with Store.open(path) as store:
        for winner in winners:
            verdict = winner.verdict
            if winner.gain < inf:
                default = default_schedule(verdict.task, verdict.target)
                verdict = replace(verdict, against=default, against_seconds=winner.gain * verdict.seconds)
            store.add_verdicts([replace(verdict, method="duel")])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("VACUUM")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path, help="the store of the winners")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER", help="where to write the file")
    parser.add_argument("--without", action="append", default=[], metavar="MODEL", help="may be repeated")
    given = parser.parse_args(arguments)
    target = nominal()
    with Store.view(given.store) as store:
        winners = chosen_winners(store, target, given.without)
    print(f"{len(winners)} winners of {len({w.verdict.task.class_key for w in winners})} classes")
    if given.output is not None:
        write(given.output / shipped_file(target).name, winners)


if __name__ == "__main__":
    main()
