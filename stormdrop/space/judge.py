"""Judges: legality, analytic cost estimate and features of points. One `Judge` per kind of target.

Search, derivation, the default schedule and the cost model use a `Judge` and are independent of the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.tensor import Task
from stormdrop.space.columns import Num
from stormdrop.space.cpu_judge import CpuJudge
from stormdrop.space.features import FeatureSet
from stormdrop.space.gpu_judge import GpuJudge
from stormdrop.space.structure import Structure
from stormdrop.space.tiling import Tiling
from stormdrop.target.cpu import Cpu
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target


class Assessment(Protocol):
    """Analytic results for one point of a structure (numbers) or for many (columns), computed lazily."""

    @property
    def tilings(self) -> dict[str, Tiling]: ...  # by stage
    @property
    def demands(self) -> list[Num]: ...  # demand / limit of every constraint: legal if no demand exceeds 1
    @property
    def prior(self) -> Num: ...  # estimated seconds
    @property
    def amounts(self) -> Sequence[Num]: ...  # additive terms: `Judge.combined` takes their sums over the components
    @property
    def features(self) -> list[Num]: ...  # in the order of the judge's `FeatureSet`, before log2(1 + x)


class Judge(Protocol):
    """The cost model of one machine.

    `assess` takes the values of a structure's knobs. `combined` takes the amounts summed over a program's components
    (`Structure.components`), a column per point; it returns estimated seconds, infinite if the program is illegal.
    `least_seconds` is a lower bound over all points of a structure. `fits` returns whether the smallest point fits into
    memory.
    """

    features: ClassVar[FeatureSet]

    def assess(self, s: Structure, values: Mapping[str, Num]) -> Assessment: ...
    def combined(self, s: Structure, amounts: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def least_seconds(self, s: Structure) -> float: ...
    def fits(self, s: Structure) -> bool: ...


@lru_cache(maxsize=64)
def judge_of(target: Target) -> Judge:
    match target:
        case Cpu():
            return CpuJudge(target)
        case Gpu():
            return GpuJudge(target)


def arithmetic_seconds(task: Task, target: Target) -> float:
    """Returns the least time of a task's operations on one core of a CPU, or on a whole GPU."""
    return task.flops / (target.peak_gflops * 1e9)


def least_seconds(task: Task, target: Target) -> float:
    """Returns a lower bound of a task's seconds, from its operations and its bytes alone."""
    cores = target.threads if isinstance(target, Cpu) else 1
    return max(arithmetic_seconds(task, target) / cores, task.minimal_bytes / (target.l3_gbs * 1e9))
