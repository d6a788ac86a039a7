"""Learning an experience: the margin on tasks held out, and what has no part in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Timing
from stormdrop.ops.catalogue import build
from stormdrop.reservoir import learning
from stormdrop.reservoir.experience import DonorEntry, load, path_beside
from stormdrop.reservoir.learning import HeldOut, donors_of_store, keep_learned, learned, margin_of
from stormdrop.reservoir.record import DEFAULT, DONOR, Record
from stormdrop.reservoir.store import Store
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import refit
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import replay
from stormdrop.target.machine import Target
from tests.support.experiences import random_schedule
from tests.support.records import HERE, VERSIONS, make_verdict, timing

Rng = np.random.Generator
Seconds = Callable[[np.ndarray, Rng], np.ndarray]
"""The times of trials, from their features."""


def held_out(predicted: list[float], gained: list[float], seconds: list[float] | None = None) -> HeldOut:
    """By factors."""
    return HeldOut(np.log2(predicted), np.log2(gained), np.array(seconds or [1e-3] * len(predicted)))


def test_the_margin_is_the_least_at_which_picks_pay() -> None:
    predicted = [1.03] * 8 + [1.10] * 8
    gained = [0.9] * 8 + [1.04, 1.06, 1.05, 1.07, 1.05, 1.04, 1.06, 1.05]
    assert margin_of(held_out(predicted, gained)) == pytest.approx(1.10)
    assert margin_of(held_out(predicted, [1.05, 1.04] * 8)) == pytest.approx(1.03)


def test_a_gain_within_its_own_error_is_none() -> None:
    assert margin_of(held_out([1.1] * 8, [0.7, 1.4] * 4)) is None
    assert margin_of(held_out([1.1] * 8, [1.02, 1.03] * 4)) is not None


def test_one_gain_that_is_much_larger_makes_the_others_no_less_sure() -> None:
    assert margin_of(held_out([1.1] * 8, [1.03, 1.04, 1.02, 1.05, 1.03, 1.04, 1.02, 3.0])) is not None


def test_too_few_picks_decide_nothing() -> None:
    assert margin_of(held_out([1.2] * 5, [1.1] * 5)) is None
    assert margin_of(held_out([0.9] * 50, [1.1] * 50)) is None


def test_a_margin_at_which_picks_cost_more_seconds_than_they_save_is_too_small() -> None:
    predicted, gained = [1.05] * 12 + [1.2] * 8, [1.3] * 10 + [0.7] * 2 + [1.3, 1.2] * 4
    assert margin_of(held_out(predicted, gained)) == pytest.approx(1.05)
    seconds = [1e-3] * 10 + [1e-1] * 2 + [1e-3] * 8
    assert margin_of(held_out(predicted, gained, seconds)) == pytest.approx(1.2)


@dataclass(frozen=True, slots=True)
class Case:
    """A task of a model, its winner, and what a search of it would time: schedules with strategies and features."""

    task: Task
    model: str
    winner: Schedule
    trials: tuple[tuple[Schedule, str], ...]
    features: np.ndarray

    @property
    def default(self) -> Schedule:
        return next(schedule for schedule, strategy in self.trials if strategy == DEFAULT)


@cache
def cases() -> tuple[Case, ...]:
    """Four models of four tasks each, one class in all. Donors are the winners of other models' tasks."""
    tasks = [(build("GMM", (1, 16 + 24 * k + 5 * m, 48 + 16 * k, 40)), m) for m in range(4) for k in range(4)]
    winners = [random_schedule(task, HERE, 7 * n) for n, (task, _) in enumerate(tasks)]
    found: list[Case] = []
    for n, (task, m) in enumerate(tasks):
        trials = {default_schedule(task, HERE): DEFAULT}
        for (donor, other), winner in zip(tasks, winners):
            trials = dict.fromkeys(refit(winner, donor, task, HERE) if other != m else (), DONOR) | trials
        trials = dict.fromkeys((random_schedule(task, HERE, 100 * n + k) for k in range(6)), "storm") | trials
        trials = {winners[n]: "storm"} | trials
        places = [replay(task, schedule, HERE) for schedule in trials]
        features = np.concatenate([sketch.features(point[None]) for sketch, point in places]).astype(np.float32)
        found.append(Case(task, f"model{m}", winners[n], tuple(trials.items()), features))
    return tuple(found)


def records(case: Case, seconds: Seconds, seed: int = 0) -> list[Record]:
    times = seconds(case.features, np.random.default_rng(seed))
    rows = zip(case.trials, case.features, times)
    return [
        Record(
            case.task,
            schedule,
            HERE,
            replace(timing(float(t)), samples=()),
            VERSIONS,
            strategy,
            number=k,
            model=case.model,
            features=row,
        )
        for k, ((schedule, strategy), row, t) in enumerate(rows, 1)
    ]


def filled(seconds: Seconds, path: Path | None = None) -> Store:
    """A store with the trials of all cases, and verdicts for their winners."""
    store = Store.in_memory() if path is None else Store.open(path)
    for n, case in enumerate(cases()):
        found = records(case, seconds, n)
        winner, default = (next(r for r in found if r.schedule == s) for s in (case.winner, case.default))
        store.add(found)
        store.add_verdicts([make_verdict(winner, default)])
    return store


