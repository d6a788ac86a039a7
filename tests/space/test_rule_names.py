"""Rules of the user's: which are refused, and how another process gets those that are not."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from stormdrop.base.errors import ScheduleError, UserError
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.space.derive import checked, imported, received, references, sent
from stormdrop.space.rules import RULES, Tile
from stormdrop.space.sketch import replay, sketches
from stormdrop.target.cpu import cross
from tests.support.own_rules import AlwaysReverse, Limited, Reverse

SERVER = cross("avx512")
MODULE = "tests.support.own_rules"


class Unhashable(Reverse):
    __hash__ = None  # pyright: ignore[reportAssignmentType]


class Impostor(Tile):
    pass


def test_references_name_the_class_and_give_the_rule_back() -> None:
    rules = (*RULES, Reverse(), AlwaysReverse())
    assert references(rules)[-2:] == [f"{MODULE}:Reverse", f"{MODULE}:AlwaysReverse"]
    assert imported(references(rules)) == rules


def test_a_worker_is_told_of_rules_only_where_they_are_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sent(RULES) is None
    assert received(None) is RULES
    message = sent((*RULES, Reverse()))
    assert message is not None
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert received(message) == (*RULES, Reverse())
    assert all(path.startswith("/") for path in sys.path)


def test_rules_of_one_name_and_version_are_refused() -> None:
    for rules in ((*RULES, Reverse(), Reverse()), (*RULES, replace(Reverse(), name="tile")), (Impostor(),)):
        with pytest.raises(UserError, match="two rules are called"):
            sketches(build("SFM", (4, 8)), SERVER, rules)


def test_versions_of_one_rule_stand_side_by_side() -> None:
    task, rules = build("C1D", (1, 9, 5, 17, 3, 1, 1)), (*RULES, Reverse(), replace(Reverse(), version=2))
    taken = {
        tuple(step.version for step in s.structure.steps if step.rule == "reverse")
        for s in sketches(task, SERVER, rules)
    }
    assert taken == {(), (1,), (2,), (1, 2)}


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (Reverse, "give an instance"),
        (Unhashable(), "hashable"),
        (replace(Reverse(), name="tile 1, pack"), "letters, digits and underscores"),
        (replace(Reverse(), name=""), "letters, digits and underscores"),
        (replace(Reverse(), version="new"), "version is a whole number"),
        (7, "letters, digits and underscores"),
    ],
)
def test_what_cannot_be_a_rule_is_refused(rule: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        checked((*RULES, rule))


def test_a_rule_that_was_made_with_arguments_does_not_travel() -> None:
    assert references((Limited(),)) == [f"{MODULE}:Limited"]
    with pytest.raises(UserError, match="construct it without arguments"):
        references((Limited(most=2),))


def test_a_class_inside_a_function_does_not_travel() -> None:
    class Mine(Reverse):
        pass

    with pytest.raises(UserError, match="at the top of a module"):
        references((Mine(),))


def test_a_class_of_a_module_without_a_file_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ModuleType("made_here")
    monkeypatch.setitem(sys.modules, "made_here", made)
    mine = type("Mine", (Reverse,), {"__module__": "made_here"})
    made.__dict__["Mine"] = mine
    with pytest.raises(UserError, match="move the class to a module"):
        references((mine(),))


@pytest.mark.parametrize(
    "reference", ["nowhere_at_all:Mine", f"{MODULE}:Nothing", MODULE, "", "tests.support.crew:Sequence"]
)
def test_a_reference_to_nothing_is_refused(reference: str) -> None:
    with pytest.raises(UserError, match=r"package\.module:Class"):
        imported([reference])


def test_a_step_whose_arguments_no_rule_understands_is_a_schedule_error() -> None:
    task = build("SFM", (4, 8))
    schedule = default_schedule(task, SERVER)
    for args in ((), ("SSS",), ("SSS", "a9")):
        steps = tuple(replace(s, args=args) if s.rule == "tile" else s for s in schedule.steps)
        with pytest.raises(ScheduleError):
            replay(task, replace(schedule, steps=steps), SERVER)
