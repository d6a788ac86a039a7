"""What a judge's features are, so that a cost model can learn from them without knowing the kind of machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """The columns of a feature matrix, all of them log2(1 + x). Those of different versions are not comparable."""

    version: int
    names: tuple[str, ...]
    """`prior` is among them: the estimated seconds."""
    terms: tuple[str, ...]
    """Those that are seconds too; a model learns from their share of the estimate."""
    ratios: tuple[tuple[str, str], ...]
    """Pairs whose ratio means the same at every size."""

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        return self.names.index(name)
