"""Lowering: one point of a sketch to a loop program.

Rolled loops run `ceil(remaining / inner)` trips, computed where they start. Every axis carries the set of lengths it
can have at each level, so that a loop whose trip count never varies has a constant one, and a register tile has one
body for each length that occurs: the full one and the exact remainders. The vector axis is masked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stormdrop.errors import ScheduleError, UserError
from stormdrop.ir.affine import ZERO, Affine, affine, bounds
from stormdrop.ir.expr import ITEMSIZE, Axis, Bin, Const, Expr, Load, Select, Var, binary, compare, walk
from stormdrop.ir.shape import row_strides
from stormdrop.ir.tensor import Task, Tensor
from stormdrop.lower.program import (
    Access,
    Accumulate,
    Buffer,
    For,
    If,
    Phase,
    Program,
    ReduceLoop,
    Span,
    Stmt,
    Tile,
    View,
)
from stormdrop.space.nest import LoopLevel, is_copy, nest_of
from stormdrop.space.region import is_computed_whole
from stormdrop.space.structure import Level, Stage, Structure
from stormdrop.space.tiling import Tiling
from stormdrop.target import ALIGN_BYTES, whole_lines
from stormdrop.target.scope import Scope

MAX_TILE_BODIES = 16
"""Of one stage; the space allows fewer, so that this is never met by what it offers."""


@dataclass(slots=True)
class Region:
    """Where an attached or packed tensor lies: its buffer, the first index it holds, and one stride per dimension.

    A panel keeps the vector axis in blocks: `panel` elements side by side, one block every `panel_stride` elements.
    """

    buffer: Buffer
    base: tuple[Affine, ...]
    strides: tuple[int, ...]
    offset: int = 0
    panel: int = 0
    panel_stride: int = 0


@dataclass(slots=True)
class _Context:
    structure: Structure
    tilings: Mapping[str, Tiling]
    regions: dict[Tensor, Region]
    scratch: int = 0
    most_scratch: int = 0
    spans: dict[str, dict[Axis, Span]] = field(default_factory=dict[str, dict[Axis, Span]])

    def allocate(self, name: str, tensor: Tensor, elements: int) -> Buffer:
        offset = self.scratch
        nbytes = elements * ITEMSIZE[tensor.dtype]
        self.scratch += whole_lines(nbytes) + ALIGN_BYTES
        self.most_scratch = max(self.most_scratch, self.scratch)
        return Buffer(name, tensor.dtype, Scope.SCRATCH, elements, scratch_offset=offset)


def lower(task: Task, s: Structure, tilings: Mapping[str, Tiling], views: Mapping[str, View] | None = None) -> Program:
    """The program of one point.

    `views` gives the memory layout of run-time inputs and outputs that are not row-major.
    """
    views = views or {}
    table: list[Buffer] = []
    regions: dict[Tensor, Region] = {}

    def add(t: Tensor, scope: Scope, region_of: Region | None = None) -> None:
        # A tensor in between may have the same name.
        given = views.get(t.name) if scope in (Scope.INPUT, Scope.OUTPUT) else None
        view = given or View(row_strides(t.shape))
        elements = region_of.buffer.elements if region_of else t.size
        buffer = Buffer(t.name, t.dtype, scope, elements, len(table))
        table.append(buffer)
        if region_of is None:
            regions[t] = Region(buffer, (ZERO,) * len(t.shape), view.strides, view.offset)
        else:
            regions[t] = replace(region_of, buffer=buffer)

    for t in task.runtime_inputs:
        add(t, Scope.INPUT)
    for t in task.constants:
        add(t, Scope.CONSTANT)
    for t in s.outputs:
        add(t, Scope.OUTPUT)
    for stage in s.roots:
        if stage.tensor in s.outputs:
            continue
        scope = Scope.PACKED if stage.level is Level.LOAD else Scope.WORKSPACE
        if is_copy(stage):
            add(stage.tensor, scope, _panel_region(stage, tilings[stage.id], tilings[stage.reader or ""], None))
        else:
            add(stage.tensor, scope)
    context = _Context(s, tilings, regions)
    phases = [_lower_root(context, stage) for stage in s.roots]
    phases.sort(key=lambda p: not p.at_load)
    return Program(tuple(phases), tuple(table), context.most_scratch)


def _panel_region(stage: Stage, own: Tiling, reader: Tiling, spans: Mapping[Axis, Span] | None) -> Region:
    """The layout of a packed operand: [other axes..., block of the vector axis, reduce axes, lanes of the block]."""
    extent = {a: own.extent[a] for a in stage.axes}
    base = tuple(spans[a].base if spans else ZERO for a in stage.axes)
    turned = reader.stage.vector
    vector = stage.vector
    if vector is None or turned is None or stage.axis_id(vector) != reader.stage.axis_id(turned):
        vector = None
    reduced = {reader.stage.axis_id(a) for a in reader.stage.reduce_axes}
    inner = [a for a in stage.axes if stage.axis_id(a) in reduced and a is not vector]
    outer = [a for a in stage.axes if a not in inner and a is not vector]
    width = own.vectors * own.lanes if vector is not None else 1
    strides: dict[Axis, int] = {}
    size = width
    for a in reversed(inner):
        strides[a] = size
        size *= extent[a]
    panel_stride = size
    if vector is not None:
        strides[vector] = 1
        size *= -(-extent[vector] // width)
    for a in reversed(outer):
        strides[a] = size
        size *= extent[a]
    buffer = Buffer(stage.tensor.name, stage.tensor.dtype, Scope.SCRATCH, max(size, 1))
    return Region(
        buffer, base, tuple(strides[a] for a in stage.axes), 0, width if vector is not None else 0, panel_stride
    )


def _box_region(context: _Context, stage: Stage, spans: Mapping[Axis, Span]) -> Region:
    """A row-major box, its last dimension rounded up to whole vector tiles."""
    own = context.tilings[stage.id]
    dims: list[int] = []
    order = [a for a in stage.place if isinstance(a, Axis)]  # rule Place attaches nothing that is written otherwise
    for a in order:
        n = own.extent[a]
        if a is stage.vector and a is order[-1]:
            n = -(-n // (own.lanes * own.vectors)) * own.lanes * own.vectors
        dims.append(max(1, n))
    strides = [1] * len(dims)
    for d in range(len(dims) - 2, -1, -1):
        strides[d] = strides[d + 1] * dims[d + 1]
    size = strides[0] * dims[0] if dims else 1
    buffer = context.allocate(stage.tensor.name, stage.tensor, size)
    return Region(buffer, tuple(spans[a].base for a in order), tuple(strides))


def _fixed(n: int) -> Expr:
    return Const(n, "i64")


def _whole(axis: Axis) -> Span:
    return Span(ZERO, _fixed(axis.extent), frozenset({axis.extent}))


def _split(span: Span, inner: int, var: Var) -> tuple[Expr, int, Span]:
    """Cut a span into pieces of `inner`: the trip count, its maximum, and the piece of one trip."""
    counts = {-(-n // inner) for n in span.lengths}
    most = max(counts)
    whole = {inner} if any(n >= inner for n in span.lengths) else set[int]()
    lengths = frozenset(whole | {n % inner for n in span.lengths if n % inner})
    trips = _fixed(most) if len(counts) == 1 else ceildiv(span.length, inner)
    if most == 1 and len(counts) == 1:
        return trips, 1, span
    base = span.base + Affine(((var, inner),))
    if len(lengths) == 1:
        length = _fixed(next(iter(lengths)))
    else:
        length = binary("min", _fixed(inner), binary("sub", span.length, binary("mul", var, inner)))
    return trips, most, Span(base, length, lengths)


def ceildiv(a: Expr, b: int) -> Expr:
    return a if b == 1 else binary("floordiv", binary("add", a, b - 1), b)


def _lower_root(context: _Context, stage: Stage) -> Phase:
    context.scratch = 0
    tiling = context.tilings[stage.id]
    spans = {a: _whole(a) for a in (*stage.axes, *stage.reduce_axes)}
    loops: list[tuple[Var, int]] = []
    order, parallel = nest_of(stage).order, nest_of(stage).parallel
    for slot in parallel:
        var = Var(f"{slot.axis.name}_{stage.axis_id(slot.axis)}_0")
        trips, most, piece = _split(spans[slot.axis], tiling.span[slot], var)
        spans[slot.axis] = piece
        assert isinstance(trips, Const)
        if most > 1:
            loops.append((var, most))
    context.spans[stage.id] = dict(spans)
    body: list[Stmt] = []
    for inner in context.structure.attached(stage):
        if inner.level is Level.THREAD:
            body += _lower_attached(context, inner)
    body += _loops(context, stage, order[len(parallel) :], dict(spans))
    return Phase(stage.id, tuple(loops), tuple(body), stage.level is Level.LOAD)


def _lower_attached(context: _Context, stage: Stage) -> list[Stmt]:
    spans = _needed_spans(context, stage)
    context.spans[stage.id] = dict(spans)
    if is_copy(stage):
        panel = _panel_region(stage, context.tilings[stage.id], context.tilings[stage.reader or ""], spans)
        buffer = context.allocate(stage.tensor.name, stage.tensor, panel.buffer.elements)
        context.regions[stage.tensor] = replace(panel, buffer=buffer)
    else:
        context.regions[stage.tensor] = _box_region(context, stage, spans)
    return _loops(context, stage, nest_of(stage).order, spans)


def _needed_spans(context: _Context, stage: Stage) -> dict[Axis, Span]:
    """The box that the readers need now, with the lengths it can have."""
    found: dict[Axis, list[Span]] = {a: [] for a in stage.axes}
    for reader in context.structure.readers(stage.tensor):
        host = reader.id == stage.host
        around = context.spans[reader.id] if host or reader.id in context.spans else None
        if around is None:
            around = _needed_spans(context, reader)
        for load in reader.reads():
            if load.tensor is stage.tensor:
                for own, i in zip(stage.place, load.indices):
                    assert isinstance(own, Axis)
                    found[own].append(_index_span(i, around, own.extent))
    spans: dict[Axis, Span] = {a: _whole(a) for a in stage.reduce_axes}
    for a, options in found.items():
        spans[a] = _whole(a) if is_computed_whole(context.structure, stage, a) else options[0]
    return spans


def _index_span(index: Expr, around: Mapping[Axis, Span], extent: int) -> Span:
    """The stretch of values an index takes while its axes run over their spans."""
    form = affine(index)
    base = Affine((), form.constant)
    length: Affine = Affine((), 1)
    choices: list[list[int]] = []
    for atom, c in form.terms:
        assert isinstance(atom, Axis)
        span = around[atom] if atom in around else _whole(atom)
        if c > 0:
            base = base + span.base.scaled(c)
        else:
            base = base + span.base.scaled(c) + affine(span.length).scaled(c).shifted(-c)
        length = length + affine(span.length).scaled(abs(c)).shifted(-abs(c))
        choices.append([abs(c) * (n - 1) for n in span.lengths])
    lengths = frozenset(1 + sum(pick) for pick in itertools.product(*choices))
    if max(lengths) > extent:  # a padded producer may be read past what exists only where its reader guards the read
        raise ScheduleError(f"a region of {max(lengths)} exceeds the extent {extent}")
    return Span(base, length.expr(), lengths)


def _loops(context: _Context, stage: Stage, order: Sequence[LoopLevel], spans: dict[Axis, Span]) -> list[Stmt]:
    """The serial loops of a stage from the given slots inwards, then its register tile."""
    tiling = context.tilings[stage.id]
    nest = nest_of(stage)
    rolled = [x for x in order if x.axis.kind == "spatial" or x.number != nest.innermost_reduce]
    blocks = [slot for slot in rolled if slot.axis.kind == "reduce"]
    blocked = any(tiling.trips[slot] > 1 for slot in blocks)
    first: list[Expr] = []
    last: list[Expr] = []
    frames: list[tuple[Var, Expr, int] | list[Stmt]] = []
    partial: Access | None = None
    for k, slot in enumerate(rolled):
        axis = slot.axis
        if axis.kind == "reduce" and blocked and partial is None:
            partial = _partial_buffer(context, stage, spans)
        var = Var(f"{axis.name}_{stage.id}{stage.axis_id(axis)}_{slot.number}")
        trips, most, piece = _split(spans[axis], tiling.span[slot], var)
        if most > 1 or not isinstance(trips, Const):
            frames.append((var, trips, most))
            if axis.kind == "reduce":
                first.append(compare("eq", var, 0))
                last.append(compare("eq", var, binary("sub", trips, 1)))
            spans[axis] = piece
        if axis.kind == "reduce" and (k + 1 == len(rolled) or rolled[k + 1].axis.kind == "spatial"):
            frames.append(_block_copies(context, stage, spans))
    accumulate = None
    if partial is not None:
        accumulate = Accumulate(_rebased(partial, spans), _all(first), _all(last))
    body: tuple[Stmt, ...] = tuple(_variants(context, stage, spans, accumulate))
    for frame in reversed(frames):
        if isinstance(frame, list):
            body = (*frame, *body)
        else:
            var, trips, most = frame
            body = (For(var, trips, most, body),)
    return list(body)


def _block_copies(context: _Context, stage: Stage, spans: Mapping[Axis, Span]) -> list[Stmt]:
    """The operands packed inside the outer reduce loops of this stage."""
    copies = [c for c in context.structure.stages if c.reader == stage.id and c.level is Level.BLOCK]
    context.spans[stage.id] = dict(spans)
    return [s for copy in copies for s in _lower_attached(context, copy)]


def _all(parts: Iterable[Expr]) -> Expr:
    result: Expr = Const(True, "bool")
    for part in parts:
        result = binary("and", result, part)
    return result


def _partial_buffer(context: _Context, stage: Stage, spans: Mapping[Axis, Span]) -> Access:
    """Scratch for the accumulators of everything inside the outer reduce loops, in whole vectors."""
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
    """The same place, relative to the tile that starts where the spans do."""
    outer = access.outer
    for a, c in access.coefficients:
        if a.kind == "spatial":
            outer = outer + spans[a].base.scaled(c)
    return Access(access.buffer, outer, access.coefficients, access.atoms)


def _variants(context: _Context, stage: Stage, spans: Mapping[Axis, Span], accumulate: Accumulate | None) -> list[Stmt]:
    """One register tile for each combination of row lengths that occurs, chosen by comparing lengths."""
    tiling = context.tilings[stage.id]
    rows = [a for a in stage.axes if a is not stage.vector]
    cases: list[tuple[Expr, Tile]] = []
    combinations = list(itertools.product(*(sorted(spans[a].lengths, reverse=True) for a in rows)))
    if len(combinations) > MAX_TILE_BODIES:
        raise ScheduleError(f"{stage.id}: {len(combinations)} code variants")
    for lengths in combinations:
        condition = _all(compare("eq", spans[a].length, n) for a, n in zip(rows, lengths) if not spans[a].is_fixed)
        cases.append((condition, _tile(context, stage, spans, dict(zip(rows, lengths)), accumulate, tiling)))
    body: tuple[Stmt, ...] = (cases[-1][1],)
    for condition, tile in reversed(cases[:-1]):
        body = (If(condition, (tile,), body),)
    return list(body)


def _tile(
    context: _Context,
    stage: Stage,
    spans: Mapping[Axis, Span],
    rows: Mapping[Axis, int],
    accumulate: Accumulate | None,
    tiling: Tiling,
) -> Tile:
    live: Expr | None = None
    vectors = tiling.vectors
    if stage.vector is not None and not stage.vector_is_reduced:
        span = spans[stage.vector]
        width = vectors * tiling.lanes
        if span.lengths != frozenset({width}):
            live = span.length
            vectors = -(-span.longest // tiling.lanes)
    base = {a: spans[a].base for a in (*stage.axes, *stage.reduce_axes)}
    reduce: list[ReduceLoop] = []
    for k, a in enumerate(stage.reduce_axes):
        inner = k == len(stage.reduce_axes) - 1
        step = tiling.lanes * tiling.vectors if a is stage.vector else 1
        second = k == len(stage.reduce_axes) - 2 and a is not stage.vector
        peeled = bool(tiling.peel) and second and spans[a].is_fixed and spans[a].longest <= 8
        peeled = peeled or (a in stage.unrolled and not inner)
        var = Var(f"{a.name}_{stage.id}{stage.axis_id(a)}_r")
        reduce.append(ReduceLoop(a, spans[a], var, step, tiling.unroll if inner else 1, peeled))
    access = {load: _access(context, load.tensor, load.indices, base) for load in stage.reads()}
    store = _access(context, stage.tensor, stage.place, base)
    if stage.host is not None and stage.place and stage.vector is stage.place[-1]:
        store = replace(store, padded=True)  # its scratch is rounded up to whole vector tiles
    return Tile(stage, base, tuple(rows.items()), vectors, tiling.lanes, live, tuple(reduce), accumulate, access, store)


def _access(context: _Context, tensor: Tensor, indices: tuple[Expr, ...], base: Mapping[Axis, Affine]) -> Access:
    """The address of `tensor[indices]` relative to a tile whose axes start at `base`."""
    region = context.regions[tensor]
    outer = Affine((), region.offset)
    coefficients: dict[Axis, int] = {}
    atoms: list[tuple[Expr, int]] = []
    for d, (i, stride) in enumerate(zip(indices, region.strides)):
        _check_data(tensor, d, i)
        form = affine(i)
        if region.panel and stride == 1 and d == len(indices) - 1:
            ((axis, _),) = form.terms
            assert isinstance(axis, Axis)
            start = base[axis] + region.base[d].scaled(-1)
            if any(c % region.panel for _, c in start.terms) or start.constant % region.panel:
                raise ScheduleError(f"{tensor.name}: a tile does not start at a panel")
            blocks = Affine(tuple((a, c // region.panel) for a, c in start.terms), start.constant // region.panel)
            outer = outer + blocks.scaled(region.panel_stride)
            coefficients[axis] = coefficients.get(axis, 0) + 1
            continue
        outer = outer + Affine((), form.constant * stride) + region.base[d].scaled(-stride)
        for atom, c in form.terms:
            if isinstance(atom, Axis):
                coefficients[atom] = coefficients.get(atom, 0) + c * stride
                outer = outer + base[atom].scaled(c * stride)
            else:
                atoms.append((atom, c * stride))
    return Access(
        region.buffer, outer, tuple((a, c) for a, c in coefficients.items() if c), tuple(atoms), region.panel > 0
    )


def _check_data(tensor: Tensor, d: int, i: Expr) -> None:
    """An index made of data must be clamped, max(min(i, n - 1), 0), or taken modulo n: no input may lead outside a
    tensor.
    """
    if not any(isinstance(n, Load) for n in walk(i)):
        return
    known = bounds(i, _whatever)
    if known is None or known[0] < 0 or known[1] >= tensor.shape[d]:
        raise UserError(f"{tensor.name} is read at {i}, which data decides: clamp it to 0 … {tensor.shape[d] - 1}")


def _whatever(atom: Expr) -> tuple[int, int] | None:
    """The bounds of data: all integers. Operations that narrow them are looked into."""
    narrows = isinstance(atom, (Axis, Select)) or (
        isinstance(atom, Bin) and atom.op in ("min", "max", "mod", "floordiv")
    )
    return None if narrows else (-(2**63), 2**63 - 1)
