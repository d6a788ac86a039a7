"""Code for one register tile: accumulators in SSA values over the whole reduction, then the finish and the stores.

Every value is computed for an *instance*: constant offsets of the unrolled axes. Values that do not depend on an offset are
computed once, so an operand shared by rows or vectors is loaded once. Borders (selections by an index condition) are treated
in this order: the range of a rolled reduce loop is narrowed; an instance that is decided by bounds is simplified; what
survives selects between the element's address and a page that holds the border's value, above the innermost loop if it can.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from collections.abc import Sequence
from dataclasses import dataclass

from stormdrop.codegen import values as v
from stormdrop.codegen.borders import Narrowing, folded, index_condition, narrowings
from stormdrop.codegen.text import LLVM, MEMORY, Loop, Value, Writer, literal, splat, vector_type
from stormdrop.errors import BuildError
from stormdrop.ir.affine import Affine, affine, conjunction, conjuncts, decide
from stormdrop.ir.expr import (
    ITEMSIZE, Axis, Bin, Call, Cast, Cmp, Const, Dtype, Expr, Load, Scalar, Select, Var, binary, rewrite,
)  # fmt: skip
from stormdrop.lower.program import Access, Buffer, ReduceLoop, Tile
from stormdrop.space.access import axes_of

PAGE_BYTES = 1 << 16


@dataclass(slots=True)
class Pages:
    """Blocks of one repeated value that borders are read from."""

    elements: dict[tuple[Scalar, Dtype], int]

    def get(self, value: Scalar, dtype: Dtype, elements: int) -> str:
        key = (value, dtype)
        self.elements[key] = max(self.elements.get(key, 0), elements)
        return page_name(value, dtype)

    def definitions(self) -> list[str]:
        lines: list[str] = []
        for (value, dtype), n in self.elements.items():
            kind = MEMORY[dtype]
            zero = literal(value, dtype) in ("0", "0x0000000000000000", "false")
            item = f"{kind} {int(value) if dtype == 'bool' else literal(value, dtype)}"
            content = "zeroinitializer" if zero else f"[{', '.join([item] * n)}]"
            lines.append(f"{page_name(value, dtype)} = internal constant [{n} x {kind}] {content}, align 64")
        return lines


def page_name(value: Scalar, dtype: Dtype) -> str:
    text = literal(value, dtype).replace("-", "m")
    return f"@page.{dtype}.{text}"


class TileWriter:
    """Writes one tile at the writer's present place."""

    def __init__(self, w: Writer, tile: Tile, pointers: dict[Buffer, str], fma: bool, pages: Pages) -> None:
        self.w, self.tile, self.pointers, self.fma, self.pages = w, tile, pointers, fma, pages
        self.stage = tile.stage
        self.lanes = tile.lanes
        self.offset: dict[Axis, int] = {a: 0 for a in tile.base}
        self.open: dict[Axis, Var] = {}
        self.inner: tuple[Axis, Loop, str] | None = None  # the innermost loop: its axis, itself, where it starts
        self.memo: dict[object, Value] = {}
        self.acc: dict[tuple[int, ...], Value] = {}
        self.guards: list[Expr] = []
        self.live: dict[int, Value] = {}  # masks of the vector axis, by chunk
        self.tail: str | None = None  # live elements left in the masked end of a vectorised reduction
        self.narrowed: list[Narrowing] = narrowings(tile)
        self.dropped = {n.condition for n in self.narrowed}
        self.start_of: dict[Axis, int] = {}  # the constant position of the innermost loop's axis
        self.inner_step = 1
        self.row: tuple[int, ...] = ()
        self.chunk = 0

    # Instances

    def rows(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*(range(n) for _, n in self.tile.rows)))

    def chunks(self) -> range:
        return range(self.tile.vectors if self.stage.vector is not None else 1)

    def select_row(self, row: Sequence[int]) -> None:
        for (axis, _), r in zip(self.tile.rows, row):
            self.offset[axis] = r

    def axis_value(self, axis: Axis) -> Affine:
        """The index of an axis in the present instance (of its lane 0)."""
        form = self.tile.base[axis].shifted(self.offset[axis])
        return form + Affine(((self.open[axis], 1),)) if axis in self.open else form

    def here(self, e: Expr) -> Expr:
        """An index expression with the present instance's axes put in."""
        return rewrite(e, lambda n: self.axis_value(n).expr() if isinstance(n, Axis) else None)

    def key(self, e: Expr) -> object:
        return (e, *(self.offset[a] for a in sorted_axes(e) if a in self.offset))

    # The tile

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

    def instances(self) -> list[tuple[tuple[int, ...], int]]:
        return [(row, c) for row in self.rows() for c in self.chunks()]

    def start(self) -> list[Value]:
        """Accumulators at the combiner's identity, or the partial results of the blocks before."""
        assert self.stage.combiner is not None
        dtype = self.stage.acc.dtype
        fresh = [v.constant(v.identity(self.stage.combiner, dtype), dtype, self.lanes) for _ in self.instances()]
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
        ]  # fmt: skip

    def save(self, accs: Sequence[Value]) -> None:
        assert self.tile.accumulate is not None
        for (row, c), value in zip(self.instances(), accs):
            self.place(row, c)
            address = self.address(self.tile.accumulate.access)
            self.w.line(f"store {value}, ptr {address}, align {ITEMSIZE[value.dtype]}")

    def plain_load(self, access: Access, row: Sequence[int], chunk: int) -> Value:
        self.place(row, chunk)
        address = self.address(access)
        type = vector_type(LLVM[access.buffer.dtype], self.lanes)
        return Value(self.w.op(f"load {type}, ptr {address}, align {ITEMSIZE[access.buffer.dtype]}"), access.buffer.dtype, self.lanes)

    def place(self, row: Sequence[int], chunk: int) -> None:
        self.select_row(row)
        if self.stage.vector is not None:
            self.offset[self.stage.vector] = chunk * self.lanes

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
        self.memo = {}
        self.acc = results
        scalar = self.stage.vector_is_reduced or self.stage.vector is None
        for row in self.rows():
            for c in [0] if scalar else self.chunks():
                self.place(row, c)
                self.row = row
                self.chunk = c
                value = self.value(self.stage.finish)
                self.store(value, scalar)

    def store(self, value: Value, scalar: bool) -> None:
        access = self.tile.store
        dtype = access.buffer.dtype
        item = ITEMSIZE[dtype]
        if not scalar:
            value = v.broadcast(self.w, value, self.lanes)
        if dtype == "bool":
            value = Value(self.w.op(f"zext {value} to {vector_type('i8', value.lanes)}"), "bool", value.lanes)
            type = vector_type("i8", value.lanes)
        else:
            type = value.type
        vector = self.stage.vector
        if scalar or vector is None or self.lanes == 1:
            self.w.line(f"store {type} {value.name}, ptr {self.address(access)}, align {item}")
            return
        mask = None if access.padded else self.live_mask()
        if access.coefficient(vector) == 1 and not any(vector in axes_of(a) for a, _ in access.atoms):
            address = self.address(access)
            if mask is None:
                self.w.line(f"store {type} {value.name}, ptr {address}, align {item}")
                return
            self.w.declare(f"declare void @llvm.masked.store.{suffix(dtype, self.lanes)}.p0({type}, ptr, i32, {mask.type})")
            self.w.line(f"call void @llvm.masked.store.{suffix(dtype, self.lanes)}.p0({type} {value.name}, ptr {address}, i32 {item}, {mask})")
            return
        addresses = self.addresses(access)
        mask = mask or Value(splat(True, "bool", self.lanes), "bool", self.lanes)
        kind = vector_type("ptr", self.lanes)
        self.w.declare(f"declare void @llvm.masked.scatter.{suffix(dtype, self.lanes)}.v{self.lanes}p0({type}, {kind}, i32, {mask.type})")
        self.w.line(f"call void @llvm.masked.scatter.{suffix(dtype, self.lanes)}.v{self.lanes}p0({type} {value.name}, {kind} {addresses}, i32 {item}, {mask})")

    # Reduction

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
            self.memo = {}
            results = self.reduce(k + 1, list(carried))
            del self.open[axis]
            return results

        static = isinstance(low, int) and isinstance(high, int)
        if static and high <= low:
            return accs
        empty = not static and not loop_never_empty(loop, low, high)
        accs = self.w.loop(loop.var, str(low), str(high), 1, (0, max(0, loop.span.longest - 1)), empty, accs, body)
        self.memo = {}
        return accs

    def range_of(self, loop: ReduceLoop) -> tuple[int | str, int | str]:
        """First and last-plus-one element of a rolled loop, relative to its span, after narrowing."""
        low: Expr = Const(0, "i64")
        high: Expr = loop.span.length
        self.open[loop.axis] = loop.var
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
                bound = binary("floordiv", rest.scaled(-1).shifted(c - 1).expr(), c) if c > 1 else rest.scaled(-1).expr()
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

    def turns(self, loop: ReduceLoop, low: str, high: str, unroll: int, may_be_empty: bool, accs: list[Value]) -> list[Value]:
        def body(carried: Sequence[Value], frame: Loop) -> Sequence[Value]:
            self.open[loop.axis] = loop.var
            self.inner = (loop.axis, frame, low)
            self.inner_step = loop.step * unroll
            results = list(carried)
            self.memo = {}
            for k in range(unroll):
                self.start_of[loop.axis] = k * loop.step
                results = self.update(results)
            self.start_of[loop.axis] = 0
            self.inner = None
            del self.open[loop.axis]
            return results

        accs = self.w.loop(loop.var, low, high, loop.step * unroll, (0, max(0, loop.span.longest - 1)), may_be_empty, accs, body)
        self.memo = {}
        return accs

    def straight(self, loop: ReduceLoop, low: int, steps: int, accs: list[Value]) -> list[Value]:
        """Steps written out at constant positions."""
        for k in range(steps):
            self.start_of[loop.axis] = low + k * loop.step
            accs = self.update(accs)
        self.start_of[loop.axis] = 0
        return accs

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
        self.memo = {}
        self.live = {}
        accs = self.update(accs)
        self.tail = None
        self.live = {}
        self.memo = {}
        if start.startswith("%"):
            self.w.scopes.pop()
        del self.open[loop.axis]
        del self.w.variables[position]
        return accs

    def update(self, accs: list[Value]) -> list[Value]:
        """One step of the innermost loop for every row and chunk."""
        assert self.stage.combiner is not None
        body = self.stage.body
        neutral = v.identity(self.stage.combiner, body.dtype)
        results: list[Value] = []
        for (row, c), acc in zip(self.instances(), accs):
            self.place(row, c)
            for axis, start in self.start_of.items():
                self.offset[axis] = start + (c * self.lanes if axis is self.stage.vector else 0)
            known = folded(body, self.decided)
            if known is not None and known.value == neutral:
                results.append(acc)
                continue
            results.append(self.masked(acc, self.combined(acc, body)))
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

    # Values

    def decided(self, condition: Expr) -> bool | None:
        """Whether an index condition always or never holds in this instance, for all lanes."""
        key = ("decided", self.key(condition))
        if key in self.memo:
            return {"true": True, "false": False, "": None}[self.memo[key].name]
        answer: bool | None
        if condition in self.dropped:
            answer = True
        elif isinstance(condition, Bin) and condition.op == "and":
            parts = [self.decided(part) for part in (condition.a, condition.b)]
            answer = False if False in parts else True if all(parts) else None
        else:
            answer = decide(self.here_with_lanes(condition), self.atom_bounds)
        self.memo[key] = Value({True: "true", False: "false", None: ""}[answer], "bool")
        return answer

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
        match e:
            case Const(value, dtype):
                return v.constant(value, dtype, 1)
            case Load(tensor, _) if tensor is self.stage.acc and self.stage.is_reduction:
                return self.acc[(*self.row, self.chunk)]
            case Load():
                return self.load(e, self.guards, None)
            case Axis():
                return self.index_value(e)
            case Bin(op, a, b) if e.dtype == "i64" and not has_load(e):
                return self.index_value(e)
            case Bin("add", Bin("mul", x, y), z) | Bin("add", z, Bin("mul", x, y)) if e.dtype in ("f32", "f64"):
                return v.multiply_add(w, self.value(x), self.value(y), self.value(z), self.fma)
            case Bin(op, a, b):
                return v.arithmetic(w, op, self.value(a), self.value(b))
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
        self.guards += parts
        inside = self.compute(a)
        del self.guards[len(self.guards) - len(parts):]
        return v.choice(self.w, self.condition(parts), inside, self.value(b))

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
                return Value(self.w.op(f"icmp {sign} {self.lane_index(a)}, {self.lane_index(b).name}"), "bool", self.lanes)
            case Const(value):
                return Value(splat(bool(value), "bool", self.lanes), "bool", self.lanes)
            case _:
                raise BuildError(f"no mask for {p}")

    def index_value(self, e: Expr) -> Value:
        """An index used as data."""
        vector = self.stage.vector
        if self.lanes > 1 and vector is not None and vector in axes_of(e):
            return self.lane_index(e)
        return Value(self.w.integer(self.here(e)), "i64")

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
                return v.broadcast(self.w, self.value(e), self.lanes)

    # Memory

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

    def address(self, access: Access) -> str:
        """The address of the present instance (of its lane 0)."""
        item = ITEMSIZE[access.buffer.dtype]
        constant = sum(c * self.offset[a] for a, c in access.coefficients)
        form = self.form(access, with_inner=False)
        if self.inner is not None and access.coefficient(self.inner[0]) and not access.atoms:
            axis, frame, low = self.inner
            slope = access.coefficient(axis)

            def first() -> str:
                start = self.pointer_at(access.buffer, form)
                if low == "0":
                    return start
                skip = self.w.op(f"mul i64 {low}, {slope * item}")
                return self.w.op(f"getelementptr i8, ptr {start}, i64 {skip}")

            pointer = frame.pointer((access.buffer, form.terms, form.constant, slope), first, slope * self.inner_step * item)
        else:
            pointer = self.pointer_at(access.buffer, self.form(access, with_inner=True))
        return self.moved(pointer, constant * item)

    def moved(self, pointer: str, nbytes: int) -> str:
        return pointer if nbytes == 0 else self.w.op(f"getelementptr i8, ptr {pointer}, i64 {nbytes}")

    def form(self, access: Access, with_inner: bool) -> Affine:
        """The part of an address that loops decide."""
        form = access.outer
        for a, c in access.coefficients:
            if a in self.open and (with_inner or self.inner is None or a is not self.inner[0]):
                form = form + Affine(((self.open[a], c),))
        for atom, c in access.atoms:
            form = form + affine(self.here(atom)).scaled(c)
        return form

    def pointer_at(self, buffer: Buffer, form: Affine) -> str:
        base = self.pointers[buffer]
        if not form.terms and not form.constant:
            return base
        index = self.w.affine(form)
        kind = MEMORY[buffer.dtype]
        make = lambda: self.w.op(f"getelementptr {kind}, ptr {base}, i64 {index}")  # noqa: E731
        return self.w.at(self.w.affine_depth(form), ("ptr", buffer, index), make)

    def addresses(self, access: Access) -> str:
        """One address per lane."""
        vector, w, n = self.stage.vector, self.w, self.lanes
        assert vector is not None
        plain = Access(access.buffer, access.outer, access.coefficients, tuple((a, c) for a, c in access.atoms if vector not in axes_of(a)))
        base = self.address(plain)
        slope = access.coefficient(vector)
        steps = ", ".join(f"i64 {slope * i}" for i in range(n))
        index = Value(f"<{steps}>", "i64", n)
        for atom, c in access.atoms:
            if vector in axes_of(atom):
                term = v.arithmetic(w, "mul", self.lane_operation(atom), v.constant(c, "i64", n))
                index = v.arithmetic(w, "add", term, index)
        return w.op(f"getelementptr {MEMORY[access.buffer.dtype]}, ptr {base}, {index}")

    def load(self, e: Load, guards: Sequence[Expr], otherwise: Scalar | None) -> Value:
        """An element or a vector of a tensor; `otherwise` is its value where a guard fails. One address is loaded once."""
        access = self.tile.access[e]
        if guards or access.atoms:
            return self.fetch(e, access, guards, otherwise)
        key = ("memory", e, sum(c * self.offset[a] for a, c in access.coefficients), self.chunk_key())
        if key not in self.memo:
            self.memo[key] = self.fetch(e, access, guards, otherwise)
        return self.memo[key]

    def chunk_key(self) -> int:
        return self.offset[self.stage.vector] if self.stage.vector is not None and self.tile.live is not None else 0

    def fetch(self, e: Load, access: Access, guards: Sequence[Expr], otherwise: Scalar | None) -> Value:
        vector = self.stage.vector
        lanewise = self.lanes > 1 and vector is not None and (vector in axes_of(e) or any(vector in axes_of(g) for g in guards))
        if not lanewise:
            return self.scalar_load(access, guards, otherwise)
        assert vector is not None
        uniform = [g for g in guards if vector not in axes_of(g)]
        by_lane = [g for g in guards if vector in axes_of(g)]
        mask = None if access.padded else self.live_mask()
        if by_lane:
            inside = self.condition(by_lane)
            mask = inside if mask is None else Value(self.w.op(f"and {mask}, {inside.name}"), "bool", self.lanes)
        contiguous = access.coefficient(vector) == 1 and not any(vector in axes_of(a) for a, _ in access.atoms)
        if uniform and not (contiguous and self.page_fits(access)):
            # No page to read from: switch the lanes off instead.
            off = v.broadcast(self.w, self.condition(uniform), self.lanes)
            mask = off if mask is None else Value(self.w.op(f"and {mask}, {off.name}"), "bool", self.lanes)
            uniform = []
        dtype = access.buffer.dtype
        type = vector_type(MEMORY[dtype], self.lanes)
        item = ITEMSIZE[dtype]
        filler = otherwise if otherwise is not None else 0
        fill = splat(filler, dtype, self.lanes) if dtype != "bool" else f"splat (i8 {int(filler)})"
        if contiguous:
            address = self.guarded(access, uniform, filler) if uniform else self.address(access)
            if mask is None:
                raw = self.w.op(f"load {type}, ptr {address}, align {item}")
            else:
                raw = self.w.intrinsic(
                    f"masked.load.{suffix(dtype, self.lanes)}.p0", type, ("ptr", address), ("i32", str(item)), (mask.type, mask.name), (type, fill)
                )
        else:
            addresses = self.addresses(access)
            bits = mask or Value(splat(True, "bool", self.lanes), "bool", self.lanes)
            raw = self.w.intrinsic(
                f"masked.gather.{suffix(dtype, self.lanes)}.v{self.lanes}p0", type, (vector_type("ptr", self.lanes), addresses),
                ("i32", str(item)), (bits.type, bits.name), (type, fill),
            )  # fmt: skip
        return self.from_memory(raw, dtype, self.lanes)

    def scalar_load(self, access: Access, guards: Sequence[Expr], otherwise: Scalar | None) -> Value:
        dtype = access.buffer.dtype
        address = self.guarded(access, guards, otherwise or 0) if guards else self.address(access)
        raw = self.w.op(f"load {MEMORY[dtype]}, ptr {address}, align {ITEMSIZE[dtype]}")
        value = self.from_memory(raw, dtype, 1)
        if guards and not self.page_fits(access) and otherwise is not None:
            return v.choice(self.w, self.condition(guards), value, v.constant(otherwise, dtype, 1))
        return value

    def from_memory(self, raw: str, dtype: Dtype, lanes: int) -> Value:
        if dtype != "bool":
            return Value(raw, dtype, lanes)
        zero = "0" if lanes == 1 else "zeroinitializer"
        return Value(self.w.op(f"icmp ne {vector_type('i8', lanes)} {raw}, {zero}"), "bool", lanes)

    def page_elements(self, access: Access) -> int:
        """How far past a border's address the innermost loop and the chunks read."""
        reach = self.tile.vectors * self.lanes
        for loop in self.tile.reduce:
            if self.inner is not None and loop.axis is self.inner[0]:
                reach += access.coefficient(loop.axis) * (loop.span.longest + loop.step * loop.unroll)
        return reach

    def page_fits(self, access: Access) -> bool:
        negative = self.inner is not None and access.coefficient(self.inner[0]) < 0
        return not negative and self.page_elements(access) * ITEMSIZE[access.buffer.dtype] <= PAGE_BYTES

    def guarded(self, access: Access, guards: Sequence[Expr], otherwise: Scalar) -> str:
        """The element's address where the guards hold, else that of a page holding `otherwise`.

        The selection stands outside the innermost loop unless a guard depends on it.
        """
        w = self.w
        item = ITEMSIZE[access.buffer.dtype]
        test = self.here(conjunction(guards))
        inside = w.integer(test)
        if not self.page_fits(access):
            address = self.address(access)
            return w.op(f"select i1 {inside}, ptr {address}, ptr {self.pointers[access.buffer]}")
        page = self.pages.get(otherwise, access.buffer.dtype, self.page_elements(access))
        vector = self.stage.vector
        chunk = self.offset[vector] if vector is not None and access.coefficient(vector) else 0
        constant = sum(c * self.offset[a] for a, c in access.coefficients if a is not vector) * item
        within = 0
        if self.inner is not None and access.coefficient(self.inner[0]):
            within = access.coefficient(self.inner[0]) * self.offset[self.inner[0]] * item
            constant -= within
        form = self.form(access, with_inner=False)
        depth = max(w.depth_of(test), w.affine_depth(form))
        start = self.pointer_at(access.buffer, form)

        def make() -> str:
            moved = self.moved(start, constant)
            return w.op(f"select i1 {inside}, ptr {moved}, ptr {page}")

        pointer = w.at(depth, ("select", test, start, constant, page), make)
        if self.inner is not None and access.coefficient(self.inner[0]):
            index = w.affine(Affine(((self.open[self.inner[0]], access.coefficient(self.inner[0])),)))
            pointer = w.op(f"getelementptr {MEMORY[access.buffer.dtype]}, ptr {pointer}, i64 {index}")
        vector_bytes = chunk * item if vector is not None else 0
        return self.moved(pointer, within + vector_bytes)


LANE = Var("lane")


def loop_never_empty(loop: ReduceLoop, low: int | str, high: int | str) -> bool:
    return low == 0 and high == loop.span.longest and loop.span.is_fixed


def suffix(dtype: Dtype, lanes: int) -> str:
    return f"v{lanes}{'i8' if dtype == 'bool' else dtype}"


@lru_cache(maxsize=65536)
def sorted_axes(e: Expr) -> tuple[Axis, ...]:
    return tuple(sorted(axes_of(e), key=lambda a: a.serial))


def has_load(e: Expr) -> bool:
    from stormdrop.ir.expr import walk

    return any(isinstance(n, Load) for n in walk(e))
