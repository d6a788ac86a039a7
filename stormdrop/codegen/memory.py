"""Loads and stores of a register tile: addresses, pages (constant blocks for borders), masks, gathers, transposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stormdrop.codegen import values as v
from stormdrop.codegen.text import MEMORY, Loop, SsaValue, Writer, literal, splat, suffix, vector_type
from stormdrop.codegen.values import Lanes
from stormdrop.ir.affine import Affine, affine, conjunction
from stormdrop.ir.expr import ITEMSIZE, Axis, Dtype, Expr, Scalar, binary, compare
from stormdrop.lower.instance import TileCursor
from stormdrop.lower.program import Access, Buffer, Prefetch, Spread
from stormdrop.lower.tiles import has_data
from stormdrop.space.access import axes_of, has_load

LINE_BYTES = 64
L2 = 2
"""The locality of `llvm.prefetch` that stands for the L2 cache."""


@dataclass(slots=True)
class Pages:
    """The pages of one module, constant blocks of one repeated value, and the elements each must have.

    The key is the value as an LLVM literal: 0.0 and -0.0 differ, all NaNs are equal.
    """

    elements: dict[tuple[str, Dtype], int] = field(default_factory=dict[tuple[str, Dtype], int])

    def get(self, value: Scalar, dtype: Dtype, elements: int) -> str:
        key = (literal(value, dtype), dtype)
        self.elements[key] = max(self.elements.get(key, 0), elements)
        return page_name(*key)

    def definitions(self) -> list[str]:
        lines: list[str] = []
        for (text, dtype), n in self.elements.items():
            kind = MEMORY[dtype]
            item = f"{kind} {int(text == 'true') if dtype == 'bool' else text}"
            zero = text in ("0", "0x0000000000000000", "false")
            content = "zeroinitializer" if zero else f"[{', '.join([item] * n)}]"
            lines.append(f"{page_name(text, dtype)} = internal constant [{n} x {kind}] {content}, align 64")
        return lines


def page_name(text: str, dtype: Dtype) -> str:
    return f"@page.{dtype}.{text.replace('-', 'm')}"


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """The innermost rolled reduce loop while its body is written: pointers are its induction variables."""

    axis: Axis
    frame: Loop
    low: str
    step: int  # elements per trip


class MemoryWriter:
    """A writer of loads and stores of the present instance."""

    def __init__(
        self,
        w: Writer,
        at: TileCursor,
        lanes: Lanes,
        value: Callable[[Expr], SsaValue],
        pointers: Mapping[Buffer, str],
        pages: Pages,
        reach_bytes: int,
    ) -> None:
        """`value` writes data-dependent parts of an index; `reach_bytes` bounds the cheap immediate displacement."""
        self.w, self.at, self.lanes, self.value = w, at, lanes, value
        self.pointers, self.pages, self.reach_bytes = pointers, pages, reach_bytes
        self.inner: InnerLoop | None = None
        self.is_finishing = False  # inside a statement that dead instances skip
        self.blocks: dict[object, list[str]] = {}  # transposed blocks already loaded

    # Addresses

    def address(self, access: Access) -> str:
        """Returns the address of the present instance, at lane 0."""
        item = ITEMSIZE[access.buffer.dtype]
        if has_data(access):
            pointer = self.address(replace(access, atoms=tuple((a, c) for a, c in access.atoms if not has_load(a))))
            for atom, c in access.atoms:
                if has_load(atom):
                    step = self.w.op(f"mul {self._data_index(atom)}, {c * item}")
                    pointer = self.w.op(f"getelementptr i8, ptr {pointer}, {self.w.index} {step}")
            return pointer
        constant = sum(c * self.at.offset[a] for a, c in access.coefficients)
        inner = self.inner
        slope = access.coefficient(inner.axis) if inner is not None else 0
        if inner is None or not slope or access.atoms:
            pointer = self._pointer_at(access.buffer, self._form(access, with_inner=True))
            return self._moved(pointer, constant * item)
        form = self._form(access, with_inner=False)
        # A row whose displacement exceeds the immediate gets its own induction pointer.
        far = constant - slope * self.at.offset[inner.axis]
        far = far if abs(far) * item >= self.reach_bytes else 0

        def first() -> str:
            start = self._moved(self._pointer_at(access.buffer, form), far * item)
            if inner.low == "0":
                return start
            skip = self.w.op(f"mul {self.w.index} {inner.low}, {slope * item}")
            return self.w.op(f"getelementptr i8, ptr {start}, {self.w.index} {skip}")

        key = (access.buffer, form.terms, form.constant + far, slope)
        pointer = inner.frame.pointer(key, first, slope * inner.step * item)
        return self._moved(pointer, (constant - far) * item)

    def _data_index(self, atom: Expr) -> SsaValue:
        """Returns a data-dependent atom of an index as an integer: a scalar, or a vector if it varies by lane."""
        return v.convert(self.w, self.value(atom), self.w.index)

    def _moved(self, pointer: str, nbytes: int) -> str:
        return pointer if nbytes == 0 else self.w.op(f"getelementptr i8, ptr {pointer}, i64 {nbytes}")

    def _form(self, access: Access, with_inner: bool) -> Affine:
        """Returns the part of an address that depends on loop variables; the constant offsets are left out."""
        form = access.outer
        for a, c in access.coefficients:
            if a in self.at.open and (with_inner or self.inner is None or a is not self.inner.axis):
                form = form + Affine(((self.at.open[a], c),))
        for atom, c in access.atoms:
            form = form + affine(self.at.here(atom)).scaled(c)
        return form

    def _pointer_at(self, buffer: Buffer, form: Affine) -> str:
        base = self.pointers[buffer]
        if not form.terms and not form.constant:
            return base
        index = self.w.affine(form)
        kind = MEMORY[buffer.dtype]
        make = lambda: self.w.op(f"getelementptr {kind}, ptr {base}, {self.w.index} {index}")  # noqa: E731
        return self.w.hoisted(self.w.affine_depth(form), ("ptr", buffer, index), make)

    def _addresses(self, access: Access) -> str:
        """Returns an address per lane."""
        vector, w, n = self.at.vector, self.w, self.at.lanes
        plain = replace(access, atoms=tuple((a, c) for a, c in access.atoms if vector not in axes_of(a)))
        base = self.address(plain)
        slope = access.coefficient(vector)
        steps = ", ".join(f"{w.index} {slope * i}" for i in range(n))
        index = SsaValue(f"<{steps}>", w.index, n)
        for atom, c in access.atoms:
            if vector in axes_of(atom):
                lanes = v.broadcast(w, self._data_index(atom), n) if has_load(atom) else self.lanes.operation(atom)
                term = v.arithmetic(w, "mul", lanes, v.constant(c, w.index, n))
                index = v.arithmetic(w, "add", term, index)
        return w.op(f"getelementptr {MEMORY[access.buffer.dtype]}, ptr {base}, {index}")

    def _selected(self, access: Access, guards: Sequence[Expr], otherwise: Scalar) -> str:
        """Returns the element's address if the guards hold, else the address of a page filled with `otherwise`.

        The select is hoisted as far out as guards and address allow; without `access.page` it stays at the read.
        """
        w, dtype, at = self.w, access.buffer.dtype, self.at
        item = ITEMSIZE[dtype]
        test = conjunction(at.test(g) for g in guards)
        inside = w.integer(test)
        if access.page is None:
            address = self.address(access)
            return w.op(f"select i1 {inside}, ptr {address}, ptr {self.pages.get(otherwise, dtype, 1)}")
        page = self.pages.get(otherwise, dtype, access.page.elements)
        inner = self.inner if self.inner is not None and access.coefficient(self.inner.axis) else None
        # The axes that advance the pointer after the select: the vectors of a row and the innermost loop.
        after = {a for a in (at.vector, inner and inner.axis) if a is not None}
        constant = sum(c * at.offset[a] for a, c in access.coefficients if a not in after) * item
        moving = sum(c * at.offset[a] for a, c in access.coefficients if a in after) * item
        form = self._form(access, with_inner=False)
        start = self._pointer_at(access.buffer, form)

        def make() -> str:
            return w.op(f"select i1 {inside}, ptr {self._moved(start, constant)}, ptr {page}")

        depth = max(w.depth_of(test), w.affine_depth(form))
        pointer = w.hoisted(depth, ("select", test, start, constant, page), make)
        if inner is not None:
            index = w.affine(Affine(((at.open[inner.axis], access.coefficient(inner.axis)),)))
            pointer = w.op(f"getelementptr {MEMORY[dtype]}, ptr {pointer}, {w.index} {index}")
        return self._moved(pointer, moving)

    # Loads

    def load(self, access: Access, guards: Sequence[Expr], otherwise: Scalar | None) -> SsaValue:
        """Returns an element or a vector; `otherwise` is its value if a guard fails (None: the value is unused)."""
        uniform, by_lane = [g for g in guards if not self.lanes.vary(g)], [g for g in guards if self.lanes.vary(g)]
        filler = otherwise if otherwise is not None else 0
        if access.spread is Spread.ONE:
            return self._shared_element(access, uniform, by_lane, otherwise)
        mask = self.lanes.live() if access.masked else None
        if by_lane:
            mask = self.lanes.both(mask, self.lanes.condition(by_lane))
        if uniform and access.page is None:  # no page to read from: mask all lanes instead
            mask = self.lanes.both(mask, v.broadcast(self.w, self.lanes.condition(uniform), self.at.lanes))
            uniform = []
        dtype, n = access.buffer.dtype, self.at.lanes
        type, item = vector_type(MEMORY[dtype], n), ITEMSIZE[dtype]
        if access.spread is Spread.TRANSPOSED and self.lanes.tail is None:
            return v.from_memory(self.w, self._transposed(access), dtype, n)
        if access.spread is Spread.CONTIGUOUS:
            address = self._selected(access, uniform, filler) if uniform else self.address(access)
            if mask is None:
                return v.from_memory(self.w, self.w.op(f"load {type}, ptr {address}, align {item}"), dtype, n)
            name, place = f"load.{_suffix(dtype, n)}.p0", ("ptr", address)
        else:
            name, place = f"gather.{_suffix(dtype, n)}.v{n}p0", (vector_type("ptr", n), self._addresses(access))
            mask = mask or SsaValue(splat(True, "bool", n), "bool", n)
        fill = splat(filler, dtype, n) if dtype != "bool" else f"splat (i8 {int(filler)})"
        args = (place, ("i32", str(item)), (mask.type, mask.name), (type, fill))
        return v.from_memory(self.w, self.w.intrinsic(f"masked.{name}", type, *args), dtype, n)

    def load_pair(self, low: Access, high: Access) -> SsaValue | None:
        """Returns two adjacent elements that all lanes share, in a single load; None for any other pair."""
        is_apart = low.buffer is not high.buffer or low.coefficients != high.coefficients
        shared = low.spread is Spread.ONE and high.spread is Spread.ONE and not (low.atoms or high.atoms)
        if is_apart or not shared or high.outer != low.outer.shifted(1):
            return None
        raw = self.w.op(f"load i32, ptr {self.address(low)}, align {ITEMSIZE[low.buffer.dtype]}")
        return SsaValue(raw, "i16x2" if low.buffer.dtype == "i16" else "bf16x2", 1)

    def _shared_element(
        self, access: Access, uniform: Sequence[Expr], by_lane: Sequence[Expr], otherwise: Scalar | None
    ) -> SsaValue:
        """Returns an element that all lanes share, read if any lane's guards hold; a vector if guards vary by lane."""
        dtype, w = access.buffer.dtype, self.w
        filler = otherwise if otherwise is not None else 0
        address = self._selected(access, uniform, filler) if uniform else self.address(access)
        inside = self.lanes.condition(by_lane) if by_lane else None
        if inside is not None:
            read_lanes = self.lanes.both(self.lanes.live(), inside)
            some = w.intrinsic(f"vector.reduce.or.v{self.at.lanes}i1", "i1", (read_lanes.type, read_lanes.name))
            address = w.op(f"select i1 {some}, ptr {address}, ptr {self.pages.get(filler, dtype, 1)}")
        raw = w.op(f"load {MEMORY[dtype]}, ptr {address}, align {ITEMSIZE[dtype]}")
        value = v.from_memory(w, raw, dtype, 1)
        if inside is None or otherwise is None:  # lanes with a failing guard are not used
            return value
        return v.choice(w, inside, value, v.constant(otherwise, dtype, 1))

    def prefetch(self, p: Prefetch, trip: int) -> None:
        """Prefetches this run's share of the next block's lines for one trip of the innermost loop: `trip` elements."""
        w, item = self.w, ITEMSIZE[p.access.buffer.dtype]
        assert self.inner is not None
        lines = -(-p.access.coefficient(self.inner.axis) * trip * item // LINE_BYTES)
        first = affine(binary("mod", p.use.expr(), lines)).scaled(LINE_BYTES) + affine(p.distance).scaled(item)
        self.at.place(*self.at.all[0])
        pointer = w.op(f"getelementptr i8, ptr {self.address(p.access)}, {w.index} {w.affine(first)}")
        for line in range(0, lines, p.uses):
            address = self._moved(pointer, line * LINE_BYTES)
            w.effect("prefetch.p0", ("ptr", address), ("i32", "0"), ("i32", str(L2)), ("i32", "1"))

    # Transposed blocks

    def _transposed(self, access: Access) -> str:
        """Returns a row of a lanes × lanes block that is contiguous along the row axis: loaded by lane, transposed."""
        at, n, axis = self.at, self.at.lanes, access.square
        assert axis is not None
        here = at.offset[axis]
        at.offset[axis] = here // n * n
        key = (access.buffer, access.outer, access.coefficients, tuple(at.offset.items()))
        if key not in self.blocks:
            self.blocks[key] = self._transpose([self._lane_row(access, i) for i in range(n)], access.buffer.dtype)
        at.offset[axis] = here
        return self.blocks[key][here % n]

    def _lane_row(self, access: Access, lane: int) -> str:
        """Returns the contiguous elements of a lane of a block; a dead lane reads at the tile's first lane."""
        at, w, vector, live = self.at, self.w, self.at.vector, self.at.tile.live
        assert vector is not None
        item = ITEMSIZE[access.buffer.dtype]
        address = self._moved(self.address(access), access.coefficient(vector) * lane * item)
        position = at.chunk * at.lanes + lane
        known = w.interval(live) if live is not None else None
        if position and live is not None and (known is None or known[0] <= position):
            here, at.offset[vector] = at.offset[vector], 0
            first = self.address(access)
            at.offset[vector] = here
            inside = w.integer(compare("gt", live, position))
            address = w.op(f"select i1 {inside}, ptr {address}, ptr {first}")
        return w.op(f"load {vector_type(MEMORY[access.buffer.dtype], at.lanes)}, ptr {address}, align {item}")

    def _transpose(self, rows: list[str], dtype: Dtype) -> list[str]:
        """Transposes a lanes × lanes block by shuffles: exchanges halves, then quarters, down to single lanes."""
        n = self.at.lanes
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

    # Stores

    def store(self, access: Access, value: SsaValue, inside: SsaValue | None = None) -> None:
        """Stores one value or vector; `inside` is a mask in addition to the mask of the live lanes."""
        dtype, n, w = access.buffer.dtype, self.at.lanes, self.w
        item = ITEMSIZE[dtype]
        raw, type = v.to_memory(w, value), value.memory_type
        mask = self.lanes.live() if access.masked else None
        if inside is not None:
            mask = self.lanes.both(mask, inside)
        if access.spread is not Spread.STRIDED:
            address = self.address(access)
            if mask is None:
                w.line(f"store {type} {raw}, ptr {address}, align {item}")
                return
            ending = _suffix(dtype, n)
            if dtype in ("i8", "u8") and mask.name.count("true") == 1:
                # The miscompilation below, with no float of 8 bits to avoid it: LLVM recognises a literal mask of one
                # lane, so only that lane is stored.
                lane = [" true" in part for part in mask.name.split(",")].index(True)
                address = self._moved(address, lane * item)
                one = w.op(f"extractelement {value}, i64 {lane}")
                w.line(f"store {MEMORY[dtype]} {one}, ptr {address}, align {item}")
                return
            if dtype != "bool" and dtype not in ("f32", "f64") and item in _FLOAT_OF_BYTES:
                # A miscompilation of LLVM 22 for AVX-512: it fuses a truncation with a masked store and, if it knows
                # that one lane is live, stores the element before truncation (8 bytes). A bitcast to float avoids it.
                code, kind = _FLOAT_OF_BYTES[item]
                ending, type = f"v{n}{code}", vector_type(kind, n)
                raw = w.op(f"bitcast {value} to {type}")
            name, place = f"store.{ending}.p0", ("ptr", address)
        else:
            name, place = f"scatter.{_suffix(dtype, n)}.v{n}p0", (vector_type("ptr", n), self._addresses(access))
            mask = mask or SsaValue(splat(True, "bool", n), "bool", n)
        w.effect(f"masked.{name}", (type, raw), place, ("i32", str(item)), (mask.type, mask.name))


_FLOAT_OF_BYTES = {2: ("f16", "half"), 4: ("f32", "float")}


def _suffix(dtype: Dtype, lanes: int) -> str:
    return suffix(dtype if dtype in ("f32", "f64") else MEMORY[dtype], lanes)
