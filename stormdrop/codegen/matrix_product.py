"""Matrix instructions of a warp (mma.sync): fragments from shared memory, products, accumulators.

An instruction computes D = A · B + C. By PTX's tables, the registers of a lane are

    A      (group 0, k 0), (group 1, k 0), (group 0, k 1), (group 1, k 1)
    B      (k 0), (k 1)
    C, D   two columns of group 0, then two of group 1

where a group is 8 rows (`lower.fragments`), and k 0 and k 1 are the halves of the instruction's depth. One register of
A or B holds two neighbours along k of a 16-bit type, or one element of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stormdrop.base.errors import BuildError
from stormdrop.codegen import values as v
from stormdrop.codegen.block_memory import BlockMemoryWriter
from stormdrop.codegen.text import SsaValue, Writer
from stormdrop.ir.affine import affine
from stormdrop.ir.expr import ITEMSIZE, Axis
from stormdrop.lower.fragments import GROUP, ROW_BYTES
from stormdrop.lower.instance import TileCursor
from stormdrop.lower.program import Access, Fragment, RegisterTile, Update
from stormdrop.space.tiling import matrix_granules
from stormdrop.target.microkernels import Microkernel

Registers = list[str]
Instance = tuple[tuple[int, ...], int]
"""An accumulator of the tile: its row, by axis, and the number of its vector."""
_MULTIPLY = {
    "bf16": ("mma.m16n8k16.row.col.bf16", "i32"),
    "f16": ("mma.m16n8k16.row.col.f32.f32", "<2 x half>"),
    "f32": ("mma.m16n8k8.row.col.tf32", "i32"),
}
_RESULT = "{ float, float, float, float }"


class MatrixWriter:
    """A writer of the reduction steps of a tile."""

    def __init__(self, w: Writer, at: TileCursor, memory: BlockMemoryWriter) -> None:
        self.w, self.at, self.memory = w, at, memory
        self.tile: RegisterTile = at.tile
        assert self.tile.stage.matrix is not None
        self.kernel: Microkernel = self.tile.stage.matrix.kernel
        self.is_rounded = self.tile.stage.matrix.is_rounded
        self.inner: Axis = self.tile.stage.reduce_axes[-1]

    def update(self, s: Update, accs: Sequence[SsaValue]) -> list[SsaValue]:
        """Returns the accumulators, in the order of the cursor's instances, after one step."""
        assert s.fragments is not None
        chunks = self.tile.chunks
        per_group = GROUP // 4 // self.tile.lanes  # a lane's vectors in a group of columns: four lanes share a row
        rows = list(dict.fromkeys(row for row, _ in self.at.all))
        columns = list(range(0, chunks, per_group))
        a = self._fragments(s.fragments[0], [(row, 0) for row in rows], is_row=True)
        b = self._fragments(s.fragments[1], [(rows[0], chunk) for chunk in columns], is_row=False)
        table = dict(zip(self.at.all, accs))
        for i in range(0, len(rows), 2):
            pair = rows[i : i + 2]
            registers = [a[i][0], a[i + 1][0], a[i][1], a[i + 1][1]] if len(pair) == 2 else [a[i][0], "", a[i][1], ""]
            for j, chunk in enumerate(columns):
                places = [(row, chunk + n) for row in pair for n in range(per_group)]
                results = self._multiplied(registers, b[j], self._split([table[p] for p in places]))
                table.update(zip(places, self._joined(results)))
        return [table[p] for p in self.at.all]

    # Accumulators: vectors in the program, scalars in the instruction

    def _split(self, accs: Sequence[SsaValue]) -> Registers:
        registers: Registers = []
        for acc in accs:
            if acc.lanes == 1:
                registers.append(acc.name)
            else:
                registers += [self._element(acc, n) for n in range(acc.lanes)]
        return registers

    def _element(self, acc: SsaValue, n: int) -> str:
        if not acc.name.startswith("%"):  # a literal, the initial value of the sum
            return "0.0"
        return self.w.op(f"extractelement {acc}, i64 {n}")

    def _joined(self, registers: Registers) -> list[SsaValue]:
        lanes = self.tile.lanes
        if lanes == 1:
            return [SsaValue(name, "f32") for name in registers]
        vectors = [registers[k : k + lanes] for k in range(0, len(registers), lanes)]
        return [SsaValue(v.joined(self.w, "float", vector), "f32", lanes) for vector in vectors]

    # Fragments

    def _fragments(self, f: Fragment, groups: Sequence[Instance], is_row: bool) -> list[Registers]:
        """Returns for each group its two registers, k 0 and k 1."""
        by_group: list[Registers] = []
        if f.is_scalar:
            for group in groups:
                self.at.place(*group)
                by_group.append([self._scalar(f, half) for half in range(2)])
            return by_group
        for k in range(0, len(groups), 2):
            self.at.place(*groups[k])
            first = self._offset(f)
            is_pair = k + 1 < len(groups)
            if is_pair:
                self.at.place(*groups[k + 1])
            distance = self._offset(f) - first
            self.at.place(*groups[k])
            registers = self._matrices(f, distance, 4 if is_pair or is_row else 2)
            if not is_pair:
                by_group.append([registers[0], registers[2 if is_row else 1]])
            elif is_row:
                by_group += [[registers[0], registers[2]], [registers[1], registers[3]]]
            else:
                by_group += [registers[:2], registers[2:]]
        return by_group

    def _offset(self, f: Fragment) -> int:
        return sum(c * self.at.offset[a] for a, c in f.access.coefficients)

    def _matrices(self, f: Fragment, distance: int, count: int) -> Registers:
        """Returns the registers of `ldmatrix` for `count` matrices.

        Matrices of the second group lie `distance` elements after matrices of the first group.
        """
        w = self.w
        access = replace(f.access, outer=f.access.outer + affine(f.second).scaled(distance))
        if not self._is_aligned(access):
            raise BuildError(f"rows of {access.buffer} are not aligned for matrix instructions")
        pointer = w.op(f"addrspacecast ptr {self.memory.address(access)} to ptr addrspace(3)")
        type = f"{{ {', '.join(['i32'] * count)} }}"
        name = f"nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if f.is_transposed else ''}.b16.p3"
        whole = w.intrinsic(name, type, ("ptr addrspace(3)", pointer))
        return [w.op(f"extractvalue {type} {whole}, {n}") for n in range(count)]

    def _is_aligned(self, access: Access) -> bool:
        """Returns whether all rows of the matrices begin at multiples of `ROW_BYTES`.

        Along an axis the address moves by whole groups, or by whole steps of the reduction.
        """
        row = ROW_BYTES // ITEMSIZE[access.buffer.dtype]
        steps = matrix_granules(self.tile.stage)
        moves = [c for _, c in access.outer.terms] + [access.outer.constant]
        moves += [c * steps.get(a, 1) for a, c in access.coefficients]
        return not access.atoms and all(c % row == 0 for c in moves)

    def _scalar(self, f: Fragment, half: int) -> str:
        """Returns one 32-bit element of k 0 or k 1, loaded without ldmatrix."""
        here = self.at.offset[self.inner]
        self.at.offset[self.inner] = here + half * self.kernel.k // 2
        item = ITEMSIZE[f.access.buffer.dtype]
        value = self.w.op(f"load i32, ptr {self.memory.address(f.access)}, align {item}")
        self.at.offset[self.inner] = here
        return value

    # Products

    def _multiplied(self, a: Registers, b: Registers, c: Registers) -> Registers:
        """Returns C + A · B.

        If the second group of rows is missing, A repeats the first group, and the repeated results are dropped.
        """
        kernel = self.kernel
        groups = len(c) // 2
        a = [x or a[n - 1] for n, x in enumerate(a)]
        c = [*c, *["0.0"] * (4 - len(c))]
        if kernel.operand != "f32":
            return self._instruction(a, b, c)[: 2 * groups]
        large_a, large_b = (self._large(*pair) for pair in zip((a, b), self.is_rounded))
        if kernel.products == 1:
            return self._instruction(large_a, large_b, c)[: 2 * groups]
        small_a, small_b = ([self._rest(x, large) for x, large in zip(*pair)] for pair in ((a, large_a), (b, large_b)))
        step = ["0.0"] * 4
        for left, right in ((small_a, large_b), (large_a, small_b), (large_a, large_b)):
            step = self._instruction(left, right, step)
        # Matrix instructions truncate sums; a separate addition rounds to the nearest.
        return [self.w.op(f"fadd float {x}, {y}") for x, y in zip(c[: 2 * groups], step)]

    def _instruction(self, a: Registers, b: Registers, c: Registers) -> Registers:
        name, type = _MULTIPLY[self.kernel.operand]
        operands = [*a, *b]
        if type != "i32":
            operands = [self._once(("bits", x), lambda x=x: self.w.op(f"bitcast i32 {x} to {type}")) for x in operands]
        args = [*((type, x) for x in operands), *(("float", x) for x in c)]
        whole = self.w.intrinsic(f"nvvm.{name}", _RESULT, *args)
        return [self.w.op(f"extractvalue {_RESULT} {whole}, {n}") for n in range(4)]

    def _large(self, registers: Registers, is_rounded: bool) -> Registers:
        """Returns a fragment rounded to tf32: the large parts.

        The fragment is unchanged if the tensor was rounded ahead.
        """
        return registers if is_rounded else [self._tf32(x) for x in registers]

    def _tf32(self, x: str) -> str:
        """Returns an f32 rounded to the nearest tf32, ties away from zero."""
        return self._once(("tf32", x), lambda: self._rounded(self._float(x)))

    def _rest(self, x: str, large: str) -> str:
        """Returns the small part of an element: x - large, rounded to tf32."""

        def make() -> str:
            return self._rounded(self.w.op(f"fsub float {self._float(x)}, {self._float(large)}"))

        return self._once(("rest", x), make)

    def _float(self, bits: str) -> str:
        return self._once(("float", bits), lambda: self.w.op(f"bitcast i32 {bits} to float"))

    def _rounded(self, x: str) -> str:
        return self.w.intrinsic("nvvm.f2tf32.rna", "i32", ("float", x))

    def _once(self, key: object, make: Callable[[], str]) -> str:
        """Returns `make()`, called once for each key in a step: memoised with the loads of the step."""
        value = self.memory.blocks.setdefault(("matrix", key), [])
        if not value:
            value.append(make())
        return value[0]
