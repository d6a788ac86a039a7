"""Loop nests: the tiling levels of a stage, their loop order, and the source of every trip count.

A stage's tiling structure (`target.structures`) lists levels; a `Nest` holds the levels that apply to the stage. Every
spatial axis has one loop at each spatial level, and every reduce axis has one loop at each reduce level. A `LoopLevel`
names such a loop. Knobs are named after loops: `s2.a0.3` is level 3 of axis a0 of stage s2, counted from 0, the
outermost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from stormdrop.ir.expr import Axis, Bin
from stormdrop.ir.memo import memoised
from stormdrop.space.access import axes_of, transposing_axis
from stormdrop.space.structure import ComputeAt, Stage
from stormdrop.target.structures import LoopKind


class LoopLevel(NamedTuple):
    """One loop of a nest: level `number` of `axis`, 0 the outermost. (A NamedTuple: it is a hot dictionary key.)"""

    axis: Axis
    number: int


class NestLevel(NamedTuple):
    """One level of a nest: the kind of its loops, and its number among the spatial or among the reduce levels."""

    kind: LoopKind
    number: int


@dataclass(frozen=True, slots=True)
class Nest:
    """The spatial and the reduce levels of a stage, outermost first."""

    spatial: tuple[NestLevel, ...]
    reduce: tuple[NestLevel, ...]
    outside_reduction: int
    """The number of the innermost spatial level outside all reduce loops."""
    order: tuple[LoopLevel, ...]
    """All loops but the unrolled loops of the register tile, outermost first."""

    @property
    def register(self) -> int:
        """The number of the spatial level that is held in registers."""
        return self.spatial[-1].number

    @property
    def outermost(self) -> int:
        """The number of the outermost spatial level: 0 for a root stage, more for an attached stage."""
        return self.spatial[0].number

    @property
    def is_blocked(self) -> bool:
        """True if reduce loops enclose spatial loops: accumulators are in memory between reduce blocks."""
        return len(self.reduce) == 2

    @property
    def is_cooperative(self) -> bool:
        """True if the threads of a block execute the nest together, as on a GPU."""
        return any(level.kind in (LoopKind.THREAD, LoopKind.WARP) for level in self.spatial)

    @property
    def stages_operands(self) -> bool:
        """True if the threads of a block copy operands to shared memory in every reduce block."""
        return self.is_cooperative and self.is_blocked and not self.reduces_across_threads

    @property
    def reduces_across_threads(self) -> bool:
        """True if a level divides the reduce axes among the threads of a block."""
        return any(level.kind is LoopKind.THREAD for level in self.reduce)

    def numbers(self, kind: LoopKind) -> tuple[int, ...]:
        """Returns the numbers of the spatial levels of a kind."""
        return tuple(level.number for level in self.spatial if level.kind is kind)

    @property
    def innermost_reduce(self) -> int:
        """The number of the reduce level around the register tile."""
        return self.reduce[-1].number

    @property
    def parallel(self) -> tuple[LoopLevel, ...]:
        """The loops that form the phase's parallel range."""
        numbers = {level.number for level in self.spatial if level.kind.is_parallel}
        return tuple(x for x in self.order if x.axis.kind == "spatial" and x.number in numbers)


@memoised()
def nest_of(stage: Stage) -> Nest:
    """Returns the levels of a stage.

    An attached stage runs inside its host's parallel loop and has no parallel level.
    """
    assert stage.tiling is not None
    spatial: list[NestLevel] = []
    reduce: list[NestLevel] = []
    order: list[LoopLevel] = []
    number = outside_reduction = 0
    for is_reduce, kind in stage.tiling.levels:
        if is_reduce:
            if stage.is_reduction:
                order += [LoopLevel(a, len(reduce)) for a in stage.reduce_axes]
                reduce.append(NestLevel(kind, len(reduce)))
            continue
        if stage.host is None or not kind.is_parallel:
            spatial.append(NestLevel(kind, number))
            if kind is not LoopKind.REGISTER:
                order += [LoopLevel(a, number) for a in _axis_order(stage, inner=bool(reduce))]
                outside_reduction = outside_reduction if reduce else number
        number += 1
    return Nest(tuple(spatial), tuple(reduce), outside_reduction, tuple(order))


