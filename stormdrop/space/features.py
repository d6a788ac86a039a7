"""The description of a judge's features: lets a cost model learn from them on any kind of target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """The columns of a feature matrix, each log2(1 + x). Matrices of different versions are not comparable."""

    version: int
    names: tuple[str, ...]
    """The names of the features, among them `prior`, the analytic estimate."""
    terms: tuple[str, ...]
    """The names of terms of the estimate, in the unit of `prior`: a model learns from term / prior."""
    ratios: tuple[tuple[str, str], ...]
    """(numerator, denominator) pairs of names. The ratio of a pair is comparable across problem sizes."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def width(self) -> int:
        """The number of columns that `widened` returns."""
        return len(self.names) + len(self.terms) + len(self.ratios)

    def index(self, name: str) -> int:
        return self.names.index(name)


def widened(rows: NDArray[Any], features: FeatureSet) -> NDArray[np.float32]:
    """Returns the features, and ratios among them that mean the same at every size: differences of logarithms."""
    n, terms = len(features), [features.index(name) for name in features.terms]
    wide = np.empty((len(rows), features.width), np.float32)
    wide[:, :n] = rows
    with np.errstate(invalid="ignore"):
        wide[:, n : n + len(terms)] = rows[:, terms] - rows[:, features.index("prior"), None]
        for k, (a, b) in enumerate(features.ratios, n + len(terms)):
            wide[:, k] = rows[:, features.index(a)] - rows[:, features.index(b)]
    return wide
