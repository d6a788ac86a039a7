"""Learning an experience: the margin on tasks held out, and what has no part in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stormdrop.ir.tensor import Task
from stormdrop.ops.catalogue import build
from stormdrop.reservoir import learning
from stormdrop.reservoir.experience import load, path_beside
from stormdrop.reservoir.learning import HeldOut, keep_learned, learned, margin_of
from stormdrop.reservoir.record import DEFAULT, DONOR, Record
from stormdrop.reservoir.store import Store
from stormdrop.space.sketch import sketches
from tests.support.records import HERE, VERSIONS, make_verdict, timing

Rng = np.random.Generator


def held_out(predicted: list[float], gained: list[float], fold: list[int] | None = None) -> HeldOut:
    """By factors."""
    folds = np.array(fold or [0] * len(predicted), np.int64)
    return HeldOut(np.log2(predicted), np.log2(gained), np.full(len(predicted), 1e-3), folds)


def test_the_margin_is_the_least_at_which_picks_pay() -> None:
    predicted = [1.03] * 8 + [1.10] * 8
    gained = [0.9] * 8 + [1.04, 1.06, 1.05, 1.07, 1.05, 1.04, 1.06, 1.05]
    assert margin_of(held_out(predicted, gained)) == pytest.approx(1.10)
    assert margin_of(held_out(predicted, [1.05, 1.04] * 8)) == pytest.approx(1.03)


def test_a_gain_within_its_own_error_is_none() -> None:
    assert margin_of(held_out([1.1] * 8, [0.7, 1.4] * 4)) is None
    assert margin_of(held_out([1.1] * 8, [1.02, 1.03] * 4)) is not None


def test_too_few_picks_decide_nothing() -> None:
    assert margin_of(held_out([1.2] * 5, [1.1] * 5)) is None
    assert margin_of(held_out([0.9] * 50, [1.1] * 50)) is None


def test_a_margin_at_which_one_model_becomes_slower_is_too_small() -> None:
    predicted, gained = [1.05] * 12 + [1.2] * 8, [1.3] * 10 + [0.97] * 2 + [1.3, 1.2] * 4
    assert margin_of(held_out(predicted, gained)) == pytest.approx(1.05)
    fold = [0] * 10 + [1] * 2 + [0] * 8
    assert margin_of(held_out(predicted, gained, fold)) == pytest.approx(1.2)


def records(task: Task, model: str, seconds: Callable[[np.ndarray, Rng], np.ndarray], seed: int) -> list[Record]:
    """Random points of a task, the one with the least estimate among them; every third came from a donor."""
    sketch, rng = sketches(task, HERE)[0], np.random.default_rng(seed)
    points = sketch.sample_legal(12, rng)
    features = sketch.features(points).astype(np.float32)
    times = seconds(features, rng)
    default = int(np.argmin(features[:, learning.judge_of(HERE).features.index("prior")]))
    return [
        Record(
            task,
            sketch.schedule(point),
            HERE,
            replace(timing(float(t)), samples=()),
            VERSIONS,
            DONOR if k % 3 == 0 and k != default else "storm",
            number=k + 1,
            model=model,
            features=row,
        )
        for k, (point, row, t) in enumerate(zip(points, features, times))
    ]


def filled(seconds: Callable[[np.ndarray, Rng], np.ndarray], path: Path | None = None) -> Store:
    """Four models of four tasks each, one class in all."""
    store = Store.in_memory() if path is None else Store.open(path)
    for m in range(4):
        for k in range(4):
            task = build("GMM", (1, 16 + 24 * k + 5 * m, 48 + 16 * k, 40))
            store.add(records(task, f"model{m}", seconds, 10 * m + k))
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
        for k in range(14):
            store.add(records(build("GMM", (1, 16 + 8 * k, 48, 40)), "model", learnable, k))
        assert learned(store, HERE) is None


def test_tasks_that_are_left_out_are_neither_donors_nor_learned_from() -> None:
    with filled(learnable) as store:
        winner, against = store.trials(build("GMM", (1, 16, 48, 40)), HERE)[:2]
        other, _ = store.trials(build("GMM", (1, 21, 48, 40)), HERE)[:2]
        store.add_verdicts(
            [make_verdict(winner, against), replace(make_verdict(other, against), against=winner.schedule)]
        )
        whole, less = learned(store, HERE), learned(store, HERE, store.digests(["model0"]))
        assert store.models() == {"model0", "model1", "model2", "model3"}
    assert whole is not None
    assert less is not None
    assert {d.digest for d in whole.donors} == {winner.task.digest, other.task.digest}
    assert {d.digest for d in less.donors} == {other.task.digest}
    assert less.evidence is not None
    assert less.evidence.tasks == 12
    assert less.scorer != whole.scorer


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


def marked(task: Task, default: int, seed: int = 3) -> list[Record]:
    """Records of which the one numbered `default` was the task's default, by its mark."""
    found = records(task, "model", noise, seed)
    return [replace(r, strategy=DEFAULT) if k == default else r for k, r in enumerate(found)]


def test_the_default_is_the_row_that_says_so_whatever_the_estimate_prefers() -> None:
    task, features = build("GMM", (1, 32, 48, 40)), learning.judge_of(HERE).features
    for default in (1, 7):
        with Store.in_memory() as store:
            store.add(marked(task, default))
            rows = store.training(HERE, 100)
        ((found, donors),) = learning._evidence(rows, features)
        assert rows.strategies[found] == DEFAULT
        assert {rows.strategies[k] for k in donors.tolist()} == {DONOR}


def test_a_default_is_not_guessed_among_rows_that_were_judged_anew() -> None:
    task, features = build("GMM", (1, 32, 48, 40)), learning.judge_of(HERE).features
    with Store.in_memory() as store:
        store.add(records(task, "model", noise, 3))
        assert learning._evidence(store.training(HERE, 100), features)
        fitted = replace(HERE, coefficients=replace(HERE.coefficients, conflict_slope=0.5))
        rows = store.training(fitted, 100)
        assert rows.was_recomputed.all()
        assert learning._evidence(rows, features) == []
