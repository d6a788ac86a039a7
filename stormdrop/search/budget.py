"""What a search over many tasks may spend, and what it has spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

TRIALS_PER_SECOND = 20.0
"""About; two cores, kernels of a millisecond. How long storms last is planned with it."""


@dataclass(slots=True)
class SearchBudget:
    """What may be spent, and what is."""

    trials: int | None
    seconds: float | None
    began: float
    clock: Callable[[], float]
    measured: int = 0

    @property
    def is_open(self) -> bool:
        """Nothing limits it."""
        return self.trials is None and self.seconds is None

    @property
    def elapsed(self) -> float:
        return self.clock() - self.began

    @property
    def trials_left(self) -> float:
        return inf if self.trials is None else self.trials - self.measured

    @property
    def seconds_left(self) -> float:
        return inf if self.seconds is None else self.seconds - self.elapsed

    @property
    def expected_trials(self) -> float:
        by_time = inf if self.seconds is None else self.seconds * TRIALS_PER_SECOND
        return min(by_time, inf if self.trials is None else self.trials)
