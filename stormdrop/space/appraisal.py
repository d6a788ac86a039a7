"""Vectorised queries over the points of one structure on one target.

The judge's formulas are traced once, with symbolic columns for the knobs; the trace is then evaluated on matrices of
points. Tracing is lazy: each query traces only what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.columns import ColumnProgram, Num, maximum, traced, where, within
from stormdrop.space.judge import judge_of
from stormdrop.space.nest import LoopLevel, block_knob, peel_knob, spatial_knobs, unroll_knob, vectors_knob
from stormdrop.space.structure import Structure
from stormdrop.space.tiling import Tiling
from stormdrop.target.machine import Target

Points = NDArray[np.int64]
CHUNK = 4096  # points at once, so that their columns stay in the cache


class Appraisal:
    """Queries on one structure; `names` are its knobs, in the order of the columns of a matrix of points."""

    def __init__(
        self, structure: Structure, target: Target, names: Sequence[str], fixed: Mapping[str, int] | None = None
    ) -> None:
        """`fixed`: knobs whose values are built into the structure (`parts`)."""
        self._names, self._fixed = names, fixed or {}
        self._tape, columns = traced(names)
        self._traced = judge_of(target).assess(structure, columns)

    def canonical(self, points: Points) -> Points:
        """Every knob as its clamped value."""
        return self._run(self._canonical, points).T.astype(np.int64, order="C")

    def legal(self, points: Points) -> NDArray[np.bool_]:
        return self._run(self._legal, points)[0] > 0.0

    def excess(self, points: Points) -> NDArray[np.float64]:
        """The sum of demands in excess of 1; 0 where a point is legal."""
        return self._run(self._excess, points)[0]

    def prior(self, points: Points) -> NDArray[np.float64]:
        return self._run(self._prior, points)[0]

    def assess(self, points: Points) -> NDArray[np.float64]:
        """The prior where a point is legal, else infinity."""
        return self._run(self._assess, points)[0]

    def amounts(self, points: Points) -> NDArray[np.float64]:
        """`Assessment.amounts`: a row per term, a column per point."""
        return self._run(self._amounts, points)

    def features(self, points: Points) -> NDArray[np.float64]:
        """One row of features per point, as log2(1 + x)."""
        matrix = self._run(self._features, points)
        matrix += 1.0
        return np.ascontiguousarray(np.log2(matrix, out=matrix).T)

    def _run(self, program: ColumnProgram, points: Points) -> NDArray[np.float64]:
        """A row for every result of the program, a column for every point."""
        matrix = np.empty((len(program.results), len(points)))
        for start in range(0, len(points), CHUNK):
            part = slice(start, start + CHUNK)
            columns = np.ascontiguousarray(points[part].T, dtype=np.float64)
            for k, value in enumerate(program.run(columns)):
                matrix[k, part] = value
        return matrix

    # ---- traced programs, one per query ----------------------------------------------------------------------------

    @cached_property
    def _canonical(self) -> ColumnProgram:
        clamped = {**_values(self._traced.tilings), **self._fixed}
        return self._tape.program([clamped[name] for name in self._names])

    @cached_property
    def _legal(self) -> ColumnProgram:
        return self._tape.program([within(self._traced.demands)])

    @cached_property
    def _excess(self) -> ColumnProgram:
        total: Any = 0.0
        for demand in self._traced.demands:
            total = total + maximum(0.0, demand - 1.0)
        return self._tape.program([total])

    @cached_property
    def _prior(self) -> ColumnProgram:
        return self._tape.program([self._traced.prior])

    @cached_property
    def _assess(self) -> ColumnProgram:
        return self._tape.program([where(within(self._traced.demands), self._traced.prior, float("inf"))])

    @cached_property
    def _amounts(self) -> ColumnProgram:
        return self._tape.program(self._traced.amounts)

    @cached_property
    def _features(self) -> ColumnProgram:
        return self._tape.program(self._traced.features)


def _values(tilings: dict[str, Tiling]) -> dict[str, Num]:
    """The clamped knobs by name."""
    found: dict[str, Num] = {}
    for t in tilings.values():
        stage = t.stage
        for axis in stage.axes:
            for name, number in spatial_knobs(stage, axis):
                found[name] = t.trips[LoopLevel(axis, number)]
        for axis in stage.reduce_axes:
            name = block_knob(stage, axis)
            if name is not None:
                found[name] = t.inner_reduce_trips(axis)
        for name, value in (
            (vectors_knob(stage), t.vectors),
            (unroll_knob(stage), t.unroll),
            (peel_knob(stage), t.peel),
        ):
            if name is not None:
                found[name] = value
    return found
