"""The cost of a matrix product by matrix instructions, in a thread block.

A *step* multiplies the whole tile of a warp over one instruction's depth k.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stormdrop.space.access import Operand
from stormdrop.space.block_cost import LINE_BYTES, BlockCost
from stormdrop.space.columns import Num, ceil_div, maximum, prod_of, sum_of
from stormdrop.space.structure import MatrixTile
from stormdrop.space.tiling import MATRIX_LANES
from stormdrop.target.gpu import WARP

GROUP_ROWS = 8
"""Rows in a group, and so the rows that the lanes of a warp store to with one instruction."""
SPLIT_REGISTERS = 5
"""The registers per register of a fragment that is split into a large and a small part (3xtf32). The number exceeds two
because the assembler splits fragments of later steps ahead."""
WARP_PRODUCTS = 370.0
"""bf16 multiply-adds per cycle of a warp that is alone on its quarter of a multiprocessor."""


@dataclass(frozen=True, eq=False)
class MatrixCost(BlockCost):
    """See `BlockCost`. Rows and columns are counted in groups of 8, of which a lane holds one row and two columns."""

    @property
    def matrix(self) -> MatrixTile:
        assert self.stage.matrix is not None
        return self.stage.matrix

    @property
    def accumulators(self) -> Num:
        return self.instances * MATRIX_LANES

    @cached_property
    def _column_groups(self) -> Num:
        """Groups of columns in the tile of a warp."""
        assert self.stage.vector is not None
        return self._rows(self.stage.vector)

    @cached_property
    def _row_groups(self) -> Num:
        """Groups of rows in the tile of a warp."""
        return prod_of([self._rows(a) for a in self.stage.axes if a is not self.stage.vector])

    @cached_property
    def steps(self) -> Num:
        t, inner = self.tiling, self.stage.reduce_axes[-1]
        outer = prod_of([t.extent[a] for a in self.stage.reduce_axes if a is not inner])
        return outer * t.extent[inner] / self.matrix.kernel.k

    @cached_property
    def _instructions(self) -> Num:
        """Matrix instructions of one step. One takes two groups of rows; an odd last group has one to itself."""
        return ceil_div(self._row_groups, 2) * self._column_groups * self.matrix.kernel.products

    @cached_property
    def _step_products(self) -> Num:
        """Multiply-adds of a step, in bf16 multiply-adds: a tf32 multiply-add takes as long as two in bf16."""
        kernel = self.matrix.kernel
        weight = 1.0 if kernel.operand != "f32" else 2.0
        return self._instructions * (kernel.m * kernel.n * kernel.k * weight)

    @cached_property
    def matrix_products(self) -> Num:
        return self.executions * self.tiles * self.warps * self.steps * self._step_products

    @cached_property
    def body_instructions(self) -> Num:
        """Instructions of one step that multiply, round fragments or split fragments."""
        if self.matrix.kernel.operand != "f32":
            return self._instructions
        groups = zip((self._row_groups, self._column_groups), self.matrix.is_rounded)
        rounding = sum_of([4 * n for n, is_rounded in groups if not is_rounded])
        if self.matrix.kernel.products == 1:
            return self._instructions + rounding
        return self._instructions + 3 * rounding + self.accumulators  # round, subtract, round; add each step's sums

    @cached_property
    def waiting_cycles(self) -> Num:
        """Cycles in which no warp multiplies: all wait at a barrier, or for the first fragments of an iteration."""
        k, turns = self.coefficients, self.steps / self.tiling.unroll
        return self.executions * self.tiles * (self.reduce_blocks * k.barrier_cycles + turns * k.loop_cycles)

    @property
    def step_cycles(self) -> Num:
        return maximum(self.step_instructions, self._step_products / WARP_PRODUCTS)

    @cached_property
    def loads(self) -> list[tuple[Operand, Num, Num]]:
        """See `BlockCost`.

        An ldmatrix instruction loads four 8 × 8 matrices at once, one row of 16 bytes a lane. 32-bit elements that are
        not contiguous along k are loaded individually.
        """
        inner = self.stage.reduce_axes[-1]
        loads: list[tuple[Operand, Num, Num]] = []
        for o, groups in zip(self.operands[:-1], (self._row_groups, self._column_groups)):
            is_across = not any(a is inner for a, _ in o.dims[0].terms)
            loads.append((o, groups * 2, 4) if is_across and o.itemsize == 4 else (o, ceil_div(groups, 2), 16))
        return loads

    @cached_property
    def registers(self) -> Num:
        split = SPLIT_REGISTERS if self.matrix.kernel.products > 1 else 1
        fragments = ceil_div(self._row_groups, 2) * 4 + self._column_groups * 2
        return self.accumulators + fragments * split

    def wavefronts(self, o: Operand, width: Num) -> Num:
        """See `BlockCost`. Rows are padded, so fragments are read without bank conflicts. A store touches 8 rows."""
        return width * (WARP / LINE_BYTES) if o.tensor in self.shared else GROUP_ROWS

    @cached_property
    def latency_cycles(self) -> Num:
        """See `BlockCost`. The latency of one fragment's load before every reduce block, and a little in every step."""
        return self.executions * self.tiles * sum_of([self.reduce_blocks * 30.0, self.steps * 2.0])
