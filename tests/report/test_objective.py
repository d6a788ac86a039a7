"""What the report says of the objective: inside the models where these were timed, else as estimated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stormdrop.report.objective import objective_json, objective_rows, target_of, target_rows
from stormdrop.tuning.objectives import GeometricMean, LatencyTargets, TotalLatency, WeightedLatency
from stormdrop.tuning.tuned import InModel
from tests.report.test_model_progress import tuned

ALONE = tuned()  # 14.1 ms estimated, 17.1 ms by default
FIRST = replace(ALONE, in_model=InModel(20e-3, 40e-3))
SECOND = replace(ALONE, in_model=InModel(4e-3, 32e-3))


def test_a_target_that_only_kernels_alone_meet_is_missed() -> None:
    goal = LatencyTargets((15e-3, 5e-3))
    assert target_rows(target_of(goal, 0), FIRST) == [("target", "15.0 ms, missed: 20.0 ms in the model")]
    assert target_rows(target_of(goal, 1), SECOND) == [("target", "5.00 ms, met: 4.00 ms in the model")]
    assert target_rows(target_of(goal, 0), ALONE) == [("target", "15.0 ms, met: 14.1 ms estimated")]
    assert target_rows(target_of(TotalLatency(), 0), FIRST) == []
    assert objective_rows(goal, [FIRST, SECOND]) == [("objective", "2 latency targets, 1 met, in the model")]
    assert objective_json(goal, [FIRST, SECOND]) == {
        "name": "targets",
        "value": pytest.approx(5e-3),
        "targets": [15e-3, 5e-3],
        "met": [False, True],
    }


def test_the_value_of_the_objective_is_told() -> None:
    both = [FIRST, SECOND]
    assert objective_rows(GeometricMean(), both) == [("objective", "speedup 4.00x, the geometric mean, in the model")]
    assert objective_rows(TotalLatency(), both) == [("objective", "latency 24.0 ms (untuned: 72.0 ms), in the model")]
    assert objective_rows(TotalLatency(), [ALONE]) == [("objective", "latency 14.1 ms (untuned: 17.1 ms), estimated")]
    assert objective_json(GeometricMean(), both) == {"name": "speedup", "value": pytest.approx(4.0)}
    assert objective_json(TotalLatency(), both) == {"name": "latency", "value": pytest.approx(24e-3)}


def test_the_gain_of_a_weighted_sum_has_an_interval() -> None:
    gaining = replace(ALONE, in_model=InModel(20e-3, 40e-3, ((20e-3, 40e-3), (21e-3, 42e-3)) * 4))
    same = replace(ALONE, in_model=InModel(4e-3, 4e-3, ((4e-3, 4e-3), (5e-3, 5e-3)) * 4))
    goal = WeightedLatency((1.0, 5.0))
    ((name, text),) = objective_rows(goal, [gaining, same])
    assert (name, text.partition(" (95 %")[0]) == (
        "objective",
        "latency weighted 1, 5 40.0 ms (untuned: 60.0 ms), 1.48x",
    )
    tree = objective_json(goal, [gaining, same])
    assert (tree["weights"], tree["value"], tree["change"]) == ([1.0, 5.0], pytest.approx(40e-3), "faster")
