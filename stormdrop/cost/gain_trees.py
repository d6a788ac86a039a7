"""Growing the trees of a `Scorer`: what makes a point of a task faster than the task's default schedule.

A row is the difference of the features of a point and of the default of its task, log2 of ratios all of them; its label
is log2 of how many times faster the point is. Trees over differences know nothing of a task but what sets its points
apart, so that they say of a task that nobody measured what holds for others. Of ten models held out in turn, they found
6 % (AVX2) and 17 % (AVX-512) of the gain of search, on hardware (`python -m benchmarks.reuse zero`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.cost.model import BINS, THREADS
from stormdrop.space.scorer import Scorer, TreeNode

TREES, LEAVES, LEARNING_RATE, LEAF_ROWS = 120, 12, 0.08, 20
PRIOR_SHARE = 0.1
"""Of the estimate in a prediction. Without it the more donors there are to choose from, the worse the choice."""
LARGEST = 1.0
"""Two times faster, or slower, is as far as a label goes: disturbed measurements must not bend the trees."""
LEAST_ROWS = 48

Floats = NDArray[np.float64]


def grown(differences: NDArray[Any], gains: Floats) -> Scorer | None:
    """A scorer that predicts `gains`, log2, from rows of `differences`; None where there are too few."""
    if len(gains) < LEAST_ROWS:
        return None
    import lightgbm  # some 0.2 s, and only who learns needs it

    parameters = {
        "objective": "regression",
        "learning_rate": LEARNING_RATE,
        "num_leaves": LEAVES,
        "min_data_in_leaf": min(LEAF_ROWS, max(4, len(gains) // 50)),
        "max_bin": BINS,
        "extra_trees": True,
        "feature_fraction": 0.8,
        "bagging_fraction": 0.7,
        "bagging_freq": 1,
        "num_threads": THREADS,
        "seed": 0,
        "deterministic": True,
        "force_col_wise": True,
        "verbosity": -1,
    }
    labels = np.clip(gains, -LARGEST, LARGEST)
    weights = 4.0**labels  # the square of the gain: what is fast must be told apart
    data = lightgbm.Dataset(differences.astype(np.float32), labels, weight=weights, params=parameters)
    booster = lightgbm.train(parameters, data, TREES)
    dumped = booster.dump_model()["tree_info"]
    return Scorer(tuple(_flat(tree["tree_structure"]) for tree in dumped), PRIOR_SHARE)


def _flat(root: Mapping[str, Any]) -> tuple[TreeNode, ...]:
    """The nodes of one of LightGBM's trees, a parent before its children."""
    order = [root]
    for node in order:
        if "leaf_value" not in node:
            order += [node["left_child"], node["right_child"]]
    place = {id(node): k for k, node in enumerate(order)}
    return tuple(
        (float(node["leaf_value"]),)
        if "leaf_value" in node
        else (
            int(node["split_feature"]),
            float(node["threshold"]),
            place[id(node["left_child"])],
            place[id(node["right_child"])],
        )
        for node in order
    )
