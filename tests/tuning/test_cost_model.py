"""The cost model on rows whose truth is known: no compiler, no clock."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.space.cpu_judge import FEATURES
from stormdrop.tuning.cost_model import CostModel, CostSettings

ROWS, VECTORS, TILES, PRIOR = (FEATURES.index(name) for name in ("rows", "vectors", "tiles", "prior"))
Floats = NDArray[np.float64]


def some_rows(n: int, seed: int = 0) -> Floats:
    """Random features; the prior, which is wrong, is so by less than a factor of two."""
    rows = np.random.default_rng(seed).uniform(0.0, 10.0, (n, len(FEATURES)))
    rows[:, PRIOR] = 5.0 + rows[:, PRIOR] / 10.0
    return rows


def true_seconds(rows: Floats, scale: float = 1e-3) -> Floats:
    """Something that the prior knows nothing of: `rows` should be near 5, `vectors` large."""
    return scale * np.exp2(np.abs(rows[:, ROWS] - 5.0) / 3.0 - rows[:, VECTORS] / 5.0)


def share_in_order(scores: Floats, seconds: Floats) -> float:
    i, j = np.triu_indices(len(scores), 1)
    return float(np.mean((scores[i] > scores[j]) == (seconds[i] < seconds[j])))


def taught(groups: int = 4, each: int = 150, settings: CostSettings | None = None) -> CostModel:
    """A model that knows a few groups of very different scale."""
    model = CostModel(FEATURES, settings)
    for g in range(groups):
        rows = some_rows(each, g)
        model.add(f"task {g}", rows, true_seconds(rows, 10.0**-g))
    assert model.refresh()
    return model


def test_a_ranking_is_learned_and_carries_over_to_a_task_of_which_nothing_was_measured() -> None:
    rows = some_rows(300, 99)
    prior = -rows[:, PRIOR]
    assert share_in_order(prior, true_seconds(rows)) < 0.6
    assert share_in_order(taught().predict(rows), true_seconds(rows)) > 0.75
    trusting = taught(settings=CostSettings(prior_share=0.0))
    assert share_in_order(trusting.predict(rows), true_seconds(rows)) > 0.85


def test_a_group_with_another_truth_is_learned_by_its_own_trees() -> None:
    model = taught(settings=CostSettings(growth=1.0))
    rows, others = some_rows(400, 7), some_rows(300, 8)

    def contrary(rows: Floats) -> Floats:
        return 1.0 / true_seconds(rows)

    before = share_in_order(model.predict(others, "odd"), contrary(others))
    model.add("odd", rows, contrary(rows))
    assert model.refresh()
    assert before < 0.4 < 0.7 < share_in_order(model.predict(others, "odd"), contrary(others))
    assert share_in_order(model.predict(others), true_seconds(others)) > 0.7  # to everybody else it stays what it was


def test_one_group_alone_is_learned_on_top_of_the_prior() -> None:
    model, rows, others = CostModel(FEATURES), some_rows(200, 1), some_rows(300, 2)
    model.add("only", rows, true_seconds(rows))
    model.refresh()
    assert share_in_order(model.predict(others, "only"), true_seconds(others)) > 0.75


def test_shared_trees_that_know_only_this_group_are_left_out_of_its_scores() -> None:
    rows, fresh = some_rows(200, 1), some_rows(64, 2)
    both, own = CostModel(FEATURES), CostModel(FEATURES, CostSettings(min_rows=1000))
    for model in (both, own):
        model.add("only", rows, true_seconds(rows))
        model.refresh()
    assert not np.array_equal(both.predict(fresh), own.predict(fresh))
    assert np.array_equal(both.predict(fresh, "only"), own.predict(fresh, "only"))


def test_what_failed_sinks() -> None:
    rows = some_rows(400, 3)
    fails = rows[:, TILES] > 7.0
    model = CostModel(FEATURES)
    model.add("task", rows, np.where(fails, np.nan, true_seconds(rows)))
    model.refresh()
    fresh = some_rows(400, 4)
    scores, fail = model.predict(fresh, "task"), fresh[:, TILES] > 7.0
    assert np.median(scores[fail]) < np.quantile(scores[~fail], 0.1)


def test_an_untrained_model_orders_as_the_prior_does() -> None:
    model, rows = CostModel(FEATURES), some_rows(50)
    model.add("task", rows[:5], true_seconds(rows[:5]))
    assert not model.refresh()
    for group in (None, "task", "unheard of"):
        assert np.array_equal(np.argsort(-model.predict(rows, group)), np.argsort(rows[:, PRIOR]))


def test_the_prior_decides_between_points_that_the_trees_cannot_tell_apart() -> None:
    rows = np.repeat(some_rows(1), 3, axis=0)
    rows[:, PRIOR] = (20.0, 30.0, 25.0)  # beyond all that was learned from, and the ratios to it are too
    scores = taught().predict(rows)
    assert scores.argsort().tolist() == [1, 2, 0]


def test_the_first_training_waits_for_enough_rows() -> None:
    model = CostModel(FEATURES, CostSettings(min_rows=30, own_rows=20))
    rows = some_rows(30)
    model.add("a", rows[:19], true_seconds(rows[:19]))
    assert not model.refresh()
    model.add("a", rows[19:20], true_seconds(rows[19:20]))
    assert model.refresh()  # its own trees
    before = model.predict(rows)
    assert np.array_equal(before, -rows[:, PRIOR])  # nothing is shared yet
    model.add("b", rows[20:], true_seconds(rows[20:]))
    assert model.refresh()
    assert not np.array_equal(model.predict(rows), before)


def test_trees_are_grown_anew_only_when_the_rows_have_grown_by_the_share() -> None:
    model = CostModel(FEATURES, CostSettings(min_rows=100, own_rows=100, growth=0.2))
    rows = some_rows(200)
    seconds = true_seconds(rows)
    model.add("a", rows[:100], seconds[:100])
    assert model.refresh()
    assert not model.refresh()
    before = model.predict(rows, "a")
    model.add("a", rows[100:119], seconds[100:119])
    assert not model.refresh()
    assert np.array_equal(model.predict(rows, "a"), before)
    model.add("a", rows[119:120], seconds[119:120])
    assert model.refresh()
    assert not np.array_equal(model.predict(rows, "a"), before)


def test_own_trees_are_grown_again_when_the_shared_ones_below_them_change() -> None:
    settings = CostSettings(growth=0.2)
    model, fresh = taught(2, settings=settings), some_rows(40, 11)
    before = model.predict(fresh, "task 0")
    more = some_rows(200, 12)
    model.add("another", more, true_seconds(more))
    assert model.refresh()
    after = model.predict(fresh, "task 0")
    assert not np.array_equal(after, before)
    whole = CostModel(FEATURES, settings)
    for g in range(2):
        rows = some_rows(150, g)
        whole.add(f"task {g}", rows, true_seconds(rows, 10.0**-g))
    whole.add("another", more, true_seconds(more))
    whole.refresh()
    assert np.array_equal(after, whole.predict(fresh, "task 0"))


def test_equal_rows_and_seeds_give_equal_scores_and_another_seed_gives_others() -> None:
    rows = some_rows(64, 5)
    first, second, other = taught(), taught(), taught(settings=CostSettings(seed=1))
    assert np.array_equal(first.predict(rows, "task 1"), second.predict(rows, "task 1"))
    assert not np.array_equal(first.predict(rows), other.predict(rows))


def test_the_order_in_which_rows_came_does_not_matter() -> None:
    rows, fresh = some_rows(300, 6), some_rows(64, 7)
    seconds, group = true_seconds(rows), np.arange(300) % 3
    order = np.random.default_rng(8).permutation(300)
    models: list[CostModel] = []
    for pick in (np.arange(300), order):
        model = CostModel(FEATURES)
        model.add_rows(rows[pick], seconds[pick], group[pick], ["a", "b", "c"])
        model.refresh()
        models.append(model)
    assert np.array_equal(models[0].predict(fresh), models[1].predict(fresh))


def test_labels_are_relative_to_the_best_of_the_group_known_now() -> None:
    """The same rows, with the best told last or first."""
    rows, fresh = some_rows(100, 6), some_rows(64, 7)
    seconds = true_seconds(rows)
    seconds[-1] = seconds.min() / 8.0
    late, early = CostModel(FEATURES), CostModel(FEATURES)
    late.add("a", rows[:-1], seconds[:-1])
    late.add("a", rows[-1:], seconds[-1:])
    early.add("a", rows[::-1], seconds[::-1])
    late.refresh()
    early.refresh()
    assert np.array_equal(late.predict(fresh, "a"), early.predict(fresh, "a"))


def test_times_in_other_units_teach_the_same() -> None:
    rows, fresh = some_rows(200, 6), some_rows(64, 7)
    scores: list[Floats] = []
    for scale in (1.0, 1024.0):
        model = CostModel(FEATURES)
        model.add("a", rows, true_seconds(rows, scale))
        model.refresh()
        scores.append(model.predict(fresh, "a"))
    assert np.array_equal(scores[0], scores[1])


def test_an_objective_may_be_negative_or_zero() -> None:
    rows, fresh = some_rows(200, 6), some_rows(200, 7)
    for objective in (lambda s: -1.0 / s, lambda s: s - s.min()):  # pyright: ignore[reportUnknownLambdaType]
        values: Floats = objective(true_seconds(rows))
        model = CostModel(FEATURES)
        model.add("a", rows, values)
        model.refresh()
        scores = model.predict(fresh, "a")
        assert np.isfinite(scores).all()
    model = CostModel(FEATURES)
    model.add("a", rows, -1.0 / true_seconds(rows))
    model.refresh()
    assert share_in_order(model.predict(fresh, "a"), true_seconds(fresh)) > 0.7


def test_a_group_of_failures_alone_is_harmless() -> None:
    rows, fresh = some_rows(100, 6), some_rows(64, 7)
    alone = CostModel(FEATURES)
    alone.add("bad", rows, np.full(100, np.nan))
    assert not alone.refresh()
    assert np.array_equal(alone.predict(fresh, "bad"), -fresh[:, PRIOR])
    clean, spoiled = taught(), taught()
    for model, extra in ((clean, rows[:0]), (spoiled, rows)):
        model.add("bad", extra, np.full(len(extra), np.nan))
        more = some_rows(200, 12)
        model.add("another", more, true_seconds(more))
        assert model.refresh()
    assert np.array_equal(clean.predict(fresh), spoiled.predict(fresh))
    assert np.isfinite(spoiled.predict(fresh, "bad")).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_are_never_nan(value: float) -> None:
    rows = some_rows(60, 6)
    rows[::7] = value
    rows[3, PRIOR] = value
    model = CostModel(FEATURES)
    assert np.isfinite(model.predict(rows)).all()
    seconds = np.linspace(1.0, 2.0, 60)
    seconds[::5] = value
    model.add("a", rows, seconds)
    assert model.refresh()
    for group in (None, "a", "b"):
        assert np.isfinite(model.predict(rows, group)).all()


def test_equal_rows_teach_nothing_and_break_nothing() -> None:
    rows = np.ones((80, len(FEATURES)))
    model = CostModel(FEATURES)
    model.add("a", rows, np.ones(80))
    model.refresh()
    assert len(np.unique(model.predict(rows, "a"))) == 1


def test_no_rows_get_no_scores() -> None:
    for model in (CostModel(FEATURES), taught(2, 40)):
        model.add("task 0", np.zeros((0, len(FEATURES))), [])
        assert model.predict(np.zeros((0, len(FEATURES))), "task 0").shape == (0,)


@pytest.mark.parametrize("shape", [(4, len(FEATURES) - 1), (4, len(FEATURES) + 1), (7,), (2, 3, len(FEATURES))])
def test_rows_of_another_width_are_refused_by_name_of_the_width(shape: tuple[int, ...]) -> None:
    model = CostModel(FEATURES)
    with pytest.raises(ValueError, match=f"{len(FEATURES)} features"):
        model.predict(np.zeros(shape))
    with pytest.raises(ValueError, match=f"{len(FEATURES)} features"):
        model.add("a", np.zeros(shape), np.zeros(shape[0]))


def test_as_many_seconds_as_rows_are_needed() -> None:
    with pytest.raises(ValueError, match="3 rows of features, but 2 of seconds"):
        CostModel(FEATURES).add("a", some_rows(3), [1.0, 2.0])


def test_rows_beyond_the_cap_are_a_sample_of_every_group_and_age_with_the_best() -> None:
    model = CostModel(FEATURES, CostSettings(max_rows=100, min_rows=50))
    rows, seconds = some_rows(400, 6), 1.0 + np.random.default_rng(0).permutation(400)
    seconds[17] = 0.25
    model.add("old and small", rows[:30], seconds[:30])
    model.add("large", rows[30:350], seconds[30:350])
    model.add("new", rows[350:], seconds[350:])
    model.refresh()
    assert model.rows == 100
    held = model._held
    assert np.bincount(held.group).tolist() == [30, 35, 35]
    assert {0.25, *(seconds[30:350].min(), seconds[350:].min())} <= set(held.values.tolist())
    ages = [seconds.tolist().index(v) for v in held.values[held.group == 1].tolist()]
    assert min(ages) < 60
    assert max(ages) > 320


def test_rows_of_a_store_are_worth_what_rows_added_one_by_one_are() -> None:
    rows, fresh = some_rows(200, 6), some_rows(64, 7)
    seconds, group = true_seconds(rows), np.arange(200) % 2
    stored, told = CostModel(FEATURES), CostModel(FEATURES)
    stored.add_rows(rows.astype(np.float32), seconds, group, ["a", "b"])
    for g in range(2):
        told.add(f"group {g}", rows[group == g], seconds[group == g])
    assert stored.refresh()
    assert told.refresh()
    assert np.array_equal(stored.predict(fresh), told.predict(fresh))


def test_rows_of_a_store_are_of_the_group_that_they_are_named_after() -> None:
    rows, fresh = some_rows(200, 6), some_rows(64, 7)
    seconds, group = true_seconds(rows), np.arange(200) % 2
    stored, told = CostModel(FEATURES), CostModel(FEATURES)
    stored.add_rows(rows[:-1], seconds[:-1], group[:-1], ["a", "b"])
    stored.add("b", rows[-1:], seconds[-1:])
    for g, name in enumerate("ab"):
        told.add(name, rows[group == g], seconds[group == g])
    stored.refresh()
    told.refresh()
    assert np.array_equal(stored.predict(fresh, "b"), told.predict(fresh, "b"))
    assert not np.array_equal(stored.predict(fresh, "b"), stored.predict(fresh))


def test_the_library_is_imported_by_training_alone() -> None:
    script = (
        "import sys, numpy, stormdrop.tuning.cost_model as m; from stormdrop.space.cpu_judge import FEATURES; "
        "m.CostModel(FEATURES).predict(numpy.zeros((2, 64))); print('lightgbm' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
