"""A scorer: the cost model's shared trees as data, evaluated without what grew them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stormdrop.cost.model import CostModel, CostSettings
from stormdrop.errors import UserError
from stormdrop.space.cpu_features import FEATURES
from stormdrop.space.scorer import Scorer


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).random((200, len(FEATURES))).astype(np.float32) * 8


@pytest.fixture(scope="module")
def model(rows: np.ndarray) -> CostModel:
    model = CostModel(FEATURES, CostSettings(trees=12))
    model.add_rows(rows, 1e-3 * (1 + rows[:, 3] + rows[:, 5] * rows[:, 7]), np.arange(200) % 4, ["a", "b", "c", "d"])
    model.refresh()
    return model


def test_a_scorer_predicts_what_the_cost_model_does_for_an_unknown_task(model: CostModel, rows: np.ndarray) -> None:
    scorer = model.scorer()
    assert scorer is not None
    np.testing.assert_allclose(scorer.scores(rows, FEATURES), model.predict(rows), rtol=0, atol=1e-12)


def test_a_scorer_goes_through_json(model: CostModel) -> None:
    scorer = model.scorer()
    assert scorer is not None
    assert Scorer.from_json(json.loads(json.dumps(scorer.to_json())), FEATURES) == scorer


def test_a_model_that_learned_nothing_has_no_scorer() -> None:
    assert CostModel(FEATURES).scorer() is None


@pytest.mark.parametrize(
    "trees",
    [
        [],
        [[]],
        [[[0, 1.0, 0, 1], [0.5]]],  # leads back to itself
        [[[0, 1.0, 1, 2], [0.5]]],  # leads nowhere
        [[[FEATURES.width, 1.0, 1, 2], [0.5], [0.5]]],  # there is no such column
        [[[0, float("nan"), 1, 2], [0.5], [0.5]]],
        [[["x"]]],
        "trees",
    ],
)
def test_what_is_no_forest_is_refused(trees: object) -> None:
    with pytest.raises(UserError, match="not a scorer"):
        Scorer.from_json({"prior_share": 0.3, "trees": trees}, FEATURES)
