"""The budget of a search over many tasks: its limits, and the trials and seconds already spent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

TRIALS_PER_SECOND = 20.0
"""Approximate trials per second on two cores with kernels of a millisecond. The length of storms is planned with it."""


@dataclass(slots=True)
class SearchBudget:
    """Limits on trials and seconds (None: unlimited), and the trials and time spent so far."""

    trials: int | None
    seconds: float | None
    began: float
    clock: Callable[[], float]
    measured: int = 0

    @property
    def is_open(self) -> bool:
        """Neither trials nor seconds are limited."""
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
