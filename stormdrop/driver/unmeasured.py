"""Offers for tasks without a verdict: schedules of related tasks that compiling may take unmeasured.

    the store's experience   donors of the task's class or anchor class, for which tuning here has a verdict
    a portfolio              its donors, where the store's experience has none for the task

Nothing is learned here: the trees and the margin were made when tuning ended, or come with the portfolio. Tasks with a
small share of the model's estimated time get no offer, since each offer takes time when compiling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stormdrop.graph.partition import Partition
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.experience import Experience, load, path_beside
from stormdrop.reservoir.portfolio import portfolios
from stormdrop.reservoir.store import default_path
from stormdrop.search.model_task import least_seconds
from stormdrop.space.offer import Offer
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.machine import Target

LEAST_SHARE = 0.03
"""The share of the model's estimated time from which a task gets an offer."""


def worth_reuse(parts: Partition, target: Target) -> frozenset[str]:
    """The digests of the tasks with at least `LEAST_SHARE` of the model's time, estimated from operations and bytes."""
    seconds = {use.task.digest: use.count * least_seconds(use.task, target) for use in parts.tasks}
    return frozenset(d for d, s in seconds.items() if s >= LEAST_SHARE * sum(seconds.values()))


@dataclass(frozen=True)
class Unmeasured:
    """Offers for the tasks of one model.

    `worth`: the digests of the tasks that get offers. `store`: the file whose experience is used; None: the user's.
    """

    worth: frozenset[str]
    target: Target
    rules: Sequence[Rule] = RULES
    store: Path | None = None

    def __call__(self, task: Task) -> Offer | None:
        if task.digest not in self.worth:
            return None
        own, others = self._experiences
        if own is not None and own.margin is None:
            return None  # no margin was reliable on the tasks measured here: predictions are not trusted
        if own is not None and (found := own.offer(task, self.target, "donor")) is not None:
            return found
        for other in others:
            predictor = own if own is not None else other
            if (found := predictor.offer(task, self.target, "portfolio", other.donors)) is not None:
                return found
        return None

    @cached_property
    def _experiences(self) -> tuple[Experience | None, list[Experience]]:
        """The store's experience, unless it is stale, and portfolios. A portfolio with stale trees is of use only where
        the store's trees predict.
        """
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
