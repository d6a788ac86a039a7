"""The interface of a strategy: it proposes candidates and receives outcomes. It sees knob matrices, scores and seconds.

    loop ──ask(n)──▶ Proposal(candidates, rounds) ──measured──▶ Outcomes ──tell──▶ strategy

`rounds` 0 measures every candidate once, alone. Otherwise all of them, measured before or not, are timed in turns so
many times (A B C A B C …), which compares them fairly; it costs no trial if a candidate was measured before.
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
    """A canonical point of one sketch."""

    sketch: int
    point: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next candidates to measure. Without candidates, the strategy has nothing left to propose."""

    candidates: tuple[Candidate, ...]
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of measuring a candidate.

    `value` is minimised: seconds unless the user set an objective, and None for a failure. `samples` are the values of
    each round if candidates were timed in turns. `brief`: clearly slow, and measured only briefly.
    """

    candidate: Candidate
    value: float | None
    samples: tuple[float, ...] = ()
    brief: bool = False


class Strategy(Protocol):
    """A search strategy: `ask` proposes at most `n` candidates. The outcomes of each proposal precede the next `ask`,
    unless the strategy is eager.
    """

    @property
    def phase(self) -> str:
        """The current phase, as displayed to people: storm, droplet, …"""
        ...

    @property
    def eager(self) -> bool:
        """`ask` may be called before the outcomes of the last proposal: the strategy searches while the loop builds."""
        ...

    def ask(self, n: int) -> Proposal: ...
    def tell(self, outcomes: Sequence[Outcome]) -> None: ...


class Ranker(Protocol):
    """Scores points without measuring them: the learned model, or the prior. Higher is better."""

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]: ...


def candidate(sketch: int, point: Sequence[int] | NDArray[Any]) -> Candidate:
    return Candidate(sketch, tuple(int(v) for v in point))
