"""Trees of gains: what they learn from differences holds for tasks that they have not seen."""

from __future__ import annotations

import numpy as np

from stormdrop.cost.gain_trees import LEAST_ROWS, grown
from stormdrop.space.cpu_features import FEATURES
from stormdrop.space.scorer import differences_from


def test_gains_of_an_unknown_task_are_predicted_in_order() -> None:
    rng = np.random.default_rng(0)
    differences = rng.normal(size=(2000, len(FEATURES))).astype(np.float32)
    gains = 0.3 * np.tanh(differences[:, 4]) - 0.2 * (differences[:, 9] > 0.5)
    scorer = grown(differences, gains + rng.normal(scale=0.05, size=len(gains)))
    assert scorer is not None
    reference = rng.normal(size=len(FEATURES)) * 10  # a task like no other
    rows = reference + rng.normal(size=(300, len(FEATURES)))
    rows[:, FEATURES.index("prior")] = reference[FEATURES.index("prior")]  # the estimate sees no difference
    fresh = differences_from(rows, reference)
    true = 0.3 * np.tanh(fresh[:, 4]) - 0.2 * (fresh[:, 9] > 0.5)
    assert np.corrcoef(scorer.gains(rows, reference, FEATURES), true)[0, 1] > 0.9


def test_trees_are_a_function_of_their_rows() -> None:
    rng = np.random.default_rng(1)
    differences, gains = rng.normal(size=(100, len(FEATURES))), rng.normal(size=100)
    assert grown(differences, gains) == grown(differences, gains)


def test_a_few_rows_teach_nothing() -> None:
    assert grown(np.zeros((LEAST_ROWS - 1, len(FEATURES))), np.zeros(LEAST_ROWS - 1)) is None
