"""Loop nests: the tiling levels of a stage, their loop order, and the source of every trip count.

A stage's tiling structure (`target.structures`) lists levels; a `Nest` holds the levels that apply to the stage. Every
spatial axis has one loop at each spatial level, and every reduce axis has one loop at each reduce level. A `LoopLevel`
names such a loop. Knobs are named after loops: `s2.a0.3` is level 3 of axis a0 of stage s2, counted from 0, the
outermost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Returns the levels of a stage. An attached stage, inside its host's parallel loop, has no parallel level."""
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
    """Returns the axes of a spatial level, outermost first.

    Inside reduce loops (`inner`) the vector axis is outermost: a packed panel is reused while it is in L1.
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
    nest = nest_of(stage)
    source_of = _block_source if nest.is_cooperative else _source
    spatial = [
        (a, tuple(_cut(stage, a, x.number, source_of(stage, a, x)) for x in reversed(nest.spatial))) for a in stage.axes
    ]
    return (*spatial, *((a, tuple(_reduce_cuts(stage, a))) for a in stage.reduce_axes))


def _source(stage: Stage, axis: Axis, level: NestLevel) -> Trips:
    """Returns the source of a trip count on a CPU.

    The vector tile of a copy is its reader's: no knob. Load-time stages have no knobs.
    """
    is_unrolled, is_register = axis in stage.unrolled, level.kind is LoopKind.REGISTER
    rests = _rest_level(stage, axis)
    if level.number < rests or (is_unrolled and not is_register):
        return Trips.ONE
    if level.number == rests:
        return Trips.REST
    is_shared = is_copy(stage) and axis is stage.vector and is_register
    if stage.level is not ComputeAt.LOAD and not is_unrolled and not is_shared:
        return Trips.KNOB
    if axis is stage.vector:
        return Trips.READER
    if is_register and is_unrolled:
        return Trips.REST
    return Trips.LANES if is_register and axis is transposing_axis(stage) else Trips.ONE


def _block_source(stage: Stage, axis: Axis, level: NestLevel) -> Trips:
    """Returns the source of a trip count in a thread block: an attached stage takes its host's threads."""
    is_register, rests = level.kind is LoopKind.REGISTER, _rest_level(stage, axis)
    if axis in stage.unrolled:
        return Trips.REST if is_register else Trips.ONE
    if level.number == rests:
        return Trips.REST
    if level.number < rests or level.kind is LoopKind.SERIAL or (is_register and not has_rows(stage, axis)):
        return Trips.ONE
    if stage.host is None:
        return Trips.KNOB
    return Trips.THREADS if level.kind is LoopKind.THREAD else Trips.ONE


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


def _rest_level(stage: Stage, axis: Axis) -> int:
    """Returns the level that takes the quotient: the outermost, or the next inner level for axes in `stage.unsplit`."""
    nest = nest_of(stage)
    return min(nest.outermost + 1, nest.register) if axis in stage.unsplit else nest.outermost


# ---- knobs that are not trip counts ----------------------------------------------------------------------------------


@memoised()
def setting_knobs(stage: Stage) -> Mapping[str, str]:
    """Returns the names of the knobs that are not trip counts, by the attribute of `Tiling` that takes the value.

    vectors     vector accumulators along a reduced vector axis
    depth       reduce blocks in flight in the pipeline that stages operands in shared memory
    unroll      unroll factor of the innermost reduce loop
    peel        flag: unrolls the second innermost reduce loop fully, with a copy of the innermost loop per value
    layout      flag: puts the reduce axes of a staged operand first in shared memory
    pieces      pieces in which a thread copies a vector of a staged operand; 1 is the widest copy
    residents   blocks for which a multiprocessor must have registers at the same time
    group       rows of blocks that are traversed together, column by column
    """
    is_tuned = stage.level is not ComputeAt.LOAD
    has_loops = is_tuned and not stage.unrolled
    is_pipelined = nest_of(stage).stages_operands
    present = {
        "vectors": is_tuned and stage.vector_is_reduced,
        "depth": is_pipelined,
        "unroll": has_loops and stage.is_reduction,
        "peel": has_loops and len(stage.reduce_axes) > 1,
        "layout": has_layouts(stage),
        "pieces": _is_staged(stage) and stage.vector is not None and not stage.row_padding,
        "residents": is_pipelined and stage.host is None,
        "group": row_axis(stage) is not None,
    }
    names = {name: f"{stage.id}.{name}" for name, is_present in present.items() if is_present}
    if "vectors" in names and stage.vector is not None:
        names["vectors"] = f"{stage.id}.{stage.axis_id(stage.vector)}.v"
    return names


def _is_staged(stage: Stage) -> bool:
    """Returns whether a stage copies an operand to shared memory in every reduce block of its reader."""
    return stage.level is ComputeAt.REDUCE_BLOCK and is_copy(stage) and nest_of(stage).is_cooperative


def has_layouts(stage: Stage) -> bool:
    """Returns whether a copy in shared memory has two possible layouts (`space.boxes`): it ends in a reduce axis.

    Fragments of matrix instructions are read in the order of the source.
    """
    kinds = [stage.axis_id(a).startswith("r") for a in stage.axes]
    is_mixed = len(kinds) > 1 and kinds[-1] and not all(kinds)
    return is_mixed and _is_staged(stage) and not stage.row_padding


def row_axis(stage: Stage) -> Axis | None:
    """Returns the axis of groupable blocks, the innermost but the vector axis; None if blocks have a single order."""
    is_grid = stage.vector in stage.axes and len(stage.axes) > 1
    if stage.host is not None or not nest_of(stage).stages_operands or not is_grid:
        return None
    return [a for a in stage.axes if a is not stage.vector][-1]