def _axis_order(stage: Stage, inner: bool) -> Sequence[Axis]:
    """Returns the axes of a spatial level, outermost first. `inner` marks levels inside reduce loops.

    There the vector axis is outermost: a packed panel is reused while it is in L1.
    """
    if not inner or stage.vector not in stage.axes:
        return stage.axes
    return sorted(stage.axes, key=lambda a: a is not stage.vector)


def is_copy(stage: Stage) -> bool:
    """Returns whether a stage packs an operand of another stage."""
    return stage.reader is not None


# ---- where trip counts come from -------------------------------------------------------------------------------------


class Trips(Enum):
    """The sources of a loop's trip count."""

    ONE = "one"
    REST = "rest"  # the quotient of the axis by the levels inside
    KNOB = "knob"  # a knob, clamped to the quotient
    READER = "reader"  # of a copy: the vectors in its reader's register tile
    LANES = "lanes"  # the number of lanes: a register-blocked transpose
    THREADS = "threads"  # of a stage inside a thread block: as many of the block's threads as are left


class Cut(NamedTuple):
    """One level of an axis and the source of its trip count; `knob` is empty unless the source is a knob."""

    loop: LoopLevel
    source: Trips
    knob: str


@memoised()
def cuts(stage: Stage) -> tuple[tuple[Axis, tuple[Cut, ...]], ...]:
    """Returns the cuts of every axis, innermost level first."""
    spatial = [(a, tuple(_spatial_cuts(stage, a))) for a in stage.axes]
    return (*spatial, *((a, tuple(_reduce_cuts(stage, a))) for a in stage.reduce_axes))


def _spatial_cuts(stage: Stage, axis: Axis) -> list[Cut]:
    """Returns the levels of a spatial axis.

    The vector tile of a copy is its reader's: no knob. Load-time stages have no knobs.
    """
    rests = rest_level(stage, axis)
    if nest_of(stage).is_cooperative:
        return _cooperative_cuts(stage, axis, rests)
    is_tuned = stage.level is not ComputeAt.LOAD and axis not in stage.unrolled
    found: list[Cut] = []
    for level in reversed(nest_of(stage).spatial):
        number, is_register = level.number, level.kind is LoopKind.REGISTER
        is_shared = is_copy(stage) and axis is stage.vector and is_register
        if number < rests or (axis in stage.unrolled and not is_register):
            source = Trips.ONE
        elif number == rests:
            source = Trips.REST
        elif is_tuned and not is_shared:
            source = Trips.KNOB
        elif axis is stage.vector:
            source = Trips.READER
        elif is_register and axis in stage.unrolled:
            source = Trips.REST
        elif is_register and axis is transposing_axis(stage):
            source = Trips.LANES
        else:
            source = Trips.ONE
        found.append(_cut(stage, axis, number, source))
    return found


def _cooperative_cuts(stage: Stage, axis: Axis, rests: int) -> list[Cut]:
    """Returns the levels of a spatial axis in a thread block.

    A stage inside another's block takes that block's threads.
    """
    found: list[Cut] = []
    for level in reversed(nest_of(stage).spatial):
        is_register = level.kind is LoopKind.REGISTER
        if axis in stage.unrolled:
            source = Trips.REST if is_register else Trips.ONE
        elif level.number == rests:
            source = Trips.REST
        elif level.number < rests or level.kind is LoopKind.SERIAL or (is_register and not has_rows(stage, axis)):
            source = Trips.ONE
        elif stage.host is None:
            source = Trips.KNOB
        else:
            source = Trips.THREADS if level.kind is LoopKind.THREAD else Trips.ONE
        found.append(_cut(stage, axis, level.number, source))
    return found


def has_rows(stage: Stage, axis: Axis) -> bool:
    """Returns whether a register tile may have several elements along a spatial axis.

    In a matrix product this holds for the columns (the vector axis) and for axes that the column operand does not have.
    """
    if stage.matrix is None or axis is stage.vector:
        return True
    assert isinstance(stage.body, Bin)
    return axis not in axes_of(stage.body.b)


