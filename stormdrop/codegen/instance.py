"""Instances of a register tile: constant offsets of its unrolled axes, and what index expressions are there.

A tile is written out for every row, vector and unrolled reduce step. The writers in this package share one state,
`offset`, that says which instance is being written; index arithmetic, conditions and masks are evaluated for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

from stormdrop.codegen import values as v
from stormdrop.codegen.borders import Narrowing, bordered_loads, deciding_axes, folded, narrowings, non_negative
from stormdrop.codegen.pages import Pages
from stormdrop.codegen.text import Loop, Value, Writer, splat
from stormdrop.errors import BuildError
from stormdrop.ir.affine import Affine, affine, conjunction, conjuncts, decide, normal
from stormdrop.ir.expr import Axis, Bin, Cmp, Const, Expr, Load, Select, Var, compare, loads, rewrite
from stormdrop.lower.program import Buffer, Tile
from stormdrop.space.access import axes_of
from stormdrop.target.machine import Target

LANE = Var("lane")


@dataclass(frozen=True, slots=True)
class Gap:
    """A linear condition `base + Σ coefficient · offset >= 0` with the bounds of its base over all lanes."""

    terms: tuple[tuple[Axis, int], ...]
    base: Affine
    known: tuple[int, int] | None

    def offset(self, offsets: Mapping[Axis, int]) -> int:
        return sum(c * offsets[a] for a, c in self.terms)


class Instance:
    """The state of one tile under construction."""

    def __init__(
        self,
        w: Writer,
        tile: Tile,
        pointers: dict[Buffer, str],
        target: Target,
        pages: Pages,
        holding: frozenset[Expr] = frozenset(),
    ) -> None:
        """`holding`: conditions that are known to hold all over this tile."""
        self.w, self.tile, self.pointers, self.pages = w, tile, pointers, pages
        self.fma, self.reach = target.has_fma, target.reach_bytes
        self.stage = tile.stage
        self.lanes = tile.lanes
        self.offset: dict[Axis, int] = dict.fromkeys(tile.base, 0)
        self.open: dict[Axis, Var] = {}
        self.inner: tuple[Axis, Loop, str] | None = None  # the innermost loop: its axis, itself, where it starts
        self.memo: dict[object, Value] = {}
        self.acc: dict[tuple[int, ...], Value] = {}
        self.guards: list[Expr] = []
        self.tail: str | None = None  # live elements left in the masked end of a vectorised reduction
        self.narrowed: list[Narrowing] = [n for n in narrowings(tile) if n.condition not in holding]
        self.dropped = {n.condition for n in self.narrowed} | holding
        # Loads that some instance may have to leave out: a square of rows must not read them for its neighbours.
        self.bordered = bordered_loads(self.stage.body) | bordered_loads(self.stage.finish)
        if self.stage.guard is not None:
            self.bordered |= set(loads(self.stage.finish))
        self.start_of: dict[Axis, int] = {}  # the constant position of the innermost loop's axis
        self.inner_step = 1
        self.blocks: dict[object, list[str]] = {}  # transposed squares already loaded
        self._gaps: dict[tuple[Expr, ...], Gap | None] = {}
        self._tests: dict[tuple[Expr, Affine, int], Expr] = {}
        self._answers: dict[object, bool | None] = {}
        self._constants: dict[object, Const | None] = {}
        self._offsets: dict[Expr, Callable[[dict[Axis, int]], object]] = {}
        self._deciding: dict[Expr, Callable[[dict[Axis, int]], object]] = {}
        self._instances: list[tuple[tuple[int, ...], int]] = []
        self.row: tuple[int, ...] = ()
        self.chunk = 0

    def forget(self) -> None:
        """Start a stretch of code in which nothing has been computed yet."""
        self.memo, self.blocks = {}, {}

    def rows(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*(range(n) for _, n in self.tile.rows)))

    def chunks(self) -> range:
        return range(self.tile.vectors if self.stage.vector is not None else 1)

    def instances(self) -> list[tuple[tuple[int, ...], int]]:
        if not self._instances:
            self._instances = [(row, c) for row in self.rows() for c in self.chunks()]
        return self._instances

    def select_row(self, row: Sequence[int]) -> None:
        for (axis, _), r in zip(self.tile.rows, row):
            self.offset[axis] = r

    def place(self, row: Sequence[int], chunk: int) -> None:
        self.select_row(row)
        if self.stage.vector is not None:
            self.offset[self.stage.vector] = chunk * self.lanes

    def axis_value(self, axis: Axis) -> Affine:
        """The index of an axis in the present instance (of its lane 0)."""
        form = self.tile.base[axis].shifted(self.offset[axis])
        return form + Affine(((self.open[axis], 1),)) if axis in self.open else form

    def here(self, e: Expr) -> Expr:
        """An index expression with the present instance's axes put in."""
        return rewrite(e, lambda n: self.axis_value(n).expr() if isinstance(n, Axis) else None)

    def key(self, e: Expr) -> object:
        """Equal for the instances in which an expression has the same value."""
        offsets = self._offsets.get(e)
        if offsets is None:
            offsets = self._offsets[e] = _getter([a for a in sorted_axes(e) if a in self.offset])
        return (e, offsets(self.offset))

    def decided(self, condition: Expr) -> bool | None:
        """Whether an index condition always or never holds in this instance, for all lanes."""
        if condition in self.dropped:
            return True
        if isinstance(condition, Bin) and condition.op == "and":
            parts = [self.decided(part) for part in (condition.a, condition.b)]
            return False if False in parts else True if all(parts) else None
        gap = self.gap(condition)
        if gap is None:
            key = (self.key(condition), *self.open.values())
            if key not in self._answers:  # Winograd's transforms ask the same of every element
                self._answers[key] = decide(self.here_with_lanes(condition), self.atom_bounds)
            return self._answers[key]
        if gap.known is None:
            return None
        offset = gap.offset(self.offset)
        return True if gap.known[0] + offset >= 0 else False if gap.known[1] + offset < 0 else None

    def constant(self, e: Expr) -> Const | None:
        """The number an expression is known to be in this instance; None where it is not known.

        The coefficients of Winograd's transforms are chains of selections, and every element asks for the same few.
        """
        if isinstance(e, Const):
            return e
        if isinstance(e, Load):
            return None
        offsets = self._deciding.get(e)
        if offsets is None:
            offsets = self._deciding[e] = _getter([a for a in deciding_axes(e) if a in self.offset])
        key = (e, offsets(self.offset), *self.open.values())
        found = self._constants.get(key, self)
        if isinstance(found, Instance):  # never asked before
            found = self._constants[key] = folded(e, self.decided, self.constant)
        return found

    def gap(self, condition: Expr) -> Gap | None:
        """A comparison as `base + offset >= 0`, where only the offset differs between instances; None if it is not
        linear.
        """
        key = (condition, *self.open.values())
        if key not in self._gaps:
            form = non_negative(condition)
            self._gaps[key] = None
            if form is not None and all(isinstance(a, Axis) for a, _ in form.terms):
                terms = tuple((a, c) for a, c in form.terms if isinstance(a, Axis))
                base = Affine((), form.constant)
                spread = 0
                for a, c in terms:
                    base = base + self.tile.base[a].scaled(c)
                    if a in self.open:
                        base = base + Affine(((self.open[a], c),))
                    if a is self.stage.vector:
                        spread = c * (self.lanes - 1)
                known = self.w.interval(base.expr())
                known = known and (known[0] + min(0, spread), known[1] + max(0, spread))
                self._gaps[key] = Gap(terms, base, known)
        return self._gaps[key]

    def test(self, condition: Expr) -> Expr:
        """The condition in this instance (of its lane 0), over loop variables, in a form that equal conditions
        share.
        """
        gap = self.gap(condition)
        if gap is None:
            return normal(self.here(condition))
        offset = gap.offset(self.offset)
        key = (condition, gap.base, offset)
        if key not in self._tests:
            self._tests[key] = normal(compare("ge", gap.base.shifted(offset).expr(), 0))
        return self._tests[key]

    def test_key(self, condition: Expr) -> object:
        """What the condition depends on in this instance, all lanes included."""
        gap = self.gap(condition)
        return (condition, gap.offset(self.offset)) if gap is not None else self.here_with_lanes(condition)

    def here_with_lanes(self, e: Expr) -> Expr:
        """As `here`, with the lane of the vector axis as a variable of its own."""
        vector = self.stage.vector

        def visit(n: Expr) -> Expr | None:
            if not isinstance(n, Axis):
                return None
            form = self.axis_value(n)
            return (form + Affine(((LANE, 1),))).expr() if n is vector and self.lanes > 1 else form.expr()

        return rewrite(e, visit)

    def atom_bounds(self, atom: Expr) -> tuple[int, int] | None:
        if atom is LANE:
            return 0, self.lanes - 1
        return self.w.variables[atom][2] if isinstance(atom, Var) else None

    def condition(self, parts: Sequence[Expr]) -> Value:
        """The conjunction of index conditions: a scalar, or a mask where it depends on the lane."""
        vector = self.stage.vector
        lanewise = self.lanes > 1 and vector is not None and any(vector in axes_of(p) for p in parts)
        if not lanewise:
            return Value(self.w.integer(conjunction(self.here(p) for p in parts)), "bool")
        result: Value | None = None
        for p in parts:
            one = self.lane_condition(p)
            result = one if result is None else Value(self.w.op(f"and {result}, {one.name}"), "bool", self.lanes)
        assert result is not None
        return result

    def lane_condition(self, p: Expr) -> Value:
        match p:
            case Bin("or" | "and" as op, a, b):
                x, y = self.lane_condition(a), self.lane_condition(b)
                return Value(self.w.op(f"{op} {x}, {y.name}"), "bool", self.lanes)
            case Cmp(op, a, b):
                sign = op if op in ("eq", "ne") else "s" + op
                return Value(
                    self.w.op(f"icmp {sign} {self.lane_index(a)}, {self.lane_index(b).name}"), "bool", self.lanes
                )
            case Const(value):
                return Value(splat(bool(value), "bool", self.lanes), "bool", self.lanes)
            case _:
                raise BuildError(f"no mask for {p}")

    def lane_index(self, e: Expr) -> Value:
        """An index expression for every lane, as a vector of i64."""
        vector, w, n = self.stage.vector, self.w, self.lanes
        if vector not in axes_of(e):
            return v.broadcast(w, Value(w.integer(self.here(e)), "i64"), n)
        form = affine(e)
        total: Value | None = None
        rest = Affine((), form.constant)
        for atom, c in form.terms:
            if isinstance(atom, Axis):
                rest = rest + self.axis_value(atom).scaled(c)
            elif vector not in axes_of(atom):
                rest = rest + affine(self.here(atom)).scaled(c)
            else:
                term = v.arithmetic(w, "mul", self.lane_operation(atom), v.constant(c, "i64", n))
                total = term if total is None else v.arithmetic(w, "add", total, term)
        assert vector is not None
        slope = form.coefficient(vector)
        base = v.broadcast(w, Value(w.affine(rest), "i64"), n)
        if slope:
            steps = ", ".join(f"i64 {slope * i}" for i in range(n))
            base = Value(w.op(f"add {base}, <{steps}>"), "i64", n)
        return base if total is None else v.arithmetic(w, "add", base, total)

    def lane_operation(self, e: Expr) -> Value:
        match e:
            case Bin("floordiv" | "mod" as op, a, b):
                x, y = self.lane_index(a), self.lane_index(b)
                return Value(self.w.floor_division(op, x.name, y.name, x.type, self.lanes, False), "i64", self.lanes)
            case Bin(op, a, b):
                return v.arithmetic(self.w, op, self.lane_index(a), self.lane_index(b))
            case Select(c, a, b):
                return v.choice(self.w, self.condition(conjuncts(c)), self.lane_index(a), self.lane_index(b))
            case _:
                raise BuildError(f"{e} cannot be an index")

    def live_mask(self) -> Value | None:
        """The live lanes of the present chunk; None where all are."""
        vector = self.stage.vector
        if vector is None or self.lanes == 1:
            return None
        chunk = self.chunk_of()
        if self.tail is not None:
            return self.mask_of(self.tail, chunk)
        if self.tile.live is None or self.stage.vector_is_reduced:
            return None
        live = self.tile.live
        known = self.w.interval(live)
        if known is not None and known[0] >= (chunk + 1) * self.lanes:
            return None
        name = self.w.integer(live)
        depth = self.w.depth_of(live)
        key = ("live", live, chunk, self.lanes)
        made = self.w.at(depth, key, lambda: self.mask_of(name, chunk).name)
        return Value(made, "bool", self.lanes)

    def chunk_of(self) -> int:
        assert self.stage.vector is not None
        start = self.start_of.get(self.stage.vector, 0)
        return (self.offset[self.stage.vector] - start) // self.lanes

    def mask_of(self, count: str, chunk: int) -> Value:
        n = self.lanes
        if not count.startswith("%"):
            bits = ", ".join(f"i1 {'true' if chunk * n + i < int(count) else 'false'}" for i in range(n))
            return Value(f"<{bits}>", "bool", n)
        short = self.w.op(f"trunc i64 {count} to i32")
        wide = v.broadcast(self.w, Value(short, "i32"), n)
        ids = ", ".join(f"i32 {chunk * n + i}" for i in range(n))
        return Value(self.w.op(f"icmp sgt {wide}, <{ids}>"), "bool", n)


def _getter(axes: Sequence[Axis]) -> Callable[[dict[Axis, int]], object]:
    """What picks the offsets of some axes."""
    return itemgetter(*axes) if axes else lambda _: None


@lru_cache(maxsize=65536)
def sorted_axes(e: Expr) -> tuple[Axis, ...]:
    return tuple(sorted(axes_of(e), key=lambda a: a.serial))
