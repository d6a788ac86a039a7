"""Turns of a race, on a clock that only moves when something runs."""

from __future__ import annotations

from collections.abc import Callable

from stormdrop.measure.stopwatch import LEAST_ROUNDS, ROUNDS, SETTLING, race


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
