"""The gain in the model, on times that are made up: chance, drifts and planted gains."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stormdrop.report.objective import gain_text
from stormdrop.tuning.tuned import InModel

ROUNDS = 24


def timed(gain: float, noise: float, drift: float = 0.0, seed: int = 0, heavy: bool = False) -> InModel:
    """A default model of 5 ms and a tuned one that is faster by `gain`; the machine slows down by `drift` in all."""
    rng = np.random.default_rng(seed)
    slowed = 5e-3 * (1 + drift * np.linspace(0.0, 1.0, ROUNDS))
    late = 1 + 4 * (rng.random((2, ROUNDS)) < 0.1) if heavy else np.ones((2, ROUNDS))
    tuned, default = slowed * rng.lognormal(0.0, noise, (2, ROUNDS)) * late
    tuned = tuned / (1 + gain)
    rounds = tuple(zip(tuned.tolist(), default.tolist()))
    return InModel(float(np.median(tuned)), float(np.median(default)), rounds)


@pytest.mark.parametrize(("noise", "heavy"), [(0.01, False), (0.1, False), (0.03, True)])
def test_noise_alone_is_no_measurable_change(noise: float, heavy: bool) -> None:
    changes = [timed(0.0, noise, seed=seed, heavy=heavy).change for seed in range(200)]
    assert changes.count("none") >= 184  # the error is 5 %
    assert gain_text(timed(0.0, 0.1, seed=1)).startswith("no measurable change (95 % interval 0.9")


def test_a_planted_gain_beyond_the_noise_is_shown_with_its_interval() -> None:
    faster = timed(0.05, 0.01)
    assert faster.change == "faster"
    assert faster.speedup.low < 1.05 < faster.speedup.high
    assert faster.speedup.high - faster.speedup.low < 0.02
    assert gain_text(faster) == "1.05x (95 % interval 1.05x to 1.06x, 24 rounds in turns)"
    assert timed(-0.05, 0.01).change == "slower"


def test_a_gain_below_the_noise_is_no_measurable_change() -> None:
    assert [timed(0.05, 0.3, seed=seed).change for seed in range(20)].count("none") >= 17


def test_a_drift_of_both_sides_is_neither_a_gain_nor_hides_one() -> None:
    assert timed(0.0, 0.01, drift=1.0).change == "none"
    assert timed(0.05, 0.01, drift=1.0).change == "faster"


def test_what_equal_models_differ_by_is_no_change_even_if_it_is_certain() -> None:
    almost = timed(0.003, 0.0001)
    assert almost.speedup.is_certain
    assert almost.change == "none"


def test_a_model_with_its_default_schedules_has_not_changed() -> None:
    same = InModel(5e-3, 5e-3, ((5e-3, 5e-3), (6e-3, 6e-3)) * 4)
    assert (same.change, gain_text(same)) == ("none", "no change: all schedules are the default ones")


def test_the_report_for_scripts_has_the_interval() -> None:
    tree = timed(0.05, 0.01).to_json()
    assert json.loads(json.dumps(tree, allow_nan=False)) == tree
    assert set(tree) == {"seconds", "default_seconds", "speedup", "interval", "rounds", "change"}
    assert (tree["rounds"], tree["change"]) == (ROUNDS, "faster")
    estimated = InModel(4e-3, 8e-3).to_json()
    assert (estimated["speedup"], estimated["interval"], estimated["change"]) == (2.0, None, "none")


def test_a_sum_of_models_is_tested_round_by_round() -> None:
    first, second = timed(0.05, 0.01), timed(0.0, 0.01, seed=1)
    total = InModel.total([first, second], (1.0, 3.0))
    assert total.seconds == pytest.approx(first.seconds + 3 * second.seconds)
    assert total.rounds[5][0] == pytest.approx(first.rounds[5][0] + 3 * second.rounds[5][0])
    assert total.change == "faster"
    assert 1.0 < total.speedup.ratio < 1.03
