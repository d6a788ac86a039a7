"""The verifier of loop programs; the tests run it on every program that they build."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

from stormdrop.base.errors import BuildError
from stormdrop.ir.affine import Affine, affine, conjunction, decide, index_condition, opposite
from stormdrop.ir.expr import (
    ITEMSIZE,
    Axis,
    Bin,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    compare,
    loads,
    rewrite,
    substitute,
    walk,
)
from stormdrop.lower.facts import Facts
from stormdrop.lower.fragments import ROW_BYTES
from stormdrop.lower.program import (
    Access,
    Barrier,
    Combine,
    CommitCopies,
    Finish,
    For,
    Fragment,
    If,
    Phase,
    Program,
    ReduceLoop,
    RegisterTile,
    Save,
    Spread,
    Start,
    Stmt,
    Threads,
    Update,
    WaitForCopies,
    buffers_of,
)
from stormdrop.space.access import axes_of, has_load, occurrences
from stormdrop.target.structures import Scope

SCOPES_WITH_VIEWS = (Scope.INPUT, Scope.CONSTANT, Scope.OUTPUT)  # strided by a View: `elements` is no bound
ZERO = Const(0, "i64")


def verify(program: Program) -> None:
    """Raises BuildError if a program is not well-formed. The checks are:

    - every variable is bound by an enclosing loop,
    - accumulators are started before use and saved or finished once,
    - every access is inside its tensor and its buffer, dead lanes included unless they are masked,
    - loop steps equal vector widths,
    - scratch buffers of a phase do not overlap,
    - all threads of a block reach every barrier.
    """
    for number, buffer in enumerate(program.buffers):
        _require(buffer.slot == number, f"{buffer} is entry {number} of the pointer table, not {buffer.slot}")
    for phase in program.phases:
        _Verifier(program).phase(phase)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise BuildError(f"malformed program: {problem}")


class _Verifier:
    """A walk through one phase."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.facts = Facts()
        self.started: set[RegisterTile] = set()
        self.loops: list[ReduceLoop] = []
        self.threads = 0
        self.thread_variables: set[Expr] = set()
        self.is_divergent = False  # some threads of the block may be elsewhere

    def phase(self, phase: Phase) -> None:
        places: list[tuple[int, int, str]] = []
        for b in buffers_of(phase):
            if b.scope is Scope.SCRATCH:
                places.append((b.scratch_offset, b.scratch_offset + b.elements * ITEMSIZE[b.dtype], b.name))
            else:
                _require(b in self.program.buffers, f"{b} is not in the pointer table")
        for (_, end, name), (begin, _, other) in pairwise(sorted(places)):
            _require(end <= begin, f"{name} and {other} share scratch memory")
        most = max((end for _, end, _ in places), default=0)
        limit = phase.shared_bytes if phase.threads else self.program.scratch_bytes
        _require(most <= limit, f"{most} bytes of scratch, of {limit}")
        self.threads = phase.threads
        for var, n in phase.loops:
            self._open(var, ZERO, Const(n, "i64"), n)
        self._body(phase.body)
        _require(not self.started, f"accumulators of {phase.name} are not finished")

    def _open(self, var: Var, low: Expr, high: Expr, most: int) -> None:
        _require(var not in self.facts.intervals, f"two loops over {var}")
        self.facts.variable(var, low, high, (0, max(0, most - 1)))

    def _bound(self, *parts: Expr | Affine) -> None:
        """Checks that an enclosing loop binds every variable in the parts."""
        for part in parts:
            for n in walk(part.expr() if isinstance(part, Affine) else part):
                if isinstance(n, Var) and not isinstance(n, Axis) and n not in self.facts.intervals:
                    _require(False, f"{n} is not the variable of a loop around {part}")

    def _body(self, body: tuple[Stmt, ...]) -> None:
        outside = self.facts
        for s in body:
            match s:
                case For(var, trips, most, inner, carried):
                    self._bound(trips)
                    _require(carried is None or carried in self.started, f"{var} carries a tile that is not started")
                    self.facts = outside.copy()
                    self._open(var, ZERO, trips, most)
                    with self._divided_by(trips):
                        self._loop_body(inner, s)
                case Threads():
                    self._in_threads(s)
                case CommitCopies() | WaitForCopies():
                    _require(not self.is_divergent, "groups of copies that some threads of a block may not make")
                case Barrier():
                    _require(not self.is_divergent, "a barrier that some threads of a block may not reach")
                case Combine(tile):
                    _require(tile in self.started, f"{tile.stage.id} is combined before it is started")
                    _require(not self.is_divergent, f"{tile.stage.id} is combined where threads are missing")
                    _require(s.groups == 1 or s.buffer is not None, f"{tile.stage.id}: groups without a buffer")
                case If(condition, then, orelse):
                    self._bound(condition)
                    divergent, self.is_divergent = self.is_divergent, self.is_divergent or self._varies(condition)
                    before = set(self.started)
                    self.facts = outside.copy()
                    self.facts.assume(condition)
                    self._body(then)
                    after, self.started = self.started, before
                    self.facts = outside.copy()
                    self._body(orelse)
                    self.is_divergent = divergent
                    if self.threads and not orelse and after < self.started:
                        self.started = after  # a single thread stores the combined accumulators of several threads
                    _require(self.started == after, f"accumulators are started or finished on one side of {condition}")
                case Start(tile, resume, first):
                    self._bound(first)
                    _require(tile not in self.started, f"{tile.stage.id} is started twice")
                    self._tile(tile)
                    if resume is not None:
                        self._address(tile, resume, (), has_dead_lanes=True)
                    self.started.add(tile)
                case ReduceLoop():
                    self._reduce_loop(s)
                case Update(tile):
                    axes = sorted(loop.axis.serial for loop in self.loops if loop.tile is tile)
                    _require(tile in self.started, f"{tile.stage.id} is updated before it is started")
                    every = sorted(a.serial for a in tile.stage.reduce_axes)
                    _require(axes == every, f"{tile.stage.id} is not reduced over each of its axes once")
                    self._reads(s, None)
                    for fragment in s.fragments or ():
                        self._fragment(tile, fragment)
                case Save(tile, access):
                    self._use_up(tile)
                    self._address(tile, access, (), has_dead_lanes=True)
                case Finish(tile):
                    if tile.stage.is_reduction:
                        self._use_up(tile)
                    else:
                        self._tile(tile)
                    self._reads(s, tile.stage.guard)
                    place = Load(tile.stage.tensor, tile.stage.place)
                    self._access(tile, place, s.store, () if tile.stage.guard is None else (tile.stage.guard,))
            self.facts = outside

    def _in_threads(self, s: Threads) -> None:
        _require(self.threads > 0, "threads in a phase without thread blocks")
        self.facts = self.facts.copy()
        outside, divergent = set(self.thread_variables), self.is_divergent
        for var, n in s.loops:
            self._open(var, ZERO, Const(n, "i64"), n)
            self.thread_variables.add(var)
        self.is_divergent = divergent or s.count < self.threads
        self._body(s.body)
        self.thread_variables, self.is_divergent = outside, divergent

    def _varies(self, e: Expr) -> bool:
        """Returns whether an expression may differ between the threads of a block."""
        return any(n in self.thread_variables for n in walk(e))

    @contextmanager
    def _divided_by(self, trips: Expr) -> Generator[None]:
        divergent, self.is_divergent = self.is_divergent, self.is_divergent or self._varies(trips)
        yield
        self.is_divergent = divergent

    def _loop_body(self, body: tuple[Stmt, ...], loop: For | ReduceLoop) -> None:
        before = set(self.started)
        self._body(body)
        _require(self.started == before, f"accumulators are started or finished inside the loop over {loop.var}")

    def _use_up(self, tile: RegisterTile) -> None:
        _require(tile in self.started, f"{tile.stage.id} is finished, but not started or already finished")
        self.started.remove(tile)

    def _tile(self, tile: RegisterTile) -> None:
        stage = tile.stage
        self._bound(*(tile.base[a] for a in stage.axes), *([] if tile.live is None else [tile.live]))
        for a, limit in tile.limits:
            starts = [*(c for _, c in tile.base[a].terms), tile.base[a].constant, limit] if a is stage.vector else []
            _require(
                not any(c % tile.lanes for c in starts), f"{stage.id}: lanes of a vector that are not dead together"
            )
        _require(set(tile.base) == {*stage.axes, *stage.reduce_axes}, f"{stage.id}: a tile without all of its axes")
        _require({a for a, _ in tile.rows} == set(stage.axes) - {stage.vector}, f"{stage.id}: rows of other axes")
        is_power = tile.lanes > 0 and not tile.lanes & (tile.lanes - 1)
        _require(is_power and tile.vectors > 0 and tile.row_count > 0, f"{stage.id}: an empty tile, or odd lanes")
        if tile.live is not None:
            room = binary("sub", Const(tile.vectors * tile.lanes, "i64"), tile.live)
            _require(not stage.vector_is_reduced, f"{stage.id}: live lanes of a reduced vector")
            _require(self.facts.never_negative(room), f"{stage.id}: more live lanes than {tile.live}")

    def _reduce_loop(self, loop: ReduceLoop) -> None:
        tile, stage, axis = loop.tile, loop.tile.stage, loop.axis
        _require(tile in self.started, f"a loop over {axis} carries accumulators that are not started")
        self._bound(loop.low, loop.high)
        width = tile.vectors * tile.lanes if axis is stage.vector else 1
        is_divided = self.threads > 0 and axis is not stage.vector
        is_step = loop.step == width or is_divided
        _require(is_step and loop.unroll > 0, f"{stage.id}: a step of {loop.step} along {axis}, not {width}")
        is_known = isinstance(loop.low, Const) and isinstance(loop.high, Const)
        _require(is_known or not loop.written_out, f"{stage.id}: {axis} is written out, but its range is not known")
        if loop.step > 1 and not is_divided:
            length = affine(binary("sub", loop.high, loop.low))
            is_whole = not length.terms and length.constant % loop.step == 0
            _require(is_whole or loop.masked, f"{stage.id}: the last step along {axis} is partial, but not masked")
        outside, self.facts = self.facts, self.facts.copy()
        low, high, longest = loop.low, loop.high, loop.longest
        if self.threads and isinstance(high, Select) and high.b is ZERO and low is ZERO:
            self.facts.assume(high.condition)  # else the loop is empty
            high = high.a
        if is_divided and loop.step > 1:  # the variable counts steps here
            high, longest = _quotient(high, loop.step), -(-longest // loop.step)
        self._open(loop.var, low, high, longest)
        self.loops.append(loop)
        self._loop_body(loop.body, loop)
        self.loops.pop()
        self.facts = outside

    # Accesses

    def _along(self, loop: ReduceLoop) -> Affine:
        """Returns the distance of a loop's present step from the first."""
        is_divided = self.threads > 0 and loop.axis is not loop.tile.stage.vector
        return affine(loop.var).scaled(loop.step if is_divided else 1)

    def _reads(self, s: Update | Finish, guard: Expr | None) -> None:
        guards = occurrences(s.value, guard)
        own = s.tile.stage.acc if s.tile.stage.is_reduction else None
        for load in loads(s.value):
            if load.tensor is not own:
                _require(load in s.reads, f"{load} has no access")
                for alternative in guards[load]:
                    self._access(s.tile, load, s.reads[load], alternative)
                    self._page(s.tile, load, s.reads[load], alternative)

    def _page(self, tile: RegisterTile, e: Load, access: Access, guards: tuple[Expr, ...]) -> None:
        """Checks that the select between element and page has the same outcome above its loop as inside."""
        own = [loop for loop in self.loops if loop.tile is tile]
        axes = [loop.axis for loop in own]
        if access.page is None or access.page.above is None:
            return
        _require(access.page.above in axes, f"the page of {e} is selected above {access.page.above}, no loop around")
        inside = own[axes.index(access.page.above) :]
        used = {a for g in guards if tile.lanes == 1 or tile.stage.vector not in axes_of(g) for a in axes_of(g)}
        for loop in inside:
            is_fixed = loop.axis not in used and (loop is own[-1] or not access.coefficient(loop.axis))
            _require(is_fixed, f"the page of {e} is selected above {access.page.above}, but depends on {loop.axis}")

    def _instance(
        self, tile: RegisterTile, has_dead_lanes: bool, rows_inside: bool
    ) -> tuple[Facts, dict[Expr, Affine]]:
        """Returns the facts about the tile's axes, and each axis as a form over loop variables and a fresh offset
        variable.

        `rows_inside`: row offsets rank inside the vector axis's offset, so that a proof eliminates them first.
        """
        facts, places = self.facts.copy(), dict[Expr, Affine]()
        stage, width = tile.stage, tile.vectors * tile.lanes
        sizes: dict[Axis, tuple[Expr, int]] = {a: (Const(n, "i64"), n) for a, n in tile.rows}
        for loop in self.loops:
            if loop.tile is tile:
                places[loop.axis] = tile.base[loop.axis] + self._along(loop)
        if stage.vector is not None and not stage.vector_is_reduced:
            is_whole = tile.live is None or has_dead_lanes
            sizes[stage.vector] = (Const(width, "i64") if is_whole else tile.live, width)  # type: ignore[assignment]
        elif stage.vector is not None and has_dead_lanes:
            steps = max((-(-loop.longest // width) for loop in self.loops if loop.axis is stage.vector), default=1)
            sizes[stage.vector] = (Const(steps * width, "i64"), steps * width)
        for a, (size, most) in sorted(sizes.items(), key=lambda item: rows_inside and item[0] is not stage.vector):
            offset = Var(f"{a.name}.{a.serial}")
            form = affine(offset)
            for repeated, n, distance in tile.repeats:
                if repeated is a:  # virtual threads: a second variable, `distance` apart
                    again, own = Var(f"{a.name}.{a.serial}.v"), n * (tile.lanes if a is stage.vector else 1)
                    times = most // own
                    facts.variable(again, ZERO, Const(times, "i64"), (0, times - 1))
                    form, size, most = form + affine(again).scaled(distance), Const(own, "i64"), own
            facts.variable(offset, ZERO, size, (0, most - 1))
            places[a] = tile.base[a] + form
        return facts, places

    def _access(self, tile: RegisterTile, e: Load, access: Access, guards: tuple[Expr, ...]) -> None:
        """Checks that the element is inside its tensor under the guards, and unmasked lanes are inside the buffer."""
        self._bound(access.outer)
        slope, square = access.coefficient(tile.stage.vector), access.square
        is_square = square is not None and access.coefficient(square) == 1 and not dict(tile.rows)[square] % tile.lanes
        match access.spread:
            case Spread.ONE:
                _require(tile.lanes == 1 or not slope, f"the lanes of {e} differ")
            case Spread.CONTIGUOUS:
                _require(slope == 1, f"the lanes of {e} do not lie side by side")
            case Spread.TRANSPOSED:
                _require(is_square, f"{e} is no transposed square")
            case Spread.STRIDED:
                pass
        if not access.has_dead:
            guards = (*guards, *(compare("lt", a, limit) for a, limit in tile.limits))
        for i, extent in zip(e.indices, e.tensor.shape if not access.has_dead else ()):
            self._proved(tile, guards, False, lambda places, i=i: _placed(i, places), extent, e, "along", i)
        if access.buffer.scope not in SCOPES_WITH_VIEWS:
            self._address(tile, access, guards, has_dead_lanes=not access.masked)
            return
        has_tail = tile.live is not None or any(loop.masked for loop in self.loops if loop.tile is tile)
        is_whole = access.spread is Spread.ONE or access.masked or not has_tail
        _require(is_whole, f"dead lanes of {e} are neither masked nor inside its buffer")

    def _address(self, tile: RegisterTile, access: Access, guards: tuple[Expr, ...], has_dead_lanes: bool) -> None:
        def index(places: Mapping[Expr, Affine]) -> Expr:
            form = access.outer
            for a, c in access.coefficients:
                form = form + (places[a] + tile.base[a].scaled(-1)).scaled(c)
            for atom, c in access.atoms:
                form = form + affine(_placed(atom, places)).scaled(c)
            return form.expr()

        elements = access.buffer.elements
        self._proved(tile, guards, has_dead_lanes, index, elements, "an address in", access.buffer)

    def _fragment(self, tile: RegisterTile, f: Fragment) -> None:
        """Checks that a lane's loads in any group are in the buffer: 16 bytes, or an element per half of a step."""
        access, kernel = f.access, tile.stage.matrix
        _require(kernel is not None, f"{tile.stage.id}: fragments without a matrix instruction")
        assert kernel is not None
        self._bound(access.outer, f.second)
        inner = access.coefficient(tile.stage.reduce_axes[-1])
        reach = inner * kernel.kernel.k // 2 if f.is_scalar else ROW_BYTES // ITEMSIZE[access.buffer.dtype] - 1
        groups = replace(  # of a group, only the first element is added to a lane's own offset
            tile,
            vectors=tile.vectors * tile.lanes // 2,
            lanes=1,
            repeats=tuple((a, 1, distance) for a, _, distance in tile.repeats),
        )
        loops, self.loops = self.loops, [replace(x, tile=groups) if x.tile is tile else x for x in self.loops]
        for moved in (0, reach):
            self._address(groups, replace(access, outer=access.outer.shifted(moved)), (), has_dead_lanes=True)
        self.loops = loops

    def _proved(
        self,
        tile: RegisterTile,
        guards: tuple[Expr, ...],
        has_dead_lanes: bool,
        index: Callable[[Mapping[Expr, Affine]], Expr],
        extent: int,
        *subject: object,
    ) -> None:
        """Proves `0 <= index < extent` under the guards, in both elimination orders.

        Raises BuildError if no order succeeds; only then are the parts of `subject` printed.
        """
        for rows_inside in (False, True):
            facts, places = self._instance(tile, has_dead_lanes, rows_inside)
            given = _placed(conjunction(guards), places)
            facts.assume(given)
            if self._is_inside(facts, given, index(places), extent):
                return
        _require(False, f"{' '.join(map(str, subject))}: {index(places)} may leave 0 … {extent - 1}")

    def _is_inside(self, facts: Facts, given: Expr, index: Expr, extent: int) -> bool:
        """Returns whether `0 <= index < extent`, by cases over Select, min and max, which `given` may contain too."""
        for n in walk(index):
            cases: list[tuple[Facts, Expr, Expr]] = []
            for condition, value in _cases(n):
                case, known = facts.copy(), conjunction((substitute(given, {n: value}), condition))
                case.assume(known)
                cases.append((case, known, substitute(index, {n: value})))
            if cases:
                possible = [case for case in cases if decide(case[1], lambda _: None) is not False]
                return all(self._is_inside(*case, extent) for case in possible)
        room = binary("sub", Const(extent - 1, index.dtype), index)
        return facts.never_negative(index) and facts.never_negative(room)


def _quotient(e: Expr, n: int) -> Expr:
    """Returns e / n if `e` is a multiple of n in the form that lowering writes."""
    match e:
        case Const(value):
            return Const(int(value) // n, "i64")
        case Bin("mul", a, Const(c)) if int(c) == n:
            return a
        case _:
            return binary("floordiv", e, n)


def _placed(e: Expr, places: Mapping[Expr, Affine]) -> Expr:
    return rewrite(e, lambda n: places[n].expr() if n in places else None)


def _cases(e: Expr) -> list[tuple[Expr, Expr]]:
    """Returns the cases of a Select, min or max as (condition, value) pairs; empty for other expressions."""
    match e:
        case Select(c, a, b) if index_condition(c):
            return [(c, a), (opposite(c), b)]
        case Bin("max" | "min" as op, a, b) if not has_load(e):
            order = compare("ge" if op == "max" else "le", a, b)
            return [(order, a), (opposite(order), b)]
        case _:
            return []
