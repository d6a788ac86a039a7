"""Floating-point operations that a loop program executes, counted by walking its loops.

Dead lanes of a tail count, since they are computed; updates that a border makes neutral do not. A loop is iterated only
if the count of its body depends on its variable; otherwise the count is multiplied by the trip count.
"""

from __future__ import annotations

from math import prod

from stormdrop.ir.affine import Interval, bounds, decide
from stormdrop.ir.expr import Const, Expr, Var, identity_of, substitute, walk
from stormdrop.ir.memo import memoised
from stormdrop.ir.tensor import operations
from stormdrop.lower.borders import deciding_axes
from stormdrop.lower.instance import TileCursor
from stormdrop.lower.program import (
    Combine,
    Finish,
    For,
    If,
    Phase,
    Program,
    ReduceLoop,
    RegisterTile,
    Stmt,
    Threads,
    Update,
    inner_of,
)


def executed_flops(program: Program) -> float:
    """Returns the number of operations of a call, without the load-time phases that pack constants."""
    return sum(_phase(phase) for phase in program.phases if not phase.at_load)


def _phase(phase: Phase) -> float:
    body = phase.body
    for var, trips in reversed(phase.loops):
        body = (For(var, Const(trips, "i64"), trips, body),)
    return _Count().of(body)


class _Count:
    """A walk through one phase."""

    def __init__(self) -> None:
        self.values: dict[Expr, int] = {}  # present values of iterated loop variables
        self.bounds: dict[Expr, Interval] = {}
        self.cursors: dict[RegisterTile, TileCursor] = {}
        self.live: dict[object, int] = {}
        self.counts: dict[object, float] = {}  # of a loop and the variables its count depends on
        self.threads = 0  # of the enclosing `Threads`

    def of(self, body: tuple[Stmt, ...]) -> float:
        total = 0.0
        for s in body:
            match s:
                case For(var, trips, most, inner):
                    self.bounds[var] = (0, most - 1)
                    key = (s, *(self.values[v] for v in _mentioned((s,))))
                    if key not in self.counts:
                        self.counts[key] = self._repeated(var, 0, self._value(trips), inner)
                    total += self.counts[key]
                case If(condition, then, orelse):
                    total += self.of(then if decide(condition, self._point) else orelse)
                case ReduceLoop():
                    total += self._reduce_loop(s)
                case Update():
                    total += self._update(s)
                case Finish(tile, value):
                    width = 1 if tile.stage.vector_is_reduced else tile.chunks * tile.lanes
                    total += tile.row_count * width * operations(value)
                case Threads(loops, inner):
                    total += self._threads(loops, inner)
                case Combine(tile, shuffled, groups):
                    steps = shuffled.bit_length() - 1 + (groups if groups > 1 else 0)
                    total += tile.row_count * tile.chunks * tile.lanes * steps
                case _:  # moves data, or waits
                    pass
        return total

    def _threads(self, loops: tuple[tuple[Var, int], ...], inner: tuple[Stmt, ...]) -> float:
        """Returns the sum over the threads of a block; inside another `Threads`, the mean of one thread."""
        outside, self.threads = self.threads, prod(n for _, n in loops)
        body = inner
        for var, n in reversed(loops):
            body = (For(var, Const(n, "i64"), n, body),)
        total = self.of(body)
        self.threads = outside
        return total / outside if outside else total

    def _point(self, atom: Expr) -> Interval | None:
        return (self.values[atom], self.values[atom]) if atom in self.values else None

    def _value(self, e: Expr) -> int:
        known = bounds(e, self._point)
        assert known is not None
        return known[0]

    def _repeated(self, var: Var, low: int, high: int, inner: tuple[Stmt, ...], step: int = 1) -> float:
        if high <= low:
            return 0.0
        if var not in _mentioned(inner):
            return len(range(low, high, step)) * self.of(inner)
        total = 0.0
        for self.values[var] in range(low, high, step):
            total += self.of(inner)
        return total

    def _reduce_loop(self, loop: ReduceLoop) -> float:
        at = self._cursor(loop.tile)
        low, high = self._value(loop.low), self._value(loop.high)
        total = 0.0
        if loop.written_out:
            for value in at.steps(loop.axis, range(low, high, loop.step)):
                self.values[loop.var] = value
                total += self.of(loop.body)
            self.values.pop(loop.var, None)
            return total
        self.bounds[loop.var] = (0, max(0, loop.longest - 1))
        match loop.body:
            case (Update() as update,):
                total = self._innermost(loop, low, high, update)
            case _:
                with at.inside(loop.axis, loop.var):
                    total = self._repeated(loop.var, low, high, loop.body, loop.step)
        del self.bounds[loop.var]
        return total

    def _innermost(self, loop: ReduceLoop, low: int, high: int, update: Update) -> float:
        """Counts every step written out at a constant position by itself: borders differ between steps.

        If the range is not static, all steps are in loops, and the masked last step always runs.
        """
        at, is_static = self._cursor(loop.tile), self._is_static(loop)
        rolled, written, left = loop.split(low, high)
        repeated = len(rolled) * loop.unroll + (left > 0 if is_static else len(written) + loop.masked)
        total = 0.0
        if repeated:
            with at.inside(loop.axis, loop.var):
                total = repeated * self._update(update)
        for _ in at.steps(loop.axis, written if is_static else ()):
            total += self._update(update)
        return total

    def _is_static(self, loop: ReduceLoop) -> bool:
        """Returns whether the range is constant at code generation: it depends on no rolled loop."""
        fixed = {var: Const(n, "i64") for var, n in self.values.items() if var not in self.bounds}
        return all(isinstance(substitute(e, fixed), Const) for e in (loop.low, loop.high))

    def _update(self, s: Update) -> float:
        return self._live(s) * s.tile.lanes * s.depth * (operations(s.value) + 1)

    def _live(self, s: Update) -> int:
        """Returns the number of instances with an update value that is not provably the combiner's identity."""
        combiner, at = s.tile.stage.combiner, self._cursor(s.tile)
        assert combiner is not None
        axes = deciding_axes(s.value)
        if not axes:
            return len(at.all)
        key = (s, *(at.offset[a] for a in axes if a in s.tile.stage.reduce_axes), *at.open)
        if key not in self.live:
            neutral = identity_of(combiner, s.value.dtype)
            self.live[key] = 0
            for row, chunk in at.all:
                at.place(row, chunk)
                known = at.constant(s.value)
                self.live[key] += known is None or known.value != neutral
        return self.live[key]

    def _cursor(self, tile: RegisterTile) -> TileCursor:
        if tile not in self.cursors:
            self.cursors[tile] = TileCursor(tile, self.bounds.get)
        return self.cursors[tile]


@memoised(4096)
def _mentioned(body: tuple[Stmt, ...]) -> frozenset[Var]:
    """Returns the variables of enclosing loops on which trip counts and branches inside the body depend."""
    variables: set[Var] = set()
    for s in body:
        inner = _mentioned(inner_of(s))
        match s:
            case For(var, trips):
                variables |= _variables(trips) | inner - {var}
            case If(condition):
                variables |= _variables(condition) | inner
            case ReduceLoop():
                variables |= _variables(s.low) | _variables(s.high) | inner - {s.var}
            case Threads(loops):
                variables |= inner - {var for var, _ in loops}
            case _:
                pass
    return frozenset(variables)


def _variables(e: Expr) -> set[Var]:
    return {n for n in walk(e) if isinstance(n, Var)}
