"""Code for one register tile: accumulators in SSA values over the whole reduction, then the finish and the stores.

Every value is computed for an *instance*: constant offsets of the unrolled axes. Values that do not depend on an offset
are computed once, so an operand shared by rows or vectors is loaded once. Borders (selections by an index condition)
are treated in this order: the range of a rolled reduce loop is narrowed; an instance that is decided by bounds is
simplified; what survives selects between the element's address and a page that holds the border's value, above the
innermost loop if it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from stormdrop.codegen import values as v
from stormdrop.codegen.memory import MemoryWriter
from stormdrop.codegen.text import Loop, Value
from stormdrop.errors import BuildError
from stormdrop.ir.affine import Affine, affine, conjunction, conjuncts, index_condition, opposite
from stormdrop.ir.expr import (
    ITEMSIZE,
    Axis,
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    identity_of,
    walk,
)
from stormdrop.lower.program import ReduceLoop
from stormdrop.space.access import axes_of


class TileWriter(MemoryWriter):
    """Writes one tile at the writer's present place."""

    def write(self) -> None:
        accs: list[Value] = []
        if self.stage.is_reduction:
            accs = self.start()
            accs = self.reduce(0, accs)
        if not self.stage.is_reduction:
            self.finish({})
            return
        if self.tile.accumulate is None:
            self.finish(self.results(accs))
            return
        last = self.w.integer(self.tile.accumulate.last)
        self.w.branch(last, lambda: self.finish(self.results(accs)), lambda: self.save(accs))

    def start(self) -> list[Value]:
        """Accumulators at the combiner's identity, or the partial results of the blocks before."""
        assert self.stage.combiner is not None
        dtype = self.stage.acc.dtype
        fresh = [v.constant(identity_of(self.stage.combiner, dtype), dtype, self.lanes) for _ in self.instances()]
        partial = self.tile.accumulate
        if partial is None:
            return fresh
        first = self.w.integer(partial.first)
        before = self.w.block
        again, go = self.w.new_label("resume"), self.w.new_label("start")
        self.w.line(f"br i1 {first}, label %{go}, label %{again}")
        self.w.label(again)
        loaded = [self.plain_load(partial.access, row, c) for row, c in self.instances()]
        after = self.w.block
        self.w.line(f"br label %{go}")
        self.w.label(go)
        return [
            Value(self.w.op(f"phi {a.type} [ {a.name}, %{before} ], [ {b.name}, %{after} ]"), a.dtype, a.lanes)
            for a, b in zip(fresh, loaded)
        ]

    def save(self, accs: Sequence[Value]) -> None:
        assert self.tile.accumulate is not None
        for (row, c), value in zip(self.instances(), accs):
            self.place(row, c)
            address = self.address(self.tile.accumulate.access)
            self.w.line(f"store {value}, ptr {address}, align {ITEMSIZE[value.dtype]}")

    def results(self, accs: Sequence[Value]) -> dict[tuple[int, ...], Value]:
        """The reduction's value for every row and chunk; a reduced vector axis is combined across its lanes."""
        table = {(*row, c): a for (row, c), a in zip(self.instances(), accs)}
        if not self.stage.vector_is_reduced:
            return table
        assert self.stage.combiner is not None
        for row in self.rows():
            total = table[(*row, 0)]
            for c in self.chunks()[1:]:
                total = v.combine(self.w, self.stage.combiner, total, table[(*row, c)])
            table[(*row, 0)] = v.horizontal(self.w, self.stage.combiner, total)
        return table

    def finish(self, results: dict[tuple[int, ...], Value]) -> None:
        """Compute and store the final values."""
        self.forget()
        self.acc = results
        scalar = self.stage.vector_is_reduced or self.stage.vector is None
        for row in self.rows():
            for c in [0] if scalar else self.chunks():
                self.place(row, c)
                self.row, self.chunk = row, c
                self.finish_one(scalar)

    def finish_one(self, scalar: bool) -> None:
        """Store one row and chunk, where the stage's guard lets it."""
        guard = [] if self.stage.guard is None else conjuncts(self.stage.guard)
        if any(self.decided(part) is False for part in guard):
            return
        parts = [part for part in guard if self.decided(part) is None]
        if not parts:
            self.store(self.value(self.stage.finish), scalar)
            return
        condition = self.condition(parts)

        def guarded() -> None:
            outside, self.memo, self.blocks = (self.memo, self.blocks), {}, {}
            self.guards += parts
            value = self.value(self.stage.finish)
            self.guards.clear()
            self.store(value, scalar, condition if condition.lanes > 1 else None)
            self.memo, self.blocks = outside

        if condition.lanes > 1:
            guarded()
        else:
            self.w.branch(condition.name, guarded)

    def reduce(self, k: int, accs: list[Value]) -> list[Value]:
        """The reduce loops from the k-th inwards."""
        if k == len(self.tile.reduce):
            return self.update(accs)
        loop = self.tile.reduce[k]
        axis = loop.axis
        if loop.peeled:
            for value in range(loop.span.longest):
                self.offset[axis] = value
                accs = self.reduce(k + 1, accs)
            self.offset[axis] = 0
            return accs
        low, high = self.range_of(loop)
        if k == len(self.tile.reduce) - 1:
            return self.innermost(loop, low, high, accs)
        if isinstance(low, int) and isinstance(high, int) and high - low == 1:
            self.offset[axis] = low
            accs = self.reduce(k + 1, accs)
            self.offset[axis] = 0
            return accs

        def body(carried: Sequence[Value], _: Loop) -> Sequence[Value]:
            self.open[axis] = loop.var
            self.forget()
            results = self.reduce(k + 1, list(carried))
            del self.open[axis]
            return results

        if isinstance(low, int) and isinstance(high, int) and high <= low:
            return accs
        empty = not (isinstance(low, int) and isinstance(high, int))
        accs = self.w.loop(loop.var, str(low), str(high), 1, (0, max(0, loop.span.longest - 1)), empty, accs, body)
        self.forget()
        return accs

    def range_of(self, loop: ReduceLoop) -> tuple[int | str, int | str]:
        """First and last-plus-one element of a rolled loop, relative to its span, after narrowing."""
        low: Expr = Const(0, "i64")
        high: Expr = loop.span.length
        self.open[loop.axis] = loop.var
        self.offset[loop.axis] = 0
        for n in self.narrowed:
            if n.axis is not loop.axis:
                continue
            form = Affine(())
            for atom, c in n.form.terms:
                form = form + (self.axis_value(atom).scaled(c) if isinstance(atom, Axis) else Affine(((atom, c),)))
            form = form.shifted(n.form.constant)
            c = form.coefficient(loop.var)
            rest = Affine(tuple((a, k) for a, k in form.terms if a is not loop.var), form.constant)
            if c > 0:  # c·r + rest >= 0
                bound = (
                    binary("floordiv", rest.scaled(-1).shifted(c - 1).expr(), c) if c > 1 else rest.scaled(-1).expr()
                )
                low = binary("max", low, bound) if not self.is_at_most(bound, low) else low
            else:
                bound = binary("floordiv", rest.expr(), -c) if c < -1 else rest.expr()
                bound = (affine(bound).shifted(1)).expr()
                high = binary("min", high, bound) if not self.is_at_most(high, bound) else high
        del self.open[loop.axis]
        return self.number(low), self.number(high)

    def is_at_most(self, a: Expr, b: Expr) -> bool:
        gap = self.w.interval(binary("sub", b, a))
        return gap is not None and gap[0] >= 0

    def number(self, e: Expr) -> int | str:
        return int(e.value) if isinstance(e, Const) else self.w.integer(e)

    def innermost(self, loop: ReduceLoop, low: int | str, high: int | str, accs: list[Value]) -> list[Value]:
        """Unrolled turns, then what is left of the unrolling, then the masked end of a vector axis."""
        turn = loop.step * loop.unroll
        if isinstance(low, int) and isinstance(high, int):
            length = max(0, high - low)
            whole = length // turn * turn
            if whole > turn:
                accs = self.turns(loop, str(low), str(low + whole), loop.unroll, False, accs)
            elif whole:
                accs = self.straight(loop, low, loop.unroll, accs)
            done = length // loop.step * loop.step
            accs = self.straight(loop, low + whole, (done - whole) // loop.step, accs)
            if done < length:
                accs = self.masked_end(loop, str(low + done), str(length - done), accs)
            return accs
        w = self.w
        length = w.op(f"sub i64 {high}, {low}")
        length = w.intrinsic("smax.i64", "i64", ("i64", length), ("i64", "0"))
        end = w.op(f"add i64 {low}, {length}")
        whole = self.multiple(length, turn)
        middle = w.op(f"add i64 {low}, {whole}")
        accs = self.turns(loop, str(low), middle, loop.unroll, True, accs)
        if loop.unroll > 1:
            stop = w.op(f"add i64 {low}, {self.multiple(length, loop.step)}")
            accs = self.turns(loop, middle, stop, 1, True, accs)
            middle = stop
        if loop.step > 1:
            left = w.op(f"sub i64 {end}, {middle}")
            accs = self.masked_end(loop, middle, left, accs)
        return accs

    def multiple(self, length: str, of: int) -> str:
        if of == 1:
            return length
        rest = self.w.op(f"urem i64 {length}, {of}")
        return self.w.op(f"sub i64 {length}, {rest}")

    def turns(
        self, loop: ReduceLoop, low: str, high: str, unroll: int, may_be_empty: bool, accs: list[Value]
    ) -> list[Value]:
        def body(carried: Sequence[Value], frame: Loop) -> Sequence[Value]:
            self.open[loop.axis] = loop.var
            self.inner = (loop.axis, frame, low)
            self.inner_step = loop.step * unroll
            results = list(carried)
            self.forget()
            for k in range(unroll):
                self.start_of[loop.axis] = k * loop.step
                results = self.update(results)
            self.start_of[loop.axis] = 0
            self.inner = None
            del self.open[loop.axis]
            return results

        accs = self.w.loop(
            loop.var, low, high, loop.step * unroll, (0, max(0, loop.span.longest - 1)), may_be_empty, accs, body
        )
        self.forget()
        return accs

    def straight(self, loop: ReduceLoop, low: int, steps: int, accs: list[Value]) -> list[Value]:
        """Steps written out at constant positions: all steps of one row, then the next, so that few operands are live
        at once.
        """
        results = list(accs)
        for i in range(len(results)) if steps > 1 else [None]:
            for k in range(steps):
                self.start_of[loop.axis] = low + k * loop.step
                results = self.update(results, i)
        self.start_of[loop.axis] = 0
        return results

    def masked_end(self, loop: ReduceLoop, start: str, left: str, accs: list[Value]) -> list[Value]:
        """The last, partial step of a vectorised reduction: dead lanes keep what they have."""
        position = Var(loop.var.name + "_end")
        self.w.variables[position] = (start, len(self.w.scopes) - 1, (0, max(0, loop.span.longest - 1)))
        if start.startswith("%"):
            # The position is computed here, not in a prologue: give it a scope of its own.
            self.w.push()
            self.w.variables[position] = (start, len(self.w.scopes) - 1, (0, max(0, loop.span.longest - 1)))
        self.open[loop.axis] = position
        self.tail = left
        self.forget()
        accs = self.update(accs)
        self.tail = None
        self.forget()
        if start.startswith("%"):
            self.w.scopes.pop()
        del self.open[loop.axis]
        del self.w.variables[position]
        return accs

    def update(self, accs: list[Value], only: int | None = None) -> list[Value]:
        """One step of the innermost loop for every row and chunk, or for one of them."""
        assert self.stage.combiner is not None
        body = self.stage.body
        neutral = identity_of(self.stage.combiner, body.dtype)
        results = list(accs)
        instances = self.instances()
        for i in range(len(accs)) if only is None else [only]:
            (row, c), acc = instances[i], accs[i]
            self.place(row, c)
            for axis, start in self.start_of.items():
                self.offset[axis] = start + (c * self.lanes if axis is self.stage.vector else 0)
            known = self.constant(body)
            if known is None or known.value != neutral:
                results[i] = self.masked(acc, self.combined(acc, body))
        for axis in self.start_of:
            self.offset[axis] = 0
        return results

    def combined(self, acc: Value, body: Expr) -> Value:
        assert self.stage.combiner is not None
        if self.stage.combiner == "sum" and isinstance(body, Bin) and body.op == "mul" and body.dtype in ("f32", "f64"):
            return v.multiply_add(self.w, self.wide(body.a), self.wide(body.b), acc, self.fma)
        return v.combine(self.w, self.stage.combiner, acc, v.broadcast(self.w, self.value(body), acc.lanes))

    def masked(self, old: Value, new: Value) -> Value:
        mask = self.live_mask() if self.tail is not None else None
        return new if mask is None else Value(self.w.op(f"select {mask}, {new}, {old}"), old.dtype, old.lanes)

    def value(self, e: Expr) -> Value:
        key = self.key(e)
        if key not in self.memo:
            self.memo[key] = self.compute(e)
        return self.memo[key]

    def wide(self, e: Expr) -> Value:
        """A value in every lane, broadcast once."""
        value = self.value(e)
        if value.lanes == self.lanes or not value.name.startswith("%"):
            return value
        key = ("wide", value.name)
        if key not in self.memo:
            self.memo[key] = v.broadcast(self.w, value, self.lanes)
        return self.memo[key]

    def compute(self, e: Expr) -> Value:
        w = self.w
        if self.stage.unrolled and not isinstance(e, (Load, Axis)) and (known := self.constant(e)) is not None:
            return v.constant(known.value, known.dtype, 1)
        match e:
            case Const(value, dtype):
                return v.constant(value, dtype, 1)
            case Load(tensor, _) if tensor is self.stage.acc and self.stage.is_reduction:
                return self.acc[(*self.row, self.chunk)]
            case Load():
                return self.load(e, self.guards, None)
            case Axis():
                return self.index_value(e)
            case Bin() if e.dtype == "i64" and is_index(e):
                return self.index_value(e)
            case Bin("add", Bin("mul", x, y), z) | Bin("add", z, Bin("mul", x, y)) if e.dtype in ("f32", "f64"):
                return v.multiply_add(w, self.value(x), self.value(y), self.value(z), self.fma)
            case Bin(op, a, b):
                return v.arithmetic(w, op, self.value(a), self.value(b), self.fma)
            case Cmp(op, a, b):
                return v.comparison(w, op, self.value(a), self.value(b))
            case Select(c, a, b) if index_condition(c):
                return self.border(c, a, b)
            case Select(c, a, b):
                return v.choice(w, self.value(c), self.value(a), self.value(b))
            case Call(fn, a):
                return v.function(w, fn, self.value(a), self.fma)
            case Cast(a, dtype):
                return v.convert(w, self.value(a), dtype)
            case _:
                raise BuildError(f"no code for {e}")

    def border(self, condition: Expr, a: Expr, b: Expr) -> Value:
        """A selection by an index condition."""
        parts = [part for part in conjuncts(condition) if self.decided(part) is not True]
        if any(self.decided(part) is False for part in parts):
            return self.value(b)
        if not parts:
            return self.value(a)
        if isinstance(a, Load) and isinstance(b, Const):
            return self.load(a, [*self.guards, *parts], b.value)
        inside = self.under(parts, a)
        if not has_load(b):
            return v.choice(self.w, self.condition(parts), inside, self.value(b))
        outside = self.under([opposite(conjunction(parts))], b)
        return v.choice(self.w, self.condition(parts), inside, outside)

    def under(self, parts: Sequence[Expr], e: Expr) -> Value:
        """A value whose loads happen only where the conditions hold; what was loaded so is not for the code around
        it.
        """
        outside, self.memo = self.memo, dict(self.memo)
        self.guards += parts
        value = self.compute(e)
        del self.guards[len(self.guards) - len(parts) :]
        self.memo = outside
        return value

    def index_value(self, e: Expr) -> Value:
        """An index used as data."""
        vector = self.stage.vector
        if self.lanes > 1 and vector is not None and vector in axes_of(e):
            return self.lane_index(e)
        return Value(self.w.integer(self.here(e)), "i64")


@lru_cache(maxsize=65536)
def is_index(e: Expr) -> bool:
    """Whether an integer is arithmetic on axes alone, which is computed outside of loops where it can be."""
    return not any(isinstance(n, Load) or (isinstance(n, Bin) and n.op == "pow") for n in walk(e))


@lru_cache(maxsize=65536)
def has_load(e: Expr) -> bool:
    return any(isinstance(n, Load) for n in walk(e))
