"""Tile sizes of every stage, at one point or at a matrix of points.

The arithmetic is generic: on Python integers when one point is lowered, on columns (`columns`) when thousands of points
are judged. Trip counts are clamped from the innermost level outwards,

    n = min(choice, rest);  rest = ceil(rest / n);  the outermost level takes the last rest.

The clamped trip counts are the canonical point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stormdrop.ir.affine import affine
from stormdrop.ir.expr import Axis, Expr
from stormdrop.space.columns import Num, ceil_div, is_multiple, is_one, maximum, minimum, prod_of, where
from stormdrop.space.nest import Cut, LoopLevel, Trips, cuts, nest_of, peel_knob, unroll_knob, vectors_knob
from stormdrop.space.region import is_computed_whole
from stormdrop.space.structure import ComputeAt, Stage, Structure

MOST_PEELED = 8
"""The most trips of a reduce loop that is fully unrolled."""


@dataclass(slots=True)
class Tiling:
    """The sizes of one stage. `trips`: iterations of a loop; `span`: elements of its axis in one iteration."""

    stage: Stage
    lanes: int
    extent: dict[Axis, Num]
    trips: dict[LoopLevel, Num]
    span: dict[LoopLevel, Num]
    vectors: Num
    unroll: Num = 1
    peel: Num = 0

    def tile(self, axis: Axis) -> Num:
        """Elements of the register tile along a spatial axis."""
        return self.span[LoopLevel(axis, nest_of(self.stage).register - 1)]

    def block(self, axis: Axis) -> Num:
        """Elements of an axis in one iteration of its outermost loop: for a spatial axis, of the parallel loop."""
        return self.span[LoopLevel(axis, 0)]

    @property
    def units(self) -> Num:
        """Iterations of the parallel loop."""
        return prod_of([self.trips[LoopLevel(a, 0)] for a in self.stage.axes])

    def reduction_tile(self, axis: Axis) -> Num:
        """Elements of a spatial axis in one iteration of the spatial loops outside the reduction."""
        return self.span[LoopLevel(axis, nest_of(self.stage).outside_reduction)]

    def outer_reduce_trips(self, axis: Axis) -> Num:
        return self.trips[LoopLevel(axis, 0)]

    def inner_reduce_trips(self, axis: Axis) -> Num:
        """Trips of the reduce loop around the register tile."""
        return self.trips[LoopLevel(axis, nest_of(self.stage).innermost_reduce)]


def tile_all(s: Structure, vector_bytes: int, values: Mapping[str, Num]) -> dict[str, Tiling]:
    """The tiling of every stage, by id. Readers come before producers: bounds inference needs the readers' tiles."""
    done: dict[str, Tiling] = {}
    around = {id for stage in s.stages if stage.host is not None for id in (stage.host, stage.reader)}
    for stage in reversed(s.stages):
        lanes = vector_bytes // stage.itemsize if stage.vector is not None else 1
        reader = done.get(stage.reader or "")
        if reader is not None and stage.vector is not None and not reader.stage.vector_is_reduced:
            lanes = min(lanes, reader.lanes)  # panel width is the reader's, which has fewer lanes for wider elements
        extent: dict[Axis, Num] = {a: a.extent for a in (*stage.axes, *stage.reduce_axes)}
        if stage.host is not None:
            extent.update(_region(s, stage, done))
        done[stage.id] = _tile_stage(stage, lanes, values, extent, reader, stage.id not in around)
    return done


