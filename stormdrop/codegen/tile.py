"""Code for the statements on one register tile: accumulators are SSA values, carried by phis through reduce loops.

The innermost step of a register tile: every accumulator adds the product of two operands.

The multiply-add of a matrix product is written here only. Another dot-product instruction (pairs of bf16, say) is
another `OuterProduct`, registered under the name of the target's microkernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from stormdrop.base.errors import BuildError
from stormdrop.codegen import values as v
from stormdrop.codegen.block_memory import BlockMemoryWriter
from stormdrop.codegen.evaluate import Evaluator
from stormdrop.codegen.matrix_product import MatrixWriter
from stormdrop.codegen.memory import InnerLoop, Pages
from stormdrop.codegen.text import LLVM, Loop, SsaValue, Writer, vector_type
from stormdrop.ir.affine import conjunction, conjuncts
from stormdrop.ir.dtypes import Dtype
from stormdrop.ir.expr import FLOATS, ITEMSIZE, Bin, Const, Expr, Var, identity_of, substitute
from stormdrop.lower.program import Buffer, Finish, For, ReduceLoop, RegisterTile, Save, Spread, Start, Stmt, Update
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target
from stormdrop.target.microkernels import BF16_DOT, I16_DOT

Pairs = Iterable[tuple[SsaValue, SsaValue]]
OuterProduct = Callable[[Writer, Pairs, Sequence[SsaValue]], Iterator[SsaValue]]
"""Writes `acc + x·y` for each accumulator and its pair of operands, in this order.

The pairs are lazy: advancing to the next writes the code that loads it.
"""


def multiply_add(has_fma: bool, w: Writer, operands: Pairs, accumulators: Sequence[SsaValue]) -> Iterator[SsaValue]:
    for (x, y), acc in zip(operands, accumulators):
        yield v.multiply_add(w, x, y, acc, has_fma)


def bf16_dot(w: Writer, operands: Pairs, accumulators: Sequence[SsaValue]) -> Iterator[SsaValue]:
    """Yields two bf16 products per lane by AVX512_BF16's vdpbf16ps, which treats denormals as zero."""
    for (x, y), acc in zip(operands, accumulators):
        factors = [_as_pairs(w, z, "bfloat", acc.lanes) for z in (x, y)]
        name = f"x86.avx512bf16.dpbf16ps.{32 * acc.lanes}"
        yield SsaValue(w.intrinsic(name, acc.type, (acc.type, acc.name), *factors), acc.dtype, acc.lanes)


def i16_dot(w: Writer, operands: Pairs, accumulators: Sequence[SsaValue]) -> Iterator[SsaValue]:
    """Yields two i16 products per lane by pmaddwd; with VNNI, LLVM fuses it with the addition into a vpdpwssd.

    A lane's two products overflow i32 only if all four factors are -32768.
    """
    for (x, y), acc in zip(operands, accumulators):
        factors = [_as_pairs(w, z, "i16", acc.lanes) for z in (x, y)]
        products = SsaValue(w.intrinsic(_PMADDWD[acc.lanes], acc.type, *factors), acc.dtype, acc.lanes)
        yield v.arithmetic(w, "add", acc, products)


def _as_pairs(w: Writer, x: SsaValue, element: str, lanes: int) -> tuple[str, str]:
    """Emits a vector of pairs as a vector of their elements; returns its type and name."""
    type = f"<{2 * lanes} x {element}>"
    return type, w.op(f"bitcast {v.broadcast(w, x, lanes)} to {type}")


_PMADDWD = {4: "x86.sse2.pmadd.wd", 8: "x86.avx2.pmadd.wd", 16: "x86.avx512.pmaddw.d.512"}
OUTER_PRODUCTS: dict[str, OuterProduct] = {
    "fma": partial(multiply_add, True),
    "mul-add": partial(multiply_add, False),
    BF16_DOT.name: bf16_dot,
    I16_DOT.name: i16_dot,
}


def outer_product_of(target: Target, op: str, operand: Dtype) -> OuterProduct:
    """Returns the outer product for `op`: "mul" of two numbers or "dot" of two pairs. Raises BuildError."""
    if op == "mul":
        return OUTER_PRODUCTS["fma" if target.has_fma else "mul-add"]
    kernel = I16_DOT if operand == "i16x2" else BF16_DOT
    if kernel not in target.microkernels:
        raise BuildError(f"{target.name} has no dot products of {kernel.operand}; tune a schedule for this target")
    return OUTER_PRODUCTS[kernel.name]


