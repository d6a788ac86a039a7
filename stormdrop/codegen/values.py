"""Arithmetic on SSA values: scalars and vectors of one type. A scalar beside a vector is broadcast.

`Lanes` writes the index expressions, conditions and masks of an instance, as scalars or with one value per lane.
"""

from __future__ import annotations

from collections.abc import Sequence

from stormdrop.base.errors import BuildError
from stormdrop.codegen import half_conversions as halves
from stormdrop.codegen import routines, vecmath
from stormdrop.codegen.text import LLVM, SsaValue, Writer, splat, suffix, vector_type
from stormdrop.ir.affine import Affine, affine, conjunction, conjuncts
from stormdrop.ir.dtypes import FLOATS, ITEMSIZE, UNSIGNED, Dtype, integer_range
from stormdrop.ir.expr import BITS_AS, Axis, Bin, Cmp, Combiner, Const, Expr, Select
from stormdrop.lower.instance import TileCursor
from stormdrop.space.access import axes_of

_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "rounded_mul": "fmul", "div": "fdiv"}
_FLOAT_COMPARISONS = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}


def constant(value: float | int, dtype: Dtype, lanes: int) -> SsaValue:
    return SsaValue(splat(value, dtype, lanes), dtype, lanes)


def broadcast(w: Writer, v: SsaValue, lanes: int) -> SsaValue:
    """Emits one value in every lane."""
    if v.lanes == lanes:
        return v
    if not v.name.startswith("%"):
        return SsaValue(f"splat ({LLVM[v.dtype]} {v.name})", v.dtype, lanes)
    type = vector_type(LLVM[v.dtype], lanes)
    one = w.op(f"insertelement {type} poison, {v}, i64 0")
    return SsaValue(w.op(f"shufflevector {type} {one}, {type} poison, <{lanes} x i32> zeroinitializer"), v.dtype, lanes)


def joined(w: Writer, element: str, parts: Sequence[str]) -> str:
    """Emits a vector of scalars of the LLVM type `element`."""
    type, result = vector_type(element, len(parts)), "poison"
    for i, part in enumerate(parts):
        result = w.op(f"insertelement {type} {result}, {element} {part}, i64 {i}")
    return result


def to_memory(w: Writer, x: SsaValue) -> str:
    """Emits the form of a value in memory: a bool is a byte there and a bit in a register."""
    return x.name if x.dtype != "bool" else w.op(f"zext {x} to {x.memory_type}")


def from_memory(w: Writer, raw: str, dtype: Dtype, lanes: int) -> SsaValue:
    if dtype != "bool":
        return SsaValue(raw, dtype, lanes)
    zero = "0" if lanes == 1 else "zeroinitializer"
    return SsaValue(w.op(f"icmp ne {vector_type('i8', lanes)} {raw}, {zero}"), "bool", lanes)


def together(w: Writer, *values: SsaValue) -> tuple[list[SsaValue], int]:
    lanes = max(v.lanes for v in values)
    return [broadcast(w, v, lanes) for v in values], lanes


def arithmetic(w: Writer, op: str, x: SsaValue, y: SsaValue, fma: bool = False) -> SsaValue:
    """Emits an operation of `ir.expr.ARITHMETIC` or `LOGICAL`; `fma`: the machine has a fused multiply-add."""
    (x, y), lanes = together(w, x, y)
    if op in ("min", "max"):
        return extremum(w, op, x, y)
    if x.dtype in ("f32", "f64"):
        return _float_arithmetic(w, op, x, y, fma)
    if op in ("and", "or", "xor", "add", "sub", "mul"):
        return SsaValue(w.op(f"{op} {x}, {y.name}"), x.dtype, lanes)
    if op in ("bitand", "bitor", "bitxor"):
        return SsaValue(w.op(f"{op.removeprefix('bit')} {x}, {y.name}"), x.dtype, lanes)
    if op in ("shl", "shr"):
        return _shift(w, op, x, y)
    if op in ("floordiv", "mod"):
        return _integer_division(w, op, x, y)
    if op == "pow":
        return SsaValue(routines.integer_power(w, x.name, y.name, LLVM[x.dtype], lanes), x.dtype, lanes)
    raise BuildError(f"no code for {op} on {x.dtype}")


