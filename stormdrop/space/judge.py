"""Judges: legality, analytic cost estimate and features of points. One `Judge` per kind of target.

Search, derivation, the default schedule and the cost model use a `Judge` and are independent of the target.

An `Appraisal` answers queries over many points of one structure at once. The judge's formulas are traced once, with
symbolic columns for the knobs; the trace is then evaluated on matrices of points. Tracing is lazy: each query traces
only the formulas that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.tensor import Task
from stormdrop.space.columns import ColumnProgram, Num, maximum, sum_of, traced, where, within
from stormdrop.space.cpu_judge import CpuJudge
from stormdrop.space.features import FeatureSet
from stormdrop.space.gpu_judge import GpuJudge
from stormdrop.space.nest import cuts, setting_knobs
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


Points = NDArray[np.int64]
CHUNK = 4096  # points at once, so that their columns stay in the cache


class Appraisal:
    """The answers to queries on one structure."""

    def __init__(self, structure: Structure, target: Target, names: Sequence[str], fixed: Mapping[str, int]) -> None:
        """`names` are the knobs, by column of a matrix of points; `fixed` holds the knobs that the structure sets."""
        self.names, self.fixed = names, fixed
        self._tape, columns = traced(names)
        self.assessment = judge_of(target).assess(structure, columns)
        self._programs: dict[Query, ColumnProgram] = {}

    def ask(self, query: Query, points: Points) -> NDArray[np.float64]:
        """Returns a row for every value of the query, a column for every point."""
        if query not in self._programs:
            self._programs[query] = self._tape.program(query(self))
        program = self._programs[query]
        matrix = np.empty((len(program.results), len(points)))
        for start in range(0, len(points), CHUNK):
            part = slice(start, start + CHUNK)
            columns = np.ascontiguousarray(points[part].T, dtype=np.float64)
            for k, value in enumerate(program.run(columns)):
                matrix[k, part] = value
        return matrix


Query = Callable[[Appraisal], Sequence[Num]]
"""Formulas over the columns of an appraisal."""


def canonical(a: Appraisal) -> Sequence[Num]:
    """Returns every knob as its clamped value."""
    clamped: dict[str, Num] = {**a.fixed}  # "": trip counts without a knob
    for t in a.assessment.tilings.values():
        clamped |= {cut.knob: t.trips[cut.loop] for _, levels in cuts(t.stage) for cut in levels}
        clamped |= {name: getattr(t, setting) for setting, name in setting_knobs(t.stage).items()}
    return [clamped[name] for name in a.names]


def legal(a: Appraisal) -> Sequence[Num]:
    return [within(a.assessment.demands)]


def excess(a: Appraisal) -> Sequence[Num]:
    """Returns the sum of demands in excess of 1; 0 if the point is legal."""
    return [sum_of(maximum(0.0, demand - 1.0) for demand in a.assessment.demands)]


def prior(a: Appraisal) -> Sequence[Num]:
    return [a.assessment.prior]


def prior_if_legal(a: Appraisal) -> Sequence[Num]:
    """Returns the prior of a legal point, and infinity for an illegal point."""
    return [where(within(a.assessment.demands), a.assessment.prior, float("inf"))]


def amounts(a: Appraisal) -> Sequence[Num]:
    return a.assessment.amounts


def features(a: Appraisal) -> Sequence[Num]:
    return a.assessment.features