Body = Callable[[tuple[Stmt, ...]], None]
"""Writes the statements of a loop's body."""


class TileWriter:
    """A writer of the statements on a tile, at the insertion point of `Writer`."""

    def __init__(
        self, w: Writer, tile: RegisterTile, pointers: Mapping[Buffer, str], pages: Pages, target: Target
    ) -> None:
        self.w, self.tile, self.stage = w, tile, tile.stage
        self.evaluator = Evaluator(w, tile, pointers, pages, target)
        self.at = self.evaluator.at
        self.target = target
        self.accs: list[SsaValue] = []
        self.written_out: dict[Var, Expr] = {}  # present value of each fully unrolled loop

    # Accumulators

    def start(self, s: Start) -> None:
        """Sets the accumulators to the combiner's identity, or loads the partial results of earlier reduce blocks."""
        assert self.stage.combiner is not None
        w, dtype, lanes = self.w, self.stage.acc.dtype, self.at.lanes
        self.accs = [v.constant(identity_of(self.stage.combiner, dtype), dtype, lanes) for _ in self.at.all]
        if s.resume is None:
            return
        first = w.integer(s.first)
        before = w.block
        again, go = w.new_label("resume"), w.new_label("start")
        w.line(f"br i1 {first}, label %{go}, label %{again}")
        w.label(again)
        type, loaded = vector_type(LLVM[dtype], lanes), list[str]()
        for row, chunk in self.at.all:
            self.at.place(row, chunk)
            address = self.evaluator.memory.address(s.resume)
            loaded.append(w.op(f"load {type}, ptr {address}, align {ITEMSIZE[dtype]}"))
        after = w.block
        w.line(f"br label %{go}")
        w.label(go)
        phis = [w.op(f"phi {type} [ {a.name}, %{before} ], [ {b}, %{after} ]") for a, b in zip(self.accs, loaded)]
        self.accs = [SsaValue(name, dtype, lanes) for name in phis]

    def save(self, s: Save) -> None:
        for (row, chunk), value in zip(self.at.all, self.accs):
            self.at.place(row, chunk)
            address = self.evaluator.memory.address(s.access)
            self.w.line(f"store {value}, ptr {address}, align {ITEMSIZE[value.dtype]}")

    def update(self, s: Update, only: int | None = None) -> None:
        """Writes a reduction step for every accumulator, or for accumulator `only`; neutral updates are dropped."""
        assert self.stage.combiner is not None
        if s.fragments is not None:
            memory, matrix = self.evaluator.memory, self.stage.matrix
            assert isinstance(memory, BlockMemoryWriter)
            assert matrix is not None
            if matrix.kernel not in self.target.microkernels:
                raise BuildError(
                    f"{self.stage.id}: the schedule has products by {matrix.kernel.name}, which {self.target.name} "
                    "lacks at its precision; compile for the precision at which the schedule was tuned"
                )
            self.accs = MatrixWriter(self.w, self.at, memory).update(s, self.accs)
            return
        neutral = identity_of(self.stage.combiner, s.value.dtype)
        self.evaluator.reads = s.reads
        numbers: list[int] = []
        for i in range(len(self.accs)) if only is None else [only]:
            self.at.place(*self.at.all[i])
            known = self.at.constant(s.value)
            if known is None or known.value != neutral:
                numbers.append(i)
        for i, new in zip(numbers, self._combined(s.value, numbers)):
            mask = self.evaluator.lanes.live() if self.evaluator.lanes.tail is not None else None
            old = self.accs[i]
            self.accs[i] = new if mask is None else v.choice(self.w, mask, new, old)

    def _combined(self, value: Expr, numbers: Sequence[int]) -> Iterator[SsaValue]:
        """Yields the new values of the accumulators `numbers`, generated lazily: operands are written on first use."""
        combiner, e = self.stage.combiner, self.evaluator
        assert combiner is not None
        match value:
            case Bin(op, a, b) if combiner == "sum" and (op == "dot" or (op == "mul" and value.dtype in FLOATS)):
                pairs = ((e.wide(a), e.wide(b)) for _ in self._placed(numbers))
                product = outer_product_of(self.target, op, a.dtype)
                yield from product(self.w, pairs, [self.accs[i] for i in numbers])
            case _:
                for i in self._placed(numbers):
                    yield v.combine(self.w, combiner, self.accs[i], v.broadcast(self.w, e.value(value), self.at.lanes))

    def _placed(self, numbers: Iterable[int]) -> Iterator[int]:
        for i in numbers:
            self.at.place(*self.at.all[i])
            yield i

    def _results(self) -> dict[tuple[int, ...], SsaValue]:
        """Returns the reduction's value for every row and vector; a reduced vector axis is combined over its lanes."""
        table = {(*row, chunk): a for (row, chunk), a in zip(self.at.all, self.accs)}
        if not self.stage.vector_is_reduced:
            return table
        assert self.stage.combiner is not None
        for row in dict.fromkeys(row for row, _ in self.at.all):
            total = table[(*row, 0)]
            for c in range(1, self.tile.chunks):
                total = v.combine(self.w, self.stage.combiner, total, table[(*row, c)])
            table[(*row, 0)] = v.horizontal(self.w, self.stage.combiner, total)
        return table

    # Reduce loops

    def reduce(self, loop: ReduceLoop, body: Body) -> None:
        low, high = self._bound(loop.low), self._bound(loop.high)
        if loop.written_out:
            assert isinstance(low, int)
            assert isinstance(high, int)
            for value in self.at.steps(loop.axis, range(low, high, loop.step)):
                self.written_out[loop.var] = Const(value, "i64")
                body(loop.body)
            return
        match loop.body:
            case (Update() as update,):
                self._innermost(loop, low, high, update)
            case _:
                may_be_empty = not (isinstance(low, int) and isinstance(high, int))
                self._rolled(loop, str(low), str(high), loop.step, may_be_empty, lambda _: body(loop.body))

    def carry(self, loop: For, body: Body) -> None:
        """Writes a loop over blocks of the reduction that carries the accumulators in registers."""

        def write(carried: Sequence[SsaValue], _: Loop) -> Sequence[SsaValue]:
            self.evaluator.forget()
            self.accs = list(carried)
            body(loop.body)
            return self.accs

        w, known = self.w, self.w.interval(loop.trips)
        may_be_empty = known is None or known[0] < 1
        interval = (0, loop.most - 1)
        self.accs = w.loop(loop.var, "0", w.integer(loop.trips), 1, interval, may_be_empty, self.accs, write)
        self.evaluator.forget()

    def _bound(self, e: Expr) -> int | str:
        e = substitute(e, self.written_out)
        return int(e.value) if isinstance(e, Const) else self.w.integer(e)

    def _rolled(
        self, loop: ReduceLoop, low: str, high: str, step: int, may_be_empty: bool, body: Callable[[Loop], None]
    ) -> None:
        def write(carried: Sequence[SsaValue], frame: Loop) -> Sequence[SsaValue]:
            self.evaluator.forget()
            self.accs = list(carried)
            with self.at.inside(loop.axis, loop.var):
                body(frame)
            return self.accs

        interval = (0, max(0, loop.longest - 1))
        self.accs = self.w.loop(loop.var, low, high, step, interval, may_be_empty, self.accs, write)
        self.evaluator.forget()

    def _innermost(self, loop: ReduceLoop, low: int | str, high: int | str, update: Update) -> None:
        """Writes the unrolled loop, then the remaining whole steps, then the masked partial step of a vector axis."""
        if isinstance(low, int) and isinstance(high, int):
            rolled, written, left = loop.split(low, high)
            if rolled:
                self._turns(loop, str(rolled.start), str(rolled.stop), loop.unroll, False, update)
                self._straight(loop, written, update)
            else:
                self._straight(loop, written[: loop.unroll], update)
                self._straight(loop, written[loop.unroll :], update)
            if left:
                self._masked_step(loop, str(written.stop), str(left), update)
            return
        w = self.w
        i = w.index
        length = w.op(f"sub {i} {high}, {low}")
        length = w.intrinsic(f"smax.{i}", i, (i, length), (i, "0"))
        end = w.op(f"add {i} {low}, {length}")
        middle = w.op(f"add {i} {low}, {self._multiple(length, loop.step * loop.unroll)}")
        self._turns(loop, str(low), middle, loop.unroll, True, update)
        if loop.unroll > 1:
            stop = w.op(f"add {i} {low}, {self._multiple(length, loop.step)}")
            self._turns(loop, middle, stop, 1, True, update)
            middle = stop
        if loop.masked:
            left = w.op(f"sub {i} {end}, {middle}")
            self._masked_step(loop, middle, left, update)

    def _multiple(self, length: str, of: int) -> str:
        if of == 1:
            return length
        rest = self.w.op(f"urem {self.w.index} {length}, {of}")
        return self.w.op(f"sub {self.w.index} {length}, {rest}")

    def _turns(self, loop: ReduceLoop, low: str, high: str, unroll: int, may_be_empty: bool, update: Update) -> None:
        step = loop.step * unroll

        def body(frame: Loop) -> None:
            self.evaluator.memory.inner = InnerLoop(loop.axis, frame, low, step)
            for prefetch in loop.prefetches:
                self.evaluator.memory.prefetch(prefetch, step)
            for _ in self.at.steps(loop.axis, range(0, step, loop.step)):
                self.update(update)
            self.evaluator.memory.inner = None

        self._rolled(loop, low, high, step, may_be_empty, body)

    def _straight(self, loop: ReduceLoop, positions: range, update: Update) -> None:
        """Writes steps at constant positions. A CPU executes all steps of an accumulator before the next accumulator,
        so that few operands are live at once. A GPU holds all accumulators in registers and executes step by step: only
        the operands of a single step are live.
        """
        by_accumulator = len(positions) > 1 and not isinstance(self.target, Gpu)
        for i in range(len(self.accs)) if by_accumulator else [None]:
            for _ in self.at.steps(loop.axis, positions):
                self.update(update, i)

    def _masked_step(self, loop: ReduceLoop, start: str, left: str, update: Update) -> None:
        """Writes the last, partial step of a vectorised reduction: accumulators keep their value in dead lanes."""
        position = Var(loop.var.name + "_end")
        if start.startswith("%"):
            # The position is an SSA value defined here: index arithmetic on it must not be hoisted further out.
            self.w.push()
        self.w.variables[position] = (start, len(self.w.scopes) - 1, (0, max(0, loop.longest - 1)))
        with self.at.inside(loop.axis, position):
            self.evaluator.lanes.tail = left
            self.evaluator.forget()
            self.update(update)
            self.evaluator.lanes.tail = None
            self.evaluator.forget()
        if start.startswith("%"):
            self.w.scopes.pop()
        del self.w.variables[position]

    # The store

    def finish(self, s: Finish) -> None:
        """Computes and stores the final values."""
        e = self.evaluator
        e.results = self._results() if self.stage.is_reduction else {}
        e.reads = s.reads
        e.forget()
        for row, chunk in self.at.all:
            if chunk == 0 or not self.stage.vector_is_reduced:
                self.at.place(row, chunk)
                limits = self.at.undecided_limits()
                if limits:
                    self.w.branch(self.w.integer(conjunction(limits)), lambda: self._finish_live(s))
                else:
                    self._finish_live(s)

    def _finish_live(self, s: Finish) -> None:
        """Stores an instance that is not dead. Values computed in its branch are not used in another."""
        memory, is_branch = self.evaluator.memory, bool(self.tile.limits)
        memory.is_finishing = True
        if is_branch:
            self.evaluator.forget()
        self._finish_guarded(s)
        if is_branch:
            self.evaluator.forget()
        memory.is_finishing = False

    def _finish_guarded(self, s: Finish) -> None:
        """Stores a row and vector if the stage's guard holds: in a branch, or masked if the guard varies by lane."""
        if s.is_asynchronous and self.evaluator.copied(s.value, s.store):
            return
        guard = [] if self.stage.guard is None else conjuncts(self.stage.guard)
        if any(self.at.decided(part) is False for part in guard):
            return
        parts = [part for part in guard if self.at.decided(part) is None]
        if not parts:
            self._store(s, self.evaluator.value(s.value), None)
            return
        condition = self.evaluator.lanes.condition(parts)
        mask = condition if condition.lanes > 1 else None

        def guarded() -> None:
            self._store(s, self.evaluator.guarded_value(parts, s.value), mask)

        if mask is not None:
            guarded()
        else:
            self.w.branch(condition.name, guarded)

    def _store(self, s: Finish, value: SsaValue, inside: SsaValue | None) -> None:
        if s.store.spread is not Spread.ONE:
            value = v.broadcast(self.w, value, self.at.lanes)
        self.evaluator.memory.store(s.store, value, inside)
