"""Predicted gains as plain data: trees over differences of a judge's features, grown by `stormdrop.cost.gain_trees`.

    gain of a point over a reference = (1 - prior_share) · (sum of the trees' outputs for the difference of their rows)
                                       - prior_share · log2(estimate of the point / estimate of the reference)

Both are points of one task, the reference being its default schedule. A gain is log2 of how many times faster the point
is. Evaluating a scorer needs numpy alone, so compiling does not load the libraries that grow trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from stormdrop.errors import UserError
from stormdrop.space.features import FeatureSet

TreeNode = tuple[float] | tuple[int, float, int, int]
"""A leaf: its value. An inner node: a column of the features, a threshold, and the indices of two child nodes: for rows
whose difference is at most the threshold, and for other rows."""
MOST_NODES = 1 << 12
MOST_TREES = 1 << 12
LARGE = 1e30


@dataclass(frozen=True)
class Scorer:
    """Trees as lists of nodes, a parent before its children, and the share of the estimate in a prediction."""

    trees: tuple[tuple[TreeNode, ...], ...]
    prior_share: float

    def gains(self, rows: NDArray[Any], reference: NDArray[Any], features: FeatureSet) -> NDArray[np.float64]:
        """For each row of features, the predicted gain of its point over the one whose features are `reference`."""
        differences = differences_from(rows, reference)
        prior = -differences[:, features.index("prior")].astype(np.float64)
        return (1.0 - self.prior_share) * self._outputs(differences) + self.prior_share * prior

    @cached_property
    def _tables(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The trees as arrays, by tree and node: the threshold or a leaf's value; and the column and both children. A
        leaf is its own child, so that rows that have arrived stay there.
        """
        size = max((len(tree) for tree in self.trees), default=1)
        numbers, places = np.zeros((len(self.trees), size)), np.zeros((len(self.trees), size, 3), np.int64)
        for t, tree in enumerate(self.trees):
            for k, node in enumerate(tree):
                numbers[t, k] = node[0] if len(node) == 1 else node[1]
                places[t, k] = (0, k, k) if len(node) == 1 else (node[0], node[2], node[3])
        return numbers, places

    def _outputs(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """The sum of the trees' outputs for each row. All rows descend all trees by one level per iteration."""
        numbers, places = self._tables
        tree, row = np.arange(len(self.trees))[:, None], np.arange(len(rows))[None, :]
        at = np.zeros((len(self.trees), len(rows)), np.int64)
        while True:
            column, lower, upper = np.moveaxis(places[tree, at], -1, 0)
            child = np.where(rows[row, column] <= numbers[tree, at], lower, upper)
            if np.array_equal(child, at):
                return numbers[tree, at].sum(axis=0)
            at = child

    def to_json(self) -> dict[str, object]:
        return {"prior_share": self.prior_share, "trees": [[list(node) for node in tree] for tree in self.trees]}

    @staticmethod
    def from_json(data: Any, features: FeatureSet) -> Scorer:
        """The inverse of `to_json`. Raises UserError for anything else, and for columns that `features` lacks."""
        try:
            share, trees = float(data["prior_share"]), tuple(_tree(tree, features) for tree in data["trees"])
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"not a scorer: {error!r}") from error
        if not 0.0 <= share <= 1.0 or not 0 < len(trees) <= MOST_TREES:
            raise UserError(f"not a scorer: {len(trees)} trees, a prior's share of {share}")
        return Scorer(trees, share)


def differences_from(rows: NDArray[Any], reference: NDArray[Any]) -> NDArray[np.float32]:
    """What sets points apart from the reference, feature by feature: logarithms of ratios."""
    with np.errstate(invalid="ignore"):
        differences = np.asarray(rows, np.float32) - np.asarray(reference, np.float32)
    return np.nan_to_num(differences, nan=0.0, posinf=LARGE, neginf=-LARGE)


def _tree(data: Any, features: FeatureSet) -> tuple[TreeNode, ...]:
    """The nodes of one tree. Raises ValueError for children that do not exist or do not come after their parent."""
    nodes = cast(Sequence[Any], data)
    if not 0 < len(nodes) <= MOST_NODES:
        raise ValueError(f"a tree of {len(nodes)} nodes")
    found: list[TreeNode] = []
    for k, node in enumerate(nodes):
        match node:
            case [value] if isfinite(value):
                found.append((float(value),))
            case [int(column), threshold, int(lower), int(upper)] if (
                isfinite(threshold)
                and 0 <= column < len(features)
                and k < min(lower, upper)
                and max(lower, upper) < len(nodes)
            ):
                found.append((column, float(threshold), lower, upper))
            case _:
                raise ValueError(f"node {k} of a tree is {node!r:.60}")
    return tuple(found)