def _float_arithmetic(w: Writer, op: str, x: SsaValue, y: SsaValue, fma: bool) -> SsaValue:
    if op in _FLOAT_OPS:
        return SsaValue(w.op(f"{_FLOAT_OPS[op]} {x}, {y.name}"), x.dtype, x.lanes)
    if op in vecmath.BINARY:
        return SsaValue(vecmath.emit(op, w, [x.name, y.name], x.dtype, x.lanes, fma), x.dtype, x.lanes)
    if op in ("floordiv", "mod"):
        return _float_division(w, op, x, y)
    raise BuildError(f"no code for {op} on {x.dtype}")


def _float_division(w: Writer, op: str, x: SsaValue, y: SsaValue) -> SsaValue:
    """Emits Python's // and %, as NumPy computes them: from C's exact remainder, moved if its sign is not the
    divisor's.

    A remainder of zero has the divisor's sign, a quotient of zero the sign of x / y. The quotient by zero is x / y.
    """

    def do(name: str, a: SsaValue, b: SsaValue) -> SsaValue:
        return _float_arithmetic(w, name, a, b, False)

    zero, half, one = (constant(c, x.dtype, x.lanes) for c in (0.0, 0.5, 1.0))
    rest = do("fmod", x, y)
    differs = arithmetic(w, "xor", comparison(w, "lt", y, zero), comparison(w, "lt", rest, zero))
    is_off = arithmetic(w, "and", comparison(w, "ne", rest, zero), differs)
    if op == "mod":
        moved = choice(w, is_off, do("add", rest, y), rest)
        return choice(w, comparison(w, "eq", rest, zero), do("copysign", zero, y), moved)
    quotient = do("div", do("sub", x, rest), y)
    quotient = choice(w, is_off, do("sub", quotient, one), quotient)
    below = function(w, "floor", quotient, False)
    is_short = comparison(w, "gt", do("sub", quotient, below), half)
    nearest = choice(w, is_short, do("add", below, one), below)
    plain = do("div", x, y)
    nearest = choice(w, comparison(w, "eq", quotient, zero), do("copysign", zero, plain), nearest)
    return choice(w, comparison(w, "eq", y, zero), plain, nearest)


def _integer_division(w: Writer, op: str, x: SsaValue, y: SsaValue) -> SsaValue:
    """Emits // and % with floor semantics.

    A zero divisor gives 0, and the most negative number over -1 wraps: no input can trap.
    """
    mask = vector_type("i1", x.lanes)
    zero, one, minus = (constant(c, x.dtype, x.lanes) for c in (0, 1, -1))
    is_zero = w.op(f"icmp eq {y}, {zero.name}")
    if x.dtype in UNSIGNED:
        safe = w.op(f"select {mask} {is_zero}, {one}, {y}")
        result = w.floor_division(op, x.name, safe, x.type, x.lanes, True)
        return SsaValue(w.op(f"select {mask} {is_zero}, {zero}, {x.type} {result}"), x.dtype, x.lanes)
    is_minus = w.op(f"icmp eq {y}, {minus.name}")
    bad = w.op(f"or {mask} {is_zero}, {is_minus}")
    safe = w.op(f"select {mask} {bad}, {one}, {y}")
    result = w.floor_division(op, x.name, safe, x.type, x.lanes, False)
    negated = w.op(f"sub {zero}, {x.name}")
    special = negated if op == "floordiv" else zero.name
    result = w.op(f"select {mask} {is_minus}, {x.type} {special}, {x.type} {result}")
    return SsaValue(w.op(f"select {mask} {is_zero}, {zero}, {x.type} {result}"), x.dtype, x.lanes)


