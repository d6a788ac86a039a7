"""Loads and stores of a register tile: addresses, borders, masks, gathers and transposed blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from stormdrop.codegen import values as v
from stormdrop.codegen.instance import Instance
from stormdrop.codegen.pages import PAGE_BYTES
from stormdrop.codegen.text import LLVM, MEMORY, Value, splat, vector_type
from stormdrop.ir.affine import Affine, affine, conjunction
from stormdrop.ir.expr import ITEMSIZE, Dtype, Expr, Load, Scalar, compare, walk
from stormdrop.lower.program import Access, Buffer
from stormdrop.space.access import axes_of


class MemoryWriter(Instance):
    """Reads and writes for the present instance."""

    def value(self, e: Expr) -> Value:
        """The value of an expression in the present instance; the tile's writer knows how."""
        raise NotImplementedError

    def address(self, access: Access) -> str:
        """The address of the present instance (of its lane 0)."""
        item = ITEMSIZE[access.buffer.dtype]
        if has_data(access):
            pointer = self.address(replace(access, atoms=tuple((a, c) for a, c in access.atoms if not is_data(a))))
            for atom, c in access.atoms:
                if is_data(atom):
                    step = self.w.op(f"mul {self.data_index(atom)}, {c * item}")
                    pointer = self.w.op(f"getelementptr i8, ptr {pointer}, i64 {step}")
            return pointer
        constant = sum(c * self.offset[a] for a, c in access.coefficients)
        form = self.form(access, with_inner=False)
        if self.inner is not None and access.coefficient(self.inner[0]) and not access.atoms:
            axis, frame, low = self.inner
            slope = access.coefficient(axis)
            # A row too far for an address's immediate part gets a pointer of its own.
            far = constant - slope * self.offset[axis]
            far = far if abs(far) * item >= self.reach else 0
            constant -= far

            def first() -> str:
                start = self.moved(self.pointer_at(access.buffer, form), far * item)
                if low == "0":
                    return start
                skip = self.w.op(f"mul i64 {low}, {slope * item}")
                return self.w.op(f"getelementptr i8, ptr {start}, i64 {skip}")

            pointer = frame.pointer(
                (access.buffer, form.terms, form.constant + far, slope), first, slope * self.inner_step * item
            )
        else:
            pointer = self.pointer_at(access.buffer, self.form(access, with_inner=True))
        return self.moved(pointer, constant * item)

    def data_index(self, atom: Expr) -> Value:
        """A part of an index that is loaded: a scalar unless it depends on the lane."""
        return v.convert(self.w, self.value(atom), "i64")

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
        plain = Access(
            access.buffer,
            access.outer,
            access.coefficients,
            tuple((a, c) for a, c in access.atoms if vector not in axes_of(a)),
        )
        base = self.address(plain)
        slope = access.coefficient(vector)
        steps = ", ".join(f"i64 {slope * i}" for i in range(n))
        index = Value(f"<{steps}>", "i64", n)
        for atom, c in access.atoms:
            if vector in axes_of(atom):
                lanes = v.broadcast(w, self.data_index(atom), n) if is_data(atom) else self.lane_operation(atom)
                term = v.arithmetic(w, "mul", lanes, v.constant(c, "i64", n))
                index = v.arithmetic(w, "add", term, index)
        return w.op(f"getelementptr {MEMORY[access.buffer.dtype]}, ptr {base}, {index}")

    def load(self, e: Load, guards: Sequence[Expr], otherwise: Scalar | None) -> Value:
        """An element or a vector of a tensor; `otherwise` is its value where a guard fails.

        One address is loaded once.
        """
        access = self.tile.access[e]
        if has_data(access):
            # The index is loaded under the same guards, and what it gives there is not for the code around.
            outside = self.guards, self.memo
            self.guards, self.memo = list(guards), dict(self.memo) if guards else self.memo
            value = self.fetch(e, access, guards, otherwise)
            self.guards, self.memo = outside
            return value
        if access.atoms:
            return self.fetch(e, access, guards, otherwise)
        tests = tuple(self.test_key(g) for g in guards)
        key = ("memory", e, sum(c * self.offset[a] for a, c in access.coefficients), self.chunk_key(), tests)
        if key not in self.memo:
            self.memo[key] = self.fetch(e, access, guards, otherwise)
        return self.memo[key]

    def chunk_key(self) -> int:
        """Chunks of a masked tile differ in their masks even where they read the same address."""
        masked = self.tile.live is not None or self.tail is not None
        return self.offset[self.stage.vector] if self.stage.vector is not None and masked else 0

    def fetch(self, e: Load, access: Access, guards: Sequence[Expr], otherwise: Scalar | None) -> Value:
        vector = self.stage.vector
        if self.lanes == 1 or vector is None or vector not in axes_of(e):
            return self.scalar_load(access, guards, otherwise)
        uniform, by_lane = self.parted(guards)
        mask = None if access.padded else self.live_mask()
        if by_lane:
            mask = self.both(mask, self.condition(by_lane))
        contiguous = access.coefficient(vector) == 1 and not any(vector in axes_of(a) for a, _ in access.atoms)
        if uniform and not (contiguous and self.page_fits(access)):
            # No page to read from: switch the lanes off instead.
            mask = self.both(mask, v.broadcast(self.w, self.condition(uniform), self.lanes))
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
                name = f"masked.load.{suffix(dtype, self.lanes)}.p0"
                raw = self.w.intrinsic(
                    name, type, ("ptr", address), ("i32", str(item)), (mask.type, mask.name), (type, fill)
                )
        elif e not in self.bordered and (block := self.transposed(access)) is not None:
            raw = block
        else:
            addresses = self.addresses(access)
            bits = mask or Value(splat(True, "bool", self.lanes), "bool", self.lanes)
            raw = self.w.intrinsic(
                f"masked.gather.{suffix(dtype, self.lanes)}.v{self.lanes}p0",
                type,
                (vector_type("ptr", self.lanes), addresses),
                ("i32", str(item)),
                (bits.type, bits.name),
                (type, fill),
            )
        return self.from_memory(raw, dtype, self.lanes)

    def transposed(self, access: Access) -> str | None:
        """A strided vector as one row of a transposed block, where the tile holds a whole square of it; else None.

        Lane i of all rows lies side by side in memory: as many loads as lanes, and shuffles instead of gathers.
        """
        vector, n = self.stage.vector, self.lanes
        assert vector is not None
        side = [a for a, count in self.tile.rows if access.coefficient(a) == 1 and count % n == 0]
        if not side or access.atoms or access.buffer.dtype == "bool" or self.tail is not None:
            return None
        axis, here = side[0], self.offset[side[0]]
        self.offset[axis] = here // n * n
        key = ("block", access.buffer, access.outer, access.coefficients, tuple(self.offset.items()))
        if key not in self.blocks:
            self.blocks[key] = self.transpose([self.lane_row(access, i) for i in range(n)], access.buffer.dtype)
        self.offset[axis] = here
        return self.blocks[key][here % n]

    def lane_row(self, access: Access, lane: int) -> str:
        """The contiguous elements that one lane contributes to a block; a dead lane reads what the tile's first lane
        reads.
        """
        vector, w = self.stage.vector, self.w
        assert vector is not None
        item = ITEMSIZE[access.buffer.dtype]
        address = self.moved(self.address(access), access.coefficient(vector) * lane * item)
        position = self.chunk_of() * self.lanes + lane
        live = self.tile.live
        if position and live is not None and not self.is_at_least(live, position + 1):
            here, self.offset[vector] = self.offset[vector], 0
            first = self.address(access)
            self.offset[vector] = here
            inside = w.integer(compare("gt", live, position))
            address = w.op(f"select i1 {inside}, ptr {address}, ptr {first}")
        return w.op(f"load {vector_type(MEMORY[access.buffer.dtype], self.lanes)}, ptr {address}, align {item}")

    def is_at_least(self, e: Expr, n: int) -> bool:
        known = self.w.interval(e)
        return known is not None and known[0] >= n

    def transpose(self, rows: list[str], dtype: Dtype) -> list[str]:
        """A square block of vectors, by exchanging halves, then quarters, down to single lanes."""
        n = self.lanes
        type = vector_type(MEMORY[dtype], n)
        distance = n // 2
        while distance:
            low = ", ".join(f"i32 {k if not k & distance else k - distance + n}" for k in range(n))
            high = ", ".join(f"i32 {k + distance if not k & distance else k + n}" for k in range(n))
            for i in range(n):
                if not i & distance:
                    a, b = rows[i], rows[i + distance]
                    rows[i] = self.w.op(f"shufflevector {type} {a}, {type} {b}, <{n} x i32> <{low}>")
                    rows[i + distance] = self.w.op(f"shufflevector {type} {a}, {type} {b}, <{n} x i32> <{high}>")
            distance //= 2
        return rows

    def scalar_load(self, access: Access, guards: Sequence[Expr], otherwise: Scalar | None) -> Value:
        """An element that all lanes share, read where the guards hold in some lane; a vector if they differ by lane."""
        dtype = access.buffer.dtype
        filler = otherwise if otherwise is not None else 0
        uniform, by_lane = self.parted(guards)
        address = self.guarded(access, uniform, filler) if uniform else self.address(access)
        inside = self.condition(by_lane) if by_lane else None
        if inside is not None:
            wanted = self.both(self.live_mask(), inside)
            some = self.w.intrinsic(f"vector.reduce.or.v{self.lanes}i1", "i1", (wanted.type, wanted.name))
            address = self.w.op(f"select i1 {some}, ptr {address}, ptr {self.pages.get(filler, dtype, 1)}")
        raw = self.w.op(f"load {MEMORY[dtype]}, ptr {address}, align {ITEMSIZE[dtype]}")
        value = self.from_memory(raw, dtype, 1)
        if inside is None or otherwise is None:  # where no value is given, those of the other lanes are not used
            return value
        return v.choice(self.w, inside, value, v.constant(otherwise, dtype, 1))

    def parted(self, guards: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
        """Guards that hold for all lanes or for none, and guards that depend on the lane."""
        vector = self.stage.vector if self.lanes > 1 else None
        return [g for g in guards if vector not in axes_of(g)], [g for g in guards if vector in axes_of(g)]

    def both(self, mask: Value | None, other: Value) -> Value:
        return other if mask is None else Value(self.w.op(f"and {mask}, {other.name}"), "bool", self.lanes)

    def from_memory(self, raw: str, dtype: Dtype, lanes: int) -> Value:
        if dtype != "bool":
            return Value(raw, dtype, lanes)
        zero = "0" if lanes == 1 else "zeroinitializer"
        return Value(self.w.op(f"icmp ne {vector_type('i8', lanes)} {raw}, {zero}"), "bool", lanes)

    def page_elements(self, access: Access) -> int:
        """How far past a border's address the innermost loop, the steps written out and the chunks read."""
        vector = self.stage.vector
        reach = self.lanes + (self.offset[vector] if vector is not None and access.coefficient(vector) else 0)
        for loop in self.tile.reduce:
            if self.inner is not None and loop.axis is self.inner[0]:
                reach += access.coefficient(loop.axis) * (loop.span.longest + loop.step * loop.unroll)
        return reach

    def page_fits(self, access: Access) -> bool:
        negative = self.inner is not None and access.coefficient(self.inner[0]) < 0
        return (
            not negative
            and not has_data(access)
            and self.page_elements(access) * ITEMSIZE[access.buffer.dtype] <= PAGE_BYTES
        )

    def guarded(self, access: Access, guards: Sequence[Expr], otherwise: Scalar) -> str:
        """The element's address where the guards hold, else that of a page holding `otherwise`.

        The selection stands outside the innermost loop unless a guard depends on it, or the page would be too large:
        then it is made for this one element.
        """
        w = self.w
        item = ITEMSIZE[access.buffer.dtype]
        test = conjunction(self.test(g) for g in guards)
        inside = w.integer(test)
        if not self.page_fits(access):
            address = self.address(access)
            return w.op(f"select i1 {inside}, ptr {address}, ptr {self.pages.get(otherwise, access.buffer.dtype, 1)}")
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

    def plain_load(self, access: Access, row: Sequence[int], chunk: int) -> Value:
        self.place(row, chunk)
        address = self.address(access)
        type = vector_type(LLVM[access.buffer.dtype], self.lanes)
        return Value(
            self.w.op(f"load {type}, ptr {address}, align {ITEMSIZE[access.buffer.dtype]}"),
            access.buffer.dtype,
            self.lanes,
        )

    def store(self, value: Value, scalar: bool, inside: Value | None = None) -> None:
        """Write one value or vector; `inside` masks lanes beyond the live ones."""
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
        if inside is not None:
            mask = self.both(mask, inside)
        if access.coefficient(vector) == 1 and not any(vector in axes_of(a) for a, _ in access.atoms):
            address = self.address(access)
            if mask is None:
                self.w.line(f"store {type} {value.name}, ptr {address}, align {item}")
                return
            name = suffix(dtype, self.lanes)
            if dtype in ("i32", "bf16"):
                # LLVM 22 for AVX-512 makes a truncation and a masked store one instruction and then, where it sees that
                # one lane is live, stores that lane's element before the truncation: 8 bytes. Floats are not truncated.
                name = f"v{self.lanes}{'f32' if dtype == 'i32' else 'f16'}"
                type = vector_type("float" if dtype == "i32" else "half", self.lanes)
                value = Value(self.w.op(f"bitcast {value} to {type}"), dtype, self.lanes)
            name = f"@llvm.masked.store.{name}.p0"
            self.w.declare(f"declare void {name}({type}, ptr, i32, {mask.type})")
            self.w.line(f"call void {name}({type} {value.name}, ptr {address}, i32 {item}, {mask})")
            return
        addresses = self.addresses(access)
        mask = mask or Value(splat(True, "bool", self.lanes), "bool", self.lanes)
        kind = vector_type("ptr", self.lanes)
        name = f"@llvm.masked.scatter.{suffix(dtype, self.lanes)}.v{self.lanes}p0"
        self.w.declare(f"declare void {name}({type}, {kind}, i32, {mask.type})")
        self.w.line(f"call void {name}({type} {value.name}, {kind} {addresses}, i32 {item}, {mask})")


@lru_cache(maxsize=65536)
def is_data(atom: Expr) -> bool:
    """Whether a part of an index is loaded from memory.

    Lowering has seen to it that the index stays inside its tensor.
    """
    return any(isinstance(n, Load) for n in walk(atom))


def has_data(access: Access) -> bool:
    return any(is_data(atom) for atom, _ in access.atoms)


def suffix(dtype: Dtype, lanes: int) -> str:
    return f"v{lanes}{ {'bool': 'i8', 'bf16': 'i16'}.get(dtype, dtype) }"
