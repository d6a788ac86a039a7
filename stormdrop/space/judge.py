"""What judges the programs of a structure: one object for each kind of target, chosen here.

Search, derivation, the default schedule and the cost model ask a `Judge` and know nothing of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.columns import Num
from stormdrop.space.cpu_judge import CpuJudge
from stormdrop.space.features import FeatureSet
from stormdrop.space.structure import Structure
from stormdrop.space.tiling import Tiling
from stormdrop.target.cpu import Cpu
from stormdrop.target.machine import Target


class Assessment(Protocol):
    """What is known of the points of one structure: numbers, or columns of them.

    Each is computed when it is first asked for.
    """

    @property
    def tilings(self) -> dict[str, Tiling]:
        """By stage the trips and tile sizes, clamped to its extents."""
        ...

    @property
    def demands(self) -> list[Num]:
        """The constraints as ratios: legal where none exceeds 1."""
        ...

    @property
    def prior(self) -> Num:
        """Estimated seconds."""
        ...

    @property
    def amounts(self) -> list[Num]:
        """What parts of a program add up to, in an order that the judge knows."""
        ...

    @property
    def features(self) -> list[Num]:
        """In the order of the judge's `FeatureSet`, before they are made logarithms."""
        ...


class Judge(Protocol):
    """Judges programs on one machine."""

    @property
    def features(self) -> FeatureSet: ...

    def assess(self, s: Structure, values: Mapping[str, Num]) -> Assessment:
        """The points of a structure whose knobs have these values."""
        ...

    def combined(self, s: Structure, amounts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Estimated seconds of programs from the sums of their parts' amounts, infinite where one is not legal."""
        ...

    def least_seconds(self, s: Structure) -> float:
        """What no point of a structure can beat."""
        ...

    def fits(self, s: Structure) -> bool:
        """Whether a structure has points that fit into the machine's memories."""
        ...


@lru_cache(maxsize=64)
def judge_of(target: Target) -> Judge:
    match target:
        case Cpu():
            return CpuJudge(target)