def learnable(features: np.ndarray, rng: Rng) -> np.ndarray:
    """The estimate is wrong: what it takes for slow is fast, to a degree that trees can see."""
    prior = features[:, learning.judge_of(HERE).features.index("prior")].astype(np.float64)
    return 1e-3 * 2.0 ** (-(prior - prior.min()))


def noise(features: np.ndarray, rng: Rng) -> np.ndarray:
    return 1e-3 * rng.uniform(0.5, 2.0, len(features))


def test_what_trials_teach_of_unseen_tasks_sets_a_margin() -> None:
    with filled(learnable) as store:
        found = learned(store, HERE)
    assert found is not None
    assert found.margin is not None
    assert found.margin >= learning.LEAST_GAIN
    assert found.is_current(HERE)
    assert found.evidence is not None
    assert found.evidence.gain > 1.0
    assert found.evidence.tasks == 16


def test_noise_teaches_nothing() -> None:
    with filled(noise) as store:
        found = learned(store, HERE)
    assert found is not None
    assert found.margin is None
    assert found.offer(build("GMM", (1, 20, 48, 40)), HERE, "donor") is None


def test_one_model_alone_teaches_nothing_of_others() -> None:
    with Store.in_memory() as store:
        for case in cases():
            store.add(records(replace(case, model="model"), learnable))
        assert learned(store, HERE) is None


def test_tasks_that_are_left_out_are_neither_donors_nor_learned_from() -> None:
    with filled(learnable) as store:
        whole, less = learned(store, HERE), learned(store, HERE, store.digests(["model0"]))
        assert store.models() == {"model0", "model1", "model2", "model3"}
    assert whole is not None
    assert less is not None
    assert {d.digest for d in whole.donors} == {case.task.digest for case in cases()}
    assert {d.digest for d in less.donors} == {case.task.digest for case in cases() if case.model != "model0"}
    assert less.evidence is not None
    assert less.evidence.tasks == 12
    assert less.scorer != whole.scorer


def test_winners_of_a_held_out_model_that_were_never_measured_here_are_not_offered_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered: list[tuple[Task, set[str]]] = []

    def promising(donors: Sequence[DonorEntry], task: Task, target: Target) -> list[DonorEntry]:
        offered.append((task, {d.model for d in donors}))
        return []

    monkeypatch.setattr(learning, "promising", promising)
    alone = HERE.with_threads(1)
    with filled(learnable) as store:
        for n, case in enumerate(cases()):  # each model at another batch size, on another number of threads
            task = build("GMM", (1, 200 + n, 64, 40))
            schedules = random_schedule(task, alone, n), default_schedule(task, alone)
            trials = [Record(task, s, alone, timing(1e-3), VERSIONS, model=case.model) for s in schedules]
            store.add(trials)
            store.add_verdicts([make_verdict(*trials)])
        assert {d.threads for d in donors_of_store(store, HERE)} == {1, HERE.threads}
        learned(store, HERE)
    models = {case.task.digest: case.model for case in cases()}
    assert len(offered) == len(models)
    assert all(models[task.digest] not in of for task, of in offered)


def test_a_task_whose_default_was_not_timed_says_nothing() -> None:
    with filled(learnable) as store, Store.in_memory() as without:
        for case in cases():
            trials = store.trials(case.task, HERE)
            without.add([r for r in trials if r.strategy != DEFAULT])
        assert learned(without, HERE) is None


def test_a_winner_that_a_later_duel_confirmed_keeps_its_gain_over_the_default() -> None:
    case = cases()[0]
    with Store.in_memory() as store:
        found = records(case, lambda features, _: np.linspace(1e-3, 2e-3, len(features)))
        winner, default = (next(r for r in found if r.schedule == s) for s in (case.winner, case.default))
        store.add(found)
        store.add_verdicts([make_verdict(winner)])
        (entry,) = donors_of_store(store, HERE)
    assert isinstance(winner.result, Timing)
    assert isinstance(default.result, Timing)
    assert entry.gain == pytest.approx(default.result.seconds / winner.result.seconds)


def test_a_winner_that_beat_an_earlier_winner_has_its_gain_over_the_default() -> None:
    case = cases()[0]
    with Store.in_memory() as store:
        found = records(case, lambda features, _: np.linspace(1e-3, 2e-3, len(features)))
        winner, default = (next(r for r in found if r.schedule == s) for s in (case.winner, case.default))
        earlier = next(r for r in found if r.schedule not in (case.winner, case.default))
        store.add(found)
        store.add_verdicts([replace(make_verdict(winner, earlier), against_seconds=1.01e-3)])
        (entry,) = donors_of_store(store, HERE)
        assert isinstance(winner.result, Timing)
        assert isinstance(default.result, Timing)
        assert entry.gain == pytest.approx(default.result.seconds / winner.result.seconds)
        store.prune(max_bytes=0)
        (entry,) = donors_of_store(store, HERE)
        assert entry.gain == pytest.approx(1.01)  # nothing says what the default was: over the incumbent


def test_what_was_learned_lies_beside_the_store_until_the_store_teaches_less(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with filled(learnable, path) as store:
        found = keep_learned(store, HERE)
        file = path_beside(path, HERE)
        assert found is not None
        kept = load(file, HERE)
        assert kept is not None
        assert (kept.scorer, kept.margin, kept.donors) == (found.scorer, found.margin, found.donors)
        store.prune(max_bytes=1)
        assert keep_learned(store, HERE) is None
        assert not file.exists()
    with Store.in_memory() as store:
        assert keep_learned(store, HERE) is None
