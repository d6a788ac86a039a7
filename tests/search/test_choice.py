"""The final choice on simulated timings: it stays where nothing is faster, and finds what is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from stormdrop.search.choice import ALONE, choose
from stormdrop.search.strategy import Candidate

INCUMBENT, *OTHERS = (Candidate(0, (k,)) for k in range(6))
NOISE, STALLED, DRIFT = 0.01, 0.1, 0.003


class Machine:
    """Times candidates with 1 % noise; every tenth sample is 3 to 10 times too slow, and the clock drifts by rounds."""

    def __init__(self, seconds: Mapping[Candidate, float], seed: int) -> None:
        self._seconds, self._rng = seconds, np.random.default_rng(seed)
        self._clock = 1.0
        self.orders: list[tuple[Candidate, ...]] = []

    def in_turns(self, candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, list[float]]:
        self.orders.append(tuple(candidates))
        self._clock *= float(np.exp(DRIFT * self._rng.standard_normal()))
        return {c: [self._sample(c) for _ in range(rounds)] for c in candidates if c in self._seconds}

    def _sample(self, c: Candidate) -> float:
        stall = self._rng.uniform(3, 10) if self._rng.random() < STALLED else 1.0
        return self._clock * self._seconds[c] * float(np.exp(NOISE * self._rng.standard_normal())) * stall


def moved(runs: int, gain: float, challengers: int) -> int:
    """How often the first challenger, faster by `gain`, or else one that is no faster, is chosen."""
    count = 0
    for seed in range(runs):
        rivals = OTHERS[:challengers]
        machine = Machine({INCUMBENT: 1e-3, **dict.fromkeys(rivals, 1e-3), rivals[0]: (1 - gain) * 1e-3}, seed)
        decision = choose(INCUMBENT, rivals, machine.in_turns)
        count += decision.chosen == rivals[0] if gain else decision.chosen != INCUMBENT
    return count


@pytest.mark.parametrize("challengers", [1, 5])
def test_of_equals_the_incumbent_stays(challengers: int) -> None:
    assert moved(200, 0.0, challengers) <= 10


@pytest.mark.parametrize("challengers", [1, 5])
def test_a_gain_of_three_percent_is_found(challengers: int) -> None:
    assert moved(100, 0.03, challengers) >= 90


def constant(seconds: Mapping[Candidate, float]) -> Callable[[Sequence[Candidate], int], dict[Candidate, list[float]]]:
    return lambda candidates, rounds: {c: [seconds[c]] * rounds for c in candidates if c in seconds}


def test_a_gain_that_is_not_worth_a_change_is_none_however_certain() -> None:
    slightly = {INCUMBENT: 1.0, OTHERS[0]: 0.997}
    assert choose(INCUMBENT, OTHERS[:1], constant(slightly)).chosen == INCUMBENT


def test_what_is_reported_is_the_deciding_measurement() -> None:
    decision = choose(INCUMBENT, OTHERS[:2], constant({INCUMBENT: 1.0, OTHERS[0]: 0.9, OTHERS[1]: 2.0}))
    assert decision.chosen == OTHERS[0]
    assert (decision.value(OTHERS[0]), decision.value(INCUMBENT)) == (0.9, 1.0)
    assert decision.rounds == len(decision.samples[INCUMBENT]) == len(decision.samples[OTHERS[0]])


def test_everybody_is_first_equally_often() -> None:
    machine = Machine(dict.fromkeys((INCUMBENT, *OTHERS[:2]), 1e-3), seed=0)
    choose(INCUMBENT, OTHERS[:2], machine.in_turns)
    assert {order[0] for order in machine.orders[:3]} == {INCUMBENT, *OTHERS[:2]}
    assert len({frozenset(order) for order in machine.orders[:3]}) == 1


def test_an_incumbent_alone_is_timed_and_stays() -> None:
    decision = choose(INCUMBENT, [], constant({INCUMBENT: 1.0}))
    assert (decision.chosen, decision.rounds) == (INCUMBENT, ALONE)


def test_who_fails_is_out_and_without_the_incumbent_nobody_is_chosen() -> None:
    decision = choose(INCUMBENT, OTHERS[:2], constant({INCUMBENT: 1.0, OTHERS[1]: 0.5}))
    assert (decision.chosen, decision.failed) == (OTHERS[1], frozenset(OTHERS[:1]))
    decision = choose(INCUMBENT, OTHERS[:1], constant({OTHERS[0]: 1.0}))
    assert (decision.chosen, decision.failed) == (None, frozenset([INCUMBENT]))
    assert choose(INCUMBENT, [], constant({})).chosen is None