def _shift(w: Writer, op: str, x: SsaValue, y: SsaValue) -> SsaValue:
    """Emits a shift. LLVM's shifts are undefined beyond the width of the type: there the result is only the sign."""
    width = 8 * ITEMSIZE[x.dtype]
    mask = vector_type("i1", x.lanes)
    most, zero = constant(width - 1, x.dtype, x.lanes), constant(0, x.dtype, x.lanes)
    is_inside = w.op(f"icmp ule {y}, {most.name}")
    amount = w.op(f"select {mask} {is_inside}, {y}, {most}")
    if op == "shr" and not x.dtype.startswith("u"):
        return SsaValue(w.op(f"ashr {x}, {amount}"), x.dtype, x.lanes)
    moved = w.op(f"{'lshr' if op == 'shr' else 'shl'} {x}, {amount}")
    return SsaValue(w.op(f"select {mask} {is_inside}, {x.type} {moved}, {zero}"), x.dtype, x.lanes)


def extremum(w: Writer, op: str, x: SsaValue, y: SsaValue) -> SsaValue:
    """Emits max or min; NaN in either operand gives NaN, as NumPy's maximum and minimum do."""
    mask = vector_type("i1", x.lanes)
    if x.dtype == "bool":
        return SsaValue(w.op(f"{'or' if op == 'max' else 'and'} {x}, {y.name}"), "bool", x.lanes)
    first = comparison(w, "gt" if op == "max" else "lt", x, y)
    best = choice(w, first, x, y)  # y if either is NaN
    if x.dtype not in FLOATS:
        return best
    kept = w.op(f"fcmp ord {x}, {x.name}")  # a NaN x stays: a maximum under a mask, two instructions on AVX-512
    return SsaValue(w.op(f"select {mask} {kept}, {best}, {x}"), x.dtype, x.lanes)


def comparison(w: Writer, op: str, x: SsaValue, y: SsaValue) -> SsaValue:
    (x, y), lanes = together(w, x, y)
    if x.dtype in ("f32", "f64"):
        return SsaValue(w.op(f"fcmp {_FLOAT_COMPARISONS[op]} {x}, {y.name}"), "bool", lanes)
    sign = op if op in ("eq", "ne") else ("u" if x.dtype == "bool" or x.dtype in UNSIGNED else "s") + op
    return SsaValue(w.op(f"icmp {sign} {x}, {y.name}"), "bool", lanes)


def choice(w: Writer, c: SsaValue, x: SsaValue, y: SsaValue) -> SsaValue:
    (x, y), lanes = together(w, x, y)
    if c.lanes > lanes:
        lanes = c.lanes
        x, y = broadcast(w, x, lanes), broadcast(w, y, lanes)
    return SsaValue(w.op(f"select {c}, {x}, {y}"), x.dtype, lanes)


def function(w: Writer, fn: str, x: SsaValue, fma: bool) -> SsaValue:
    if fn == "neg":
        text = f"fneg {x}" if x.dtype in ("f32", "f64") else f"sub {x.type} {splat(0, x.dtype, x.lanes)}, {x.name}"
        return SsaValue(w.op(text), x.dtype, x.lanes)
    if fn == "not":
        return SsaValue(w.op(f"xor {x}, {splat(True, 'bool', x.lanes)}"), "bool", x.lanes)
    if fn == "abs":
        if x.dtype in ("f32", "f64"):
            return SsaValue(w.intrinsic(f"fabs.{suffix(x.dtype, x.lanes)}", x.type, (x.type, x.name)), x.dtype, x.lanes)
        below = w.op(f"icmp slt {x}, {splat(0, x.dtype, x.lanes)}")
        negated = w.op(f"sub {x.type} {splat(0, x.dtype, x.lanes)}, {x.name}")
        return SsaValue(w.op(f"select {vector_type('i1', x.lanes)} {below}, {x.type} {negated}, {x}"), x.dtype, x.lanes)
    if fn in BITS_AS:
        return _reinterpreted(w, x, BITS_AS[fn])
    return SsaValue(vecmath.emit(fn, w, [x.name], x.dtype, x.lanes, fma), x.dtype, x.lanes)


