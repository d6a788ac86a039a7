"""Lowering the nests of a thread block: every statement is executed by all threads of a block.

Tiles are whole: an instance beyond the end of an axis is dead, it reads and stores nothing (`RegisterTile.limits`).
Trip counts around barriers depend on the block alone, so that all threads meet at a barrier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from stormdrop.ir.affine import ZERO, Affine, affine, bounds, conjunction
from stormdrop.ir.expr import Axis, Const, Expr, Load, Var, binary, compare, select, substitute
from stormdrop.lower.borders import narrowed
from stormdrop.lower.context import LoweringContext, Span, needed_spans, parallel_loops, split, whole
from stormdrop.lower.fragments import LANE, MatrixLowering
from stormdrop.lower.packed_layout import Region, access_of
from stormdrop.lower.program import (
    Access,
    Barrier,
    Combine,
    CommitCopies,
    Finish,
    For,
    If,
    Phase,
    ReduceLoop,
    RegisterTile,
    Start,
    Stmt,
    Threads,
    Update,
    WaitForCopies,
)
from stormdrop.lower.tiles import decided_reads, nested, reduce_loop, spread_over
from stormdrop.space.access import settled
from stormdrop.space.boxes import BOX_ELEMENTS, box_elements, box_strides
from stormdrop.space.nest import LoopLevel, nest_of, row_axis
from stormdrop.space.structure import ComputeAt, Stage
from stormdrop.target.gpu import WARP
from stormdrop.target.structures import LoopKind


def lower_block(context: LoweringContext, stage: Stage) -> Phase:
    """Returns the phase of a root stage: one thread block for every iteration of its parallel range."""
    context.scratch, most_scratch = 0, context.most_scratch
    spans = {a: whole(a) for a in (*stage.axes, *stage.reduce_axes)}
    loops = _grouped(context, stage, parallel_loops(context, stage, spans), spans)
    context.spans[stage.id] = dict(spans)
    inside = [x for x in context.structure.attached(stage) if x.level is ComputeAt.UNIT]
    threads = int(context.tilings[stage.id].threads)
    if any(context.tilings[x.id].reduce_threads > 1 for x in (stage, *inside)):
        threads = -(-threads // WARP) * WARP  # shuffles need whole warps
    body: list[Stmt] = []
    for x in inside:
        body += [*_attached(context, x, threads), Barrier()]
    body += _Nest(context, stage, spans, threads, None).statements()
    residents = int(context.tilings[stage.id].residents)
    phase = Phase(stage.id, loops, tuple(body), False, threads, context.scratch, residents)
    context.most_scratch = most_scratch
    return phase


def _grouped(
    context: LoweringContext, stage: Stage, loops: tuple[tuple[Var, int], ...], spans: dict[Axis, Span]
) -> tuple[tuple[Var, int], ...]:
    """Returns the parallel loops with `group` rows of blocks together: neighbours in time share columns in the L2.

    for m in M, n in N   ->   for m_outer in M / group, n in N, m_inner in group:  m = m_outer * group + m_inner
    """
    group, axis = int(context.tilings[stage.id].group), row_axis(stage)
    if group == 1 or axis is None:
        return loops
    (var,) = (v for v, _ in loops if spans[axis].base.coefficient(v))
    outer, inner = Var(f"{var.name}_group"), Var(f"{var.name}_row")
    trips = dict(loops)[var] // group
    context.known |= {outer: (0, trips - 1), inner: (0, group - 1)}
    whole_number = Affine(((outer, group), (inner, 1)))
    span = spans[axis]
    length = substitute(span.length, {var: whole_number.expr()})
    spans[axis] = Span(span.base.replace({var: whole_number}), length, span.lengths)
    return (*((outer, trips) if v is var else (v, n) for v, n in loops), (inner, group))


def _attached(context: LoweringContext, stage: Stage, threads: int) -> list[Stmt]:
    """Lowers a stage inside the block of another stage: the box that its readers need, in shared memory."""
    box = _Box(context, stage, 1)
    spans = box.place(ZERO)
    return _Nest(context, stage, spans, threads, box.sizes).statements()


class _Box:
    """The shared memory of an attached stage: `count` boxes, of which a pipeline fills one while another is read."""

    def __init__(self, context: LoweringContext, stage: Stage, count: int) -> None:
        self.context, self.stage = context, stage
        own = context.tilings[stage.id]
        self.order = [a for a in stage.place if isinstance(a, Axis)]
        self.sizes = {a: int(own.extent[a]) for a in self.order}
        dims = {a: max(1, n) for a, n in self.sizes.items()}
        self.strides = box_strides(stage, dims, int(own.layout))
        self.elements = int(box_elements(stage, dims, int(own.layout)))
        if count > 1:
            self.elements = -(-self.elements // BOX_ELEMENTS) * BOX_ELEMENTS
        self.buffer = context.allocate(stage.tensor.name, stage.tensor, self.elements * count)

    def place(self, number: Affine) -> dict[Axis, Span]:
        """Returns the spans that the readers need now, and makes box `number` the storage of the stage's tensor."""
        spans = needed_spans(self.context, self.stage)
        self.context.spans[self.stage.id] = dict(spans)
        base = tuple(spans[a].base for a in self.order)
        region = Region(self.buffer, base, self.strides, moving=number.scaled(self.elements))
        self.context.regions[self.stage.tensor] = region
        return spans