def _reduce_cuts(stage: Stage, axis: Axis) -> list[Cut]:
    if nest_of(stage).reduces_across_threads and (stage.host is not None or axis in stage.unrolled):
        source = Trips.ONE if axis in stage.unrolled else Trips.THREADS
        return [_cut(stage, axis, 1, source), _cut(stage, axis, 0, Trips.REST)]
    inner = [_cut(stage, axis, 1, Trips.KNOB)] if nest_of(stage).is_blocked else []
    return [*inner, _cut(stage, axis, 0, Trips.REST)]


def _cut(stage: Stage, axis: Axis, number: int, source: Trips) -> Cut:
    knob = f"{stage.id}.{stage.axis_id(axis)}.{number}" if source is Trips.KNOB else ""
    return Cut(LoopLevel(axis, number), source, knob)


def rest_level(stage: Stage, axis: Axis) -> int:
    """Returns the level that takes the quotient: the outermost, or the next inner level for axes in `stage.unsplit`."""
    nest = nest_of(stage)
    return min(nest.outermost + 1, nest.register) if axis in stage.unsplit else nest.outermost


# ---- knobs that are not trip counts ----------------------------------------------------------------------------------


def vectors_knob(stage: Stage) -> str | None:
    """Returns the knob for the number of vector accumulators along a reduced vector axis."""
    tuned = stage.vector is not None and stage.vector_is_reduced and stage.level is not ComputeAt.LOAD
    return f"{stage.id}.{stage.axis_id(stage.vector)}.v" if tuned and stage.vector is not None else None


def unroll_knob(stage: Stage) -> str | None:
    """Returns the knob for the unroll factor of the innermost reduce loop."""
    tuned = stage.is_reduction and stage.level is not ComputeAt.LOAD and not stage.unrolled
    return f"{stage.id}.unroll" if tuned else None


def depth_knob(stage: Stage) -> str | None:
    """Returns the knob for the depth of the pipeline that stages operands in shared memory: reduce blocks in flight."""
    return f"{stage.id}.depth" if nest_of(stage).stages_operands else None


def has_layouts(stage: Stage) -> bool:
    """Returns whether a copy in shared memory has two possible layouts (`space.boxes`): it ends in a reduce axis.

    Fragments of matrix instructions are read in the order of the source.
    """
    kinds = [stage.axis_id(a).startswith("r") for a in stage.axes]
    is_staged = stage.level is ComputeAt.REDUCE_BLOCK and is_copy(stage) and nest_of(stage).is_cooperative
    return is_staged and len(kinds) > 1 and kinds[-1] and not all(kinds) and not stage.row_padding


def layout_knob(stage: Stage) -> str | None:
    """Returns the flag that puts the reduce axes of a staged operand first in shared memory."""
    return f"{stage.id}.layout" if has_layouts(stage) else None


def pieces_knob(stage: Stage) -> str | None:
    """Returns the knob for the pieces in which a thread copies a vector of a staged operand: 1 is the widest copy."""
    is_staged = stage.level is ComputeAt.REDUCE_BLOCK and is_copy(stage) and nest_of(stage).is_cooperative
    return f"{stage.id}.pieces" if is_staged and stage.vector is not None and not stage.row_padding else None


def residents_knob(stage: Stage) -> str | None:
    """Returns the knob for the blocks for which a multiprocessor must have registers at the same time."""
    return f"{stage.id}.residents" if stage.host is None and depth_knob(stage) is not None else None


def group_knob(stage: Stage) -> str | None:
    """Returns the knob for the order of blocks: the rows of blocks that are traversed together, column by column."""
    return f"{stage.id}.group" if row_axis(stage) is not None else None


def row_axis(stage: Stage) -> Axis | None:
    """Returns the axis of groupable blocks, the innermost but the vector axis; None if blocks have a single order."""
    if stage.host is not None or depth_knob(stage) is None or stage.vector not in stage.axes or len(stage.axes) < 2:
        return None
    return [a for a in stage.axes if a is not stage.vector][-1]


def peel_knob(stage: Stage) -> str | None:
    """Returns the flag that fully unrolls the second innermost reduce loop: a copy of the innermost loop per value."""
    tuned = len(stage.reduce_axes) > 1 and stage.level is not ComputeAt.LOAD and not stage.unrolled
    return f"{stage.id}.peel" if tuned else None
