"""Which task of a model gets the next round.

    Divide.next(standings) -> index | None

A division sees only what has been measured so far; None says that nothing is worth another round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

NEGLIGIBLE = 0.002
"""A task below this share of the model gets nothing: halving it would not be noticed."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the search for one task stands."""

    count: int
    """How often the model calls it."""
    best: float | None
    """Seconds; None while nothing could be timed."""
    trials: int
    """Those that were known before included."""
    idle: int
    """Trials since the last gain worth its name."""
    is_open: bool
    """Its strategy may have more to propose."""

    @property
    def total(self) -> float:
        """Its part of the model's seconds."""
        return self.count * (self.best or 0.0)


class Divide(Protocol):
    """Chooses among tasks; an index into what it is given."""

    def next(self, standings: Sequence[Standing]) -> int | None: ...


@dataclass(frozen=True, slots=True)
class ByShare:
    """A task's trials grow with its share of the model's time, and slowly fall behind while they gain nothing:

    count · best / (1 + trials / grain) / (1 + idle / patience)
    """

    negligible: float = NEGLIGIBLE
    grain: float = 16.0
    patience: float = 64.0

    def next(self, standings: Sequence[Standing]) -> int | None:
        least = self.negligible * sum(s.total for s in standings)
        chosen = [k for k, s in enumerate(standings) if s.is_open and s.best is not None and s.total >= least]
        return max(chosen, key=lambda k: self._priority(standings[k]), default=None)

    def _priority(self, s: Standing) -> float:
        return s.total / (1 + s.trials / self.grain) / (1 + s.idle / self.patience)
