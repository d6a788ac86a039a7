"""Tile sizes of every stage, at one point or at a matrix of points.

The arithmetic is generic: on Python integers when one point is lowered, on columns (`columns`) when thousands of points
are judged. Trip counts are clamped from the innermost level outwards,

    n = min(choice, rest);  rest = ceil(rest / n);  the outermost level takes the last rest.

The clamped trip counts are the canonical point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from stormdrop.ir.affine import affine, conjuncts
from stormdrop.ir.expr import ITEMSIZE, Axis, Cast, Expr, walk
from stormdrop.ir.memo import memoised
from stormdrop.space.access import axes_of, index_conditions
from stormdrop.space.columns import Num, ceil_div, is_multiple, is_one, maximum, minimum, prod_of, rounded_down, where
from stormdrop.space.nest import Cut, LoopLevel, Trips, cuts, is_copy, nest_of, row_axis, setting_knobs
from stormdrop.space.structure import ComputeAt, Stage, Structure
from stormdrop.target.gpu import WARP
from stormdrop.target.structures import LoopKind

MATRIX_LANES = 2
"""The neighbouring columns of a matrix instruction's result that a lane holds."""
MOST_PEELED = 8
"""The most trips of a reduce loop that is fully unrolled."""


@dataclass(slots=True)
class Tiling:
    """The tile sizes of a stage."""

    stage: Stage
    lanes: Num  # a column for a staged operand only
    extent: dict[Axis, Num]
    trips: dict[LoopLevel, Num]  # the iterations of a loop
    span: dict[LoopLevel, Num]  # the elements of its axis in one iteration
    vectors: Num
    unroll: Num = 1
    peel: Num = 0
    depth: Num = 1
    layout: Num = 0  # of a staged operand: see `space.boxes`
    pieces: Num = 1
    residents: Num = 1  # blocks that a multiprocessor must have registers for
    group: Num = 1  # rows of blocks that are passed together

    def tile(self, axis: Axis) -> Num:
        """Returns the elements of the register tile along a spatial axis."""
        return self.span[LoopLevel(axis, nest_of(self.stage).register - 1)]

    def block(self, axis: Axis) -> Num:
        """Returns the elements of an axis per iteration of its outermost loop: a spatial axis's parallel loop."""
        return self.span[LoopLevel(axis, 0)]

    @property
    def units(self) -> Num:
        """Iterations of the parallel loop."""
        return prod_of([self.trips[LoopLevel(a, 0)] for a in self.stage.axes])

    @property
    def threads(self) -> Num:
        """The threads of a block that the stage uses; 1 on a CPU."""
        threads = prod_of([n for level, n in self.trips.items() if level in self.thread_levels])
        return threads * WARP if self.stage.matrix is not None else threads

    @property
    def reduce_threads(self) -> Num:
        """The number of threads of a block that share the reduction of an element."""
        levels = self.thread_levels
        return prod_of([n for level, n in self.trips.items() if level in levels and level.axis.kind == "reduce"])

    @property
    def thread_levels(self) -> frozenset[LoopLevel]:
        return thread_levels(self.stage)

    def virtual_threads(self, axis: Axis) -> Num:
        """Returns how often a thread's tile repeats along a spatial axis, at the distance of all threads' tiles."""
        return prod_of([self.trips[LoopLevel(axis, n)] for n in nest_of(self.stage).numbers(LoopKind.VIRTUAL_THREAD)])

    def reduction_tile(self, axis: Axis) -> Num:
        """Returns the elements of a spatial axis in one iteration of the spatial loops outside the reduction."""
        return self.span[LoopLevel(axis, nest_of(self.stage).outside_reduction)]

    def outer_reduce_trips(self, axis: Axis) -> Num:
        return self.trips[LoopLevel(axis, 0)]

    def inner_reduce_trips(self, axis: Axis) -> Num:
        """Returns the trips of the reduce loop around the register tile."""
        return self.trips[LoopLevel(axis, nest_of(self.stage).innermost_reduce)]


