"""Tile sizes of every stage at one point or at a whole matrix of points.

The arithmetic is written once over numbers: Python integers when a point is lowered, columns when thousands of points
are judged. A tile knob is clamped from the inside out,

    n = min(choice, rest);  rest = ceil(rest / n);  the outermost level is what rests,

so the trip counts found here are the canonical point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from stormdrop.ir.affine import affine
from stormdrop.ir.expr import Axis, Expr
from stormdrop.space.access import transposing_axis
from stormdrop.space.columns import Num, ceil_div, is_multiple, maximum, minimum, where
from stormdrop.space.structure import Level, Stage, Structure

CACHED = 16384  # stages whose facts are kept: those of all sketches of a large model


class Slot(NamedTuple):
    """One rolled loop of a nest: level `level` of `axis`.

    A tuple, since it is looked up thousands of times per sketch.
    """

    axis: Axis
    level: int


@dataclass(frozen=True, slots=True)
class Form:
    """What a structure string means for one stage: which levels exist and which of them are knobs."""

    first: int  # the outermost spatial level: 0 at a root, 1 when attached
    register: int  # the spatial level held in registers
    blocks: int  # reduce levels: 2 with an outer block, else 1 (0 without reduction)


@lru_cache(maxsize=CACHED)
def form_of(stage: Stage) -> Form:
    """A root's first S is its parallel loop; an attached stage has none."""
    spatial = stage.tiling.count("S")
    attached = stage.host is not None
    if attached and stage.reader is not None:  # packing copies are written with their attached levels only
        return Form(1, spatial, 0)
    return Form(int(attached), spatial - 1, stage.tiling.count("R") if stage.is_reduction else 0)


def rest_level(stage: Stage, axis: Axis) -> int:
    """The level that takes what the knobs leave: the outermost, but one further in for an axis that is not cut in
    parallel.
    """
    form = form_of(stage)
    return min(form.first + 1, form.register) if axis in stage.whole else form.first


def is_copy(stage: Stage) -> bool:
    return stage.reader is not None


def spatial_knobs(stage: Stage, axis: Axis) -> list[tuple[str, int]]:
    """The knobs of a spatial axis, with their levels, outermost first.

    A copy's vector tile follows its reader's; what runs once, when the kernel is loaded, has no knobs.
    """
    form = form_of(stage)
    if stage.level is Level.LOAD or axis in stage.unrolled:
        return []
    last = form.register - 1 if is_copy(stage) and axis is stage.vector else form.register
    return [
        (f"{stage.id}.{stage.axis_id(axis)}.{level}", level) for level in range(rest_level(stage, axis) + 1, last + 1)
    ]


def block_knob(stage: Stage, axis: Axis) -> str | None:
    return f"{stage.id}.{stage.axis_id(axis)}.1" if form_of(stage).blocks == 2 else None


def vectors_knob(stage: Stage) -> str | None:
    """How many vectors of a reduced vector axis are accumulated side by side."""
    tuned = stage.vector is not None and stage.vector_is_reduced and stage.level is not Level.LOAD
    return f"{stage.id}.{stage.axis_id(stage.vector)}.v" if tuned and stage.vector is not None else None


def unroll_knob(stage: Stage) -> str | None:
    return f"{stage.id}.unroll" if stage.is_reduction and stage.level is not Level.LOAD and not stage.unrolled else None


def peel_knob(stage: Stage) -> str | None:
    """Whether the reduce loop around the innermost one is written out: one copy of the inner loop per value."""
    tuned = len(stage.reduce_axes) > 1 and stage.level is not Level.LOAD and not stage.unrolled
    return f"{stage.id}.peel" if tuned else None


@dataclass(slots=True)
class Tiling:
    """The sizes of one stage: `trips` of a level, and `span`, the elements one trip of it covers."""

    stage: Stage
    lanes: int
    extent: dict[Axis, Num]
    trips: dict[Slot, Num]
    span: dict[Slot, Num]
    vectors: Num
    unroll: Num
    peel: Num

    def tile(self, axis: Axis) -> Num:
        """Elements of the register tile along a spatial axis."""
        return self.span[Slot(axis, form_of(self.stage).register - 1)]


@lru_cache(maxsize=CACHED)
def nest_order(stage: Stage) -> tuple[Slot, ...]:
    """The rolled loops, outermost first."""
    form = form_of(stage)
    order: list[Slot] = []
    spatial, reduced = form.first, 0
    for letter in _letters(stage):
        if letter == "S":
            if spatial < form.register:
                order += [Slot(a, spatial) for a in _spatial_order(stage, spatial)]
            spatial += 1
        elif stage.is_reduction:
            order += [Slot(a, reduced) for a in stage.reduce_axes]
            reduced += 1
    return tuple(order)


def _letters(stage: Stage) -> str:
    if stage.host is not None and stage.reader is None:
        return stage.tiling[1:]
    return stage.tiling