def _reinterpreted(w: Writer, x: SsaValue, dtype: Dtype) -> SsaValue:
    """Emits the same bits as another type of the same size; the bits of a bool are its byte in memory."""
    if dtype == "bool":
        return comparison(w, "ne", x, constant(0, x.dtype, x.lanes))
    how = "zext" if x.dtype == "bool" else "bitcast"
    type = vector_type(LLVM[dtype], x.lanes)
    if LLVM[dtype] == LLVM[x.dtype]:
        return SsaValue(x.name, dtype, x.lanes)
    return SsaValue(w.op(f"{how} {x} to {type}"), dtype, x.lanes)


def convert(w: Writer, x: SsaValue, dtype: Dtype, has_f16: bool = True) -> SsaValue:
    """Emits C's conversions, except that floats saturate and NaN becomes 0. `has_f16`: the machine converts f16."""
    type = vector_type(LLVM[dtype], x.lanes)
    if x.dtype == dtype:
        return x
    if x.dtype in ("f16", "bf16"):
        return halves.widened(w, x, has_f16)
    if dtype in ("f16", "bf16"):
        return halves.rounded(w, x, dtype, has_f16)
    if dtype == "bool":
        return comparison(w, "ne", x, constant(0, x.dtype, x.lanes))
    source_float, to_float = x.dtype in FLOATS, dtype in FLOATS
    if source_float and to_float:
        return SsaValue(w.op(f"{'fpext' if dtype == 'f64' else 'fptrunc'} {x} to {type}"), dtype, x.lanes)
    if source_float and ITEMSIZE[dtype] < 4:
        return _saturated(w, x, dtype)
    if source_float:
        ending = f"{suffix(LLVM[dtype], x.lanes)}.{suffix(x.dtype, x.lanes)}"
        name = f"fpto{'u' if dtype in UNSIGNED else 's'}i.sat.{ending}"
        return SsaValue(w.intrinsic(name, type, (x.type, x.name)), dtype, x.lanes)
    has_sign = x.dtype != "bool" and x.dtype not in UNSIGNED
    if to_float:
        return SsaValue(w.op(f"{'sitofp' if has_sign else 'uitofp'} {x} to {type}"), dtype, x.lanes)
    if x.dtype != "bool" and ITEMSIZE[dtype] == ITEMSIZE[x.dtype]:
        return SsaValue(x.name, dtype, x.lanes)
    is_wider = x.dtype == "bool" or ITEMSIZE[dtype] > ITEMSIZE[x.dtype]
    op = "trunc" if not is_wider else "sext" if has_sign else "zext"
    return SsaValue(w.op(f"{op} {x} to {type}"), dtype, x.lanes)


def _saturated(w: Writer, x: SsaValue, dtype: Dtype) -> SsaValue:
    """Emits a float as an integer of 8 or 16 bits, clamped as a float: LLVM's own saturation goes lane by lane."""
    low, high = (constant(float(limit), x.dtype, x.lanes) for limit in integer_range(dtype))
    if dtype not in UNSIGNED:
        x = choice(w, comparison(w, "eq", x, x), x, constant(0.0, x.dtype, x.lanes))
    x = choice(w, comparison(w, "gt", x, low), x, low)  # NaN becomes the least: 0 of an unsigned type
    x = choice(w, comparison(w, "lt", x, high), x, high)
    whole = w.op(f"fptosi {x} to {vector_type('i32', x.lanes)}")
    type = vector_type(LLVM[dtype], x.lanes)
    return SsaValue(w.op(f"trunc {vector_type('i32', x.lanes)} {whole} to {type}"), dtype, x.lanes)