def tile_all(s: Structure, vector_bytes: int, values: Mapping[str, Num]) -> dict[str, Tiling]:
    """Returns the tiling of every stage, by id; readers before producers, as bounds inference needs."""
    done: dict[str, Tiling] = {}
    around = {id for stage in s.stages if stage.host is not None for id in (stage.host, stage.reader)}
    for stage in reversed(s.stages):
        lanes = vector_bytes // stage.itemsize if stage.vector is not None else 1
        reader = done.get(stage.reader or "")
        if nest_of(stage).is_cooperative:
            lanes = cooperative_lanes(s, stage, vector_bytes)
        elif reader is not None and stage.vector is not None and not reader.stage.vector_is_reduced:
            lanes = min(lanes, reader.lanes)  # panel width is the reader's, which has fewer lanes for wider elements
        extent: dict[Axis, Num] = {a: a.extent for a in (*stage.axes, *stage.reduce_axes)}
        if stage.host is not None:
            extent.update(_region(s, stage, done))
        threads = done[stage.host].threads if stage.host is not None else 1
        granules = granules_of(s, stage, vector_bytes)
        lone = stage.id not in around
        done[stage.id] = _tile_stage(stage, lanes, values, extent, reader, lone, threads, granules)
    return done


def _tile_stage(
    stage: Stage,
    lanes: Num,
    values: Mapping[str, Num],
    extent: dict[Axis, Num],
    reader: Tiling | None,
    lone: bool,
    threads: Num,
    granules: Mapping[Axis, int],
) -> Tiling:
    """Clamps the knobs of one stage to its extents and derives every trip count and span.

    `lone`: no stage is attached in its loops. Trips along an axis of extent 1 are then the constant 1, not a column.
    `threads` counts the threads of the block around an attached stage. For `granules` see `granules_of`.
    """
    settings = {setting: values[name] for setting, name in setting_knobs(stage).items()}
    pieces = minimum(settings.get("pieces", 1), lanes) if lanes > 1 else 1
    t = Tiling(stage, ceil_div(lanes, pieces), extent, {}, {}, 1, pieces=pieces)
    budget, lanes = threads, t.lanes
    register = nest_of(stage).register
    if "vectors" in settings and stage.vector is not None:
        t.vectors = minimum(settings["vectors"], ceil_div(extent[stage.vector], lanes))
    for axis, levels in _innermost_first(stage) if nest_of(stage).is_cooperative else cuts(stage):
        covered: Num = granules.get(axis, 1)
        if axis is stage.vector and stage.matrix is None:
            covered = lanes * t.vectors if axis.kind == "reduce" else lanes
        rest = ceil_div(extent[axis], covered)
        for cut in levels:
            if cut.source is Trips.THREADS:
                n = _power_below(budget, rest) if axis.kind == "reduce" else minimum(budget, rest)
                budget = rounded_down(budget / n)
            elif axis.kind == "reduce" and cut.loop in thread_levels(stage):
                n = minimum(values[cut.knob], power_above(rest)) if cut.source is Trips.KNOB else 1
            else:
                n = _trips(cut, values, rest, lanes, reader, lone)
            t.trips[cut.loop], t.span[cut.loop] = n, covered
            covered, rest = covered * n, ceil_div(rest, n)
        if axis is stage.vector and axis.kind == "spatial":
            t.vectors = t.trips[LoopLevel(axis, register)]
    if stage.is_reduction:
        inner = stage.reduce_axes[-1]
        trips = t.inner_reduce_trips(inner)
        if stage.matrix is None:  # else an instruction takes a granule
            trips = trips * granules.get(inner, 1)
        if nest_of(stage).reduces_across_threads:
            trips = t.outer_reduce_trips(inner)
        t.unroll = trips if inner in stage.unrolled else 1
        if "unroll" in settings:
            t.unroll = minimum(settings["unroll"], trips)
        if "depth" in settings:
            t.depth = minimum(settings["depth"], prod_of([t.outer_reduce_trips(a) for a in stage.reduce_axes]))
        t.residents = settings.get("residents", 1)
        if "group" in settings:
            t.group = _group(t, settings["group"])
        if "peel" in settings:
            t.peel = where(_can_peel(t), settings["peel"], 0)
    t.layout = settings.get("layout", 0)
    return t


# ---- thread blocks ---------------------------------------------------------------------------------------------------


@memoised()
def thread_levels(stage: Stage) -> frozenset[LoopLevel]:
    """Returns the loops that the threads of a block execute."""
    nest = nest_of(stage)
    numbers = (*nest.numbers(LoopKind.THREAD), *nest.numbers(LoopKind.WARP))
    spatial = [LoopLevel(a, n) for n in numbers for a in stage.axes]
    reduce = [x.number for x in nest.reduce if x.kind is LoopKind.THREAD]
    return frozenset((*spatial, *(LoopLevel(a, n) for n in reduce for a in stage.reduce_axes)))


