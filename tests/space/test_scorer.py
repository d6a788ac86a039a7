"""A scorer: predicted gains over a reference, from trees as data, evaluated without what grew them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from stormdrop.errors import UserError
from stormdrop.space.cpu_features import FEATURES
from stormdrop.space.scorer import Scorer

PRIOR = FEATURES.index("prior")
COLUMN = (PRIOR + 1) % len(FEATURES)
SPLIT = Scorer((((COLUMN, 0.5, 1, 2), (-1.0,), (1.0,)), ((0.25,),)), 0.2)
"""Faster where one feature is more than half a unit above the reference's."""


def rows_with(**values: float) -> np.ndarray:
    rows = np.zeros((1, len(FEATURES)), np.float32)
    rows[0, PRIOR], rows[0, COLUMN] = values.get("prior", 0.0), values.get("column", 0.0)
    return rows


def test_a_gain_is_of_the_difference_from_the_reference() -> None:
    reference = rows_with(prior=-10.0, column=7.0)[0]
    slower, faster = rows_with(prior=-10.0, column=7.5), rows_with(prior=-10.0, column=7.6)
    assert SPLIT.gains(slower, reference, FEATURES) == pytest.approx(0.8 * (-1.0 + 0.25))
    assert SPLIT.gains(faster, reference, FEATURES) == pytest.approx(0.8 * (1.0 + 0.25))
    assert SPLIT.gains(faster, faster[0], FEATURES) == pytest.approx(0.8 * (-1.0 + 0.25))


def test_the_estimate_has_its_share_of_a_gain() -> None:
    reference = rows_with(prior=-10.0)[0]
    found = SPLIT.gains(rows_with(prior=-13.0), reference, FEATURES) - SPLIT.gains(reference[None], reference, FEATURES)
    assert found == pytest.approx(0.2 * 3)


def test_features_that_are_not_finite_predict_something_finite() -> None:
    rows = rows_with(prior=-10.0, column=np.inf)
    assert np.isfinite(SPLIT.gains(rows, rows[0], FEATURES)).all()


def test_a_scorer_goes_through_json() -> None:
    assert Scorer.from_json(json.loads(json.dumps(SPLIT.to_json())), FEATURES) == SPLIT


@pytest.mark.parametrize(
    "trees",
    [
        [],
        [[]],
        [[[0, 1.0, 0, 1], [0.5]]],  # leads back to itself
        [[[0, 1.0, 1, 2], [0.5]]],  # leads nowhere
        [[[len(FEATURES), 1.0, 1, 2], [0.5], [0.5]]],  # there is no such column
        [[[0, float("nan"), 1, 2], [0.5], [0.5]]],
        [[["x"]]],
        "trees",
    ],
)
def test_what_is_no_forest_is_refused(trees: object) -> None:
    with pytest.raises(UserError, match="not a scorer"):
        Scorer.from_json({"prior_share": 0.3, "trees": trees}, FEATURES)
