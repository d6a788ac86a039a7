"""A portfolio: at most ten schedules of each class, chosen to cover the tasks of the class in a store.

A schedule covers a task if, re-fitted to it, it takes at most 5 % longer than the best schedule known for the task. The
default schedule is always one of the ten; it is not written down, since every task has its own. A portfolio is an
`Experience` with few donors, for one kind of machine and number of threads. Files come with the package;
`STORMDROP_PORTFOLIO` names another folder. The schedules are donors where the store has none of a task's class.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stormdrop.paths import portfolio_dir
from stormdrop.reservoir.experience import Experience, load
from stormdrop.target.machine import Target

_log = logging.getLogger("stormdrop.store")

MOST_SCHEDULES = 10
"""The most schedules of a class, the default among them."""
SLACK = 1.05
"""A schedule covers a task if it takes at most this many times as long as the best known."""


@dataclass(frozen=True, slots=True)
class Cover:
    """The chosen columns in order, how many more tasks each covers, and how many tasks none of them covers."""

    columns: tuple[int, ...]
    gained: tuple[int, ...]
    uncovered: int


def cover(seconds: NDArray[np.float64], most: int = MOST_SCHEDULES, slack: float = SLACK) -> Cover:
    """Greedy set cover. `seconds`: a row for each task, a column for each schedule; infinite where a schedule does not
    fit a task.

    Column 0, the default, is chosen first, whatever it covers. Ties go to the column with the least sum, over the tasks
    not yet covered, of times relative to the best known.
    """
    relative = seconds / seconds.min(axis=1, keepdims=True)
    covers = relative <= slack
    chosen, open_rows = [0], ~covers[:, 0]
    gained = [int(covers[:, 0].sum())]
    while open_rows.any() and len(chosen) < most:
        more = (covers & open_rows[:, None]).sum(axis=0)
        ties = np.flatnonzero(more == more.max())
        best = int(ties[np.argmin(np.minimum(relative[open_rows][:, ties], 1e9).sum(axis=0))])
        chosen.append(best)
        gained.append(int(more[best]))
        open_rows &= ~covers[:, best]
    return Cover(tuple(chosen), tuple(gained), int(open_rows.sum()))


def file_name(target: Target) -> str:
    return f"{target.key().replace('/', '-')}.json"


def portfolios(target: Target) -> Sequence[Experience]:
    """The portfolios for this kind of machine: that for the target's number of threads first, then the others."""
    own, stem = file_name(target), target.with_threads(1).key().rpartition("/")[0].replace("/", "-")
    folder = portfolio_dir()
    others = (path for path in _listed(folder, stem) if path.name != own)
    return [found for path in (folder / own, *others) if (found := load(path, target)) is not None]


@lru_cache(maxsize=8)
def _listed(folder: Path, stem: str) -> tuple[Path, ...]:
    try:
        return tuple(sorted(folder.glob(f"{stem}-*.json")))
    except OSError as error:
        _log.warning("portfolios in %s are ignored: %s", folder, error)
        return ()
