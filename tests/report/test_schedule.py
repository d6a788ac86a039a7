"""How a schedule and its changes are told."""

from __future__ import annotations

from stormdrop.report.text import change_text, schedule_lines
from tests.support.searches import schedule


def test_a_schedule_has_a_line_for_each_step_and_each_stage() -> None:
    assert schedule_lines(schedule(3)) == [str(schedule(3).steps[0]), "s0: a0.1=3 unroll=1"]


def test_a_change_of_knobs_names_those_that_moved() -> None:
    assert change_text(schedule(3), schedule(4)) == "s0.a0.1 3→4"
    assert change_text(schedule(3), schedule(3)) == "the same, timed again"


def test_a_change_of_sketch_names_its_derivation() -> None:
    assert change_text(schedule(3), schedule(3, "inline")) == str(schedule(3, "inline").steps[0])
    assert change_text(None, schedule(3)) == str(schedule(3).steps[0])
