"""Divisions: the choice of the task that gets the next round of a search over many tasks.

    Divide.next(standings) -> index | None

A division sees only measurements made so far; None means that no task is worth another round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

import numpy as np

NEGLIGIBLE = 0.002
"""A task below this share of the goal gets nothing: halving it would not be noticed."""
GAIN = 0.005
"""A round that gains less than this fraction has gained nothing."""


@dataclass(frozen=True, slots=True)
class Round:
    """The end of a task's round: seconds spent on the task until then, duels included, and its best seconds."""

    seconds: float
    best: float


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of the search for one task."""

    slope: float
    """∂goal/∂best: for the total latency, how often the models call the task."""
    best: float | None
    """Seconds of its fastest kernel; None while nothing could be timed."""
    history: Sequence[Round]
    """The rounds of this run since the first that timed something, in order."""
    is_open: bool
    """Its strategy may have more to propose."""
    known_rounds: float = 0.0
    """The trials that the store had before, in rounds."""
    floor: float = 0.0
    """A lower bound of its seconds."""
    flops: float = 0.0
    group: str = ""
    """The group of similar tasks: the FLOP/s reached by one task may be reached by the rest of its group."""
    proof_seconds: float = 0.0
    """The cost of a first gain besides its round: the seconds of its proof. 0 if a proof is due already."""

    @property
    def total(self) -> float:
        """Its part of the goal, to first order."""
        return self.slope * (self.best or 0.0)

    @property
    def spent(self) -> float:
        """Seconds of its rounds."""
        return self.history[-1].seconds if self.history else 0.0

    @property
    def rounds(self) -> float:
        """The rounds of this run and of earlier runs."""
        return len(self.history) + self.known_rounds

    @property
    def idle_rounds(self) -> int:
        """Rounds since the last gain."""
        last = len(self.history) - 1
        while last > 0 and self.history[last].best > (1 - GAIN) * self.history[last - 1].best:
            last -= 1
        return len(self.history) - 1 - last


class Divide(Protocol):
    """A division of rounds among tasks: it chooses an index into the standings."""

    def next(self, standings: Sequence[Standing]) -> int | None: ...


def worth_a_round(standings: Sequence[Standing], negligible: float = NEGLIGIBLE) -> list[int]:
    """Returns the tasks that can be searched and that matter to the goal."""
    least = negligible * sum(s.total for s in standings)
    return [k for k, s in enumerate(standings) if s.is_open and s.total > 0 and s.total >= least]


@dataclass(frozen=True, slots=True)
class Gradient:
    """Ansor's task scheduler, by gain per second of search. The next round goes to the largest

        slope · [ α · recent gain / its seconds + (1 − α) · min(max(hope, g − β·C/V), g − floor) / seconds per round ]
        hope = g / t / (1 + idle / patience)

    g is the task's best, t its rounds, C its FLOPs, V the best FLOP/s of its group. The recent gain is the gain of the
    last `window` rounds. A best that falls as 1/t gains g/t; after `idle` rounds without gain, the expected gain is
    smaller. β·C/V expects a task to come within β of its group. A task leaves its group when it is still slower,
    although it has had `lead` rounds more than any other task.

    A random task gets the fraction `epsilon` of the rounds.
    """

    rng: np.random.Generator
    alpha: float = 0.2
    beta: float = 2.0
    epsilon: float = 0.05
    window: int = 3
    patience: float = 4.0
    lead: float = 5.0
    negligible: float = NEGLIGIBLE

    def next(self, standings: Sequence[Standing]) -> int | None:
        chosen = worth_a_round(standings, self.negligible)
        if not chosen:
            return None
        if self.rng.random() < self.epsilon:
            return int(self.rng.choice(chosen))
        return max(chosen, key=lambda k: self.priority(standings[k], standings))

    def priority(self, s: Standing, standings: Sequence[Standing]) -> float:
        """Returns the expected gain of the goal per second of search."""
        if s.best is None or not s.history:
            return 0.0
        first = s.history[max(0, len(s.history) - 1 - self.window)]
        recent_seconds = s.spent - first.seconds
        recent = (first.best - s.best) / recent_seconds if recent_seconds > 0 else 0.0
        hope = s.best / s.rounds / (1 + s.idle_rounds / self.patience)
        gain = min(max(hope, s.best - self.beta * self._peer_seconds(s, standings)), s.best - s.floor)
        round_seconds = max(s.spent / len(s.history) + s.proof_seconds, 1e-9)
        return s.slope * (self.alpha * recent + (1 - self.alpha) * max(0.0, gain) / round_seconds)

    def _peer_seconds(self, s: Standing, standings: Sequence[Standing]) -> float:
        """Returns the task's seconds at the best FLOP/s of its group; infinity if there is no task to compare with."""
        peers = [p for p in standings if p.group == s.group and p is not s and p.best]
        fastest = max((p.flops / p.best for p in peers if p.best), default=0.0)
        if not fastest or not s.flops or s.best is None:
            return inf
        seconds = s.flops / fastest
        has_left = s.rounds > self.lead + max(p.rounds for p in peers)
        return inf if has_left and s.best > self.beta * seconds else seconds