@memoised()
def _innermost_first(stage: Stage) -> tuple[tuple[Axis, tuple[Cut, ...]], ...]:
    """Returns `cuts` in the order in which axes take the threads of a block: contiguous first, reduce axes last."""
    levels = dict(cuts(stage))
    order = [*(a for a in stage.axes if a is stage.vector), *(a for a in stage.axes[::-1] if a is not stage.vector)]
    return tuple((a, levels[a]) for a in (*order, *reversed(stage.reduce_axes)))


@memoised()
def cooperative_lanes(s: Structure, stage: Stage, vector_bytes: int) -> int:
    """Returns the elements of a vector of a stage in a thread block: a divisor of the extent, with every lane active.

    The result is 1 if a condition differs between neighbours, or if a box may begin at any element.
    """
    vector = stage.vector
    if vector is None or vector.kind == "reduce" or vector in stage.unrolled:
        return 1
    conditions = [c for e in (stage.body, stage.finish) for c in index_conditions(e)]
    conditions += [] if stage.guard is None else conjuncts(stage.guard)
    if any(vector in axes_of(c) for c in conditions):
        return 1
    most = vector_bytes // stage.itemsize if stage.matrix is None else MATRIX_LANES
    if stage.host is not None:
        if stage.reader is None:
            return 1
        reader = s.stage(stage.reader)
        along = reader.axis(stage.axis_id(vector))
        if reader.matrix is not None:
            if not has_cast(stage.finish):
                most = vector_bytes // ITEMSIZE[stage.tensor.dtype]
            most = min(most, matrix_granules(reader).get(along, 1))
        elif along is reader.vector:
            most = min(most, cooperative_lanes(s, reader, vector_bytes))
        elif along.kind == "spatial":
            return 1
    while vector.extent % most:
        most //= 2
    return most


@memoised()
def granules_of(s: Structure, stage: Stage, vector_bytes: int) -> Mapping[Axis, int]:
    """Returns the elements of reduce axes that a reduce block must take together: the vectors of its copies."""
    granules = matrix_granules(stage)
    for copy in s.stages:
        if copy.reader == stage.id and copy.vector is not None and nest_of(copy).is_cooperative:
            axis = stage.axis(copy.axis_id(copy.vector))
            if axis.kind == "reduce":
                granules[axis] = max(granules.get(axis, 1), cooperative_lanes(s, copy, vector_bytes))
    return granules


@memoised()
def has_cast(e: Expr) -> bool:
    return any(isinstance(n, Cast) for n in walk(e))


