"""What a strategy is: it proposes candidates and learns what became of them. It sees knob matrices, scores and seconds.

    loop ──ask(n)──▶ Proposal(candidates, rounds) ──measured──▶ Outcomes ──tell──▶ strategy

`rounds` 0 measures every candidate once, alone. Otherwise all of them, measured before or not, are timed in turns so
many times (A B C A B C …), which compares them fairly; it costs no trial where a candidate was measured before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.knobs import Knob

Points = NDArray[np.int64]


class Space(Protocol):
    """Points of one sketch, as search sees them: a `Sketch`, or a recorded table."""

    @property
    def knobs(self) -> tuple[Knob, ...]: ...
    def canonical(self, points: Points) -> Points: ...
    def legal(self, points: Points) -> NDArray[np.bool_]: ...
    def snapped(self, points: Points) -> Points: ...
    def sample_legal(self, n: int, rng: np.random.Generator) -> Points: ...
    def features(self, points: Points) -> NDArray[np.float64]: ...
    def prior(self, points: Points) -> NDArray[np.float64]: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A canonical point of one of the sketches."""

    sketch: int
    point: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What to measure next. No candidates: the strategy has nothing left to propose."""

    candidates: tuple[Candidate, ...]
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a candidate.

    `value` is what is minimised, seconds unless the user said otherwise, and None where it failed; `samples` are the
    values of each round where candidates were timed in turns. `brief`: clearly slow, and measured only briefly.
    """

    candidate: Candidate
    value: float | None
    samples: tuple[float, ...] = ()
    brief: bool = False


class Strategy(Protocol):
    """`ask` proposes at most `n` candidates; each proposal is told before the next is asked, unless it is eager."""

    @property
    def phase(self) -> str:
        """What it does now, for people: storm, droplet, …"""
        ...

    @property
    def eager(self) -> bool:
        """It may be asked now, before the last proposal is told: it searches while the loop builds."""
        ...

    def ask(self, n: int) -> Proposal: ...
    def tell(self, outcomes: Sequence[Outcome]) -> None: ...


class Ranker(Protocol):
    """Scores points without measuring them: the learned model, or the prior. Higher is better."""

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]: ...


def candidate(sketch: int, point: Sequence[int] | NDArray[Any]) -> Candidate:
    return Candidate(sketch, tuple(int(v) for v in point))
