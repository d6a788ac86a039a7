"""What a person reads at the end of a search."""

from __future__ import annotations

import pytest

from stormdrop.measure.result import Failure
from stormdrop.report.search_result import next_step, search_rows
from stormdrop.tuning.tuned import Tuned
from tests.support.searches import HOSTILE, tuned

SLOW = Failure("timeout", "took too long")


def test_the_summary_says_what_was_spent_and_when_it_was_nearly_done() -> None:
    rows = dict(search_rows(tuned([2.0, 1.11, 1.05, 1.0]), "/tmp/reservoir.sqlite"))
    assert rows["search"] == "storm+droplet, seed 3: 4 trials, 0 failed, 2.0/s; ended: the trials are spent"
    assert rows["spent"] == "3.0 s in all; builders 0.1 s (median 15.0 ms), timed runs 51.6 s"
    assert (
        rows["progress"] == "of the final speed, 90% at trial 2 (1.0 s), 95% at trial 3 (1.5 s), 99% at trial 4 (2.0 s)"
    )
    assert rows["stored"] == "/tmp/reservoir.sqlite"
    assert "failed" not in rows
    assert "verified" not in rows


def test_failures_are_told_by_kind_with_the_first_message() -> None:
    rows = search_rows(tuned([SLOW, 1.0, Failure("build", HOSTILE), SLOW]), None)
    told = [value for name, value in rows if name == "failed"]
    assert told[0] == "2 by timeout; the first: took too long"
    assert told[1].isprintable()
    assert "stored" not in dict(rows)


def test_a_result_that_was_not_proved_says_so() -> None:
    assert dict(search_rows(tuned([1.0], verified=False), None))["verified"].startswith("no")


def test_an_unknown_reason_to_stop_is_told_as_it_is() -> None:
    assert dict(search_rows(tuned([1.0], stopped="bored"), None))["search"].endswith("ended: bored")


@pytest.mark.parametrize(
    ("search", "advice"),
    [
        (tuned([3.0, 2.0, 1.0]), "still improving"),
        (tuned([1.0] * 10), ""),
        (tuned([1.0] * 10, stopped="no further gain"), "another --seed"),
        (tuned([1.0, 2.0], stopped="interrupted", verified=False), "run it again to finish"),
        (tuned([1.0, SLOW, SLOW]), "--log-file"),
    ],
)
def test_the_next_step_follows_from_how_it_went(search: object, advice: str) -> None:
    assert isinstance(search, Tuned)
    found = next_step(search, True)
    assert advice in found
    assert bool(advice) == bool(found)
