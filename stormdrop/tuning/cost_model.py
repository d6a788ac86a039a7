"""The learned cost model: trees over a point's features predict its speed relative to the best point of its task.

A label is best / seconds within one group (a task at one temperature), in (0, 1], and 0 for a candidate that failed.
The trees learn log2 of the label. A score is the sum of the available terms; only scores of one group may be compared:

    - log2 prior                                                          nothing was learned yet
    (1 - prior_share) · shared trees  -  prior_share · log2 prior         with rows of other groups
    … + own trees                                                     with rows of the group: the residual of the above

The model is a function of its rows, in any order, and of its settings. Calls come one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stormdrop.space.features import FeatureSet, widened
from stormdrop.store.training import sampled

if TYPE_CHECKING:
    from lightgbm import Booster

PRIOR_ALONE = 0.5
"""The weight of the prior under own trees without shared trees; at 1, the trees must unlearn the prior's exaggerations.
"""
FLOOR = -3.0
"""Eight times slower than the best is as bad as it gets, so that a disturbed measurement does not bend the trees."""
FAILED = FLOOR - 1.0
FAILED_WEIGHT = 0.3
LEAST_WEIGHT = 0.05
"""The least weight of a row. Rows weigh as much as their label, since fast candidates must be distinguished; slow rows
count a little.
"""
LARGE = 1e30
"""The stand-in for infinities, which neither rows nor scores may have."""
BINS = 63
THREADS = 1  # more do not pay below tens of thousands of rows, and on a busy machine they wait for each other


@dataclass(frozen=True, slots=True)
class CostSettings:
    """Parameters of the growth of trees, and the conditions for new trees."""

    trees: int = 80
    leaves: int = 12
    learning_rate: float = 0.1
    min_rows: int = 48
    """The rows before the first training of the shared trees. Shared trees also need so many rows of other groups to be
    of use to a group.
    """
    own_rows: int = 16
    """Before the first training of a group's own trees."""
    growth: float = 0.2
    """Trees are grown anew when their rows have become more by this share."""
    max_rows: int = 20_000
    """The most rows that are kept: beyond it, a sample of all groups, similar to the store's sample."""
    prior_share: float = 0.3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Rows:
    """Parallel arrays, in the order in which they came."""

    features: NDArray[np.float32]
    values: NDArray[np.float64]
    group: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, which: NDArray[Any]) -> _Rows:
        return _Rows(self.features[which], self.values[which], self.group[which])


@dataclass(frozen=True, slots=True)
class _Shared:
    """Trees over all groups."""

    trees: Booster
    rows: int
    learned: dict[int, int]
    """Rows of each group."""

    def foreign(self, group: int | None) -> int:
        return sum(n for g, n in self.learned.items() if g != group)


