"""Lowering: one point of a sketch to a loop program.

Rolled loops run `ceil(remaining / inner)` trips, computed at loop entry. Tails are exact: a register tile has one body
for each number of rows that occurs, and the vector axis is masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from stormdrop.ir.affine import ZERO, conjunction
from stormdrop.ir.expr import Axis, Const, Expr, Var, binary, compare
from stormdrop.ir.shape import row_strides
from stormdrop.ir.tensor import Task, Tensor
from stormdrop.lower.blocks import lower_block
from stormdrop.lower.context import LoweringContext, Span, needed_spans, parallel_loops, split, whole
from stormdrop.lower.packed_layout import Region, panel_region
from stormdrop.lower.prefetch import with_prefetches
from stormdrop.lower.program import Access, Buffer, For, Phase, Program, Stmt, View
from stormdrop.lower.tiles import Partial, TileSite
from stormdrop.space.nest import LoopLevel, is_copy, nest_of
from stormdrop.space.structure import ComputeAt, Stage, Structure
from stormdrop.space.tiling import Tiling
from stormdrop.target.structures import Scope


def lower(task: Task, s: Structure, tilings: Mapping[str, Tiling], views: Mapping[str, View] | None = None) -> Program:
    """Lowers a point, given as a tiling for each stage id.

    `views` gives the memory layout of run-time inputs and outputs that are not row-major.
    """
    table: list[Buffer] = []
    regions: dict[Tensor, Region] = {}

    def add(t: Tensor, scope: Scope, view: View | None = None, panel: Region | None = None) -> None:
        elements = panel.buffer.elements if panel else t.size
        table.append(Buffer(t.name, t.dtype, scope, elements, len(table)))
        view = view or View(row_strides(t.shape))
        own = panel or Region(table[-1], (ZERO,) * len(t.shape), view.strides, view.offset)
        regions[t] = replace(own, buffer=table[-1])

    for t in task.runtime_inputs:
        add(t, Scope.INPUT, (views or {}).get(t.name))
    for t in task.constants:
        add(t, Scope.CONSTANT)
    for t in s.outputs:
        add(t, Scope.OUTPUT, (views or {}).get(t.name))
    for stage in s.roots:
        if stage.tensor not in s.outputs:
            reader = tilings[stage.reader or ""] if is_copy(stage) else None
            panel = panel_region(stage, tilings[stage.id], reader, {}) if reader is not None else None
            add(stage.tensor, Scope.PACKED if stage.level is ComputeAt.LOAD else Scope.WORKSPACE, panel=panel)
    context = LoweringContext(s, tilings, regions)
    phases = [(lower_block if nest_of(x).is_cooperative else _lower_root)(context, x) for x in s.roots]
    phases.sort(key=lambda p: not p.at_load)
    return with_prefetches(Program(tuple(phases), tuple(table), context.most_scratch))


def _box_region(context: LoweringContext, stage: Stage, spans: Mapping[Axis, Span]) -> Region:
    """Returns the scratch of an attached stage: a row-major box; a last vector axis is rounded up to whole tiles."""
    own = context.tilings[stage.id]
    dims: list[int] = []
    order = [a for a in stage.place if isinstance(a, Axis)]  # rule Place attaches only stages stored at plain axes
    for a in order:
        n = own.extent[a]
        if a is stage.vector and a is order[-1]:
            n = -(-n // (own.lanes * own.vectors)) * own.lanes * own.vectors
        dims.append(max(1, n))
    buffer = context.allocate(stage.tensor.name, stage.tensor, prod(dims))
    strides = row_strides(tuple(dims))
    return Region(buffer, tuple(spans[a].base for a in order), strides)


def _lower_root(context: LoweringContext, stage: Stage) -> Phase:
    context.scratch = 0
    spans = {a: whole(a) for a in (*stage.axes, *stage.reduce_axes)}
    loops = parallel_loops(context, stage, spans)
    context.spans[stage.id] = dict(spans)
    body: list[Stmt] = []
    for inner in context.structure.attached(stage):
        if inner.level is ComputeAt.UNIT:
            body += _lower_attached(context, inner)
    nest = nest_of(stage)
    body += _loops(context, stage, nest.order[len(nest.parallel) :], dict(spans))
    return Phase(stage.id, loops, tuple(body), stage.level is ComputeAt.LOAD)


def _lower_attached(context: LoweringContext, stage: Stage) -> list[Stmt]:
    spans = needed_spans(context, stage)
    context.spans[stage.id] = dict(spans)
    if is_copy(stage):
        start = {a: span.base for a, span in spans.items()}
        panel = panel_region(stage, context.tilings[stage.id], context.tilings[stage.reader or ""], start)
        buffer = context.allocate(stage.tensor.name, stage.tensor, panel.buffer.elements)
        context.regions[stage.tensor] = replace(panel, buffer=buffer)
    else:
        context.regions[stage.tensor] = _box_region(context, stage, spans)
    return _loops(context, stage, nest_of(stage).order, spans)


def _loops(context: LoweringContext, stage: Stage, order: Sequence[LoopLevel], spans: dict[Axis, Span]) -> list[Stmt]:
    """Returns the serial loops of a stage at the given levels, outermost first, around its register tile."""
    tiling = context.tilings[stage.id]
    nest = nest_of(stage)
    rolled = [x for x in order if x.axis.kind == "spatial" or x.number != nest.innermost_reduce]
    blocks = [level for level in rolled if level.axis.kind == "reduce"]
    blocked = any(tiling.trips[level] > 1 for level in blocks)
    first: list[Expr] = []
    last: list[Expr] = []
    frames: list[tuple[Var, Expr, int] | list[Stmt]] = []
    partial: Access | None = None
    for k, level in enumerate(rolled):
        axis = level.axis
        if axis.kind == "reduce" and blocked and partial is None:
            partial = _partial_buffer(context, stage, spans)
        var = Var(f"{axis.name}_{stage.id}{stage.axis_id(axis)}_{level.number}")
        trips, most, piece = split(spans[axis], tiling.span[level], var)
        if most > 1 or not isinstance(trips, Const):
            frames.append((var, trips, most))
            context.known[var] = (0, most - 1)
            if axis.kind == "reduce":
                first.append(compare("eq", var, 0))
                last.append(compare("eq", var, binary("sub", trips, 1)))
            spans[axis] = piece
        if axis.kind == "reduce" and (k + 1 == len(rolled) or rolled[k + 1].axis.kind == "spatial"):
            frames.append(_block_copies(context, stage, spans))
    resumed = partial and Partial(_rebased(partial, spans), conjunction(first), conjunction(last))
    body = TileSite(stage, tiling, spans, context.regions, resumed, context.known).variants()
    for frame in reversed(frames):
        if isinstance(frame, list):
            body = (*frame, *body)
        else:
            var, trips, most = frame
            body = (For(var, trips, most, body),)
    return list(body)


def _block_copies(context: LoweringContext, stage: Stage, spans: Mapping[Axis, Span]) -> list[Stmt]:
    """Packs the operands that are attached inside the outer reduce loops of this stage."""
    copies = [c for c in context.structure.stages if c.reader == stage.id and c.level is ComputeAt.REDUCE_BLOCK]
    context.spans[stage.id] = dict(spans)
    return [s for copy in copies for s in _lower_attached(context, copy)]


def _partial_buffer(context: LoweringContext, stage: Stage, spans: Mapping[Axis, Span]) -> Access:
    """Returns the scratch for the accumulators across the outer reduce loops, rounded up to whole register tiles."""
    tiling = context.tilings[stage.id]
    size = 1
    coefficients: list[tuple[Axis, int]] = []
    outer = ZERO
    order = sorted(stage.axes, key=lambda a: a is stage.vector)
    for a in reversed(order):
        coefficients.append((a, size))
        outer = outer + spans[a].base.scaled(-size)
        n = spans[a].longest
        unit = tiling.tile(a)
        size *= -(-n // unit) * unit
    if stage.vector_is_reduced:
        lanes = tiling.lanes * tiling.vectors
        coefficients = [(a, c * lanes) for a, c in coefficients]
        outer = outer.scaled(lanes)
        size *= lanes
        assert stage.vector is not None
        coefficients.append((stage.vector, 1))
    buffer = context.allocate(stage.acc.name + ".partial", stage.acc, size)
    return Access(buffer, outer, tuple(coefficients))


def _rebased(access: Access, spans: Mapping[Axis, Span]) -> Access:
    """Returns the access relative to the register tile that begins at the spans' bases."""
    outer = access.outer
    for a, c in access.coefficients:
        if a.kind == "spatial":
            outer = outer + spans[a].base.scaled(c)
    return Access(access.buffer, outer, access.coefficients, access.atoms)
