"""The statements of a register tile: accumulators, reduce loops, and the store, with all borders decided.

Reads are vectors, transposes or gathers, with masks or pages. An element beyond a border must not be read. A guard that
is uniform over the lanes selects between the element's address and that of a page, a block filled with the border's
value. The select is hoisted above the loops on which the guard does not depend. Guards that differ by lane mask lanes
off.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stormdrop.base.errors import ScheduleError
from stormdrop.ir.affine import conjunction, decide
from stormdrop.ir.expr import ITEMSIZE, Axis, Const, Expr, Load, Var, compare
from stormdrop.ir.tensor import Tensor
from stormdrop.lower.borders import interior, narrowed, without
from stormdrop.lower.context import Span
from stormdrop.lower.packed_layout import Region, access_of
from stormdrop.lower.program import (
    Access,
    Finish,
    If,
    Page,
    ReduceLoop,
    RegisterTile,
    Save,
    Spread,
    Start,
    Stmt,
    Update,
)
from stormdrop.space.access import axes_of, has_load, occurrences
from stormdrop.space.structure import Stage
from stormdrop.space.tiling import Tiling

PAGE_BYTES = 1 << 16  # the largest page


def decided_reads(
    tile: RegisterTile,
    loops: Sequence[ReduceLoop],
    value: Expr,
    guard: Expr | None,
    access_of: Callable[[Load], Access],
) -> dict[Load, Access]:
    """Returns the access of each load of `value`, which is computed inside `loops` if `guard` holds."""
    accesses: dict[Load, Access] = {}
    for load, alternatives in occurrences(value, guard).items():
        if not isinstance(load, Load):
            continue
        if load.tensor is tile.stage.acc and tile.stage.is_reduction:
            continue
        guards = {g for alternative in alternatives for g in alternative}
        access = spread_over(tile, load, access_of(load), is_guarded=bool(guards))
        uniform = [g for g in guards if tile.lanes == 1 or tile.stage.vector not in axes_of(g)]
        if uniform and access.spread in (Spread.ONE, Spread.CONTIGUOUS):
            access = replace(access, page=_page(tile, loops, access, uniform))
        accesses[load] = access
    return accesses


def spread_over(tile: RegisterTile, e: Expr, access: Access, is_guarded: bool) -> Access:
    """Sets the spread of an access to `e`. An element that all lanes share needs no mask; else `masked` is kept."""
    vector = tile.stage.vector
    if tile.lanes == 1 or vector is None or vector not in axes_of(e):
        return replace(access, masked=False)
    if access.coefficient(vector) == 1 and not any(vector in axes_of(a) for a, _ in access.atoms):
        return replace(access, spread=Spread.CONTIGUOUS)
    square = [a for a, n in tile.rows if access.coefficient(a) == 1 and n % tile.lanes == 0]
    if square and not is_guarded and not access.atoms and access.buffer.dtype != "bool":
        return replace(access, spread=Spread.TRANSPOSED, square=square[0])
    return replace(access, spread=Spread.STRIDED)


def _page(tile: RegisterTile, loops: Sequence[ReduceLoop], access: Access, guards: Sequence[Expr]) -> Page | None:
    """Returns the page of a guarded read; None if the page would be too large, or if the selected pointer could leave
    the page.

    The innermost loop, its written-out steps and the vectors of a row all advance the selected pointer.
    """
    inner, vector = loops[-1] if loops else None, tile.stage.vector
    slope = access.coefficient(inner.axis) if inner is not None else 0
    if slope < 0 or has_data(access):
        return None
    reach = tile.lanes
    if access.coefficient(vector):
        reach += (tile.vectors - 1) * tile.lanes
    if inner is not None and slope:
        reach += _steps_reach(inner, slope, inner.axis is vector)
    if reach * ITEMSIZE[access.buffer.dtype] > PAGE_BYTES:
        return None
    return Page(reach, _above(loops, access, guards))


def _steps_reach(loop: ReduceLoop, slope: int, is_vector: bool) -> int:
    """Returns by how many elements the innermost loop advances a pointer that was selected before the loop.

    Each written-out step selects its own pointer, except along the vector axis: there steps are offsets from the first
    pointer.
    """
    turn = loop.step * loop.unroll
    if isinstance(loop.low, Const) and isinstance(loop.high, Const):
        low = int(loop.low.value)
        rolled, written, _ = loop.split(low, int(loop.high.value))
        if not rolled:
            return low + max(0, len(written) - 1) * loop.step if is_vector else 0
    return slope * (loop.longest + turn) + (turn - loop.step if is_vector else 0)


def _above(loops: Sequence[ReduceLoop], access: Access, guards: Sequence[Expr]) -> Axis | None:
    """Returns the outermost loop above which the select can be hoisted: neither guards nor address depend on its
    variable.

    The address may depend on the innermost loop, which advances the pointer.
    """
    above: Axis | None = None
    used: set[Axis] = {a for e in (*guards, *(a for a, _ in access.atoms)) for a in axes_of(e)}
    for loop in reversed(loops):
        if loop.axis in used or (loop is not loops[-1] and access.coefficient(loop.axis)):
            break
        if not loop.written_out:
            above = loop.axis
    return above


def has_data(access: Access) -> bool:
    """Returns whether the index depends on loaded data.

    Lowering has checked that such an index stays inside its tensor.
    """
    return any(has_load(atom) for atom, _ in access.atoms)


MAX_TILE_BODIES = 16
"""The most tile bodies of a stage. Every point of a sketch stays below this limit."""
MOST_WRITTEN_OUT = 8  # iterations of a reduce loop that is fully unrolled


@dataclass(frozen=True, slots=True)
class Partial:
    """Accumulators kept in memory between outer reduce blocks: loaded unless `first`, saved unless `last`."""

    access: Access
    first: Expr
    last: Expr


@dataclass(frozen=True, slots=True)
class TileSite:
    """The context of a stage's register tile: the spans of its axes, and the bounds (`known`) of enclosing loops."""

    stage: Stage
    tiling: Tiling
    spans: Mapping[Axis, Span]
    regions: Mapping[Tensor, Region]
    partial: Partial | None
    known: Mapping[Expr, tuple[int, int]]

    def variants(self) -> tuple[Stmt, ...]:
        """Returns a tile body for each combination of row lengths that occurs, as a chain of Ifs on the lengths."""
        rows = [a for a in self.stage.axes if a is not self.stage.vector]
        combinations = list(itertools.product(*(sorted(self.spans[a].lengths, reverse=True) for a in rows)))
        if len(combinations) > MAX_TILE_BODIES:
            raise ScheduleError(f"{self.stage.id}: {len(combinations)} code variants")
        body: tuple[Stmt, ...] = ()
        for lengths in reversed(combinations):
            tile = self._tile(tuple(zip(rows, lengths)))
            ragged = [(self.spans[a].length, n) for a, n in tile.rows if not self.spans[a].is_fixed]
            condition = conjunction(compare("eq", length, n) for length, n in ragged)
            body = (If(condition, self._bodies(tile), body),) if body else self._bodies(tile)
        return body

    def _tile(self, rows: tuple[tuple[Axis, int], ...]) -> RegisterTile:
        stage, lanes, vectors = self.stage, self.tiling.lanes, self.tiling.vectors
        live: Expr | None = None
        if stage.vector is not None and not stage.vector_is_reduced:
            span = self.spans[stage.vector]
            if span.lengths != frozenset({vectors * lanes}):
                live = span.length
                vectors = -(-span.longest // lanes)
        base = {a: self.spans[a].base for a in (*stage.axes, *stage.reduce_axes)}
        return RegisterTile(stage, base, rows, vectors, lanes, live)

    def _loops(self, tile: RegisterTile) -> list[ReduceLoop]:
        """Returns the reduce loops over their whole spans, before narrowing and still without bodies."""
        loops: list[ReduceLoop] = []
        for a in self.stage.reduce_axes:
            step = self.tiling.lanes * self.tiling.vectors if a is self.stage.vector else 1
            loops.append(reduce_loop(tile, self.tiling, a, self.spans[a], step, can_peel=a is not self.stage.vector))
        return loops

    def _bodies(self, tile: RegisterTile) -> tuple[Stmt, ...]:
        """Returns the tile's statements; with short inner loops, a version each for the interior and the border."""
        value = self.stage.body
        if not self.stage.is_reduction:
            return (self._finish(tile),)
        loops = self._loops(tile)
        inside = interior(tile, loops, value)
        if inside is None:
            return self._reduction(tile, loops, value)
        condition, holding = inside
        answer = decide(condition, self.known.get)
        if answer is not None:
            return self._reduction(tile, loops, without(value, holding) if answer else value)
        then, orelse = (self._reduction(tile, loops, v) for v in (without(value, holding), value))
        return (If(condition, then, orelse),)

    def _reduction(self, tile: RegisterTile, loops: Sequence[ReduceLoop], value: Expr) -> tuple[Stmt, ...]:
        loops, value = narrowed(tile, loops, value, self.known)
        *outer, inner = [_settled(loop, loop is loops[-1]) for loop in loops]
        loops = [*outer, inner]
        has_tail = tile.live is not None or inner.masked
        reads = decided_reads(tile, loops, value, None, lambda load: self._access(load, tile, has_tail))
        body = nested(loops, Update(tile, value, reads))
        finish = self._finish(tile)
        if self.partial is None:
            return (Start(tile, None, Const(True, "bool")), body, finish)
        access, first, last = self.partial.access, self.partial.first, self.partial.last
        return (Start(tile, access, first), body, If(last, (finish,), (Save(tile, access),)))

    def _finish(self, tile: RegisterTile) -> Finish:
        stage, has_tail = self.stage, tile.live is not None
        place = Load(stage.tensor, stage.place)
        store = self._access(place, tile, has_tail)
        if stage.host is not None and stage.place and stage.vector is stage.place[-1]:
            store = replace(store, masked=False)  # the scratch of a box is rounded up to whole vector tiles
        store = spread_over(tile, place, store, is_guarded=True)
        reads = decided_reads(tile, (), stage.finish, stage.guard, lambda load: self._access(load, tile, has_tail))
        return Finish(tile, stage.finish, reads, store)

    def _access(self, load: Load, tile: RegisterTile, has_tail: bool) -> Access:
        region = self.regions[load.tensor]
        is_padded = region.panel > 0  # dead lanes stay inside the buffer: panels are rounded up to whole vectors
        return replace(access_of(region, load.tensor, load.indices, tile.base), masked=has_tail and not is_padded)


def reduce_loop(tile: RegisterTile, tiling: Tiling, axis: Axis, span: Span, step: int, can_peel: bool) -> ReduceLoop:
    """Returns the loop over a reduce axis, still without a body. Its range may be narrowed later."""
    stage = tile.stage
    var = Var(f"{axis.name}_{stage.id}{stage.axis_id(axis)}_r")
    inside = len(stage.reduce_axes) - 1 - stage.reduce_axes.index(axis)
    is_short = span.is_fixed and span.longest <= MOST_WRITTEN_OUT
    written = (bool(tiling.peel) and inside == 1 and can_peel and is_short) or (axis in stage.unrolled and inside > 0)
    unroll = 1 if inside else int(tiling.unroll)
    zero = Const(0, "i64")
    return ReduceLoop(tile, axis, var, zero, span.length, span.longest, step, unroll, written, False, ())


def nested(loops: Sequence[ReduceLoop], update: Update) -> Stmt:
    """Returns the loops around an update, outermost first."""
    body: Stmt = update
    for loop in reversed(loops):
        body = replace(loop, body=(body,))
    return body


def _settled(loop: ReduceLoop, is_innermost: bool) -> ReduceLoop:
    """Sets `written_out` and `masked` (a partial last step) once the range is final."""
    if not (isinstance(loop.low, Const) and isinstance(loop.high, Const)):
        return replace(loop, masked=loop.step > 1)
    length = int(loop.high.value) - int(loop.low.value)
    if is_innermost:
        return replace(loop, masked=length % loop.step > 0)
    return replace(loop, written_out=loop.written_out or length <= 1)
