"""Instances of a register tile: one row, one vector and one unrolled reduce step, given by constant axis offsets.

A statement on a tile is executed once per instance. The offsets and the bounds of the loop variables decide some index
conditions. Code generation drops these conditions, and the operation count leaves out instances that become neutral.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter

from stormdrop.ir.affine import Affine, Interval, bounds, decide, normal
from stormdrop.ir.expr import Axis, Bin, Const, Expr, Load, Var, compare, rewrite
from stormdrop.ir.memo import memoised
from stormdrop.lower.borders import Known, deciding_axes, folded, non_negative
from stormdrop.lower.program import RegisterTile
from stormdrop.space.access import axes_of

LANE = Var("lane")  # the lane number inside a vector


@dataclass(frozen=True, slots=True)
class Gap:
    """A linear condition `base + Σ coefficient · offset >= 0`; `known` bounds `base` over all lanes."""

    terms: tuple[tuple[Axis, int], ...]
    base: Affine
    known: Interval | None

    def offset(self, offsets: Mapping[Axis, int]) -> int:
        return sum(c * offsets[a] for a, c in self.terms)


class TileCursor:
    """The present instance of a tile; `place`, `steps` and `inside` move it."""

    def __init__(self, tile: RegisterTile, known: Known) -> None:
        """`known` returns the bounds of a loop variable."""
        self.tile = tile
        self.vector = tile.stage.vector
        self.lanes = tile.lanes
        self.offset: dict[Axis, int] = dict.fromkeys(tile.base, 0)
        self.open: dict[Axis, Var] = {}  # variables of the open rolled reduce loops
        self.row: tuple[int, ...] = ()
        self.chunk = 0
        self._known = known
        self._start: dict[Axis, int] = {}  # position of the present step of the innermost loop
        self._gaps: dict[tuple[Expr, ...], Gap | None] = {}
        self._tests: dict[tuple[Expr, Affine, int], Expr] = {}
        self._answers: dict[object, bool | None] = {}
        self._constants: dict[object, Const | None] = {}
        self._offsets: dict[Expr, Callable[[dict[Axis, int]], object]] = {}
        self._deciding: dict[Expr, Callable[[dict[Axis, int]], object]] = {}
        # Every (row, vector) of the tile; the accumulators are in this order.
        rows = list(itertools.product(*(range(n) for _, n in tile.rows)))
        self.all = [(row, chunk) for row in rows for chunk in range(tile.chunks)]

    def place(self, row: Sequence[int], chunk: int) -> None:
        """Moves to a row and a vector."""
        self.row, self.chunk = tuple(row), chunk
        for (axis, _), r in zip(self.tile.rows, row):
            self.offset[axis] = self.tile.position(axis, r, 1) if self.tile.repeats else r
        if self.vector is not None:
            chunk_offset = self.tile.position(self.vector, chunk, self.lanes)
            self.offset[self.vector] = self._start.get(self.vector, 0) + chunk_offset

    def steps(self, axis: Axis, positions: Iterable[int]) -> Iterator[int]:
        """Moves to positions along a reduce axis: relative to its open loop's variable, or to the tile if none is open.

        The cursor ends at position 0.
        """
        for position in positions:
            self._start[axis] = self.offset[axis] = position
            yield position
        self._start[axis] = self.offset[axis] = 0

    @contextmanager
    def inside(self, axis: Axis, var: Var) -> Generator[None]:
        """Opens a rolled loop over a reduce axis for the duration of the context."""
        self.open[axis] = var
        yield
        del self.open[axis]

    def axis_value(self, axis: Axis) -> Affine:
        """Returns the index of an axis in the present instance, at lane 0."""
        form = self.tile.base[axis].shifted(self.offset[axis])
        return form + Affine(((self.open[axis], 1),)) if axis in self.open else form

    def here(self, e: Expr) -> Expr:
        """Substitutes the axes of an index expression by their values in the present instance, at lane 0."""
        return rewrite(e, lambda n: self.axis_value(n).expr() if isinstance(n, Axis) else None)

    def key(self, e: Expr) -> object:
        """Returns a memo key of an expression's value: the offsets of the axes in the expression."""
        offsets = self._offsets.get(e)
        if offsets is None:
            offsets = self._offsets[e] = _getter([a for a in _sorted_axes(e) if a in self.offset])
        return (e, offsets(self.offset))

    def decided(self, condition: Expr) -> bool | None:
        """Returns True if an index condition holds in this instance for all lanes, False if for none; else None."""
        if isinstance(condition, Bin) and condition.op == "and":
            parts = [self.decided(part) for part in (condition.a, condition.b)]
            return False if False in parts else True if all(parts) else None
        gap = self._gap(condition)
        if gap is None:
            key = (self.key(condition), *self.open.values())
            if key not in self._answers:  # Winograd transforms repeat the same few conditions
                self._answers[key] = decide(self._here_with_lanes(condition), self._atom_bounds)
            return self._answers[key]
        if gap.known is None:
            return None
        offset = gap.offset(self.offset)
        return True if gap.known[0] + offset >= 0 else False if gap.known[1] + offset < 0 else None

    def undecided_limits(self, axes: Collection[Axis] | None = None) -> tuple[Expr, ...]:
        """Returns the non-trivial tests, at lane 0, that the present instance is live along `axes` (None: all axes)."""
        tests: list[Expr] = []
        for a, limit in self.tile.limits:
            if axes is None or a in axes:
                test = normal(compare("lt", self.axis_value(a).expr(), limit))
                if decide(test, self._known) is not True:
                    tests.append(test)
        return tuple(tests)

    def constant(self, e: Expr) -> Const | None:
        """Returns the value of an expression if it is constant in this instance, else None.

        Memoised: the coefficients of Winograd transforms are chains of Selects that every element repeats.
        """
        if isinstance(e, Const):
            return e
        if isinstance(e, Load):
            return None
        offsets = self._deciding.get(e)
        if offsets is None:
            offsets = self._deciding[e] = _getter([a for a in deciding_axes(e) if a in self.offset])
        key = (e, offsets(self.offset), *self.open.values())
        if key not in self._constants:
            self._constants[key] = folded(e, self.decided, self.constant)
        return self._constants[key]

    def test(self, condition: Expr) -> Expr:
        """Returns the condition in this instance, at lane 0, over loop variables, in normal form."""
        gap = self._gap(condition)
        if gap is None:
            return normal(self.here(condition))
        offset = gap.offset(self.offset)
        key = (condition, gap.base, offset)
        if key not in self._tests:
            self._tests[key] = normal(compare("ge", gap.base.shifted(offset).expr(), 0))
        return self._tests[key]

    def test_key(self, condition: Expr) -> object:
        """Returns a memo key: under equal keys a condition has the same truth value in every lane."""
        gap = self._gap(condition)
        return (condition, gap.offset(self.offset)) if gap is not None else self._here_with_lanes(condition)

    def _gap(self, condition: Expr) -> Gap | None:
        """Returns a comparison as `base + offset >= 0` with a base common to all instances; None if not linear."""
        key = (condition, *self.open.values())
        if key not in self._gaps:
            form = non_negative(condition)
            self._gaps[key] = None
            if form is not None and all(isinstance(a, Axis) for a, _ in form.terms):
                terms = tuple((a, c) for a, c in form.terms if isinstance(a, Axis))
                base = Affine((), form.constant)
                for a, c in terms:
                    base = base + self.tile.base[a].scaled(c)
                    if a in self.open:
                        base = base + Affine(((self.open[a], c),))
                spread = dict(terms).get(self.vector, 0) * (self.lanes - 1) if self.vector is not None else 0
                known = bounds(base.expr(), self._known)
                known = known and (known[0] + min(0, spread), known[1] + max(0, spread))
                self._gaps[key] = Gap(terms, base, known)
        return self._gaps[key]

    def _here_with_lanes(self, e: Expr) -> Expr:
        """Returns `here`, with the lane of the vector axis as a variable of its own."""

        def visit(n: Expr) -> Expr | None:
            if not isinstance(n, Axis):
                return None
            form = self.axis_value(n)
            return (form + Affine(((LANE, 1),))).expr() if n is self.vector and self.lanes > 1 else form.expr()

        return rewrite(e, visit)

    def _atom_bounds(self, atom: Expr) -> Interval | None:
        return (0, self.lanes - 1) if atom is LANE else self._known(atom)


def _getter(axes: Sequence[Axis]) -> Callable[[dict[Axis, int]], object]:
    """Returns a function that picks the offsets of `axes`."""
    return itemgetter(*axes) if axes else lambda _: None


@memoised()
def _sorted_axes(e: Expr) -> tuple[Axis, ...]:
    return tuple(sorted(axes_of(e), key=lambda a: a.serial))