def pair(w: Writer, low: SsaValue, high: SsaValue) -> SsaValue:
    """Emits two bf16, or two i16, as one element."""
    (low, high), lanes = together(w, low, high)
    bits = vector_type("i32", lanes)
    lower, upper = (w.op(f"zext {x} to {bits}") for x in (low, high))
    upper = w.op(f"shl {bits} {upper}, {splat(16, 'i32', lanes)}")
    return SsaValue(w.op(f"or {bits} {lower}, {upper}"), "i16x2" if low.dtype == "i16" else "bf16x2", lanes)


def multiply_add(w: Writer, x: SsaValue, y: SsaValue, acc: SsaValue, fma: bool) -> SsaValue:
    """Emits acc + x·y, with a single rounding if the machine has such an instruction."""
    (x, y, acc), lanes = together(w, x, y, acc)
    if fma and acc.dtype in ("f32", "f64"):
        t = acc.type
        return SsaValue(
            w.intrinsic(f"fma.{suffix(acc.dtype, lanes)}", t, (t, x.name), (t, y.name), (t, acc.name)), acc.dtype, lanes
        )
    return arithmetic(w, "add", acc, arithmetic(w, "mul", x, y))


_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}


def combine(w: Writer, combiner: Combiner, acc: SsaValue, x: SsaValue) -> SsaValue:
    if acc.dtype == "bool" and combiner in ("sum", "prod"):
        return arithmetic(w, "or" if combiner == "sum" else "and", acc, x)
    return arithmetic(w, _COMBINE[combiner], acc, x)


def horizontal(w: Writer, combiner: Combiner, x: SsaValue) -> SsaValue:
    """Emits all lanes combined, halving each time."""
    while x.lanes > 1:
        half = x.lanes // 2
        pieces: list[SsaValue] = []
        for start in (0, half):
            if half == 1:
                part = w.op(f"extractelement {x}, i64 {start}")
            else:
                order = ", ".join(f"i32 {start + i}" for i in range(half))
                part = w.op(f"shufflevector {x}, {x.type} poison, <{half} x i32> <{order}>")
            pieces.append(SsaValue(part, x.dtype, half))
        x = combine(w, combiner, pieces[0], pieces[1])
    return x


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
        return convert(self.w, value, "i64")

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
            return broadcast(w, SsaValue(w.integer(self.at.here(e)), w.index), n)
        form = affine(e)
        total: SsaValue | None = None
        rest = Affine((), form.constant)
        for atom, c in form.terms:
            if isinstance(atom, Axis):
                rest = rest + self.at.axis_value(atom).scaled(c)
            elif vector not in axes_of(atom):
                rest = rest + affine(self.at.here(atom)).scaled(c)
            else:
                term = arithmetic(w, "mul", self.operation(atom), constant(c, w.index, n))
                total = term if total is None else arithmetic(w, "add", total, term)
        slope = form.coefficient(vector)
        base = broadcast(w, SsaValue(w.affine(rest), w.index), n)
        if slope:
            steps = ", ".join(f"{w.index} {slope * i}" for i in range(n))
            base = SsaValue(w.op(f"add {base}, <{steps}>"), w.index, n)
        return base if total is None else arithmetic(w, "add", base, total)

    def operation(self, e: Expr) -> SsaValue:
        """Returns an atom of an index (an operation that is not linear), as a vector of integers."""
        match e:
            case Bin("floordiv" | "mod" as op, a, b):
                x, y = self.index(a), self.index(b)
                lanes = self.at.lanes
                return SsaValue(self.w.floor_division(op, x.name, y.name, x.type, lanes, False), self.w.index, lanes)
            case Bin(op, a, b):
                return arithmetic(self.w, op, self.index(a), self.index(b))
            case Select(c, a, b):
                return choice(self.w, self.condition(conjuncts(c)), self.index(a), self.index(b))
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
        wide = broadcast(self.w, SsaValue(short, "i32"), n)
        ids = ", ".join(f"i32 {start + i}" for i in range(n))
        return SsaValue(self.w.op(f"icmp sgt {wide}, <{ids}>"), "bool", n)