def matrix_granules(stage: Stage) -> dict[Axis, int]:
    """Returns the granule of tiles by axis: the elements that a matrix instruction takes, half of them for rows."""
    if stage.matrix is None or stage.vector is None:
        return {}
    kernel = stage.matrix.kernel
    return {stage.matrix.rows: kernel.m // 2, stage.vector: kernel.n, stage.reduce_axes[-1]: kernel.k}


def _group(t: Tiling, wanted: Num) -> Num:
    """Returns the rows of blocks that are traversed together: a divisor of all rows, or 1 for a single column."""
    axis, vector = row_axis(t.stage), t.stage.vector
    assert axis is not None
    assert vector is not None
    rows, columns = (t.trips[LoopLevel(a, 0)] for a in (axis, vector))
    return where((columns > 1) & is_multiple(rows, wanted), wanted, 1)


def power_above(n: int) -> int:
    """Returns the least power of two that is not below `n`."""
    return 1 << max(0, n - 1).bit_length()


def _power_below(n: Num, most: Num) -> Num:
    """Returns the largest power of two that exceeds neither `n` nor the least power of two above `most`."""
    result: Num = 1
    for k in range(1, 11):
        fits = (n >= 1 << k) & (most > 1 << (k - 1))
        result = where(fits, 1 << k, result)
    return result


def _trips(cut: Cut, values: Mapping[str, Num], rest: Num, lanes: Num, reader: Tiling | None, lone: bool) -> Num:
    """Returns the trip count of a loop; `rest` is the quotient of the axis by the levels inside the loop."""
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
    """Returns whether the second innermost reduce loop can be unrolled: 2 to MOST_PEELED trips, no remainder."""
    stage = t.stage
    axis = stage.reduce_axes[-2]
    if axis is stage.vector:
        return False
    extent = t.extent[axis]
    if nest_of(stage).reduces_across_threads:
        return (t.inner_reduce_trips(axis) <= 1) & (extent > 1) & (extent <= MOST_PEELED)
    length = minimum(t.block(axis), extent) if nest_of(stage).is_blocked else extent
    return (length > 1) & (length <= MOST_PEELED) & is_multiple(extent, length)


# ---- bounds inference for attached stages ----------------------------------------------------------------------------


class Reach(NamedTuple):
    """The values of an index in one iteration of the parallel loop: sum(coefficient * axis of `cut`) + [low, high]."""

    cut: frozenset[tuple[Axis, int]]  # host axes that the parallel loop splits, with coefficients
    low: int
    high: int


def _reach_of_axis(s: Structure, reader: Stage, axis: Axis) -> Reach:
    if axis in reader.axes:
        if reader.host is None and axis not in reader.unsplit:
            return Reach(frozenset({(axis, 1)}), 0, 0)
        if reader.host is not None and len(of_reader := reaches(s, reader, axis)) == 1:
            return next(iter(of_reader))
    return Reach(frozenset(), 0, axis.extent - 1)


@memoised()
def reaches(s: Structure, stage: Stage, axis: Axis) -> frozenset[Reach]:
    """Returns the distinct reaches of all reads of an attached stage along an axis."""
    position = stage.place.index(axis)
    distinct: set[Reach] = set()
    for reader, load in s.reads_of(stage.tensor):
        form = affine(load.indices[position])
        cut: dict[Axis, int] = {}
        low = high = form.constant
        for atom, c in form.terms:
            assert isinstance(atom, Axis), "attached stages are read linearly"
            inner = _reach_of_axis(s, reader, atom)
            for a, k in inner.cut:
                cut[a] = cut.get(a, 0) + c * k
            low += min(c * inner.low, c * inner.high)
            high += max(c * inner.low, c * inner.high)
        distinct.add(Reach(frozenset(cut.items()), low, high))
    return frozenset(distinct)


@memoised()
def is_computed_whole(s: Structure, stage: Stage, axis: Axis) -> bool:
    """Returns whether an attached stage computes the full axis in every iteration of the parallel loop.

    The full axis is needed if reads have different reaches, or if an operand is packed for the full axis and the region
    may begin inside a panel: a register tile must begin at a panel boundary.
    """
    every = reaches(s, stage, axis)
    if len(every) != 1:
        return True
    if axis is not stage.vector or not any(c.reader == stage.id and c.host is None for c in s.stages):
        return False
    (reach,) = every
    host = s.stage(stage.host or stage.id)
    along = host.vector is not None and reach == Reach(frozenset({(host.vector, 1)}), 0, 0)
    panels = along and host.itemsize <= stage.itemsize  # host lanes: a multiple of panel lanes
    return not panels and reach != Reach(frozenset(), 0, axis.extent - 1)


def _region(s: Structure, stage: Stage, done: Mapping[str, Tiling]) -> dict[Axis, Num]:
    """Returns the extents of the box that readers need of an attached stage: the maximum over all reads.

    The copy of an operand in shared memory covers whole tiles of its reader, beyond the end of an axis too.
    """
    whole = {a: a.extent for a in stage.axes if is_computed_whole(s, stage, a)}
    box: dict[Axis, Num] = {}
    for reader, load in s.reads_of(stage.tensor):
        lens = _needed(done[reader.id], stage)
        for own, i in zip(stage.place, load.indices):
            assert isinstance(own, Axis)
            size = _box_size(i, lens)
            if not (is_copy(stage) and nest_of(stage).is_cooperative):
                size = minimum(size, own.extent)
            box[own] = maximum(box[own], size) if own in box else size
    return {**box, **whole}


def _needed(reader: Tiling, stage: Stage) -> dict[Axis, Num]:
    """Returns the elements of each reader axis inside the loop at which the stage is attached."""
    extent = reader.extent
    if stage.level is ComputeAt.REDUCE_BLOCK:
        inside = {a: reader.reduction_tile(a) for a in reader.stage.axes}
        inside |= {a: reader.block(a) for a in reader.stage.reduce_axes}
    elif reader.stage.host is None:
        inside = {a: reader.block(a) for a in reader.stage.axes}
    else:
        inside = {}
    is_whole = is_copy(stage) and nest_of(stage).is_cooperative
    return extent | {a: n if is_whole and a.kind == "spatial" else minimum(n, extent[a]) for a, n in inside.items()}


def _box_size(index: Expr, lens: Mapping[Axis, Num]) -> Num:
    """Returns the size of the interval that an affine index covers, given the length of each axis."""
    size: Num = 1
    for atom, c in affine(index).terms:
        assert isinstance(atom, Axis), "attached stages are read linearly"
        size = size + abs(c) * (lens[atom] - 1)
    return size
