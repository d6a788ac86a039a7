"""The description of a judge's features: lets a cost model learn from them on any kind of target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """The columns of a feature matrix, each log2(1 + x). Matrices of different versions are not comparable."""

    version: int
    names: tuple[str, ...]
    """They include `prior`, the analytic estimate."""
    terms: tuple[str, ...]
    """The names of terms of the estimate, in the unit of `prior`: a model learns from term / prior."""
    ratios: tuple[tuple[str, str], ...]
    """(numerator, denominator) names whose ratio is comparable across problem sizes."""

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        return self.names.index(name)
