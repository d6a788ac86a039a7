"""The memory that iterations of a phase touch, as affine intervals.

    parallel s1: oh in 7, co in 4        out: written, bytes [0, 256) + 3584·oh + 256·co

An interval is conservative: it contains every byte that an iteration reads or writes, and perhaps further bytes. The
reason is that inner loops, lanes and conditions are bounded independently of each other. An access to some of an
array's columns does not touch the bytes between the columns, which an interval cannot express. Its `Columns` describe
the access as a range that repeats every row:

    out[n, h, w, 16:40] of 64 f32 channels: bytes [64, 160) of every 256
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.codec import Count, Row, Size
from stormdrop.ir.affine import Affine, Interval, bounds
from stormdrop.ir.expr import ITEMSIZE, Axis, Expr
from stormdrop.lower.program import (
    Access,
    Finish,
    For,
    If,
    Phase,
    ReduceLoop,
    RegisterTile,
    Save,
    Start,
    Stmt,
    Update,
)
from stormdrop.target.structures import Scope

ANYWHERE = (-(1 << 46), 1 << 46)
"""The interval of an access with an unbounded address, such as a data-dependent address."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns(Row):
    """The bytes begin <= x < end, modulo `period`, counted from the beginning of the buffer. 0 <= begin < period;
    an end beyond the period wraps around.
    """

    begin: Size
    end: Size
    period: Count

    def meets(self, offset: int, other: Columns, other_offset: int) -> bool:
        """Returns whether two columns, moved by offsets in bytes, may have a byte in common; True if periods differ."""
        if self.period != other.period:
            return True
        begin = (self.begin + offset - other.begin - other_offset) % self.period  # relative to other's begin
        return begin < other.end - other.begin or begin + self.end - self.begin > self.period


@dataclass(frozen=True, slots=True)
class Touch(Row):
    """An access of a phase to a buffer: bytes [low, high) + Σ stride · parallel loop variable.

    `slot` is the buffer's index in the pointer table. There is a stride, in bytes, for each parallel loop.
    """

    slot: Size
    is_written: bool
    low: int
    high: int
    strides: tuple[int, ...]
    columns: Columns | None = None
    """The columns within which all iterations stay, if known."""