class CostModel:
    """A learned model: `add` collects rows, `refresh` learns from them, `predict` returns scores, higher is better."""

    def __init__(self, features: FeatureSet, settings: CostSettings | None = None) -> None:
        self.settings = settings or CostSettings()
        self._features, self._width, self._prior = features, len(features), features.index("prior")
        self._held = _Rows(np.zeros((0, self._width), np.float32), np.zeros(0), np.zeros(0, np.int64))
        self._pieces: list[_Rows] = []  # added since
        self._number: dict[str, int] = {}
        self._best: dict[int, float] = {}  # of the groups where something could be timed
        self._added: dict[int, int] = {}  # rows of each group, also rows that are no longer held
        self._touched: set[int] = set()
        self._shared: _Shared | None = None
        self._own_rows: dict[int, int] = {}  # of the groups that have trees of their own, when these were due
        self._own_trees: dict[int, Booster] = {}  # grown by the next `predict` of the group

    @property
    def rows(self) -> int:
        """The number of rows held."""
        return len(self._held) + sum(map(len, self._pieces))

    def add(self, group: str, features: ArrayLike, seconds: ArrayLike) -> None:
        """Adds rows of one group: measured values, NaN for a failure; any value that is minimised is accepted.

        Raises ValueError if the width differs from the width of the features, or if there are not as many seconds as
        rows.
        """
        rows = self._matrix(features)
        self.add_rows(rows, seconds, np.zeros(len(rows), np.int64), [group])
        self._touched.add(self._number[group])

    def add_rows(self, features: ArrayLike, seconds: ArrayLike, group: ArrayLike, names: Sequence[str]) -> None:
        """Adds rows of many groups, oldest first: row k is of the group `names[group[k]]`. Raises as `add`."""
        rows, places = self._matrix(features), np.asarray(group, dtype=np.int64)
        values = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
        if not len(rows) == len(values) == len(places):
            raise ValueError(f"{len(rows)} rows of features, but {len(values)} of seconds and {len(places)} of groups")
        values = np.where(np.isfinite(values), values, np.nan)
        numbers = np.array([self._number.setdefault(name, len(self._number)) for name in names], np.int64)[places]
        for g, value in zip(numbers.tolist(), values.tolist()):
            self._added[g] = self._added.get(g, 0) + 1
            if value <= self._best.get(g, value):
                self._best[g] = value
        self._pieces.append(_Rows(np.nan_to_num(rows.astype(np.float32), posinf=LARGE, neginf=-LARGE), values, numbers))

    def refresh(self) -> bool:
        """Replaces trees whose rows have grown enough; returns whether there were any."""
        settings, due = self.settings, False
        added = sum(self._added.values())
        if self._best and _is_due(added, self._shared.rows if self._shared else 0, settings.min_rows, settings.growth):
            self._shared = self._grow_shared(added)
            self._own_trees.clear()
            due = True
        for g in self._touched & self._best.keys():
            if _is_due(self._added[g], self._own_rows.get(g, 0), settings.own_rows, settings.growth):
                self._own_rows[g] = self._added[g]
                self._own_trees.pop(g, None)
                due = True
        self._touched.clear()
        return due

    def predict(self, features: ArrayLike, group: str | None = None) -> NDArray[np.float64]:
        """Returns a score for every row, higher is better, never NaN. `group` None is a task without measurements."""
        rows = self._matrix(features)
        number = None if group is None else self._number.get(group)
        scores = -rows[:, self._prior].astype(np.float64)
        own = self._own_for(number)
        shared = self._shared_for(number)
        if len(rows) and (own or shared):
            wide = self._widened(rows)
            scores = self._base(scores, wide, shared)
            if own:
                scores += self._output(own, wide)
        return np.nan_to_num(scores, nan=-LARGE, posinf=LARGE, neginf=-LARGE)

    def _base(
        self, prior: NDArray[np.float64], wide: NDArray[np.float32], shared: Booster | None
    ) -> NDArray[np.float64]:
        """Returns the scores that own trees start from; `prior` is a score."""
        if shared is None:
            return PRIOR_ALONE * prior
        share = self.settings.prior_share
        return (1.0 - share) * self._output(shared, wide) + share * prior

    def _shared_for(self, group: int | None) -> Booster | None:
        """Returns the shared trees, or None if they have hardly any rows but the group's.

        Such shared trees would leave nothing for the group's own trees.
        """
        shared = self._shared
        if shared is None or (group in self._own_rows and shared.foreign(group) < self.settings.min_rows):
            return None
        return shared.trees

    def _own_for(self, group: int | None) -> Booster | None:
        if group is None or group not in self._own_rows:
            return None
        if group not in self._own_trees:
            self._own_trees[group] = self._grow_own(group)
        return self._own_trees[group]

    # ---- growing ---------------------------------------------------------------------------------------------------

    def _grow_shared(self, added: int) -> _Shared:
        rows = self._gathered()
        rows = rows[np.isin(rows.group, list(self._best))]  # where all failed, nothing is known of how to do better
        settings, least = self.settings, min(20, max(4, len(rows) // 50))
        trees = self._grow(rows, None, settings.trees, settings.leaves, least, bagging=0.7)
        counts = np.unique(rows.group, return_counts=True)
        return _Shared(trees, added, dict(zip(*(a.tolist() for a in counts))))

    def _grow_own(self, group: int) -> Booster:
        """Grows trees over the residual of the base; their number and size follow the number of rows."""
        rows = self._gathered()
        rows = rows[rows.group == group]
        n, settings = len(rows), self.settings
        target, weight = self._targets(rows)
        prior = -rows.features[:, self._prior].astype(np.float64)
        base = self._base(prior, self._widened(rows.features), self._shared_for(group))
        base += np.average(target - base, weights=weight)
        trees, leaves = min(settings.trees, max(15, n // 2)), min(settings.leaves, max(4, n // 10))
        return self._grow(rows, base, trees, leaves, 4)

    def _targets(self, rows: _Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns log2 labels and weights."""
        label = self._labels(rows)
        target = np.where(label > 0.0, np.log2(np.maximum(label, 2.0**FLOOR)), FAILED)
        return target, np.where(label > 0.0, label + LEAST_WEIGHT, FAILED_WEIGHT)

    def _labels(self, rows: _Rows) -> NDArray[np.float64]:
        """Returns best / value, 0 for a failure; the formula also holds for negative objectives."""
        best = np.array([self._best.get(g, np.nan) for g in rows.group.tolist()])
        return np.nan_to_num(1.0 / (1.0 + (rows.values - best) / np.maximum(np.abs(best), 1.0 / LARGE)))

    def _grow(
        self, rows: _Rows, base: NDArray[np.float64] | None, trees: int, leaves: int, least: int, bagging: float = 1.0
    ) -> Booster:
        """Grows trees that start from `base`, with a least number of rows in a leaf."""
        import lightgbm  # some 0.2 s, and only learning needs it

        parameters = {
            "objective": "regression",
            "learning_rate": self.settings.learning_rate,
            "num_leaves": leaves,
            "min_data_in_leaf": least,
            "max_bin": BINS,
            "feature_fraction": 0.3,
            "bagging_fraction": bagging,
            "bagging_freq": int(bagging < 1.0),
            "num_threads": THREADS,
            "seed": self.settings.seed,
            "deterministic": True,
            "force_col_wise": True,
            "verbosity": -1,
        }
        target, weight = self._targets(rows)
        mix = np.random.default_rng(0).random(self._width)
        # Bagging must not depend on the order of arrival.
        order = np.lexsort((target, (rows.features.astype(np.float64) * mix).sum(axis=1)))
        data = lightgbm.Dataset(
            self._widened(rows.features[order]),
            target[order],
            weight=weight[order],
            init_score=None if base is None else base[order],
            params=parameters,
        )
        return lightgbm.train(parameters, data, trees)

    def _output(self, trees: Booster, wide: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(trees.predict(wide, raw_score=True, num_threads=THREADS), dtype=np.float64)

    def _gathered(self) -> _Rows:
        """Returns all rows held, at most `max_rows`: of each group its fastest, and rows of all ages."""
        pieces, most = [self._held, *self._pieces], self.settings.max_rows
        rows = _Rows(*(np.concatenate(a) for a in zip(*((p.features, p.values, p.group) for p in pieces))))
        if len(rows) > most:
            rows = rows[sampled(rows.group, rows.values, most)]
        self._held, self._pieces = rows, []
        return rows

    def _matrix(self, features: ArrayLike) -> NDArray[Any]:
        rows = np.atleast_2d(np.asarray(features))
        if rows.ndim != 2 or (rows.shape[1] != self._width and len(rows)):
            raise ValueError(f"rows of {self._width} features are needed, not an array of shape {rows.shape}")
        return rows if len(rows) else np.zeros((0, self._width))

    def _widened(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        return widened(rows, self._features)


def _is_due(rows: int, before: int, least: int, growth: float) -> bool:
    return rows >= max(1, least) if before == 0 else rows >= before * (1.0 + growth)


class Featured(Protocol):
    """Points of one sketch."""

    def features(self, points: NDArray[np.int64]) -> NDArray[np.float64]: ...


class ModelRanker:
    """A search's ranker: scores may be compared across sketches. `group` names the task's rows in the model."""

    def __init__(self, spaces: Sequence[Featured], model: CostModel, group: str | None = None) -> None:
        self._spaces, self._model, self._group = spaces, model, group

    def score(self, sketch: int, points: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._model.predict(self._spaces[sketch].features(points), self._group)
