"""Code for expressions in an instance of a register tile.

A value is memoised by the offsets it depends on, so an operand shared by rows or vectors is loaded once. A Select on an
index condition is folded if the instance decides the condition; otherwise the condition guards the loads inside.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from stormdrop.base.errors import BuildError
from stormdrop.codegen import values as v
from stormdrop.codegen.block_memory import BlockMemoryWriter
from stormdrop.codegen.memory import MemoryWriter, Pages
from stormdrop.codegen.text import SsaValue, Writer, literal
from stormdrop.codegen.values import Lanes
from stormdrop.ir.affine import conjunction, conjuncts, index_condition, opposite
from stormdrop.ir.dtypes import INTEGERS, integer_range, is_exact
from stormdrop.ir.expr import BITWISE, Axis, Bin, Call, Cast, Cmp, Const, Expr, Load, Scalar, Select, walk
from stormdrop.ir.memo import memoised
from stormdrop.lower.instance import TileCursor
from stormdrop.lower.program import Access, Buffer, RegisterTile
from stormdrop.lower.tiles import has_data
from stormdrop.space.access import NARROW, has_load
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

DATA_ONLY = frozenset({"pow", *BITWISE})
"""Integer operations that index arithmetic lacks."""


class Evaluator:
    """A writer of expressions in the present instance of a tile."""

    def __init__(
        self, w: Writer, tile: RegisterTile, pointers: Mapping[Buffer, str], pages: Pages, target: Target
    ) -> None:
        self.w, self.stage, self.has_fma = w, tile.stage, target.has_fma
        self.has_f16 = target.has_f16
        self.at = TileCursor(tile, w.known)
        self.lanes = Lanes(w, self.at)
        memory = BlockMemoryWriter if isinstance(target, Gpu) else MemoryWriter
        self.memory = memory(w, self.at, self.lanes, self.value, pointers, pages, target.reach_bytes)
        self.reads: Mapping[Load, Access] = {}  # of the statement that is being written
        self.results: Mapping[tuple[int, ...], SsaValue] = {}  # of the reduction, by row and vector
        self._memo: dict[object, SsaValue] = {}
        self._guards: Sequence[Expr] = ()

    def forget(self) -> None:
        """Clears the memos.

        A call is due on entering and leaving a loop or branch, since the keys do not contain the loop or branch.
        """
        self._memo, self.memory.blocks = {}, {}

    def value(self, e: Expr) -> SsaValue:
        key = self.at.key(e)
        if key not in self._memo:
            self._memo[key] = self._compute(e)
        return self._memo[key]

    def wide(self, e: Expr) -> SsaValue:
        """Returns a value in every lane; the broadcast is memoised."""
        value = self.value(e)
        if value.lanes == self.at.lanes or not value.name.startswith("%"):
            return value
        key = ("wide", value.name)
        if key not in self._memo:
            self._memo[key] = v.broadcast(self.w, value, self.at.lanes)
        return self._memo[key]

    def guarded_value(self, parts: Sequence[Expr], e: Expr) -> SsaValue:
        """Returns a value with loads guarded by `parts`, and with memos of its own: its code may be in a branch."""
        blocks = self.memory.blocks
        with self._guarded_by(parts):
            self.forget()
            value = self.value(e)
        self.memory.blocks = blocks
        return value

    @contextmanager
    def _guarded_by(self, guards: Sequence[Expr]) -> Generator[None]:
        """Loads inside have these guards; their values are not memoised outside."""
        outside = self._guards, self._memo
        self._guards, self._memo = guards, dict(self._memo) if guards else self._memo
        yield
        self._guards, self._memo = outside

    def _compute(self, e: Expr) -> SsaValue:
        w = self.w
        if self.stage.unrolled and not isinstance(e, (Load, Axis)) and (known := self.at.constant(e)) is not None:
            return v.constant(known.value, known.dtype, 1)
        match e:
            case Const(value, dtype):
                return v.constant(value, dtype, 1)
            case Load(tensor, _) if tensor is self.stage.acc and self.stage.is_reduction:
                return self.results[(*self.at.row, self.at.chunk)]
            case Load():
                return self._load(e, self._guards, None)
            case Axis():
                return self.lanes.index_value(e)
            case Bin() if e.dtype == "i64" and _is_index(e):
                return self.lanes.index_value(e)
            case Bin("add", Bin("mul", x, y), z) | Bin("add", z, Bin("mul", x, y)) if e.dtype in ("f32", "f64"):
                return v.multiply_add(w, self.value(x), self.value(y), self.value(z), self.has_fma)
            case Bin("pair", a, b):
                return self._pair(a, b)
            case Bin(op, a, b):
                return v.arithmetic(w, op, self.value(a), self.value(b), self.has_fma)
            case Cmp(op, a, b):
                return v.comparison(w, op, self.value(a), self.value(b))
            case Select(c, a, b) if index_condition(c):
                return self._border(c, a, b)
            case Select(c, a, b):
                return v.choice(w, self.value(c), self.value(a), self.value(b))
            case Call(fn, a):
                return v.function(w, fn, self.value(a), self.has_fma)
            case Cast(a, dtype):
                return v.convert(w, self.value(a), dtype, self.has_f16)
            case _:
                raise BuildError(f"no code for {e}")

    def copied(self, value: Expr, store: Access) -> bool:
        """Copies an element or a vector to shared memory asynchronously.

        Returns False, without writing code, if the machine cannot copy it. Beyond a border the copy is filled with
        zeros.
        """
        match value:
            case Load():
                load, conditions = value, list[Expr]()
            case Select(c, Load() as load, Const(filler, dtype)) if index_condition(c) and literal(
                filler, dtype
            ) == literal(0, dtype):
                conditions = [part for part in conjuncts(c) if self.at.decided(part) is not True]
            case _:
                return False
        if any(self.at.decided(part) is False for part in conditions):
            return False
        assert isinstance(self.memory, BlockMemoryWriter)
        return self.memory.copy(self.reads[load], conditions, store)

    def _pair(self, a: Expr, b: Expr) -> SsaValue:
        """Returns two bf16 or i16 packed into one 32-bit element, `a` in the lower half; one load if adjacent."""
        if isinstance(a, Load) and isinstance(b, Load) and not self._guards:
            loaded = self.memory.load_pair(self.reads[a], self.reads[b])
            if loaded is not None:
                return loaded
        return v.pair(self.w, self.value(a), self.value(b))

    def _border(self, condition: Expr, a: Expr, b: Expr) -> SsaValue:
        """Returns a Select on an index condition: folded, a guarded load, or both sides with guarded loads."""
        parts = [part for part in conjuncts(condition) if self.at.decided(part) is not True]
        if any(self.at.decided(part) is False for part in parts):
            return self.value(b)
        if not parts:
            return self.value(a)
        if isinstance(a, Load) and isinstance(b, Const):
            return self._load(a, [*self._guards, *parts], b.value)
        border = preimage(a, b.value) if isinstance(b, Const) else None
        if border is not None:
            return self._with_border(a, [*self._guards, *parts], border)
        inside = self._under(parts, a)
        if not has_load(b):
            return v.choice(self.w, self.lanes.condition(parts), inside, self.value(b))
        outside = self._under([opposite(conjunction(parts))], b)
        return v.choice(self.w, self.lanes.condition(parts), inside, outside)

    def _with_border(self, e: Expr, guards: Sequence[Expr], border: Scalar) -> SsaValue:
        """Returns an expression of a single load (see `preimage`), with the value `border` if the guards fail."""
        match e:
            case Bin(op, a, c):
                return v.arithmetic(self.w, op, self._with_border(a, guards, border), self.value(c))
            case Cast(a, dtype):
                return v.convert(self.w, self._with_border(a, guards, border), dtype, self.has_f16)
            case _:
                assert isinstance(e, Load)
                return self._load(e, guards, border)

    def _under(self, parts: Sequence[Expr], e: Expr) -> SsaValue:
        """Returns a value with loads that are guarded by `parts` too."""
        with self._guarded_by([*self._guards, *parts]):
            return self._compute(e)

    def _load(self, e: Load, guards: Sequence[Expr], otherwise: Scalar | None) -> SsaValue:
        """Returns an element or vector of a tensor, memoised by address; `otherwise` is its value if a guard fails."""
        access = self.reads[e]
        if has_data(access):
            with self._guarded_by(guards):  # also the loads inside the index
                return self.memory.load(access, guards, otherwise)
        if access.atoms:
            return self.memory.load(access, guards, otherwise)
        # Vectors of a masked tile differ in their masks even if they read the same address.
        masked = self.at.vector is not None and (self.at.tile.live is not None or self.lanes.tail is not None)
        tests = tuple(self.at.test_key(g) for g in guards)
        offset = sum(c * self.at.offset[a] for a, c in access.coefficients)
        places = tuple(self.at.offset[a] for a, _ in self.at.tile.limits)
        key = ("memory", e, offset, self.at.chunk if masked else 0, tests, places)
        if key not in self._memo:
            self._memo[key] = self.memory.load(access, guards, otherwise)
        return self._memo[key]


@memoised(4096)
def preimage(e: Expr, value: Scalar) -> Scalar | None:
    """Returns the x with e(x) = value if e widens a loaded number x, perhaps adding a constant integer; else None.

    A padded image of differences from a zero point is an image padded with the zero point: one load, no selection.
    """
    match e:
        case Bin("add" | "sub" as op, a, Const(c)) if e.dtype in INTEGERS:
            return preimage(a, value - c if op == "add" else value + c)
        case Cast(Load() as a, dtype) if a.dtype in NARROW and is_exact(a.dtype, dtype):
            low, high = integer_range(a.dtype) if a.dtype in INTEGERS else (0, 0)
            return value if low <= value <= high else None
        case _:
            return None


@memoised()
def _is_index(e: Expr) -> bool:
    """Returns whether an integer expression is index arithmetic (no loads), which `Writer` hoists out of loops."""
    return not any(isinstance(n, Load) or (isinstance(n, Bin) and n.op in DATA_ONLY) for n in walk(e))
