"""What compiling may take, unmeasured, for tasks that tuning has decided nothing for: re-fitted schedules of others.

    store's experience     donors of the task's class that were decided for here
    portfolio              where the store has none of the class

Nothing is learned here: trees and margin were made when tuning ended, or come with the portfolio. Tasks with a small
share of the model's estimated time are left out, since each offer costs time to compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stormdrop.graph.partition import Partition
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.experience import MOST_OFFERED, Experience, load, path_beside
from stormdrop.reservoir.portfolio import portfolios
from stormdrop.reservoir.store import default_path
from stormdrop.search.model_task import least_seconds
from stormdrop.space.offer import Offer
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.machine import Target

LEAST_SHARE = 0.01
"""Of the model's estimated seconds."""


def worth_reuse(parts: Partition, target: Target) -> frozenset[str]:
    """The digests of the tasks that take a noticeable share of the model's time, by their operations and bytes."""
    seconds = {use.task.digest: use.count * least_seconds(use.task, target) for use in parts.tasks}
    return frozenset(d for d, s in seconds.items() if s >= LEAST_SHARE * sum(seconds.values()))


@dataclass(frozen=True)
class Unmeasured:
    """Offers for the tasks of one model. `store` is the file whose experience is used."""

    worth: frozenset[str]
    target: Target
    rules: Sequence[Rule] = RULES
    store: Path | None = None

    def __call__(self, task: Task) -> Offer | None:
        if task.digest not in self.worth:
            return None
        own, others = self._experiences
        if own is not None and own.margin is None:
            return None  # what was measured here says that predictions cannot be trusted
        if own is not None and (found := own.offer(task, self.target, "donor")) is not None:
            return found
        for other in others:
            judge = own if own is not None else other
            if judge.scorer is not None and (donors := other.related(task, self.target, MOST_OFFERED)):
                return judge.offer(task, self.target, "portfolio", donors)
        return None

    @cached_property
    def _experiences(self) -> tuple[Experience | None, list[Experience]]:
        """The store's, unless it is stale, and those of portfolios, for which someone must predict."""
        path = path_beside(default_path() if self.store is None else self.store, self.target)
        own = load(path, self.target)
        if own is not None and not own.is_current(self.target, self.rules):
            own = None
        return own, [p for p in portfolios(self.target) if own is not None or p.is_current(self.target, self.rules)]


def unmeasured(
    parts: Partition, target: Target, rules: Sequence[Rule] = RULES, store: Path | None = None
) -> Unmeasured:
    """Offers for the tasks of a model, by default from the user's store."""
    return Unmeasured(worth_reuse(parts, target), target, rules, store)
