"""Writing LLVM IR as text: instructions, scopes and loops.

Index arithmetic is hoisted on emission: it goes into the prologue of the outermost loop body in which its variables are
defined. Loops are rotated (tested at the end) and carry values in phis.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from stormdrop.base.errors import BuildError
from stormdrop.ir.affine import Affine, Interval, affine, bounds
from stormdrop.ir.dtypes import FLOATS, HALVES, INTEGERS, ITEMSIZE, PAIRS, Dtype
from stormdrop.ir.expr import Bin, Cmp, Const, Expr, Scalar, Select, Var

# A half is held as its bits: to round one, LLVM calls a run-time library on machines without the instruction.
LLVM: dict[Dtype, str] = {
    "f32": "float",
    "f64": "double",
    "bool": "i1",
    **dict.fromkeys(HALVES, "i16"),
    **{dtype: f"i{8 * ITEMSIZE[dtype]}" for dtype in (*INTEGERS, *PAIRS)},
}
MEMORY: dict[Dtype, str] = {**LLVM, "bool": "i8"}

Text = list["str | Text"]
"""Lines of code; a nested list is an insertion point that is filled later."""


@dataclass(frozen=True, slots=True)
class SsaValue:
    """An SSA value or constant: a scalar, or a vector of `lanes` elements."""

    name: str
    dtype: Dtype
    lanes: int = 1

    @property
    def type(self) -> str:
        return vector_type(LLVM[self.dtype], self.lanes)

    @property
    def memory_type(self) -> str:
        return vector_type(MEMORY[self.dtype], self.lanes)

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


@dataclass(slots=True)
class LoopScope:
    """The body of one loop: its prologue, and the index values already computed there."""

    prologue: Text
    memo: dict[object, str] = field(default_factory=dict[object, str])


def vector_type(element: str, lanes: int) -> str:
    return element if lanes == 1 else f"<{lanes} x {element}>"


def suffix(element: str, lanes: int) -> str:
    """Returns the name of a type at the end of the names of intrinsics and routines: `f32`, `v8f64`."""
    return element if lanes == 1 else f"v{lanes}{element}"


def literal(value: Scalar, dtype: Dtype) -> str:
    """Returns an LLVM literal; a float is written as the bits of the equal double."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype not in FLOATS:
        return str(int(value))
    if dtype == "f16":
        return str(f16_bits(float(value)))
    exact = float(value) if dtype == "f64" else _rounded(float(value))
    if dtype == "bf16":
        return str(bf16_bits(exact))
    return "0x" + struct.pack(">d", exact).hex().upper()