@dataclass(frozen=True, slots=True)
class PhaseTouches:
    """All touches of a phase. Its iterations are the row-major product of parallel loops with the extents `loops`."""

    loops: tuple[Size, ...]
    touches: tuple[Touch, ...]

    @property
    def extent(self) -> int:
        return prod(self.loops)

    def intervals(self, touch: Touch, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
        """Returns, for each range of iterations [begin, end), the bytes [low, high) within which the range touches the
        buffer; (0, 0) for an empty range. Ranges are in order and do not overlap.
        """
        places = np.zeros(1, np.int64)  # of each iteration: by how many bytes the parallel loops move the access
        for n, stride in zip(self.loops, touch.strides):
            places = (places[:, None] + np.arange(n, dtype=np.int64) * stride).ravel()
        lows, highs = np.zeros_like(begins), np.zeros_like(begins)
        some = begins < ends
        if some.any():
            edges = np.stack([begins[some], ends[some]], axis=1).ravel()
            edges = edges if edges[-1] < len(places) else edges[:-1]  # reduceat takes no index at the end
            lows[some] = np.minimum.reduceat(places, edges)[::2] + touch.low
            highs[some] = np.maximum.reduceat(places, edges)[::2] + touch.high
        return lows, highs


def touches_of(phase: Phase) -> PhaseTouches:
    """Returns the touches of a phase of a CPU's program; scratch memory, which is a thread's own, is left out."""
    walk = _Walk(phase)
    walk.body(phase.body)
    touches = tuple(Touch(*key[:2], low, high, *key[2:]) for key, (low, high) in walk.byte_ranges.items())
    return PhaseTouches(tuple(n for _, n in phase.loops), touches)


class _Walk:
    """A walk through the statements of one phase, which keeps an interval for each loop variable."""

    def __init__(self, phase: Phase) -> None:
        self.parallel = [var for var, _ in phase.loops]
        self.intervals: dict[Expr, Interval] = {var: (0, n - 1) for var, n in phase.loops}
        self.loops: list[ReduceLoop] = []  # the loops around the current statement
        self.byte_ranges: dict[tuple[int, bool, tuple[int, ...], Columns | None], tuple[int, int]] = {}
        """[low, high), by slot, `is_written`, strides and columns; accesses that agree in these are one touch."""

    def body(self, body: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case For(var, _, most):
                    self.intervals[var] = (0, max(0, most - 1))
                    self.body(s.body)
                case ReduceLoop():
                    low, high = self._bounds(s.low), self._bounds(s.high)
                    if low is not None and high is not None:
                        self.intervals[s.var] = (low[0], max(low[0], high[1] - 1))
                    self.loops.append(s)
                    self.body(s.body)
                    self.loops.pop()
                case If():
                    self.body((*s.then, *s.orelse))
                case Update():
                    for access in s.reads.values():
                        self._note(s.tile, access, False)
                case Finish():
                    for access in s.reads.values():
                        self._note(s.tile, access, False)
                    self._note(s.tile, s.store, True)
                case Save():
                    self._note(s.tile, s.access, True)
                case Start():
                    if s.resume is not None:
                        self._note(s.tile, s.resume, False)
                case _:
                    raise ValueError(f"only phases of CPUs have touches, got a phase with {type(s).__name__}")

    def _bounds(self, e: Expr) -> Interval | None:
        return bounds(e, self.intervals.get)

    def _note(self, tile: RegisterTile, access: Access, is_written: bool) -> None:
        buffer = access.buffer
        if buffer.scope is Scope.SCRATCH:
            return
        size = ITEMSIZE[buffer.dtype]
        strides = tuple(access.outer.coefficient(var) for var in self.parallel)
        inside = Affine(
            tuple((atom, c) for atom, c in access.outer.terms if all(atom is not var for var in self.parallel)),
            access.outer.constant,
        )
        interval = self._elements(tile, access, inside)
        if interval is None:
            strides, (low, high) = (0,) * len(strides), ANYWHERE
        else:
            low, high = interval[0] * size, (interval[1] + 1) * size
        key = (buffer.slot, is_written, tuple(c * size for c in strides), _columns(tile, access, size))
        before = self.byte_ranges.get(key, (low, high))
        self.byte_ranges[key] = min(before[0], low), max(before[1], high)

    def _elements(self, tile: RegisterTile, access: Access, inside: Affine) -> Interval | None:
        """Returns the bounds of the first and the last element of an access at iteration 0 of the parallel loops.
        `inside` is `access.outer` without the terms of these loops. Returns None if there are no bounds.
        """
        parts = [self._bounds(inside.expr())]
        parts += [_scaled(self._along(tile, axis), c) for axis, c in access.coefficients]
        parts += [_scaled(self._bounds(atom), c) for atom, c in access.atoms]
        low = high = 0
        for part in parts:
            if part is None:
                return None
            low, high = low + part[0], high + part[1]
        return low, high

    def _along(self, tile: RegisterTile, axis: Axis) -> Interval | None:
        """Returns the interval of an axis relative to the tile's base."""
        rows = dict(tile.rows).get(axis)
        if rows is not None:
            return (0, rows - 1)
        low = high = 0
        for loop in self.loops:
            if loop.tile is tile and loop.axis is axis:
                known = self.intervals.get(loop.var)
                if known is None:
                    return None
                low, high = known
        width = tile.vectors * tile.lanes if axis is tile.stage.vector else 1
        return low, high + width - 1


def _columns(tile: RegisterTile, access: Access, size: int) -> Columns | None:
    """Returns the columns that an access keeps to over the whole extent of every axis; None if the columns are unknown.

        address = origin + Σ c · axis,  0 <= axis < extent

    For a period p, the terms with p | c move the address by whole rows. The other terms together span `width` elements.
    If width < p, the access keeps to the columns [origin, origin + width) modulo p. The result is
    for the least such p. If dead lanes or dead instances are accessed, axes go beyond their extents, and the columns
    are unknown.
    """
    origin, moves = access.outer, dict(access.coefficients)
    for axis, c in moves.items():
        origin = origin + tile.base[axis].scaled(-c)
    has_dead_lanes = not access.masked and (tile.live is not None or tile.stage.vector_is_reduced)
    if origin.terms or access.atoms or has_dead_lanes or access.has_dead or min(moves.values(), default=0) < 0:
        return None
    for period in sorted({c for c in moves.values() if c > 1}):
        width = 1 + sum(c * (axis.extent - 1) for axis, c in moves.items() if c % period)
        if width < period:
            begin = origin.constant % period
            return Columns(begin * size, (begin + width) * size, period * size)
    return None


def _scaled(interval: Interval | None, c: int) -> Interval | None:
    return interval and (min(interval[0] * c, interval[1] * c), max(interval[0] * c, interval[1] * c))