def _spatial_order(stage: Stage, level: int) -> list[Axis]:
    """Outer levels in the axes' order; inner ones with the vector axis outermost, so that a packed panel is used again
    at once.
    """
    axes = list(stage.axes)
    if level >= 2 and stage.vector in axes and stage.is_reduction:
        axes.remove(stage.vector)  # type: ignore[arg-type]
        axes.insert(0, stage.vector)  # type: ignore[arg-type]
    return axes


class _Cut(NamedTuple):
    """How one level of an axis gets its trips: `knob` clamped, or by `rule` where it has none."""

    slot: Slot
    outer: Slot | None  # the level outside, whose trip covers what this one and those inside it do
    rule: str  # one, rest, knob, follow
    knob: str


@lru_cache(maxsize=CACHED)
def _cuts(stage: Stage) -> tuple[tuple[Axis, tuple[_Cut, ...]], ...]:
    """The levels of every spatial axis, innermost first."""
    form = form_of(stage)
    found: list[tuple[Axis, tuple[_Cut, ...]]] = []
    turned = transposing_axis(stage)
    for axis in stage.axes:
        knobs = {level: name for name, level in spatial_knobs(stage, axis)}
        rests = rest_level(stage, axis)
        cuts: list[_Cut] = []
        for level in range(form.register, form.first - 1, -1):
            outer = Slot(axis, level - 1) if level > form.first else None
            if level < rests or (axis in stage.unrolled and level < form.register):
                rule = "one"
            elif level == rests:
                rule = "rest"
            elif level in knobs:
                rule = "knob"
            elif axis is stage.vector:
                rule = "follow"
            elif level == form.register and axis in stage.unrolled:
                rule = "rest"
            elif level == form.register and axis is turned:
                rule = "lanes"
            else:
                rule = "one"
            cuts.append(_Cut(Slot(axis, level), outer, rule, knobs.get(level, "")))
        found.append((axis, tuple(cuts)))
    return tuple(found)


def tile_stage(
    stage: Stage, lanes: int, values: Mapping[str, Num], extent: dict[Axis, Num], reader: Tiling | None, lone: bool
) -> Tiling:
    """Clamp the knobs of one stage to its extents and derive every trip count and span.

    `lone`: nothing is computed inside its loops, so that the trips of an axis of extent 1 need not be counted for
    anyone.
    """
    form = form_of(stage)
    trips: dict[Slot, Num] = {}
    span: dict[Slot, Num] = {}
    vectors: Num = 1
    for axis, cuts in _cuts(stage):
        covered: Num = lanes if axis is stage.vector else 1
        rest = ceil_div(extent[axis], covered)
        for slot, outer, rule, knob in cuts:
            n: Num = 1
            if rule == "rest":
                n = rest
            elif rule == "knob":
                n = 1 if lone and isinstance(rest, int) and rest == 1 else minimum(values[knob], rest)
            elif rule == "follow" and reader is not None and not reader.stage.vector_is_reduced:
                n = minimum(reader.vectors, rest)  # a copy's vectors follow its reader
            elif rule == "lanes":
                n = minimum(lanes, rest)
            trips[slot] = n
            covered = covered * n
            if outer is not None:
                span[outer] = covered
                rest = ceil_div(rest, n)
            if slot.level == form.register and axis is stage.vector:
                vectors = n
    name = vectors_knob(stage)
    if name is not None:
        vectors = values[name]
    for axis in stage.reduce_axes:
        unit: Num = 1
        if axis is stage.vector:
            vectors = minimum(vectors, ceil_div(extent[axis], lanes))
            unit = vectors * lanes
        steps = ceil_div(extent[axis], unit)
        name = block_knob(stage, axis)
        if name is None:
            trips[Slot(axis, 0)], span[Slot(axis, 0)] = steps, unit
            continue
        n = minimum(values[name], steps)
        trips[Slot(axis, 1)], span[Slot(axis, 1)] = n, unit
        trips[Slot(axis, 0)], span[Slot(axis, 0)] = ceil_div(steps, n), n * unit
    unroll: Num = 1
    peel: Num = 0
    if stage.is_reduction:
        inner = stage.reduce_axes[-1]
        name = unroll_knob(stage)
        most = trips[Slot(inner, form.blocks - 1)]
        unroll = minimum(values[name], most) if name is not None else most if inner in stage.unrolled else 1
        name = peel_knob(stage)
        peel = where(_can_peel(stage, extent, span, form.blocks), values[name], 0) if name is not None else 0
    return Tiling(stage, lanes, extent, trips, span, vectors, unroll, peel)


def _can_peel(stage: Stage, extent: Mapping[Axis, Num], span: Mapping[Slot, Num], blocks: int) -> Num:
    """Whether the loop around the innermost one can be written out: more than one and at most eight trips, always as
    many.
    """
    axis = stage.reduce_axes[-2]
    if axis is stage.vector:
        return False
    whole = extent[axis]
    length = minimum(span[Slot(axis, 0)], whole) if blocks == 2 else whole
    return (length > 1) & (length <= 8) & is_multiple(whole, length)