def _tile_stage(
    stage: Stage, lanes: int, values: Mapping[str, Num], extent: dict[Axis, Num], reader: Tiling | None, lone: bool
) -> Tiling:
    """Clamp the knobs of one stage to its extents and derive every trip count and span.

    `lone`: no stage is attached in its loops. Trips along an axis of extent 1 are then the constant 1, not a column.
    """
    t = Tiling(stage, lanes, extent, {}, {}, 1)
    register = nest_of(stage).register
    name = vectors_knob(stage)
    if name is not None and stage.vector is not None:
        t.vectors = minimum(values[name], ceil_div(extent[stage.vector], lanes))
    for axis, levels in cuts(stage):
        covered: Num = 1
        if axis is stage.vector:
            covered = lanes * t.vectors if axis.kind == "reduce" else lanes
        rest = ceil_div(extent[axis], covered)
        for cut in levels:
            n = _trips(cut, values, rest, lanes, reader, lone)
            t.trips[cut.loop], t.span[cut.loop] = n, covered
            covered, rest = covered * n, ceil_div(rest, n)
        if axis is stage.vector and axis.kind == "spatial":
            t.vectors = t.trips[LoopLevel(axis, register)]
    if stage.is_reduction:
        inner = stage.reduce_axes[-1]
        name, trips = unroll_knob(stage), t.inner_reduce_trips(inner)
        t.unroll = minimum(values[name], trips) if name is not None else trips if inner in stage.unrolled else 1
        name = peel_knob(stage)
        t.peel = where(_can_peel(t), values[name], 0) if name is not None else 0
    return t


def _trips(cut: Cut, values: Mapping[str, Num], rest: Num, lanes: int, reader: Tiling | None, lone: bool) -> Num:
    """The trip count of one loop; `rest` is what the levels inside it leave of the axis."""
    match cut.source:
        case Trips.REST:
            return rest
        case Trips.KNOB:
            return 1 if lone and is_one(rest) else minimum(values[cut.knob], rest)
        case Trips.READER if reader is not None and not reader.stage.vector_is_reduced:
            return minimum(reader.vectors, rest)
        case Trips.LANES:
            return minimum(lanes, rest)
        case _:
            return 1


def _can_peel(t: Tiling) -> Num:
    """Whether the second innermost reduce loop can be fully unrolled: 2 to MOST_PEELED trips, without remainder."""
    stage = t.stage
    axis = stage.reduce_axes[-2]
    if axis is stage.vector:
        return False
    extent = t.extent[axis]
    length = minimum(t.block(axis), extent) if nest_of(stage).is_blocked else extent
    return (length > 1) & (length <= MOST_PEELED) & is_multiple(extent, length)


# ---- bounds inference for attached stages ----------------------------------------------------------------------------


def _region(s: Structure, stage: Stage, done: Mapping[str, Tiling]) -> dict[Axis, Num]:
    """Extents of the box that readers need of an attached stage: the maximum over all reads."""
    whole = {a: a.extent for a in stage.axes if is_computed_whole(s, stage, a)}
    box: dict[Axis, Num] = {}
    for reader, load in s.reads_of(stage.tensor):
        lens = _needed(done[reader.id], stage)
        for own, i in zip(stage.place, load.indices):
            assert isinstance(own, Axis)
            size = minimum(_box_size(i, lens), own.extent)
            box[own] = maximum(box[own], size) if own in box else size
    return {**box, **whole}


def _needed(reader: Tiling, stage: Stage) -> dict[Axis, Num]:
    """The elements of each reader axis inside the loop at which the stage is attached."""
    extent = reader.extent
    if stage.level is ComputeAt.REDUCE_BLOCK:
        inside = {a: reader.reduction_tile(a) for a in reader.stage.axes}
        inside |= {a: reader.block(a) for a in reader.stage.reduce_axes}
    elif reader.stage.host is None:
        inside = {a: reader.block(a) for a in reader.stage.axes}
    else:
        inside = {}
    return {**extent, **{a: minimum(n, extent[a]) for a, n in inside.items()}}


def _box_size(index: Expr, lens: Mapping[Axis, Num]) -> Num:
    """The size of the interval that an affine index covers, given the length of each axis."""
    size: Num = 1
    for atom, c in affine(index).terms:
        assert isinstance(atom, Axis), "attached stages are read linearly"
        size = size + abs(c) * (lens[atom] - 1)
    return size
