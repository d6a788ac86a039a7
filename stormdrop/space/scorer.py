"""A learned score of points as plain data: trees over a judge's features, grown by `stormdrop.cost.model`.

    score = (1 - prior_share) · (sum of the trees' outputs)  -  prior_share · log2(estimate)

Higher is faster: for two points of one task, the difference of scores predicts log2 of how many times faster the first
one is. Evaluating a scorer needs numpy alone, so compiling does not load the libraries that grow trees.
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
from stormdrop.space.features import FeatureSet, widened

TreeNode = tuple[float] | tuple[int, float, int, int]
"""A leaf: its value. An inner node: a column of the features, a threshold, and the indices of two child nodes: for rows
whose feature is at most the threshold, and for other rows."""
MOST_NODES = 1 << 12
MOST_TREES = 1 << 12


@dataclass(frozen=True)
class Scorer:
    """Trees as lists of nodes, a parent before its children, and the share of the estimate in a score."""

    trees: tuple[tuple[TreeNode, ...], ...]
    prior_share: float

    def scores(self, rows: NDArray[Any], features: FeatureSet) -> NDArray[np.float64]:
        """One score for each row of features. Only scores of one task may be compared."""
        prior = -rows[:, features.index("prior")].astype(np.float64)
        grown = self._outputs(widened(rows, features))
        return (1.0 - self.prior_share) * grown + self.prior_share * prior

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

    def _outputs(self, wide: NDArray[np.float32]) -> NDArray[np.float64]:
        """The sum of the trees' outputs for each row. All rows descend all trees by one level per iteration."""
        numbers, places = self._tables
        tree, row = np.arange(len(self.trees))[:, None], np.arange(len(wide))[None, :]
        at = np.zeros((len(self.trees), len(wide)), np.int64)
        while True:
            column, lower, upper = np.moveaxis(places[tree, at], -1, 0)
            child = np.where(wide[row, column] <= numbers[tree, at], lower, upper)
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
                and 0 <= column < features.width
                and k < min(lower, upper)
                and max(lower, upper) < len(nodes)
            ):
                found.append((column, float(threshold), lower, upper))
            case _:
                raise ValueError(f"node {k} of a tree is {node!r:.60}")
    return tuple(found)
