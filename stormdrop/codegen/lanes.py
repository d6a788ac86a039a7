"""Index expressions, conditions and masks of an instance, as scalars or with one value per lane."""

from __future__ import annotations

from collections.abc import Sequence

from stormdrop.base.errors import BuildError
from stormdrop.codegen import values as v
from stormdrop.codegen.text import SsaValue, Writer, splat
from stormdrop.ir.affine import Affine, affine, conjunction, conjuncts
from stormdrop.ir.expr import Axis, Bin, Cmp, Const, Expr, Select
from stormdrop.lower.instance import TileCursor
from stormdrop.space.access import axes_of


class Lanes:
    """A writer of index expressions and masks in the present instance."""

    def __init__(self, w: Writer, at: TileCursor) -> None:
        self.w, self.at = w, at
        self.tail: str | None = None  # live elements left in the masked step of a vectorised reduction

    def vary(self, e: Expr) -> bool:
        """Returns whether an expression may differ between the lanes of a vector."""
        return self.at.lanes > 1 and self.at.vector in axes_of(e)

    def index_value(self, e: Expr) -> SsaValue:
        """Returns an index expression used as a value: a vector if it varies by lane, else a scalar."""
        value = self.index(e) if self.vary(e) else SsaValue(self.w.integer(self.at.here(e)), self.w.index)
        return v.convert(self.w, value, "i64")

    def condition(self, parts: Sequence[Expr]) -> SsaValue:
        """Returns the conjunction of index conditions: a scalar, or a mask if it depends on the lane."""
        if not any(self.vary(p) for p in parts):
            return SsaValue(self.w.integer(conjunction(self.at.here(p) for p in parts)), "bool")
        result: SsaValue | None = None
        for p in parts:
            result = self.both(result, self._mask(p))
        assert result is not None
        return result

    def both(self, mask: SsaValue | None, other: SsaValue) -> SsaValue:
        return other if mask is None else SsaValue(self.w.op(f"and {mask}, {other.name}"), "bool", self.at.lanes)

    def _mask(self, p: Expr) -> SsaValue:
        n = self.at.lanes
        match p:
            case Bin("or" | "and" as op, a, b):
                x, y = self._mask(a), self._mask(b)
                return SsaValue(self.w.op(f"{op} {x}, {y.name}"), "bool", n)
            case Cmp(op, a, b):
                sign = op if op in ("eq", "ne") else "s" + op
                return SsaValue(self.w.op(f"icmp {sign} {self.index(a)}, {self.index(b).name}"), "bool", n)
            case Const(value):
                return SsaValue(splat(bool(value), "bool", n), "bool", n)
            case _:
                raise BuildError(f"no mask for {p}")

    def index(self, e: Expr) -> SsaValue:
        """Returns an index expression for every lane, as a vector of integers."""
        vector, w, n = self.at.vector, self.w, self.at.lanes
        if vector is None or vector not in axes_of(e):
            return v.broadcast(w, SsaValue(w.integer(self.at.here(e)), w.index), n)
        form = affine(e)
        total: SsaValue | None = None
        rest = Affine((), form.constant)
        for atom, c in form.terms:
            if isinstance(atom, Axis):
                rest = rest + self.at.axis_value(atom).scaled(c)
            elif vector not in axes_of(atom):
                rest = rest + affine(self.at.here(atom)).scaled(c)
            else:
                term = v.arithmetic(w, "mul", self.operation(atom), v.constant(c, w.index, n))
                total = term if total is None else v.arithmetic(w, "add", total, term)
        slope = form.coefficient(vector)
        base = v.broadcast(w, SsaValue(w.affine(rest), w.index), n)
        if slope:
            steps = ", ".join(f"{w.index} {slope * i}" for i in range(n))
            base = SsaValue(w.op(f"add {base}, <{steps}>"), w.index, n)
        return base if total is None else v.arithmetic(w, "add", base, total)

    def operation(self, e: Expr) -> SsaValue:
        """Returns an atom of an index (an operation that is not linear), as a vector of integers."""
        match e:
            case Bin("floordiv" | "mod" as op, a, b):
                x, y = self.index(a), self.index(b)
                lanes = self.at.lanes
                return SsaValue(self.w.floor_division(op, x.name, y.name, x.type, lanes, False), self.w.index, lanes)
            case Bin(op, a, b):
                return v.arithmetic(self.w, op, self.index(a), self.index(b))
            case Select(c, a, b):
                return v.choice(self.w, self.condition(conjuncts(c)), self.index(a), self.index(b))
            case _:
                raise BuildError(f"{e} cannot be an index")

    def live(self) -> SsaValue | None:
        """Returns the mask of the live lanes of the present vector; None if all lanes are live."""
        tile, chunk, lanes = self.at.tile, self.at.chunk, self.at.lanes
        if self.at.vector is None or lanes == 1:
            return None
        if self.tail is not None:
            return self._first(self.tail)
        if tile.live is None:
            return None
        known = self.w.interval(tile.live)
        if known is not None and known[0] >= (chunk + 1) * lanes:
            return None
        name = self.w.integer(tile.live)
        key = ("live", tile.live, chunk, lanes)
        made = self.w.hoisted(self.w.depth_of(tile.live), key, lambda: self._first(name).name)
        return SsaValue(made, "bool", lanes)

    def _first(self, count: str) -> SsaValue:
        """Returns the present vector's part of the mask of the first `count` lanes of a row."""
        n, start = self.at.lanes, self.at.chunk * self.at.lanes
        if not count.startswith("%"):
            bits = ", ".join(f"i1 {'true' if start + i < int(count) else 'false'}" for i in range(n))
            return SsaValue(f"<{bits}>", "bool", n)
        short = self.w.op(f"trunc i64 {count} to i32")
        wide = v.broadcast(self.w, SsaValue(short, "i32"), n)
        ids = ", ".join(f"i32 {start + i}" for i in range(n))
        return SsaValue(self.w.op(f"icmp sgt {wide}, <{ids}>"), "bool", n)
