"""The stopwatch repeats as long as it pays, and not longer; sides of a race take turns."""

from collections.abc import Callable

import numpy as np
import pytest

from stormdrop.measure.settings import MeasureSettings
from stormdrop.measure.stopwatch import LEAST_ROUNDS, ROUNDS, SETTLING, Seconds, race, repeat, turn

SETTINGS = MeasureSettings(min_seconds=0.02, max_repeats=1000, run_timeout=10)


class Clock:
    """A kernel that takes a given time; it counts its runs."""

    def __init__(self, seconds: float, spikes: float = 0.0) -> None:
        self.seconds, self.runs = seconds, 0
        self._spikes, self._rng = spikes, np.random.default_rng(1)

    def __call__(self, repeats: int) -> Seconds:
        self.runs += repeats
        slow = self._rng.random(repeats) < self._spikes
        return np.where(slow, 50 * self.seconds, self.seconds)


@pytest.mark.parametrize(("seconds", "runs"), [(1e-7, (1000, 1000)), (1e-4, (200, 280)), (5e-3, (3, 5)), (0.5, (2, 2))])
def test_repeats_fill_the_budget_and_no_more(seconds: float, runs: tuple[int, int]):
    clock = Clock(seconds)
    found = repeat(clock, seconds, None, SETTINGS)
    assert runs[0] <= clock.runs <= runs[1]
    assert found.seconds == pytest.approx(seconds)
    assert not found.stopped_early


def test_the_budget_pays_for_what_passes_between_runs():
    clock = Clock(1e-4)
    found = repeat(clock, 1e-4, None, SETTINGS, between=3e-4)
    assert 50 <= clock.runs <= 70
    assert found.seconds == pytest.approx(1e-4)


def test_the_first_run_alone_condemns_only_what_no_cold_cache_explains():
    slow = Clock(0.1)
    assert repeat(slow, 0.1, 0.001, SETTINGS).stopped_early
    assert slow.runs == 0
    cold = Clock(1e-5)
    assert not repeat(cold, 5e-4, 1e-5, SETTINGS).stopped_early
    assert cold.runs > 100


def test_a_long_kernel_need_only_be_slow_twice():
    clock = Clock(0.004)
    assert repeat(clock, 0.004, 0.001, SETTINGS).stopped_early
    assert clock.runs == 1


def test_a_slow_kernel_is_stopped_after_few_runs():
    clock = Clock(3e-5)
    found = repeat(clock, 3e-5, 1e-5, SETTINGS)
    assert found.stopped_early
    assert clock.runs < 20


def test_spikes_neither_move_the_median_nor_stop_a_kernel():
    found = repeat(Clock(1e-4, spikes=0.2), 1e-4, 0.9e-4, SETTINGS)
    assert found.seconds == pytest.approx(1e-4)
    assert found.spread == 0
    assert not found.stopped_early


def test_a_turn_of_a_short_kernel_lasts_its_seconds_and_of_a_longer_one_some_runs():
    short, long = Clock(1e-5), Clock(5e-3)
    assert SETTINGS.turn_seconds <= turn(short, SETTINGS).each.sum() <= 2 * SETTINGS.turn_seconds
    assert len(turn(long, SETTINGS).each) == long.runs == SETTINGS.turn_runs


def test_a_turn_of_a_very_long_kernel_is_bounded():
    clock = Clock(0.04)
    assert 2 <= len(turn(clock, SETTINGS).each) < SETTINGS.turn_runs
    assert clock.runs * clock.seconds <= 2 * SETTINGS.longest_turn_seconds + clock.seconds


# ---- races -----------------------------------------------------------------------------------------------------------


class Track:
    """Runs that take the seconds they are given, and a log of who ran."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log = ""

    def side(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds
            self.log += name

        return run


def test_sides_take_turns_in_rotating_order_that_begin_with_runs_that_do_not_count() -> None:
    track = Track()
    times = race({"a": track.side("a", 1.0), "b": track.side("b", 2.0)}, 2.0 * ROUNDS, lambda: track.now)
    assert (times["a"].seconds, times["b"].seconds) == (1.0, 2.0)
    assert [len(times[name].each) for name in "ab"] == [ROUNDS, ROUNDS]
    turns = "a" * (SETTLING + 2), "b" * (SETTLING + 1)
    assert track.log == "".join(turns[(k + number) % 2] for number in range(ROUNDS) for k in range(2))


def test_seconds_are_for_each_side_and_each_turn_runs_at_least_once() -> None:
    track = Track()
    times = race({"quick": track.side("a", 0.25), "slow": track.side("b", 100.0)}, ROUNDS, lambda: track.now)
    assert (times["quick"].seconds, times["slow"].seconds) == (0.25, 100.0)
    turns = "a" * (SETTLING + 4), "bb"  # one run that does not count takes longer than a turn
    assert track.log == "".join(turns[(k + number) % 2] for number in range(LEAST_ROUNDS) for k in range(2))


def test_a_turn_is_one_sample_that_a_single_slow_run_does_not_move() -> None:
    now, calls = 0.0, 0

    def run() -> None:
        nonlocal now, calls
        calls += 1
        now += 50.0 if calls % 7 == 0 else 1.0

    times = race({"a": run}, 5.0 * ROUNDS, lambda: now)
    assert set(times["a"].each.tolist()) == {1.0}
