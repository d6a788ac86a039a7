"""Which rows the cost model learns from."""

from __future__ import annotations

import numpy as np

from stormdrop.store.training import quotas, sampled


def test_small_groups_give_everything_and_large_ones_the_same() -> None:
    assert quotas(np.array([100, 3, 50, 10]), 50).tolist() == [19, 3, 18, 10]
    assert quotas(np.array([5, 4]), 100).tolist() == [5, 4]
    assert quotas(np.array([9, 9, 9]), 2).sum() == 2
    assert quotas(np.array([], np.int64), 5).tolist() == []


def test_a_sample_has_the_fastest_of_every_group_and_all_ages() -> None:
    rng = np.random.default_rng(0)
    group = rng.choice([4, 7, 9], size=3000, p=[0.9, 0.09, 0.01])
    seconds = rng.uniform(1, 2, 3000)
    seconds[rng.random(3000) < 0.1] = np.nan
    chosen = sampled(group, seconds, 300)
    assert len(set(chosen.tolist())) == len(chosen) == 300
    assert chosen.tolist() == sorted(chosen)
    sizes = np.array([(group == g).sum() for g in (4, 7, 9)])
    assert [(group[chosen] == g).sum() for g in (4, 7, 9)] == quotas(sizes, 300).tolist()
    for g in (4, 7, 9):
        rows = np.flatnonzero(group == g)
        assert rows[np.nanargmin(seconds[rows])] in chosen
        assert np.abs(np.median(chosen[group[chosen] == g]) - np.median(rows)) < 100


def test_a_group_that_always_failed_is_sampled_too() -> None:
    assert len(sampled(np.zeros(50, np.int64), np.full(50, np.nan), 10)) == 10


def test_few_rows_are_all_taken() -> None:
    assert sampled(np.array([1, 2, 1]), np.array([1.0, np.nan, 2.0]), 3).tolist() == [0, 1, 2]
