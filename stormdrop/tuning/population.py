"""The rows of one sketch in a storm: a pool of unproposed rows, the measured elite, and the proposed rows.

A pool holds canonical, legal rows, each once, the best first; none of them was ever proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stormdrop.tuning.evolve import Codes, Genome, Hasher, Hashes
from stormdrop.tuning.strategy import Points, Space

Floats = NDArray[np.float64]


@dataclass(slots=True)
class CandidatePool:
    """Rows with their scores, their hashes, and the number of each row's origin."""

    points: Points
    scores: Floats
    hashes: Hashes
    origins: Codes

    @staticmethod
    def empty(width: int) -> CandidatePool:
        return CandidatePool(np.zeros((0, width), np.int64), np.zeros(0), np.zeros(0, np.uint64), np.zeros(0, np.int8))

    def __len__(self) -> int:
        return len(self.points)

    def at(self, index: NDArray[np.int64] | NDArray[np.bool_] | slice) -> CandidatePool:
        return CandidatePool(self.points[index], self.scores[index], self.hashes[index], self.origins[index])

    def joined(self, other: CandidatePool, most: int) -> CandidatePool:
        """Returns the best `most` rows of both pools."""
        columns = ("points", "scores", "hashes", "origins")
        both = CandidatePool(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in columns))
        return both.at(np.argsort(-both.scores, kind="stable")[:most])

    def rescored(self, scores: Floats) -> CandidatePool:
        return replace(self, scores=scores).at(np.argsort(-scores, kind="stable"))

    def without(self, hashes: Hashes) -> CandidatePool:
        return self.at(~np.isin(self.hashes, hashes))


class Population:
    """One sketch in a storm."""

    def __init__(self, number: int, space: Space) -> None:
        self.number, self.space, self.genome = number, space, Genome(space.knobs)
        self.hasher = Hasher(len(space.knobs))
        self.values: dict[tuple[int, ...], float] = {}
        self.trials = self.failed = 0
        self.asked: Hashes = np.zeros(0, np.uint64)
        self.pool = self.fresh = self.nothing = CandidatePool.empty(len(space.knobs))
        """`fresh` are the rows of the current batch that were drawn at random."""
        self.seeds: list[tuple[int, ...]] = []
        self.woken = 0
        """The batch it last took part in."""
        self.barren = False
        """Nothing new was found in it last time."""
        self.prior = np.inf
        """The least estimate of any of its points that was looked at."""
        self._elite: Points | None = None

    @property
    def best(self) -> float:
        """The fastest measured value."""
        return min(self.values.values(), default=np.inf)

    def elite(self, most: int) -> Points:
        """Returns the fastest measured points, fastest first."""
        if self._elite is None:
            order = sorted(self.values, key=self.values.__getitem__)[:most]
            self._elite = np.array(order, dtype=np.int64).reshape(len(order), len(self.space.knobs))
        return self._elite

    def learn(self, point: tuple[int, ...], value: float | None) -> None:
        """Stores the value of a point; a point that failed leaves the elite."""
        self._elite = None
        if value is None or not np.isfinite(value):
            self.values.pop(point, None)
            self.failed += 1
        else:
            self.values[point] = value

    def spend(self, points: Sequence[tuple[int, ...]]) -> None:
        """Marks rows as proposed: they leave the pool and never come back."""
        hashes = self.hasher(np.array(points, dtype=np.int64).reshape(len(points), len(self.space.knobs)))
        self.trials += len(points)
        self.asked = np.concatenate([self.asked, hashes])
        self.pool, self.fresh = self.pool.without(hashes), self.fresh.without(hashes)
