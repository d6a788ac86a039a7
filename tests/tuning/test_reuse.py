"""Searches that begin from other tasks' schedules: donors of the store, siblings of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from stormdrop.base.errors import UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Result, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import refit
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import replay, sketches
from stormdrop.store.record import DEFAULT, DONOR, Record, versions
from stormdrop.store.store import Store
from stormdrop.tuning.api import tune
from stormdrop.tuning.divide import Standing
from stormdrop.tuning.events import Warned
from stormdrop.tuning.reuse import refitted, related
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.tune import MODEL_SETTINGS, cost_model
from tests.support.records import make_records
from tests.tuning.test_tune import TARGET, Replay, timing
from tests.tuning.test_tune_model import Fake, model, tuned_with

TASK, DONOR_TASK = build("GMM", (1, 64, 96, 80)), build("GMM", (1, 48, 64, 64))


def winner(task: Task) -> Schedule:
    """A good point by the estimate, which is not the default."""
    sketch = sketches(task, TARGET)[0]
    points = sketch.sample_legal(400, np.random.default_rng(0))
    return sketch.schedule(points[np.argmin(sketch.prior(points))])


def store_with(schedule: Schedule, task: Task = DONOR_TASK, model: str = "other") -> Store:
    store = Store.in_memory()
    store.add([Record(task, schedule, TARGET, timing(1e-4), versions(TARGET), model=model, verified=True)])
    return store


def first_batch(replayed: Replay) -> list[Schedule]:
    return replayed.batches[0]


def test_the_first_candidates_are_the_default_and_the_refitted_donors() -> None:
    measurer, donated = Replay(), refit(winner(DONOR_TASK), DONOR_TASK, TASK, TARGET)
    assert default_schedule(TASK, TARGET) not in donated
    tune(TASK, TARGET, measurer=measurer, trials=20, store=store_with(winner(DONOR_TASK)))
    head = first_batch(measurer)[: 1 + len(donated)]
    assert head[0] == default_schedule(TASK, TARGET)
    assert set(head[1:]) == set(donated)


def test_a_droplet_alone_still_begins_from_the_default_and_from_donors() -> None:
    measurer, donated = Replay(), refit(winner(DONOR_TASK), DONOR_TASK, TASK, TARGET)
    tune(TASK, TARGET, search="droplet", measurer=measurer, trials=40, store=store_with(winner(DONOR_TASK)))
    assert first_batch(measurer)[0] == default_schedule(TASK, TARGET)
    assert set(donated) & set(first_batch(measurer))
    assert sum(map(len, measurer.batches)) > 1 + len(donated)


def test_without_reuse_no_donor_is_measured() -> None:
    measurer, donated = Replay(), refit(winner(DONOR_TASK), DONOR_TASK, TASK, TARGET)
    store = store_with(winner(DONOR_TASK))
    tune(TASK, TARGET, measurer=measurer, trials=20, search="storm", store=store, reuse="off")
    assert not set(first_batch(measurer)[:4]) & set(donated)


def test_the_donors_models_can_be_chosen() -> None:
    measurers = Replay(), Replay()
    store = store_with(winner(DONOR_TASK))
    store.add([replace(make_records(1)[0], model="somebody")])
    for measurer, names in zip(measurers, (["other"], ["somebody"])):
        tune(TASK, TARGET, measurer=measurer, trials=20, store=store, reuse="only", donors=names)
    donated = set(refit(winner(DONOR_TASK), DONOR_TASK, TASK, TARGET))
    assert donated <= set(first_batch(measurers[0]))
    assert not donated & set(first_batch(measurers[1]))


def test_donors_of_which_the_store_has_nothing_are_refused_and_some_of_them_warned_of() -> None:
    with pytest.raises(UserError, match="nothing of a model or machine 'typo' or 'another'; models are: other"):
        tune(TASK, TARGET, measurer=Replay(), store=store_with(winner(DONOR_TASK)), donors=["typo", "another"])
    with pytest.raises(UserError, match="'typo'; models are: none"):
        tuned_with(Fake(), model(64), trials=8, store=None, donors=["typo"])
    assert tune(TASK, TARGET, measurer=Replay(), trials=4, reuse="off", donors=["typo"])
    told: list[Any] = []
    for names in (["other", "typo"], ["other", TARGET.key()]):
        store = store_with(winner(DONOR_TASK))
        tune(TASK, TARGET, measurer=Replay(), trials=4, store=store, donors=names, listen=told.append)
        tuned_with(Fake(), model(64), told, trials=8, store=store, donors=names)
    warnings = [event.message for event in told if isinstance(event, Warned)]
    assert warnings == ["the store has nothing of a model or machine 'typo'; models are: other"] * 2


def test_reuse_alone_measures_the_seeds_and_a_short_descent() -> None:
    settings = TuneSettings(reuse_trials=10)
    measurer, donated = Replay(), refit(winner(DONOR_TASK), DONOR_TASK, TASK, TARGET)
    store = store_with(winner(DONOR_TASK))
    tuned = tune(TASK, TARGET, measurer=measurer, store=store, reuse="only", settings=settings)
    assert set(first_batch(measurer)) == {default_schedule(TASK, TARGET), *donated}
    assert len(tuned.history) <= len(first_batch(measurer)) + 10
    assert tuned.strategy == "reuse"
    assert {t.phase for t in tuned.history} <= {DONOR, "seeds", "droplet"}


def test_reuse_alone_without_a_donor_times_the_default_and_descends_from_it() -> None:
    measurer = Replay()
    tuned = tune(TASK, TARGET, measurer=measurer, store=Store.in_memory(), reuse="only")
    assert first_batch(measurer) == [default_schedule(TASK, TARGET)]
    default = measurer.rule(default_schedule(TASK, TARGET))
    assert isinstance(default, Timing)
    assert tuned.seconds <= default.seconds


def test_records_say_that_a_candidate_came_from_a_donor() -> None:
    donated = refit(winner(DONOR_TASK), DONOR_TASK, TASK, TARGET)

    def prefers_the_donor(schedule: Schedule) -> Result:
        return timing(1e-4 if schedule == donated[0] else 1e-3)

    store = store_with(winner(DONOR_TASK))
    tuned = tune(TASK, TARGET, measurer=Replay(prefers_the_donor), trials=12, store=store)
    assert tuned.best == donated[0]
    assert next(t for t in tuned.history if t.schedule == donated[0]).phase == DONOR
    best = store.best(TASK, TARGET)
    assert best is not None
    assert best.verified
    assert best.strategy == DONOR
    others = [r for r in store.trials(TASK, TARGET) if r.schedule not in donated]
    assert others
    assert {r.strategy for r in others} == {DEFAULT, "storm+droplet"}
    (default,) = [r.schedule for r in others if r.strategy == DEFAULT]
    assert default == default_schedule(TASK, TARGET)


def test_a_wrong_mode_and_a_name_in_place_of_names_are_refused() -> None:
    with pytest.raises(UserError, match="unknown; give seed, only, off"):
        tune(TASK, TARGET, measurer=Replay(), reuse="always")
    with pytest.raises(UserError, match="list of names"):
        tune(TASK, TARGET, measurer=Replay(), donors="resnet18")


def test_related_sources_are_those_that_share_a_key_nearest_first() -> None:
    sizes = (512, 60, 8)
    products = [build("GMM", (1, n, 96, 80)) for n in sizes]
    pool = build("MXP", (1, 8, 8, 16, 3, 1, 1))
    sources = [(t, default_schedule(t, TARGET)) for t in (pool, *products)]
    assert [t for t, _ in related(TASK, sources)] == [products[1], products[0], products[2]]
    assert len(related(TASK, sources, 2)) == 2


def test_a_source_that_cannot_be_replayed_gives_nothing() -> None:
    schedule = default_schedule(DONOR_TASK, TARGET)
    newer = replace(schedule, steps=tuple(replace(s, version=9) for s in schedule.steps))
    assert refitted(TASK, [(DONOR_TASK, newer)], TARGET) == []


# ---- siblings --------------------------------------------------------------------------------------------------------


def test_the_leader_of_one_task_is_suggested_to_its_siblings() -> None:
    """All that is measured of a task and came from a donor is a re-fit of something measured of another task before."""
    parts, fake, store = model(64, 256, 320, 48), Fake(), Store.in_memory()
    tasks = [use.task for use in parts.tasks]
    assert len({t.class_key for t in tasks}) == 1
    tuned = tuned_with(fake, parts, trials=120, store=store)
    donated = {t: {r.schedule for r in store.trials(t, tuned.target) if r.strategy == DONOR} for t in tasks}
    before: list[tuple[Task, Schedule]] = []
    seen = 0
    for task, candidates in fake.batches:
        if mine := donated[task] & set(candidates):
            assert mine <= set(refitted(task, [s for s in before if s[0] is not task], tuned.target))
            seen += len(mine)
        before += [(task, s) for s in candidates]
    assert seen >= 2


@dataclass
class Turns:
    """Rounds for tasks in an order: each gets so many, while it is open."""

    left: dict[int, int]

    def next(self, standings: Sequence[Standing]) -> int | None:
        chosen = next((k for k, left in self.left.items() if left and standings[k].is_open), None)
        if chosen is not None:
            self.left[chosen] -= 1
        return chosen


@pytest.mark.parametrize("rounds_before", [20, 0], ids=["its search has ended", "the division gives it no round"])
def test_a_leader_that_is_found_late_is_still_suggested_to_a_sibling(rounds_before: int) -> None:
    parts, seen = model(64, 256, 320), dict[Schedule, Result]()
    late, sibling = (use.task for use in parts.tasks)
    assert late.class_key == sibling.class_key

    def rule(task: Task, schedule: Schedule) -> Result:
        return timing(1e-3) if task is sibling else seen.setdefault(schedule, timing(1e-3 if len(seen) < 12 else 5e-4))

    fake, settings = Fake(rule), replace(MODEL_SETTINGS, patience=8)
    tuned_with(fake, parts, trials=200, settings=settings, divide=Turns({1: rounds_before, 0: 3}))
    fast = [k for k, (task, batch) in enumerate(fake.batches) if task is late and timing(5e-4) in map(seen.get, batch)]
    leader = next(s for s in fake.batches[fast[0]][1] if seen[s] == timing(5e-4))
    told = [batch for task, batch in fake.batches[fast[0] :] if task is sibling]
    assert len(told) == 1
    assert len(told[0]) == 1
    assert set(told[0]) <= set(refitted(sibling, [(late, leader)], TARGET))


def test_without_reuse_tasks_of_a_model_do_not_share_candidates() -> None:
    phases: set[str] = set()
    for mode in ("seed", "off"):
        store = Store.in_memory()
        parts = model(64, 256, 320, 48)
        tuned = tuned_with(Fake(), parts, trials=120, store=store, reuse=mode)
        found = {r.strategy for use in parts.tasks for r in store.trials(use.task, tuned.target)}
        assert (DONOR in found) == (mode == "seed")
        phases |= found
    assert phases == {DEFAULT, DONOR, "storm+droplet"}


def test_a_model_is_tuned_from_another_models_winners_alone() -> None:
    store = Store.in_memory()
    first, second = model(64, 128, 96), model(48, 160, 72)
    tuned_with(Fake(), first, trials=80, store=store)
    fake = Fake()
    tuned = tuned_with(fake, second, store=store, reuse="only", donors=[first.graph.name])
    assert tuned.strategy == "reuse"
    assert tuned.stopped == "nothing left"
    assert tuned.seconds <= tuned.default_seconds
    strategies = [r.strategy for use in second.tasks for r in store.trials(use.task, tuned.target)]
    assert strategies.count(DONOR) >= len(second.tasks)
    for task, candidates in fake.batches:
        for schedule in candidates:
            sketch, point = replay(task, schedule, tuned.target)
            assert sketch.schedule(point) == schedule


def test_donors_are_ranked_by_what_was_learned_from_the_store() -> None:
    sketch = sketches(DONOR_TASK, TARGET)[0]
    points = sketch.sample_legal(300, np.random.default_rng(0))
    seconds = 1e-9 / sketch.prior(points)  # the estimate is wrong about everything
    store = Store.in_memory()
    rows = sketch.features(points).astype(np.float32)
    store.add(
        [
            Record(DONOR_TASK, sketch.schedule(p), TARGET, timing(float(s)), versions(TARGET), features=row)
            for p, s, row in zip(points, seconds, rows)
        ]
    )
    scores = cost_model(TARGET, store, TuneSettings()).predict(rows)
    assert np.corrcoef(scores, -np.log(seconds))[0, 1] > 0.5
