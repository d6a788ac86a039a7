"""What is read from the trials of a search."""

from __future__ import annotations

import pytest

from stormdrop.measure.result import Failure
from stormdrop.tuning.curve import (
    FailureCount,
    SearchPhase,
    building_seconds,
    failures,
    first_reaching,
    improvements,
    phases,
    running_seconds,
    trials_per_second,
)
from tests.support.searches import tuned

BUILD, SLOW = Failure("build", "no such register", 0.01), Failure("timeout", "took too long")


def test_improvements_are_the_trials_faster_than_all_before() -> None:
    curve = improvements(tuned([BUILD, 5.0, 7.0, 5.0, 4.0, 1.0, 2.0]).history)
    assert [(i.trial, i.seconds) for i in curve] == [(2, 5.0), (5, 4.0), (6, 1.0)]
    assert improvements(tuned([BUILD]).history) == []


def test_a_quality_is_reached_at_the_first_trial_that_is_fast_enough() -> None:
    curve = improvements(tuned([2.0, 1.11, 1.05, 1.0]).history)
    marks = [first_reaching(curve, q) for q in (0.9, 0.95, 0.99)]
    assert [m.trial for m in marks if m is not None] == [2, 3, 4]
    assert first_reaching([], 0.9) is None


def test_phases_follow_each_other_without_gaps() -> None:
    runs = phases(tuned([1.0] * 6, droplet_from=4).history)
    assert runs == [SearchPhase("storm", 1, 3, 0.0, 1.5), SearchPhase("droplet", 4, 6, 1.5, 3.0)]


def test_failures_are_counted_by_kind_and_quote_the_first() -> None:
    search = tuned([BUILD, 1.0, SLOW, Failure("timeout", "again")])
    assert failures(search.history) == [
        FailureCount("timeout", 2, "took too long"),
        FailureCount("build", 1, "no such register"),
    ]


def test_trials_per_second_leave_out_the_final_timing() -> None:
    search = tuned([1.0] * 6)
    assert search.tuning_seconds == 4.0
    assert trials_per_second(search) == pytest.approx(2.0)


def test_what_was_spent_is_summed_over_all_trials() -> None:
    history = tuned([BUILD, 2.0, 1.0]).history
    assert building_seconds(history) == pytest.approx(0.01 + 2 * 0.015)
    assert running_seconds(history) == pytest.approx(30.0)
