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
    def tilings(self) -> dict[str, Tiling]: ...  # by stage
    @property
    def demands(self) -> list[Num]: ...  # the constraints as ratios: legal where none exceeds 1
    @property
    def prior(self) -> Num: ...  # estimated seconds
    @property
    def amounts(self) -> list[Num]: ...  # what parts of a program add up to
    @property
    def features(self) -> list[Num]: ...  # as the judge's `FeatureSet` names them, not yet logarithms


class Judge(Protocol):
    """Judges programs on one machine.

    `assess` takes the values of a structure's knobs. `combined` takes the sums of the amounts of a program's parts, a
    column for every point, and gives estimated seconds, infinite where a program is not legal. No point of a structure
    beats `least_seconds`; none is legal where it does not fit into the machine's memories.
    """

    @property
    def features(self) -> FeatureSet: ...
    def assess(self, s: Structure, values: Mapping[str, Num]) -> Assessment: ...
    def combined(self, s: Structure, amounts: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def least_seconds(self, s: Structure) -> float: ...
    def fits(self, s: Structure) -> bool: ...


@lru_cache(maxsize=64)
def judge_of(target: Target) -> Judge:
    match target:
        case Cpu():
            return CpuJudge(target)
