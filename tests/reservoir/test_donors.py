"""Donors: which winners of other tasks a store offers to a task, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stormdrop.ir.tensor import Task
from stormdrop.ops.catalogue import build
from stormdrop.reservoir.store import Store
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES
from stormdrop.space.structure import DerivationStep
from stormdrop.target.machine import Target
from tests.support.own_rules import Reverse
from tests.support.records import ELSEWHERE, HERE, failure, legal_records, make_records, small_task

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


def test_other_threads_and_temperatures_are_marked_and_come_last() -> None:
    with Store.in_memory() as store:
        add(store, WANTED, HERE.with_threads(1))
        add(store, WANTED, cold=True)
        add(store, small_task(512))
        found = store.donors(WANTED, HERE)
        assert [d.is_equal for d in found] == [True, False, False]
        assert found[0].task.digest == small_task(512).digest


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
