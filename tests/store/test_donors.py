"""Donors: which winners of other tasks a store offers to a task, and in which order."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from stormdrop.ir.tensor import Task
from stormdrop.operators.catalogue import build
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES
from stormdrop.space.schedule import Schedule
from stormdrop.space.structure import DerivationStep
from stormdrop.store.record import Record
from stormdrop.store.store import Store
from stormdrop.store.verdict import NO_CHALLENGER, Verdict
from stormdrop.target.machine import Target
from tests.support.own_rules import Reverse
from tests.support.records import ELSEWHERE, HERE, failure, legal_records, make_records, make_verdict, small_task
from tests.support.stores import verdict_rows

WANTED = small_task(64)


def add(store: Store, task: Task, target: Target = HERE, cold: bool = False, model: str = "", seed: int = 0) -> None:
    """A winner and two slower trials of a task."""
    slower, _, best = legal_records(3, task, target.with_cold_weights(cold), seed)
    store.add([slower, replace(best, verified=True, model=model)])


def convolution(size: int) -> Task:
    return build("C2D", (1, size, size, 16, 32, 3, 1, 1))


def with_epilogue(size: int) -> Task:
    return build("CBR", (1, size, size, 16, 32, 3, 1, 1))


def test_the_nearest_winners_of_the_class_come_first() -> None:
    with Store.in_memory() as store:
        for n in (8, 512, 32, 65):
            add(store, small_task(n))
        found = store.donors(WANTED, HERE)
        assert [d.task.digest for d in found] == [small_task(n).digest for n in (65, 32, 8, 512)]
        assert {d.kinship.key for d in found} == {"class"}
        assert all(d.is_equal for d in found)
        assert found[1].kinship.distance == pytest.approx(1.0)
        nearest = store.donors(WANTED, HERE, limit=2)
        assert [d.kinship.distance for d in nearest] == [d.kinship.distance for d in found[:2]]


def test_winners_of_the_anchor_alone_come_after_those_of_the_class() -> None:
    with Store.in_memory() as store:
        add(store, convolution(14))
        add(store, with_epilogue(56))
        found = store.donors(with_epilogue(14), HERE)
        assert [(d.kinship.key, d.task.name[:3]) for d in found] == [("class", "CBR"), ("anchor", "C2D")]


def test_other_threads_and_temperatures_are_marked_and_count_as_one_unit_of_distance() -> None:
    with Store.in_memory() as store:
        add(store, WANTED, HERE.with_threads(1))
        add(store, WANTED, cold=True)
        add(store, small_task(512))
        add(store, small_task(96))
        found = store.donors(WANTED, HERE)
        assert [d.is_equal for d in found] == [True, False, False, True]
        assert [d.task.digest for d in found] == [t.digest for t in (small_task(96), WANTED, WANTED, small_task(512))]


def test_donors_of_the_anchor_do_not_push_out_the_tasks_own_winner_on_other_threads() -> None:
    with Store.in_memory() as store:
        add(store, with_epilogue(14), HERE.with_threads(1))
        add(store, convolution(14))
        found = store.donors(with_epilogue(14), HERE, limit=1)
        assert [d.task.digest for d in found] == [with_epilogue(14).digest]


def test_the_tasks_own_winner_is_no_donor() -> None:
    with Store.in_memory() as store:
        add(store, WANTED)
        assert store.donors(WANTED, HERE) == []


def test_neither_other_machines_nor_trials_that_won_nothing_are_donors() -> None:
    with Store.in_memory() as store:
        add(store, small_task(), ELSEWHERE)
        store.add(legal_records(3, small_task(16)))
        store.add(make_records(3, small_task(24), result=failure()))
        add(store, build("SFM", (8, 64)))
        assert store.donors(WANTED, HERE) == []


def test_models_can_be_chosen() -> None:
    with Store.in_memory() as store:
        add(store, small_task(16), model="resnet18")
        add(store, small_task(32), model="resnet50")
        assert [str(d) for d in store.donors(WANTED, HERE, models=["resnet18"])] == [
            f"{small_task(16).name} of resnet18"
        ]
        assert store.donors(WANTED, HERE, models=[]) == []


def test_a_winner_of_an_unknown_rule_is_no_donor() -> None:
    with Store.in_memory() as store:
        (record,) = legal_records(1, small_task())
        steps = (*record.schedule.steps, DerivationStep("reverse", 1, "s0"))
        store.add([replace(record, schedule=replace(record.schedule, steps=steps), verified=True)])
        assert store.donors(WANTED, HERE) == []
        assert len(store.donors(WANTED, HERE, rules=(*RULES, Reverse()))) == 1


def test_every_donors_schedule_can_be_refitted() -> None:
    with Store.in_memory() as store:
        for k, size in enumerate((7, 14, 28)):
            add(store, convolution(size), seed=k)
            add(store, with_epilogue(2 * size), seed=k)
        for donor in store.donors(with_epilogue(10), HERE):
            assert refit(donor.schedule, donor.task, with_epilogue(10), HERE)


# ---- winners that a later tuning confirmed


def unchallenged(record: Record) -> Verdict:
    """For an incumbent that nothing seemed faster than."""
    return replace(make_verdict(record), method=NO_CHALLENGER, against_seconds=1e-3)


def winners(store: Store) -> list[tuple[Schedule, str]]:
    """What tuning here decided for, and how; donors are of the same schedules."""
    found = [(verdict.schedule, verdict.method) for verdict, _ in store.decided(HERE)]
    assert [donor.schedule for donor in store.donors(WANTED, HERE)] == [schedule for schedule, _ in found]
    return found


def test_a_winner_that_nothing_challenged_later_is_still_a_winner() -> None:
    winner, default, other = legal_records(3)
    with Store.in_memory() as store:
        store.add_verdicts([make_verdict(winner, default)])
        for _ in range(3):
            store.add_verdicts([unchallenged(winner)])
            assert winners(store) == [(winner.schedule, NO_CHALLENGER)]
            assert store.verdict(small_task(), HERE) == unchallenged(winner)
        assert verdict_rows(store) == 2  # the one that holds, and the win that it confirms
        store.add_verdicts([make_verdict(other, winner)])
        assert winners(store) == [(other.schedule, "duel")]
        assert verdict_rows(store) == 1


def test_a_default_that_nothing_challenged_is_no_winner_whatever_won_elsewhere() -> None:
    default, winner = legal_records(2)
    cold = replace(winner, target=HERE.with_cold_weights(True))
    with Store.in_memory() as store:
        store.add_verdicts([make_verdict(winner, default)])
        store.add_verdicts([unchallenged(default), unchallenged(cold)])
        assert winners(store) == []
        store.add_verdicts([replace(make_verdict(default, winner), provenance="imported"), unchallenged(default)])
        assert winners(store) == []
        store.add_verdicts([unchallenged(default)])
        assert winners(store) == []


@pytest.mark.parametrize("has_won", [True, False])
def test_an_import_knows_a_confirmed_winner_from_a_default(has_won: bool) -> None:
    winner, default = legal_records(2)
    with Store.in_memory() as store, Store.in_memory() as other:
        store.add([replace(winner, verified=True)])
        store.add_verdicts([make_verdict(winner, default)] if has_won else [])
        store.add_verdicts([unchallenged(winner)])
        file = io.StringIO()
        store.export(file)
        done = other.import_(io.BytesIO(file.getvalue().encode()), HERE)
        assert (done.kept, done.refusals) == (3 if has_won else 2, 0)
        assert len(other.donors(WANTED, HERE)) == int(has_won)
