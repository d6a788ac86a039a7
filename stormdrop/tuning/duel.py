"""A duel: an incumbent and a few challengers, timed in turns until the faster candidate is statistically certain.

First measurements only select the challengers. A challenger wins when it is faster beyond chance and by enough to be
worth a move. While that is open, more rounds are timed. Both sides are always timed alike.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stormdrop.tuning.statistics import gain_of_medians, p_faster
from stormdrop.tuning.strategy import Candidate, Outcome, Proposal

T = TypeVar("T")
Exchange = Generator[Proposal, Mapping[Candidate, Outcome], T]
"""A search as a conversation: yields proposals, best candidates first, receives the outcomes, and returns a T when
done.
"""


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the samples after so many more rounds. It takes a share of the error that is allowed to a duel; a
    challenger with a larger p than `futile` is given up."""

    rounds: int
    share: float
    futile: float


LOOKS = Look(4, 0.0, 0.6), Look(2, 0.25, 0.35), Look(6, 0.25, 0.1), Look(12, 0.5, 0.0)
"""The looks of a droplet's duel. After four rounds, challengers that do not look faster are dropped. Six rounds are the
fewest that allow certainty: the smallest p of a rank test is then 0.0011, and 0.004 with five. With 24 rounds, a gain
of 2 % is detected at 1 % noise.
"""


@dataclass(frozen=True, slots=True)
class DuelSettings:
    looks: tuple[Look, ...] = LOOKS
    held: int = 1
    """Rounds in one proposal, for which candidates stay loaded. The default is one round, because the addresses of code
    and data shift the time of short kernels. The shift is up to 3 % and lasts as long as the candidate stays loaded, so
    more rounds would not reveal it as chance.
    """
    min_gain: float = 0.005
    """The least gain of medians that is worth a move; a smaller gain is ignored, even if it is certain."""


@dataclass(frozen=True, slots=True)
class DuelResult:
    """The result of a duel: `winner` is None if no challenger is faster; `samples` holds every timed candidate."""

    winner: Candidate | None
    samples: Mapping[Candidate, Sequence[float]]


def duel(
    incumbent: Candidate, challengers: Sequence[Candidate], level: float, settings: DuelSettings
) -> Exchange[DuelResult]:
    """Returns the fastest challenger that beats the incumbent; `level` is the error allowed for each, over all looks.

    A candidate that fails is out. If the incumbent fails, there is no winner.
    """
    samples: dict[Candidate, list[float]] = {}
    rivals = list(challengers)
    for look in settings.looks:
        for held in _pieces(look.rounds, settings.held):
            outcomes = yield Proposal((incumbent, *rivals), held)
            alive = {c: o.samples or (o.value,) for c, o in outcomes.items() if o.value is not None}
            rivals = [c for c in rivals if c in alive]
            for c in (incumbent, *rivals) if incumbent in alive else ():
                samples.setdefault(c, []).extend(alive[c])
            if incumbent not in alive or not rivals:
                return DuelResult(None, samples)
        p = {c: p_faster(samples[c], samples[incumbent]) for c in rivals}
        gains = {c: gain_of_medians(samples[c], samples[incumbent]) for c in rivals}
        won = [c for c in rivals if p[c] <= level * look.share and gains[c] >= settings.min_gain]
        if won:
            return DuelResult(max(won, key=gains.__getitem__), samples)
        rivals = [c for c in rivals if p[c] <= look.futile]
        if not rivals:
            break
    return DuelResult(None, samples)


def _pieces(rounds: int, most: int) -> list[int]:
    return [min(most, rounds - done) for done in range(0, rounds, most)]
