"""What more search is expected to gain."""

from __future__ import annotations

from dataclasses import replace
from math import log2

import pytest

from stormdrop.tuning.divide import DOUBT, KEPT, Round, Standing, expected_gains

FALLING = Standing(2.0, 7.0, [Round(1.0, 10.0), Round(2.0, 8.0), Round(3.0, 8.0), Round(4.0, 7.0)], is_open=True)
STALLED = replace(FALLING, best=10.0, history=[Round(k + 1.0, 10.0) for k in range(4)])


def test_one_task_gains_with_the_logarithm_of_the_seconds() -> None:
    per_doubling = 2.0 * (KEPT * (8.0 - 7.0) + DOUBT * 7.0 / 4)
    assert expected_gains([FALLING], 4.0) == pytest.approx([per_doubling])
    assert expected_gains([FALLING], 60.0) == pytest.approx([per_doubling * log2(16)])


def test_a_stalled_task_is_expected_to_gain_a_little() -> None:
    assert expected_gains([STALLED], 4.0) == pytest.approx([2.0 * DOUBT * 10.0 / 4])
    known = replace(STALLED, known_rounds=6.0)
    assert expected_gains([known], 4.0) == pytest.approx([2.0 * DOUBT * 10.0 / 10])


def test_seconds_are_divided_so_that_they_gain_most() -> None:
    tasks = [FALLING, replace(FALLING, slope=1.0), STALLED]
    best = sum(expected_gains(tasks, 30.0))

    def gained(shares: tuple[float, ...]) -> float:
        return sum(sum(expected_gains([t], 30.0 * share)) for t, share in zip(tasks, shares) if share)

    grid = [(a / 20, b / 20, (20 - a - b) / 20) for a in range(21) for b in range(21 - a)]
    assert max(map(gained, grid)) <= best * (1 + 1e-9)
    assert max(map(gained, grid)) > 0.99 * best


def test_nobody_gains_beyond_the_floor_and_closed_tasks_gain_nothing() -> None:
    tasks = [replace(FALLING, floor=6.9), replace(FALLING, floor=7.5), replace(FALLING, is_open=False)]
    assert expected_gains(tasks, 1e6) == pytest.approx([0.2, 0.0, 0.0])
    assert expected_gains([], 60.0) == []


def test_a_goal_that_is_met_leaves_nothing_to_gain() -> None:
    assert expected_gains([replace(FALLING, slope=0.0)], 60.0) == [0.0]


def test_a_first_gain_costs_the_seconds_of_its_proof() -> None:
    costly = replace(FALLING, proof_seconds=20.0)
    assert expected_gains([costly], 60.0) == pytest.approx(expected_gains([FALLING], 40.0))
    assert expected_gains([costly], 20.0) == [0.0]
    alone = expected_gains([FALLING], 24.0)
    assert expected_gains([FALLING, replace(STALLED, proof_seconds=20.0)], 24.0) == pytest.approx([*alone, 0.0])


def test_a_best_that_was_corrected_upwards_has_gained_nothing() -> None:
    unlucky = replace(STALLED, best=12.0)
    assert expected_gains([unlucky], 4.0) == pytest.approx([2.0 * DOUBT * 12.0 / 4])
