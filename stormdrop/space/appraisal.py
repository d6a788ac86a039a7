"""What can be asked of the points of one structure on one target: matrices in, columns out.

The formulas of `nest`, `footprint` and `analysis` are run once, on columns that stand for the knobs; what they note is
then computed for any number of points. Nothing is traced before it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stormdrop.space import analysis
from stormdrop.space.columns import Num, Program, maximum, traced, where
from stormdrop.space.footprint import StageCost, add_boxes
from stormdrop.space.nest import LoopLevel, block_knob, peel_knob, spatial_knobs, unroll_knob, vectors_knob
from stormdrop.space.structure import Structure
from stormdrop.space.tiling import Tiling, tile_all
from stormdrop.target.machine import Target

Points = NDArray[np.int64]
CHUNK = 4096  # points at once, so that their columns stay in the cache


class Outline(NamedTuple):
    """What points add to a program of which they are a part."""

    seconds: NDArray[np.float64]
    code: NDArray[np.float64]
    scratch: NDArray[np.float64]
    fits: NDArray[np.float64]  # 1 where no stage asks for too much, whatever the other parts do; else 0


class Appraisal:
    """The programs of one structure; `names` are its knobs, in the order of the points' columns."""

    def __init__(
        self, structure: Structure, target: Target, names: Sequence[str], parts: Mapping[str, int] | None = None
    ) -> None:
        """`parts`: the knobs that the structure was derived with, and their values."""
        self._structure, self._target, self._names, self._parts = structure, target, names, parts or {}
        self._tape, self._columns = traced(names)

    def canonical(self, points: Points) -> Points:
        """Every knob as its clamped value."""
        return self._run(self._canonical, points).T.astype(np.int64, order="C")

    def legal(self, points: Points) -> NDArray[np.bool_]:
        return self._run(self._legal, points)[0] > 0.0

    def excess(self, points: Points) -> NDArray[np.float64]:
        """How far points are from being legal: 0 where they are."""
        return self._run(self._excess, points)[0]

    def prior(self, points: Points) -> NDArray[np.float64]:
        return self._run(self._prior, points)[0]

    def assess(self, points: Points) -> NDArray[np.float64]:
        """The prior where a point is legal, else infinity."""
        return self._run(self._assess, points)[0]

    def outline(self, points: Points) -> Outline:
        return Outline(*self._run(self._outline, points))

    def features(self, points: Points) -> NDArray[np.float64]:
        """One row of `FEATURES` per point, magnitudes as log2(1 + x)."""
        matrix = self._run(self._features, points)
        matrix += 1.0
        return np.ascontiguousarray(np.log2(matrix, out=matrix).T)

    def _run(self, program: Program, points: Points) -> NDArray[np.float64]:
        """A row for every result of the program, a column for every point."""
        matrix = np.empty((len(program.results), len(points)))
        for start in range(0, len(points), CHUNK):
            part = slice(start, start + CHUNK)
            columns = np.ascontiguousarray(points[part].T, dtype=np.float64)
            for k, value in enumerate(program.run(columns)):
                matrix[k, part] = value
        return matrix

    # What is traced

    @cached_property
    def _tilings(self) -> dict[str, Tiling]:
        return tile_all(self._structure, self._target.vector_bytes, self._columns)

    @cached_property
    def _bare(self) -> list[StageCost]:
        return analysis.bare_costs(self._structure, self._tilings)

    @cached_property
    def _costs(self) -> list[StageCost]:
        for c in self._bare:
            add_boxes(c)
        return self._bare

    @cached_property
    def _demands(self) -> list[Num]:
        return analysis.demands(self._structure, self._target, self._bare)

    @cached_property
    def _seconds(self) -> Num:
        return analysis.seconds_of(self._costs, self._target)[0]

    @cached_property
    def _estimate(self) -> Num:
        return analysis.prior(self._seconds, analysis.code_of(self._bare), analysis.phases(self._structure))

    # Programs

    @cached_property
    def _canonical(self) -> Program:
        clamped = {**_values(self._tilings), **self._parts}
        return self._tape.program([clamped[name] for name in self._names])

    @cached_property
    def _legal(self) -> Program:
        return self._tape.program([_within(self._demands)])

    @cached_property
    def _excess(self) -> Program:
        total: Any = 0.0
        for demand in self._demands:
            total = total + maximum(0.0, demand - 1.0)
        return self._tape.program([total])

    @cached_property
    def _prior(self) -> Program:
        return self._tape.program([self._estimate])

    @cached_property
    def _assess(self) -> Program:
        return self._tape.program([where(_within(self._demands), self._estimate, float("inf"))])

    @cached_property
    def _outline(self) -> Program:
        fits = _within(analysis.own_demands(self._structure, self._target, self._bare))
        return self._tape.program([self._seconds, analysis.code_of(self._bare), analysis.scratch_of(self._bare), fits])

    @cached_property
    def _features(self) -> Program:
        return self._tape.program(analysis.features(self._structure, self._target, self._costs))


def _within(demands: list[Num]) -> Num:
    """Whether no demand exceeds 1."""
    fits: Any = True
    for demand in demands:
        fits = fits & (demand <= 1.0)
    return fits


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
