"""Rankers on real sketches: nothing is built, nothing is timed."""

from __future__ import annotations

import numpy as np

from stormdrop.device.host import detect
from stormdrop.operators.catalogue import build
from stormdrop.space.cpu_judge import FEATURES
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.tuning.cost_model import CostModel, ModelRanker
from tests.support.synthetic import PriorRanker


def some_sketches() -> list[Sketch]:
    return sketches(build("C2D", [1, 14, 14, 16, 32, 3, 1, 1]), detect(2))[:2]


def test_before_it_has_learned_the_model_ranks_across_sketches_as_the_prior_does() -> None:
    spaces, rng = some_sketches(), np.random.default_rng(0)
    ranker, prior = ModelRanker(spaces, CostModel(FEATURES), "conv"), PriorRanker(spaces)
    points = [s.sample_legal(100, rng) for s in spaces]
    ours = np.concatenate([ranker.score(k, p) for k, p in enumerate(points)])
    theirs = np.concatenate([prior.score(k, p) for k, p in enumerate(points)])
    assert np.array_equal(np.argsort(ours, kind="stable"), np.argsort(theirs, kind="stable"))


def test_one_model_learns_which_sketch_is_faster() -> None:
    spaces, rng = some_sketches(), np.random.default_rng(0)
    model = CostModel(FEATURES)
    points = [s.sample_legal(200, rng) for s in spaces]
    for k, (space, rows) in enumerate(zip(spaces, points)):
        model.add("conv", space.features(rows[:100]), np.exp2(4.0 * k - rows[:100, 0] / 100.0))
    model.refresh()
    ranker = ModelRanker(spaces, model, "conv")
    first, second = (ranker.score(k, p[100:]) for k, p in enumerate(points))
    assert np.median(first) > np.quantile(second, 0.9)
