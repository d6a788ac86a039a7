"""Loads and stores of one GPU thread.

Lanes are never masked: a vector is wholly live or wholly dead. There is no branch around a guarded read: if the guard
fails, the first element of the buffer is read and replaced after the load. A staged operand is read at its own address,
since its box in shared memory has room for every instance of its reader's tile (`Access.has_dead`). The buffer's first
element may be in a box that is being filled. Vectors of known alignment are accessed whole, other vectors lane by lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from stormdrop.codegen import values as v
from stormdrop.codegen.memory import MemoryWriter
from stormdrop.codegen.text import MEMORY, SsaValue, vector_type
from stormdrop.ir.affine import conjunction
from stormdrop.ir.expr import ITEMSIZE, Axis, Expr, Scalar, Var
from stormdrop.lower.program import Access, Spread
from stormdrop.lower.tiles import has_data
from stormdrop.space.access import axes_of
from stormdrop.target.structures import Scope

WIDEST_BYTES = 16
"""The widest access of a thread. Every buffer begins at a multiple of this size."""


class BlockMemoryWriter(MemoryWriter):
    """A writer of loads and stores of the present instance, for one thread of a block."""

    # Loads

    def load(self, access: Access, guards: Sequence[Expr], otherwise: Scalar | None) -> SsaValue:
        tests = [self.at.test(g) for g in guards]
        if not (self.is_finishing or access.has_dead):
            mentioned = {a for a, _ in access.coefficients}.union(*(axes_of(atom) for atom, _ in access.atoms))
            tests += self.at.undecided_limits(mentioned)
        inside = self.w.integer(conjunction(tests)) if tests else None
        dtype, lanes = access.buffer.dtype, 1 if access.spread is Spread.ONE else self.at.lanes
        value = self._one_of_four(access) if lanes == 1 and (inside is None or access.has_dead) else None
        if value is None:
            value = v.from_memory(self.w, self._loaded(access, lanes, inside), dtype, lanes)
        if inside is None or otherwise is None:
            return value
        return v.choice(self.w, SsaValue(inside, "bool"), value, v.constant(otherwise, dtype, 1))

    def _loaded(self, access: Access, lanes: int, inside: str | None) -> str:
        dtype = access.buffer.dtype
        item, kind = ITEMSIZE[dtype], MEMORY[dtype]
        is_whole = access.spread is Spread.CONTIGUOUS and access.buffer.elements >= lanes
        if lanes == 1 or (is_whole and self._alignment(access) >= lanes * item):
            return self._load_at(self.address(access), access, vector_type(kind, lanes), lanes * item, inside)
        parts = [self._load_at(address, access, kind, item, inside) for address in self._lane_addresses(access)]
        return v.joined(self.w, kind, parts)

    def _load_at(self, address: str, access: Access, type: str, align: int, inside: str | None) -> str:
        if inside is not None and not access.has_dead:
            address = self.w.op(f"select i1 {inside}, ptr {address}, ptr {self.pointers[access.buffer]}")
        is_constant = access.buffer.scope in (Scope.CONSTANT, Scope.PACKED)
        hint = ", !invariant.load !0" if is_constant else ""
        return self.w.op(f"load {type}, ptr {address}, align {align}{hint}")

    def _one_of_four(self, access: Access) -> SsaValue | None:
        """Returns an element of shared memory from a load that also brings its neighbours along an unrolled axis.

        Returns None if there is no such axis, or if the group of neighbours is not aligned.
        """
        axis, n = self._unrolled_axis(access)
        if axis is None or access.buffer.scope is not Scope.SCRATCH:
            return None
        dtype = access.buffer.dtype
        here = self.at.offset[axis]
        element = None
        while n > 1 and element is None:
            nbytes = n * ITEMSIZE[dtype]
            self.at.offset[axis] = here // n * n
            if access.buffer.elements % n == 0 and self._alignment(access) >= nbytes:
                constant = sum(c * self.at.offset[a] for a, c in access.coefficients)
                key = (access.buffer, self._form(access, with_inner=True), constant, n)
                if key not in self.blocks:
                    type = vector_type(MEMORY[dtype], n)
                    whole = self.w.op(f"load {type}, ptr {self.address(access)}, align {nbytes}")
                    self.blocks[key] = [self.w.op(f"extractelement {type} {whole}, i64 {i}") for i in range(n)]
                element = self.blocks[key][here % n]
            n //= 2
        self.at.offset[axis] = here
        return None if element is None else v.from_memory(self.w, element, dtype, 1)

    def _unrolled_axis(self, access: Access) -> tuple[Axis | None, int]:
        """Returns an unrolled axis of unit stride (the innermost loop's or a row's), and its positions per access, a
        power of two.
        """
        most = WIDEST_BYTES // ITEMSIZE[access.buffer.dtype]
        if self.is_finishing or access.atoms or most > 4:
            return None, 1
        inner, rows = self.inner, dict(self.at.tile.rows)
        for a, c in access.coefficients:
            if c != 1:
                continue
            if inner is not None and a is inner.axis:
                together = inner.step
            elif a in rows:
                own = [n for axis, n, _ in self.at.tile.repeats if axis is a]
                together = own[0] if own else rows[a]
            else:
                return (None, 1) if a in self.at.open else (a, most)
            while together % most:
                most //= 2
            return a, most
        return None, 1

    # Addresses

    def _alignment(self, access: Access) -> int:
        """Returns the largest provable alignment of the present address in bytes, at most the widest access."""
        if has_data(access):
            return ITEMSIZE[access.buffer.dtype]
        form = self._form(access, with_inner=True)
        known = sum(c * self.at.offset[a] for a, c in access.coefficients) + form.constant
        for atom, c in form.terms:
            known = gcd(known, c * self._multiple_of(atom))
        nbytes = gcd(known * ITEMSIZE[access.buffer.dtype], WIDEST_BYTES)
        return nbytes or WIDEST_BYTES

    def _multiple_of(self, atom: Expr) -> int:
        """Returns a number that divides every value of a loop variable."""
        inner = self.inner
        if inner is None or not isinstance(atom, Var) or self.at.open.get(inner.axis) is not atom:
            return 1
        return 1 if inner.low.startswith("%") else gcd(int(inner.low), inner.step)

    def _lane_addresses(self, access: Access) -> list[str]:
        """Returns the address of every lane."""
        vector, n, item = self.at.vector, self.at.lanes, ITEMSIZE[access.buffer.dtype]
        if any(vector in axes_of(atom) for atom, _ in access.atoms):
            every = self._addresses(access)
            return [self.w.op(f"extractelement <{n} x ptr> {every}, i64 {i}") for i in range(n)]
        first, slope = self.address(access), access.coefficient(vector) * item
        return [self._moved(first, slope * i) for i in range(n)]

    # Asynchronous copies

    def copy(self, source: Access, guards: Sequence[Expr], to: Access) -> bool:
        """Copies an element or a vector from global to shared memory; returns False if size or alignment does not allow
        a copy.

        Zeros are written if a guard fails.
        """
        w, nbytes = self.w, ITEMSIZE[to.buffer.dtype] * (1 if to.spread is Spread.ONE else self.at.lanes)
        is_vector = all(x.spread is Spread.CONTIGUOUS for x in (source, to))
        is_possible = source.buffer.scope is not Scope.SCRATCH and to.buffer.scope is Scope.SCRATCH
        is_possible &= source.buffer.dtype == to.buffer.dtype and nbytes in (4, 8, 16) and not has_data(source)
        is_possible &= self.at.lanes == 1 or is_vector
        if not is_possible or min(self._alignment(source), self._alignment(to)) < nbytes:
            return False
        kind = "cg.shared.global.16" if nbytes == WIDEST_BYTES else f"ca.shared.global.{nbytes}"
        there = w.op(f"addrspacecast ptr {self.address(to)} to ptr addrspace(3)")
        here = w.op(f"addrspacecast ptr {self.address(source)} to ptr addrspace(1)")
        args = [("ptr addrspace(3)", there), ("ptr addrspace(1)", here)]
        if guards:
            inside = w.integer(conjunction(self.at.test(g) for g in guards))
            args.append(("i32", w.op(f"select i1 {inside}, i32 {nbytes}, i32 0")))
            kind += ".s"
        w.effect(f"nvvm.cp.async.{kind}", *args)
        return True

    # Stores

    def store(self, access: Access, value: SsaValue, inside: SsaValue | None = None) -> None:
        assert inside is None, "lanes of a thread are not masked"
        dtype, w = access.buffer.dtype, self.w
        item, kind = ITEMSIZE[dtype], MEMORY[dtype]
        raw, type, lanes = v.to_memory(w, value), value.memory_type, value.lanes
        is_whole = access.spread is Spread.CONTIGUOUS and self._alignment(access) >= lanes * item
        if lanes == 1 or is_whole:
            w.line(f"store {type} {raw}, ptr {self.address(access)}, align {lanes * item}")
            return
        for i, address in enumerate(self._lane_addresses(access)):
            part = w.op(f"extractelement {type} {raw}, i64 {i}")
            w.line(f"store {kind} {part}, ptr {address}, align {item}")
