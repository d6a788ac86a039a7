"""The final choice on simulated timings: it stays where nothing is faster, and finds what is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from stormdrop.device.device import Seconds
from stormdrop.measure.settings import MeasureSettings
from stormdrop.measure.stopwatch import turn
from stormdrop.tuning.choice import ALONE, choose
from stormdrop.tuning.strategy import Candidate

INCUMBENT, *OTHERS = (Candidate(0, (k,)) for k in range(6))
SETTINGS = MeasureSettings()
DRIFT = 0.003
NOISE = 0.03
"""Of single runs, which only ever slows. Measured beside other people's work on two cores: 0.02 to 0.06."""
STALLS_PER_SECOND, STALL_SECONDS = 110.0, 0.0033
"""How often a run is interrupted there, and for how long: a fifth of all runs of 2 ms, two fifths of those of 5 ms."""
KERNELS = {5e-6: 0.02, 4e-4: 0.01, 5e-3: 0.01}
"""Seconds of kernels, and how much the pace of whole turns varies: short kernels depend on how threads wake up."""


class Machine:
    """Times simulated runs by the stopwatch that also times real ones; the clock drifts from round to round."""

    def __init__(self, seconds: Mapping[Candidate, float], pace: float, seed: int) -> None:
        self._seconds, self._pace, self._rng = seconds, pace, np.random.default_rng(seed)
        self._slowed = NOISE * np.abs(self._rng.standard_normal(1 << 14))
        self._clock = 1.0
        self.orders: list[tuple[Candidate, ...]] = []
        self.spent = 0.0

    def in_turns(self, candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, list[float]]:
        self.orders.append(tuple(candidates))
        self._clock *= float(np.exp(DRIFT * self._rng.standard_normal()))
        return {c: [self._sample(c) for _ in range(rounds)] for c in candidates if c in self._seconds}

    def _sample(self, c: Candidate) -> float:
        """The fastest run of one turn."""
        pace = float(np.exp(self._pace * self._rng.standard_normal()))
        seconds = self._clock * pace * self._seconds[c]

        def bench(runs: int) -> Seconds:
            at = int(self._rng.integers(len(self._slowed) - runs))
            each = seconds * (1 + self._slowed[at : at + runs])
            stalls = self._rng.integers(runs, size=self._rng.poisson(STALLS_PER_SECOND * seconds * runs))
            np.add.at(each, stalls, STALL_SECONDS * self._rng.exponential(size=len(stalls)))
            self.spent += float(each.sum())
            return each

        return float(turn(bench, SETTINGS).each.min())


def moved(runs: int, gain: float, challengers: int, seconds: float) -> int:
    """How often the first challenger, faster by `gain`, or else one that is no faster, is chosen."""
    count = 0
    for seed in range(runs):
        rivals = OTHERS[:challengers]
        times = {INCUMBENT: seconds, **dict.fromkeys(rivals, seconds), rivals[0]: (1 - gain) * seconds}
        decision = choose(INCUMBENT, rivals, Machine(times, KERNELS[seconds], seed).in_turns)
        count += decision.chosen == rivals[0] if gain else decision.chosen != INCUMBENT
    return count


cases = pytest.mark.parametrize(("seconds", "challengers"), [(5e-6, 5), (4e-4, 1), (5e-3, 5)])


@cases
def test_of_equals_the_incumbent_stays(seconds: float, challengers: int) -> None:
    assert moved(200, 0.0, challengers, seconds) <= 10


@cases
def test_a_gain_of_three_percent_is_found(seconds: float, challengers: int) -> None:
    assert moved(100, 0.03, challengers, seconds) >= 90


def test_a_choice_among_long_kernels_takes_seconds() -> None:
    """Also where every round is needed, since the challengers are faster by too little to be sure."""
    times = dict.fromkeys(OTHERS, 0.0299) | {INCUMBENT: 0.03}
    machine = Machine(times, 0.01, 0)
    choose(INCUMBENT, OTHERS, machine.in_turns)
    assert machine.spent < 20


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
    machine = Machine(dict.fromkeys((INCUMBENT, *OTHERS[:2]), 1e-3), 0.01, seed=0)
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