def tile_all(s: Structure, vector_bytes: int, values: Mapping[str, Num]) -> dict[str, Tiling]:
    """The tilings of all stages: readers before the producers that are attached to them."""
    done: dict[str, Tiling] = {}
    around = {id for stage in s.stages if stage.host is not None for id in (stage.host, stage.reader)}
    for stage in reversed(s.stages):
        lanes = vector_bytes // stage.itemsize if stage.vector is not None else 1
        reader = done.get(stage.reader or "")
        if reader is not None and stage.vector is not None and not reader.stage.vector_is_reduced:
            lanes = min(
                lanes, reader.lanes
            )  # a reader of wider elements has fewer lanes, and panels are cut to its tile
        extent: dict[Axis, Num] = {a: a.extent for a in (*stage.axes, *stage.reduce_axes)}
        if stage.host is not None:
            extent.update(region(s, stage, done))
        done[stage.id] = tile_stage(stage, lanes, values, extent, reader, stage.id not in around)
    return done


def needed(reader: Tiling, stage: Stage) -> dict[Axis, Num]:
    """How much of each of the reader's axes lies inside the loop that the stage is attached in."""
    lens: dict[Axis, Num] = {}
    block = stage.level is Level.BLOCK
    for a in reader.stage.axes:
        slot = Slot(a, 1 if block else 0)
        root = reader.stage.host is None
        lens[a] = (
            minimum(reader.span[slot], reader.extent[a])
            if slot in reader.span and (root or block)
            else reader.extent[a]
        )
    for a in reader.stage.reduce_axes:
        lens[a] = minimum(reader.span[Slot(a, 0)], reader.extent[a]) if block else reader.extent[a]
    return lens


class Reach(NamedTuple):
    """The values that an index takes within one turn of the parallel loop: those of the axes that it cuts, and more."""

    cut: frozenset[tuple[Axis, int]]  # axes of the host, with coefficients
    low: int
    high: int


def _reach_of_axis(s: Structure, reader: Stage, axis: Axis) -> Reach:
    if reader.host is None and axis in reader.axes and axis not in reader.whole:
        return Reach(frozenset({(axis, 1)}), 0, 0)
    if reader.host is not None and axis in reader.axes:
        found = reaches(s, reader, axis)
        if len(found) == 1:
            return next(iter(found))
    return Reach(frozenset(), 0, axis.extent - 1)


@lru_cache(maxsize=CACHED)
def reaches(s: Structure, stage: Stage, axis: Axis) -> frozenset[Reach]:
    """What each read of an attached stage needs along one of its axes."""
    position = stage.place.index(axis)
    found: set[Reach] = set()
    for reader in s.readers(stage.tensor):
        for load in reader.reads():
            if load.tensor is stage.tensor:
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
                found.add(Reach(frozenset(cut.items()), low, high))
    return frozenset(found)


@lru_cache(maxsize=CACHED)
def is_computed_whole(s: Structure, stage: Stage, axis: Axis) -> bool:
    """Whether an attached stage computes all of an axis at every turn of the parallel loop.

    It does where its readers do not all need the same part; and, since a register tile begins at a panel of an operand
    that is packed for all of the stage, where that part need not consist of whole panels.
    """
    found = reaches(s, stage, axis)
    if len(found) != 1:
        return True
    if axis is not stage.vector or not any(c.reader == stage.id and c.host is None for c in s.stages):
        return False
    (reach,) = found
    host = s.stage(stage.host or stage.id)
    along = host.vector is not None and reach == Reach(frozenset({(host.vector, 1)}), 0, 0)
    panels = along and host.itemsize <= stage.itemsize  # the host's vectors are as long as a panel's, or several times
    return not panels and reach != Reach(frozenset(), 0, axis.extent - 1)


def region(s: Structure, stage: Stage, done: Mapping[str, Tiling]) -> dict[Axis, Num]:
    """The box of an attached stage that its readers need: the largest over all reads."""
    whole = {a: a.extent for a in stage.axes if is_computed_whole(s, stage, a)}
    box: dict[Axis, Num] = {}
    for reader in s.readers(stage.tensor):
        lens = needed(done[reader.id], stage)
        for load in reader.reads():
            if load.tensor is stage.tensor:
                for own, i in zip(stage.place, load.indices):
                    assert isinstance(own, Axis)
                    size = minimum(box_size(i, lens), own.extent)
                    box[own] = maximum(box[own], size) if own in box else size
    return {**box, **whole}


def box_size(index: Expr, lens: Mapping[Axis, Num]) -> Num:
    """How many consecutive values an index can take while its axes run over the given lengths."""
    size: Num = 1
    for atom, c in affine(index).terms:
        assert isinstance(atom, Axis), "attached stages are read linearly"
        size = size + abs(c) * (lens[atom] - 1)
    return size
