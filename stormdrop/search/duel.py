"""A duel: an incumbent and a few challengers, timed in turns until the question who is faster is settled.

First measurements only choose who duels. A challenger wins when it is faster beyond chance and by enough to be worth a
move; it is asked again, with more rounds, while that is open. Both sides are always timed alike.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stormdrop.search.statistics import gain_of_medians, p_faster
from stormdrop.search.strategy import Candidate, Outcome, Proposal

T = TypeVar("T")
Talk = Generator[Proposal, Mapping[Candidate, Outcome], T]
"""Search as a conversation: yields what to measure, best first, gets the outcomes, and returns a T when done."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the samples after so many more rounds. It takes a share of the error that is allowed to a duel; a
    challenger with a larger p than `futile` is given up."""

    rounds: int
    share: float
    futile: float


LOOKS = Look(4, 0.0, 0.6), Look(2, 0.25, 0.35), Look(6, 0.25, 0.1), Look(12, 0.5, 0.0)
"""Four rounds send home who does not even look faster. Six are the fewest that can be sure: the smallest p of a rank
test is 0.0011 then, and 0.004 with five. 24 find 2 % at 1 % noise."""


@dataclass(frozen=True, slots=True)
class DuelSettings:
    looks: tuple[Look, ...] = LOOKS
    held: int = 1
    """Rounds in one proposal, for which candidates stay loaded. One: where code and data happen to lie shifts short
    kernels by up to 3 % for as long as they lie there, which no number of rounds would show to be chance."""
    min_gain: float = 0.005
    """Of medians: what is less is not worth a move, even if it is certain."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`winner` is None where no challenger is faster; `samples` are of everybody who was timed."""

    winner: Candidate | None
    samples: Mapping[Candidate, Sequence[float]]


def duel(incumbent: Candidate, challengers: Sequence[Candidate], level: float, settings: DuelSettings) -> Talk[Verdict]:
    """The fastest challenger that beats the incumbent; `level` is the error allowed for each, over all looks.

    Who fails is out. Where the incumbent fails, nobody wins.
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
                return Verdict(None, samples)
        p = {c: p_faster(samples[c], samples[incumbent]) for c in rivals}
        gains = {c: gain_of_medians(samples[c], samples[incumbent]) for c in rivals}
        won = [c for c in rivals if p[c] <= level * look.share and gains[c] >= settings.min_gain]
        if won:
            return Verdict(max(won, key=gains.__getitem__), samples)
        rivals = [c for c in rivals if p[c] <= look.futile]
        if not rivals:
            break
    return Verdict(None, samples)


def _pieces(rounds: int, most: int) -> list[int]:
    return [min(most, rounds - done) for done in range(0, rounds, most)]
