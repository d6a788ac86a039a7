"""Vectorised queries over the points of one structure on one target.

The judge's formulas are traced once, with symbolic columns for the knobs; the trace is then evaluated on matrices of
points. Tracing is lazy: each query traces only the formulas that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.columns import ColumnProgram, Num, maximum, sum_of, traced, where, within
from stormdrop.space.judge import judge_of
from stormdrop.space.nest import cuts, setting_knobs
from stormdrop.space.structure import Structure
from stormdrop.target.machine import Target

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
