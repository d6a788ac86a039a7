"""Divisions: the choice of the task that gets the next round of a search over many tasks.

    Divide.next(standings) -> index | None

A division sees only measurements made so far; None means that no task is worth another round. `expected_gains` is the
gain of further search that the gains so far promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Protocol

import numpy as np

NEGLIGIBLE = 0.002
"""A task below this share of the objective gets nothing: halving it would not be noticed."""
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
    """∂objective/∂best: for the total latency, how often the models call the task."""
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
        """Its part of the objective, to first order."""
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
    """Returns the tasks that can be searched and that matter to the objective."""
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
        """Returns the expected gain of the objective per second of search."""
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


# ---- the gain of further search --------------------------------------------------------------------------------------

KEPT, DOUBT = 0.25, 1 / 16
"""The weights of the formula. On tables, a doubling gains about 0.2 of the gain of the last doubling. If the last
doubling gained nothing, the next gains 5 % after 2 rounds of 16 trials, 0.8 % after 5 and 0.2 % after 9.
"""


def expected_gains(standings: Sequence[Standing], seconds: float) -> list[float]:
    """Returns the expected gain of the objective for each task, if `seconds` more seconds are divided in the best way.

    Bests fall about with the logarithm of the seconds spent. The gain of the next doubling of the seconds is estimated
    from the gain of the last doubling. A part of the best, which falls with the rounds, is added for gains that a
    stalled curve hides.

        gain(s) = (KEPT · gain of the last half of its seconds + DOUBT · best / rounds) · log2(1 + s / spent)

    A gain ends at the floor. If a task has gained nothing yet, its first gain also costs the seconds of its proof.

    Maximises Σ aᵢ · ln(1 + sᵢ / spentᵢ) with Σ (sᵢ + proofᵢ) = `seconds` over the tasks that get some. The solution is
    sᵢ = aᵢ / λ − spentᵢ, with one λ for all of them. A task is among them if its last second gains more than λ. The
    total gain must also grow, although the proof of the task takes seconds from the rest.
    """
    gains = [0.0] * len(standings)
    scales = {k: _scale(standings[k]) for k in worth_a_round(standings)}
    order = sorted(scales, key=lambda k: scales[k] / _spent(standings[k]), reverse=True)
    chosen: dict[int, float] = {}
    price = 0.0  # λ: the gain of the last second
    for k in order:
        if scales[k] / _spent(standings[k]) <= price:
            break
        among = [*chosen, k]
        left = seconds - sum(standings[j].proof_seconds for j in among)
        if left <= 0:
            continue
        dearer = sum(scales[j] for j in among) / (left + sum(_spent(standings[j]) for j in among))
        gain_by_task = {
            j: scales[j] * log(max(1.0, scales[j] / dearer / _spent(standings[j]))) for j in among if dearer
        }
        if sum(gain_by_task.values()) > sum(chosen.values()):
            chosen, price = gain_by_task, dearer
    for k, gain in chosen.items():
        s = standings[k]
        gains[k] = min(gain, s.slope * max(0.0, (s.best or 0.0) - s.floor))
    return gains


def _scale(s: Standing) -> float:
    """Returns `a` of a · ln(1 + s / spent)."""
    assert s.best is not None
    half = next((r for r in reversed(s.history) if r.seconds <= s.spent / 2), s.history[0] if s.history else None)
    gained = max(0.0, half.best - s.best) if half is not None else 0.0  # timed in turns, a best may be slower
    return s.slope * (KEPT * gained + DOUBT * s.best / max(1.0, s.rounds)) / log(2)


def _spent(s: Standing) -> float:
    return max(s.spent, 1e-3)
