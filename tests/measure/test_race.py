"""Turns and budgets of a race, on a clock that only moves when something runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stormdrop.measure.race import PAUSE_SECONDS, ROUNDS, SETTLING, Budget, race


class Track:
    """Runs that take the seconds they are given, and a log of who ran."""

    def __init__(self) -> None:
        self.now = 0.0
        self.log: list[str] = []

    def side(self, name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds
            self.log.append(name)

        return run

    def pause(self, seconds: float) -> None:
        assert seconds == PAUSE_SECONDS
        self.log.append("pause")


def test_sides_take_turns_after_a_pause_and_runs_that_do_not_count() -> None:
    track = Track()
    times = race(
        {"a": track.side("a", 1.0), "b": track.side("b", 2.0)}, Budget(7, warm_up=3), lambda: track.now, track.pause
    )
    assert (times["a"].seconds, times["b"].seconds) == (1.0, 2.0)
    assert [len(times[name].each) for name in "ab"] == [7, 7]
    assert "".join(c[0] for c in track.log).startswith(
        "aaabbb" + "p" + "a" * (SETTLING + 2) + "p" + "b" * (SETTLING + 2) + "p"
    )
    assert track.log.count("pause") == 2 * ROUNDS


def test_one_side_alone_needs_no_pause() -> None:
    track = Track()
    times = race({"a": track.side("a", 0.5)}, Budget(4, warm_up=1), lambda: track.now, track.pause)
    assert track.log == ["a"] * 5
    assert len(times["a"].each) == 4


@pytest.mark.parametrize("repeats", [1, 3, 5, 13])
def test_repeats_are_kept_to(repeats: int) -> None:
    track = Track()
    times = race(
        {"a": track.side("a", 1.0), "b": track.side("b", 1.0)}, Budget(repeats), lambda: track.now, track.pause
    )
    assert [len(times[name].each) for name in "ab"] == [repeats, repeats]


def test_seconds_are_for_each_side_and_each_round_runs_at_least_once() -> None:
    track = Track()
    rounds: list[int] = []
    sides = {"quick": track.side("a", 0.25), "slow": track.side("b", 100.0)}
    times = race(sides, Budget(None, 10.0, 0), lambda: track.now, track.pause, rounds.append)
    assert float(times["quick"].each.sum()) == 10.0
    assert len(times["slow"].each) == ROUNDS
    assert rounds == list(range(1, ROUNDS + 1))
