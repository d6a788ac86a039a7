"""Exact p-values against plain enumeration, and what they promise about noise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from math import comb

import numpy as np
import pytest

from stormdrop.tuning.statistics import (
    UNSURE,
    gain_of_medians,
    p_faster,
    paired_speedup,
    rank_sum_p,
    relative_noise,
    signed_rank_p,
)


def mean_ranks(values: Sequence[float]) -> list[float]:
    return [sum(o < v for o in values) + (1 + sum(o == v for o in values)) / 2 for v in values]


def enumerated_rank_sum(fast: Sequence[float], slow: Sequence[float]) -> float:
    ranks = mean_ranks([*fast, *slow])
    seen = sum(ranks[: len(fast)])
    sums = [sum(s) for s in combinations(ranks, len(fast))]
    return sum(s <= seen for s in sums) / len(sums)


def enumerated_signed_rank(gains: Sequence[float]) -> float:
    some = [g for g in gains if g]
    ranks = mean_ranks([abs(g) for g in some])
    seen = sum(r for r, g in zip(ranks, some) if g > 0)
    sums = [sum(r for r, s in zip(ranks, signs) if s) for signs in product((0, 1), repeat=len(some))]
    return sum(s >= seen for s in sums) / len(sums)


@pytest.mark.parametrize("seed", range(12))
def test_rank_sums_equal_enumeration_with_and_without_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fast, slow = rng.integers(0, 6 if seed % 2 else 10**6, (2, 5)).astype(float).tolist()
    assert rank_sum_p(fast, slow) == pytest.approx(enumerated_rank_sum(fast, slow))
    assert rank_sum_p(fast, slow[:3]) == pytest.approx(enumerated_rank_sum(fast, slow[:3]))


@pytest.mark.parametrize("seed", range(12))
def test_signed_ranks_equal_enumeration_with_ties_and_zeros(seed: int) -> None:
    gains = np.random.default_rng(seed).integers(-4, 6, 9).astype(float).tolist()
    assert signed_rank_p(gains) == pytest.approx(enumerated_signed_rank(gains))


def test_textbook_values() -> None:
    assert rank_sum_p([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(1 / 252)
    assert rank_sum_p([1, 2, 3, 4, 10], [5, 6, 7, 8, 9]) == pytest.approx(0.0754, abs=5e-5)  # U = 5
    assert signed_rank_p([1, 2, 3, 4, 5, 6, 7, 8]) == pytest.approx(1 / 256)
    assert signed_rank_p([-5, 1, 2, 3, 4, 6, 7, 8]) == pytest.approx(10 / 256)  # the negative ranks sum up to 5


def test_equal_samples_are_no_evidence() -> None:
    assert p_faster([2.0] * 6, [2.0] * 6) == 1.0
    assert signed_rank_p([0.0] * 6) == 1.0
    assert rank_sum_p([], [1.0]) == 1.0


def test_six_clear_rounds_are_enough_and_five_are_not() -> None:
    """The level that the first of three challengers has at the first of three looks."""
    level = 0.05 / 2 / 3 / 3
    assert p_faster([1.0] * 6, [2.0] * 6) <= level
    assert p_faster([1.0] * 5, [2.0] * 5) > level


def test_the_slower_half_shares_one_rank() -> None:
    """One outlier of the faster side costs little, and how slow it is costs nothing."""
    fast, slow = [1.0, 1.1, 1.2, 1.3, 1.4, 9.0], [2.0, 2.1, 2.2, 2.3, 2.4, 2.5]
    assert rank_sum_p(fast, slow, 0.5) == pytest.approx(7 / comb(12, 6))
    assert rank_sum_p(fast, slow, 0.5) == rank_sum_p([*fast[:5], 2.45], slow, 0.5) < rank_sum_p(fast, slow)


def test_drift_that_hits_both_sides_does_not_hide_a_gain() -> None:
    pace = np.array([1, 3, 2, 5, 1, 4, 2, 6, 3, 1, 5, 2])
    incumbent, challenger = (pace * 1.00).tolist(), (pace * 0.97).tolist()
    assert rank_sum_p(challenger, incumbent, 0.5) > 0.05
    assert p_faster(challenger, incumbent) == pytest.approx(4 / 2**12)


@pytest.mark.parametrize("rounds", [6, 12, 18])
def test_p_values_keep_their_promise_under_heavy_tails(rounds: int) -> None:
    """Among equal candidates, p falls below a level no more often than the level says."""
    rng = np.random.default_rng(rounds)
    shape = (2000, 2, rounds)
    times = np.exp(0.05 * rng.standard_normal(shape)) * np.where(
        rng.random(shape) < 0.1, rng.uniform(3, 10, shape), 1.0
    )
    p = np.array([p_faster(a.tolist(), b.tolist()) for a, b in times])
    for level in (0.01, 0.05, 0.2):
        assert np.mean(p <= level) <= level + 3 * np.sqrt(level / len(p))


def test_gains_and_noise_ignore_outliers() -> None:
    assert gain_of_medians([0.98, 0.98, 50.0], [1.0, 1.0, 1.0]) == pytest.approx(0.02)
    assert relative_noise([1.0] * 9 + [100.0]) == 0.0
    assert relative_noise(np.random.default_rng(0).normal(5.0, 0.1, 4000).tolist()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("seed", range(20))
def test_an_interval_holds_the_ratios_that_the_signed_rank_test_does_not_refute(seed: int) -> None:
    rng = np.random.default_rng(seed)
    fast, slow = rng.lognormal(0.0, 0.1, 12), rng.lognormal(0.1, 0.1, 12)
    speedup = paired_speedup(fast.tolist(), slow.tolist())
    assert speedup.low < speedup.ratio < speedup.high
    gains = np.log(slow / fast)

    def refuted(ratio: float) -> bool:
        moved = (gains - np.log(ratio)).tolist()
        return min(signed_rank_p(moved), signed_rank_p([-g for g in moved])) <= UNSURE / 2

    assert [refuted(r) for r in (speedup.low * 0.9999, speedup.low * 1.0001)] == [True, False]
    assert [refuted(r) for r in (speedup.high * 1.0001, speedup.high * 0.9999)] == [True, False]


def test_too_few_rounds_prove_nothing() -> None:
    speedup = paired_speedup([1.0] * 5, [2.0] * 5)
    assert (speedup.ratio, speedup.low, speedup.high) == (pytest.approx(2.0), 0.0, np.inf)
    assert not speedup.is_certain
    assert paired_speedup([1.0] * 6, [2.0] * 6).is_certain
