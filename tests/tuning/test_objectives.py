"""What models' latencies come to, and its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import pytest

from stormdrop.tuning.objectives import GeometricMean, LatencyTargets, Objective, TotalLatency, WeightedLatency

LATENCIES = [2e-3, 5e-3, 30e-3]


def test_values_are_sums_excesses_and_means() -> None:
    assert TotalLatency().value(LATENCIES) == pytest.approx(37e-3)
    assert WeightedLatency((1, 3, 0.5)).value(LATENCIES) == pytest.approx(32e-3)
    assert LatencyTargets((1e-3, 9e-3, 20e-3)).value(LATENCIES) == pytest.approx(11e-3)
    assert GeometricMean().value([4e-3, 9e-3]) == pytest.approx(sqrt(36e-6))


@pytest.mark.parametrize(
    "objective",
    [TotalLatency(), WeightedLatency((1, 3, 0.5)), LatencyTargets((1e-3, 9e-3, 20e-3)), GeometricMean()],
    ids=lambda g: type(g).__name__,
)
def test_slopes_are_the_derivatives(objective: Objective) -> None:
    def moved(k: int, step: float) -> Sequence[float]:
        return [x + step * (j == k) for j, x in enumerate(LATENCIES)]

    step = 1e-8
    differences = [(objective.value(moved(k, step)) - objective.value(moved(k, -step))) / (2 * step) for k in range(3)]
    assert objective.slopes(LATENCIES) == pytest.approx(differences, rel=1e-5)


def test_a_target_that_is_met_has_no_slope() -> None:
    assert LatencyTargets((2e-3, 6e-3, 20e-3)).slopes(LATENCIES) == [0.0, 0.0, 1.0]


def test_the_mean_of_speedups_is_steepest_where_a_second_is_the_largest_share() -> None:
    slopes = GeometricMean().slopes(LATENCIES)
    assert [s * x for s, x in zip(slopes, LATENCIES)] == pytest.approx([GeometricMean().value(LATENCIES) / 3] * 3)


def test_a_model_of_which_nothing_was_timed_has_no_slope() -> None:
    assert GeometricMean().value([0.0, 1.0]) == 0.0
    assert GeometricMean().slopes([0.0, 1.0])[0] == 0.0