def _rounded(x: float) -> float:
    """Rounds to the nearest f32; overflow gives infinity."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def bf16_bits(x: float) -> int:
    """Returns the upper half of an f32, rounded to nearest even; every NaN becomes 0x7FC0."""
    (bits,) = struct.unpack("<I", struct.pack("<f", x))
    return 0x7FC0 if math.isnan(x) else (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def f16_bits(x: float) -> int:
    """Returns the nearest f16, ties to even; overflow gives infinity."""
    try:
        return int(struct.unpack("<H", struct.pack("<e", x))[0])
    except OverflowError:
        return 0x7C00 if x > 0 else 0xFC00


def splat(value: Scalar, dtype: Dtype, lanes: int) -> str:
    text = literal(value, dtype)
    return text if lanes == 1 else f"splat ({LLVM[dtype]} {text})"


class Writer:
    """A builder of one LLVM function; `here` is the insertion point, `block` the label of the present basic block."""

    def __init__(self, declarations: set[str] | None = None, index: Dtype = "i64") -> None:
        """`declarations` holds the module's declarations, to which the function adds its own.

        `index` is the type of indices.
        """
        self.index: Dtype = index
        self.text: Text = []
        self.here: Text = self.text
        self.count = 0
        self.block = "entry"
        self.scopes: list[LoopScope] = []
        self.variables: dict[Var, tuple[str, int, Interval]] = {}  # SSA name, scope depth, bounds
        self.declarations = set[str]() if declarations is None else declarations

    # Instructions

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def op(self, text: str) -> str:
        name = self.fresh()
        self.here.append(f"  {name} = {text}")
        return name

    def line(self, text: str) -> None:
        self.here.append("  " + text)

    def label(self, name: str) -> None:
        self.here.append(f"{name}:")
        self.block = name

    def new_label(self, hint: str) -> str:
        self.count += 1
        return f"{hint}{self.count}"

    def intrinsic(self, name: str, result: str, *args: tuple[str, str]) -> str:
        """Calls `llvm.name` with (type, value) arguments."""
        return self.op(self._call(name, result, args))

    def effect(self, name: str, *args: tuple[str, str]) -> None:
        """Calls `llvm.name`, which has no result."""
        self.line(self._call(name, "void", args))

    def _call(self, name: str, result: str, args: Sequence[tuple[str, str]]) -> str:
        self.declarations.add(f"declare {result} @llvm.{name}({', '.join(type for type, _ in args)})")
        return f"call {result} @llvm.{name}({', '.join(f'{type} {value}' for type, value in args)})"

    def function(self, head: str) -> str:
        """Returns the definition of the function; `head` holds result, name, parameters and attributes."""
        return "\n".join([f"define {head} {{", *flatten(self.text), "}"])

    # Index arithmetic

    def depth_of(self, e: Expr) -> int:
        if isinstance(e, Var):
            return self.variables[e][1]
        depth = 0
        stack = [e]
        while stack:
            node = stack.pop()
            if isinstance(node, Var):
                depth = max(depth, self.variables[node][1])
            elif isinstance(node, (Bin, Cmp)):
                stack += [node.a, node.b]
            elif isinstance(node, Select):
                stack += [node.condition, node.a, node.b]
            elif not isinstance(node, Const):
                raise BuildError(f"{node} is not index arithmetic")
        return depth

    def hoisted(self, depth: int, key: object, make: Callable[[], str]) -> str:
        """Returns the value memoised under `key`, else `make()` emitted into the prologue of the scope at `depth`."""
        scope = self.scopes[depth]
        if key not in scope.memo:
            scope.memo[key] = self.written_into(scope.prologue, make)
        return scope.memo[key]

    def written_into(self, place: Text, make: Callable[[], str]) -> str:
        """Returns the result of `make`; its instructions go to `place`."""
        outside, self.here = self.here, place
        result = make()
        self.here = outside
        return result

    def known(self, atom: Expr) -> Interval | None:
        """Returns the bounds of a loop variable."""
        return self.variables[atom][2] if isinstance(atom, Var) else None

    def interval(self, e: Expr) -> Interval | None:
        return bounds(e, self.known)

    def integer(self, e: Expr) -> str:
        """Returns an index expression as an `index` (a condition as i1), hoisted as far out as its variables allow."""
        match e:
            case Const(value, dtype):
                return literal(value, dtype)
            case Var():
                return self.variables[e][0]
            case Bin("add" | "sub" | "mul", _, _):
                return self.affine(affine(e))
            case Bin(op, a, b):
                x, y = self.integer(a), self.integer(b)
                return self.hoisted(self.depth_of(e), e, lambda: self._integer_op(op, a, x, y))
            case Cmp(op, a, b):
                x, y = self.integer(a), self.integer(b)
                sign = op if op in ("eq", "ne") else "s" + op
                return self.hoisted(self.depth_of(e), e, lambda: self.op(f"icmp {sign} {self.index} {x}, {y}"))
            case Select(c, a, b):
                z, x, y = self.integer(c), self.integer(a), self.integer(b)
                return self.hoisted(
                    self.depth_of(e), e, lambda: self.op(f"select i1 {z}, {self.index} {x}, {self.index} {y}")
                )
            case _:
                raise BuildError(f"{e} is not index arithmetic")

    def _integer_op(self, op: str, a: Expr, x: str, y: str) -> str:
        if op in ("and", "or"):
            return self.op(f"{op} i1 {x}, {y}")
        if op in ("min", "max"):
            return self.intrinsic(f"s{op}.{self.index}", self.index, (self.index, x), (self.index, y))
        known = self.interval(a)
        return self.floor_division(op, x, y, self.index, 1, known is not None and known[0] >= 0)

    def floor_division(self, op: str, x: str, y: str, type: str, lanes: int, non_negative: bool) -> str:
        """Returns floor division or its remainder. `non_negative`: x >= 0 and y > 0, so unsigned division suffices."""
        if non_negative:
            return self.op(f"{'udiv' if op == 'floordiv' else 'urem'} {type} {x}, {y}")
        zero = "0" if lanes == 1 else "zeroinitializer"
        r = self.op(f"srem {type} {x}, {y}")
        odd = self.op(f"icmp ne {type} {r}, {zero}")
        signs = self.op(f"xor {type} {r}, {y}")
        opposite = self.op(f"icmp slt {type} {signs}, {zero}")
        mask = vector_type("i1", lanes)
        off = self.op(f"and {mask} {odd}, {opposite}")
        if op == "mod":
            moved = self.op(f"add {type} {r}, {y}")
            return self.op(f"select {mask} {off}, {type} {moved}, {type} {r}")
        q = self.op(f"sdiv {type} {x}, {y}")
        one = self.op(f"sext {mask} {off} to {type}")
        return self.op(f"add {type} {q}, {one}")

    def affine(self, form: Affine) -> str:
        """Returns a linear form, summed from the outermost variable inwards, so that each partial sum is hoisted."""
        if not form.terms:
            return str(form.constant)
        parts = sorted((self.depth_of(atom), k) for k, (atom, _) in enumerate(form.terms))
        sum_name, depth, key = "", 0, tuple[tuple[Expr, int], ...]()
        for depth, k in parts:
            atom, c = form.terms[k]
            x = self.integer(atom)
            term = (
                x
                if c == 1
                else self.hoisted(depth, ("mul", atom, c), lambda x=x, c=c: self.op(f"mul {self.index} {x}, {c}"))
            )
            key = (*key, (atom, c))
            add = lambda t=term, s=sum_name: self.op(f"add {self.index} {s}, {t}")  # noqa: E731
            sum_name = self.hoisted(depth, ("sum", key), add) if sum_name else term
        if form.constant:
            sum_name = self.hoisted(
                depth, ("sum", key, form.constant), lambda: self.op(f"add {self.index} {sum_name}, {form.constant}")
            )
        return sum_name

    def affine_depth(self, form: Affine) -> int:
        return max((self.depth_of(atom) for atom, _ in form.terms), default=0)

    # Control flow

    def push(self) -> LoopScope:
        scope = LoopScope([])
        self.here.append(scope.prologue)
        self.scopes.append(scope)
        return scope

    def loop(
        self,
        var: Var,
        low: str,
        high: str,
        step: int,
        interval: Interval,
        may_be_empty: bool,
        carried: Sequence[SsaValue],
        body: Callable[[Sequence[SsaValue], Loop], Sequence[SsaValue]],
    ) -> list[SsaValue]:
        """Writes `for var in range(low, high, step)` with loop-carried values; returns their values after the loop."""
        start, inside, done = self.block, self.new_label("loop"), self.new_label("done")
        before: Text = []
        self.here.append(before)
        if may_be_empty:
            test = self.op(f"icmp slt {self.index} {low}, {high}")
            self.line(f"br i1 {test}, label %{inside}, label %{done}")
        else:
            self.line(f"br label %{inside}")
        self.label(inside)
        phis: Text = []
        self.here.append(phis)
        name, following = self.fresh(), self.fresh()
        inner = [SsaValue(self.fresh(), v.dtype, v.lanes) for v in carried]
        self.push()
        saved = self.variables.get(var)
        self.variables[var] = (name, len(self.scopes) - 1, interval)
        after: Text = []
        frame = Loop(self, before, after)
        results = list(body(inner, frame))
        self.scopes.pop()
        if saved is None:
            del self.variables[var]
        else:
            self.variables[var] = saved
        latch = self.block
        self.here.append(after)
        phis.append(f"  {name} = phi {self.index} [ {low}, %{start} ], [ {following}, %{latch} ]")
        for v, first, last in zip(inner, carried, results):
            phis.append(f"  {v.name} = phi {v.type} [ {first.name}, %{start} ], [ {last.name}, %{latch} ]")
        for pointer, first, last in frame.pointers:
            phis.append(f"  {pointer} = phi ptr [ {first}, %{start} ], [ {last}, %{latch} ]")
        self.line(f"{following} = add {self.index} {name}, {step}")
        again = self.op(f"icmp slt {self.index} {following}, {high}")
        self.line(f"br i1 {again}, label %{inside}, label %{done}")
        self.label(done)
        if not may_be_empty:
            return results
        merged: list[SsaValue] = []
        for v, first, last in zip(inner, carried, results):
            name = self.op(f"phi {v.type} [ {first.name}, %{start} ], [ {last.name}, %{latch} ]")
            merged.append(SsaValue(name, v.dtype, v.lanes))
        return merged

    def branch(self, condition: str, then: Callable[[], None], orelse: Callable[[], None] | None = None) -> None:
        yes, done = self.new_label("then"), self.new_label("endif")
        no = self.new_label("else") if orelse else done
        self.line(f"br i1 {condition}, label %{yes}, label %{no}")
        self.label(yes)
        then()
        self.line(f"br label %{done}")
        if orelse:
            self.label(no)
            orelse()
            self.line(f"br label %{done}")
        self.label(done)

    def rarely(self, condition: str, type: str, usual: str, other: Callable[[], str]) -> str:
        """Returns `usual`, or, if the i1 `condition` holds, the result of the code that `other` writes, in a branch."""
        before, aside, done = self.block, self.new_label("aside"), self.new_label("join")
        self.line(f"br i1 {condition}, label %{aside}, label %{done}")
        self.label(aside)
        value = other()
        after = self.block
        self.line(f"br label %{done}")
        self.label(done)
        return self.op(f"phi {type} [ {usual}, %{before} ], [ {value}, %{after} ]")


@dataclass(slots=True)
class Loop:
    """A loop under construction: the text before the loop and at its latch, and its induction pointers."""

    writer: Writer
    before: Text
    after: Text
    pointers: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    memo: dict[object, str] = field(default_factory=dict[object, str])

    def pointer(self, key: object, first: Callable[[], str], step_bytes: int) -> str:
        """Returns an induction pointer: `first`, computed before the loop, plus `step_bytes` per trip."""
        if key not in self.memo:
            w = self.writer
            start = w.written_into(self.before, first)
            name, following = w.fresh(), w.fresh()
            self.pointers.append((name, start, following))
            self.after.append(f"  {following} = getelementptr i8, ptr {name}, i64 {step_bytes}")
            self.memo[key] = name
        return self.memo[key]


def flatten(text: Iterable[str | Text]) -> Iterator[str]:
    for item in text:
        if isinstance(item, str):
            yield item
        else:
            yield from flatten(item)