@dataclass(slots=True)
class _Nest:
    """One stage in a block of `threads` threads. `box`: the sizes of an attached stage's storage."""

    context: LoweringContext
    stage: Stage
    spans: dict[Axis, Span]
    threads: int
    box: Mapping[Axis, int] | None
    is_asynchronous: bool = False

    def statements(self) -> list[Stmt]:
        context, stage = self.context, self.stage
        nest = nest_of(stage)
        frames = [f for n in nest.numbers(LoopKind.SERIAL) for a in stage.axes if (f := self._split(LoopLevel(a, n)))]
        carried: list[tuple[Var, Expr, int]] = []
        depth = int(context.tilings[stage.id].depth)
        whole_spans = dict(self.spans)
        if stage.is_reduction and not nest.reduces_across_threads and depth == 1:
            carried = [f for a in stage.reduce_axes if (f := self._split(LoopLevel(a, 0)))]
        elif depth > 1:
            carried = [self._reduce_block(whole_spans, affine(self._block_variable()))]
        digits, base, crossing = self._threads()
        matrix = None
        if stage.matrix is not None:
            matrix = MatrixLowering(stage, context.tilings[stage.id], base)
            digits, base = [*digits, (LANE, WARP)], matrix.lane_base()
            context.known[LANE] = (0, WARP - 1)
        x_threads = prod(n for _, n in crossing)
        copies = [c for c in context.structure.stages if c.reader == stage.id and c.level is ComputeAt.REDUCE_BLOCK]
        tile = self._tile(base) if matrix is None else self._limited(matrix.tile(base))
        has_barrier = bool(copies) or x_threads > 1
        alive = self._alive(tile)
        idle = -(-self.threads // prod(n for _, n in digits))
        if has_barrier and idle > 1:  # threads without a tile take part in barriers
            var = Var(f"{stage.id}_idle")
            context.known[var] = (0, idle - 1)
            digits = [(var, idle), *digits]
            alive.append(compare("lt", var, 1))
        if not stage.is_reduction:
            body: tuple[Stmt, ...] = _where(alive, (self._finish(tile),))
        else:
            staged: list[Stmt] = []
            before: list[Stmt] = []
            if copies and depth > 1:
                before, staged = self._pipeline(copies, depth, whole_spans, carried[0][2])
            elif copies:
                context.spans[stage.id] = dict(self.spans)
                staged = [*(s for copy in copies for s in _attached(context, copy, self.threads)), Barrier()]
            is_repeated = bool(carried or frames) and depth == 1
            body = self._reduction(tile, staged, carried, alive, crossing, x_threads, is_repeated, matrix)
            if before:  # before the tile's accumulators: the loop that fills the pipeline does not carry them
                body = (*([Barrier()] if frames else []), *before, *body)
        for var, trips, most in reversed(frames):
            body = (For(var, trips, most, body),)
        return [Threads(tuple(digits), body)]

    # The pipeline: while one box is read, the next boxes are copied

    def _block_variable(self) -> Var:
        return Var(f"{self.stage.id}_block")

    def _reduce_block(self, whole_spans: Mapping[Axis, Span], number: Affine) -> tuple[Var, Expr, int]:
        """Returns the single loop over all reduce blocks; sets the reduce axes' spans to block `number`."""
        stage, tiling = self.stage, self.context.tilings[self.stage.id]
        count = 1
        for axis in reversed(stage.reduce_axes):
            digit = Var(f"{axis.name}_digit")
            _, most, piece = split(whole_spans[axis], int(tiling.span[LoopLevel(axis, 0)]), digit)
            if most > 1:
                rest = binary("floordiv", number.expr(), count) if count > 1 else number.expr()
                is_outermost = axis is next(a for a in stage.reduce_axes if tiling.outer_reduce_trips(a) > 1)
                value = rest if is_outermost else binary("mod", rest, most)
                base = piece.base.replace({digit: affine(value)})
                piece = Span(base, substitute(piece.length, {digit: value}), piece.lengths)
            self.spans[axis] = piece
            count *= most
        self.context.known.setdefault(self._block_variable(), (0, count - 1))
        return self._block_variable(), Const(count, "i64"), count

    def _pipeline(
        self, copies: Sequence[Stage], depth: int, whole_spans: Mapping[Axis, Span], count: int
    ) -> tuple[list[Stmt], list[Stmt]]:
        """Returns the statements that fill the pipeline before the loop over reduce blocks, and the first statements of
        an iteration of that loop.

        A barrier after the wait is enough: the box that is filled next was read an iteration ago.
        """
        context, block, first = self.context, self._block_variable(), Var(f"{self.stage.id}_first")
        boxes = [_Box(context, copy, depth) for copy in copies]

        def copied(number: Affine) -> list[Stmt]:
            self._reduce_block(whole_spans, number)
            context.spans[self.stage.id] = dict(self.spans)
            statements: list[Stmt] = []
            for box in boxes:
                spans = box.place(affine(binary("mod", number.expr(), depth)))
                nest = _Nest(context, box.stage, spans, self.threads, box.sizes, is_asynchronous=True)
                statements += nest.statements()
            return statements

        context.known[first] = (0, depth - 2)
        filled = copied(affine(first))
        ahead = affine(block).shifted(depth - 1)
        context.known[block] = (0, count - depth)
        more = copied(ahead)
        context.known[block] = (0, count - 1)
        # The reader's own block comes last: the tile finds its operands in its box.
        self._reduce_block(whole_spans, affine(block))
        context.spans[self.stage.id] = dict(self.spans)
        for box in boxes:
            box.place(affine(binary("mod", block, depth)))
        before: list[Stmt] = [For(first, Const(depth - 1, "i64"), depth - 1, (*filled, CommitCopies()))]
        is_more = compare("lt", ahead.expr(), count)
        return before, [WaitForCopies(depth - 2), Barrier(), If(is_more, tuple(more)), CommitCopies()]

    def _split(self, level: LoopLevel) -> tuple[Var, Expr, int] | None:
        """Returns the loop of a level if it has more than one trip; sets the axis's span to a trip's span."""
        stage, axis = self.stage, level.axis
        var = Var(f"{axis.name}_{stage.id}{stage.axis_id(axis)}_{level.number}")
        trips, most, piece = split(self.spans[axis], int(self.context.tilings[stage.id].span[level]), var)
        if most <= 1 and isinstance(trips, Const):
            return None
        self.context.known[var] = (0, most - 1)
        self.spans[axis] = piece
        return var, trips, most

    def _threads(self) -> tuple[list[tuple[Var, int]], dict[Axis, Affine], list[tuple[Var, int]]]:
        """Returns the thread variables in the order of their digits, the first element of a thread's tile along every
        axis, and the reduction's variables.
        """
        stage, tiling, nest = self.stage, self.context.tilings[self.stage.id], nest_of(self.stage)
        threads = tiling.thread_levels
        base = {a: self.spans[a].base for a in (*stage.axes, *stage.reduce_axes)}
        digits: dict[Axis, tuple[Var, int]] = {}
        levels = [level for n in nest.spatial for a in stage.axes if (level := LoopLevel(a, n.number)) in threads]
        levels += [LoopLevel(a, 1) for a in stage.reduce_axes if nest.reduces_across_threads]
        for level in levels:
            axis, n = level.axis, int(tiling.trips[level])
            if n > 1:
                var = Var(f"{axis.name}_{stage.id}{stage.axis_id(axis)}_t")
                self.context.known[var] = (0, n - 1)
                base[axis] = base[axis] + Affine(((var, int(tiling.span[level])),))
                digits[axis] = (var, n)
        crossing = [digits[a] for a in stage.reduce_axes if a in digits]
        spatial = [digits[a] for a in stage.axes if a in digits and a is not stage.vector]
        spatial += [digits[a] for a in stage.axes if a in digits and a is stage.vector]
        order = [*spatial, *crossing] if stage.vector is None else [*crossing, *spatial]
        return order, base, crossing

    def _tile(self, base: dict[Axis, Affine]) -> RegisterTile:
        stage, tiling, nest = self.stage, self.context.tilings[self.stage.id], nest_of(self.stage)
        counts: dict[Axis, int] = {}
        repeats: list[tuple[Axis, int, int]] = []
        for a in stage.axes:
            own, virtual = int(tiling.trips[LoopLevel(a, nest.register)]), int(tiling.virtual_threads(a))
            counts[a] = own * virtual
            if virtual > 1:
                (level,) = nest.numbers(LoopKind.VIRTUAL_THREAD)
                repeats.append((a, own, int(tiling.span[LoopLevel(a, level)])))
        rows = tuple((a, n) for a, n in counts.items() if a is not stage.vector)
        vectors = counts[stage.vector] if stage.vector is not None else 1
        return self._limited(RegisterTile(stage, base, rows, vectors, int(tiling.lanes), None, tuple(repeats)))

    def _limited(self, tile: RegisterTile) -> RegisterTile:
        """Returns the tile with the limits that it may exceed."""
        limits = [(a, a.extent) for a in self.stage.axes if self._last(tile, a) >= a.extent]
        return replace(tile, limits=tuple(limits))

    def _reach(self, tile: RegisterTile, axis: Axis) -> int:
        """Returns the offset of the last element of a tile along an axis."""
        if axis is self.stage.vector:
            return tile.position(axis, tile.vectors - 1, tile.lanes) + tile.lanes - 1
        return tile.position(axis, dict(tile.rows)[axis] - 1, 1)

    def _last(self, tile: RegisterTile, axis: Axis) -> int:
        """Returns the largest index along an axis that any thread's tile has."""
        known = bounds(tile.base[axis].expr(), self.context.known.get)
        assert known is not None
        return known[1] + self._reach(tile, axis)

    def _alive(self, tile: RegisterTile) -> list[Expr]:
        """Returns the conditions under which this thread's tile lies inside the box of an attached stage."""
        conditions: list[Expr] = []
        for a, size in (self.box or {}).items():
            start = tile.base[a] + self.context.regions[self.stage.tensor].base[self.stage.place.index(a)].scaled(-1)
            room = Affine((), size - 1 - self._reach(tile, a)) + start.scaled(-1)
            known = bounds(room.expr(), self.context.known.get)
            if known is None or known[0] < 0:
                conditions.append(compare("ge", room.expr(), 0))
        return conditions

    def _loops(self, tile: RegisterTile, crossing: Mapping[Axis, int]) -> list[ReduceLoop]:
        """Returns the reduce loops of a thread; along an axis divided among threads, the step is their number."""
        tiling, loops = self.context.tilings[self.stage.id], list[ReduceLoop]()
        for a in self.stage.reduce_axes:
            span, step = self.spans[a], crossing.get(a, 1)
            loop = reduce_loop(tile, tiling, a, span, step, can_peel=step == 1)
            if step > 1:
                longest = -(-span.longest // step) * step
                thread = tile.base[a] + span.base.scaled(-1)
                rounded = affine(span.length) + thread.scaled(-1).shifted(step - 1)
                high = binary("mul", binary("floordiv", rounded.expr(), step), step)
                if span.is_fixed and span.longest % step == 0:
                    high = Const(longest, "i64")
                loop = replace(loop, high=high, longest=longest)
            loops.append(loop)
        return loops

    def _reduction(
        self,
        tile: RegisterTile,
        staged: Sequence[Stmt],
        carried: Sequence[tuple[Var, Expr, int]],
        alive: Sequence[Expr],
        crossing: Sequence[tuple[Var, int]],
        x_threads: int,
        is_repeated: bool,
        matrix: MatrixLowering | None,
    ) -> tuple[Stmt, ...]:
        stage, context = self.stage, self.context
        of_axis = {a: n for a in stage.reduce_axes for v, n in crossing if tile.base[a].coefficient(v)}
        loops, value = self._loops(tile, of_axis), settled(stage.body)
        if matrix is not None:
            loops[-1] = replace(loops[-1], step=matrix.depth)
        elif not of_axis:
            loops, value = narrowed(tile, loops, value, context.known)
        has_barrier = bool(staged) or x_threads > 1
        if has_barrier and alive:  # a thread without a tile makes no step
            high = select(conjunction(alive), loops[0].high, Const(0, "i64"))
            loops = [replace(loops[0], high=high, written_out=False), *loops[1:]]
        loops = [_settled(loop, loop is loops[-1]) for loop in loops]
        reads = decided_reads(tile, loops, value, None, lambda load: self._access(load, tile))
        fragments = None if matrix is None else matrix.fragments(value, context.regions)
        steps = (nested(loops, Update(tile, value, _without_pages(reads), fragments)),)
        if staged:
            steps = (*staged, *steps, *([Barrier()] if is_repeated else []))
        for var, trips, most in reversed(carried):
            steps = (For(var, trips, most, steps, tile),)
        start, finish = Start(tile, None, Const(True, "bool")), self._finish(tile)
        if not has_barrier:
            return _where(alive, (start, *steps, finish))
        if x_threads == 1:
            return (start, *steps, *_where(alive, (finish,)))
        first = [compare("lt", v, 1) for v, _ in crossing]
        return (start, *steps, self._combine(tile, x_threads), *_where([*alive, *first], (finish,)))

    def _combine(self, tile: RegisterTile, x_threads: int) -> Combine:
        """Returns the exchange of accumulators among the threads that divided a reduction."""
        stage = self.stage
        others = int(self.context.tilings[stage.id].threads) // x_threads
        shuffled = min(WARP, x_threads) if stage.vector is None else 1
        groups = x_threads // shuffled
        buffer = None
        if groups > 1:
            slots = -(-self.threads // shuffled)
            elements = slots * tile.row_count * tile.chunks * tile.lanes
            buffer = self.context.allocate(stage.acc.name + ".parts", stage.acc, elements)
        return Combine(tile, shuffled, groups, 1 if stage.vector is None else others, buffer)

    def _finish(self, tile: RegisterTile) -> Finish:
        stage = self.stage
        place = Load(stage.tensor, stage.place)
        store = spread_over(tile, place, self._access(place, tile), is_guarded=True)
        reads = decided_reads(tile, (), stage.finish, stage.guard, lambda load: self._access(load, tile))
        return Finish(tile, stage.finish, _without_pages(reads), store, self.is_asynchronous)

    def _access(self, load: Load, tile: RegisterTile) -> Access:
        access = access_of(self.context.regions[load.tensor], load.tensor, load.indices, tile.base)
        writer = self.context.structure.writer(load.tensor)
        return replace(access, has_dead=writer is not None and writer.reader == self.stage.id)


def _where(conditions: Sequence[Expr], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    return (If(conjunction(conditions), body),) if conditions else body


def _without_pages(reads: Mapping[Load, Access]) -> dict[Load, Access]:
    """Returns an access without pages: a thread's guarded read goes to the first element of its own buffer."""
    return {load: replace(access, page=None) for load, access in reads.items()}


def _settled(loop: ReduceLoop, is_innermost: bool) -> ReduceLoop:
    """Sets `written_out` once the range is final."""
    if is_innermost or not (isinstance(loop.low, Const) and isinstance(loop.high, Const)):
        return loop
    return replace(loop, written_out=loop.written_out or int(loop.high.value) - int(loop.low.value) <= loop.step)
