"""The tile of a warp that matrix instructions compute, and how its lanes load their operands.

PTX fixes the elements of an instruction's 16 × 8 result that lane l holds: rows l / 4 and l / 4 + 8, columns 2 (l mod
4) and 2 (l mod 4) + 1. The rows and columns of the tile to which an instruction applies are free. Here a *group* is 8
neighbours along an axis: 8 rows, or 8 columns. Any two groups of rows form an instruction's 16 rows. In the rest of the
program a lane is a thread. Its register tile has one row in every group of rows and two columns in every group of
columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stormdrop.ir.affine import Affine, affine
from stormdrop.ir.expr import ITEMSIZE, Axis, Bin, Expr, Var, binary, loads
from stormdrop.ir.tensor import Tensor
from stormdrop.lower.packed_layout import Region, access_of
from stormdrop.lower.program import Fragment, RegisterTile
from stormdrop.space.nest import LoopLevel, nest_of
from stormdrop.space.structure import MatrixTile, Stage
from stormdrop.space.tiling import MATRIX_LANES, Tiling

LANE = Var("lane_of_warp")
GROUP = 8
"""Rows, or columns, in a group."""
ROW_BYTES = 16
"""Bytes in a row of an 8 × 8 matrix that `ldmatrix` loads."""


def _lane(divisor: int, modulus: int) -> Affine:
    """Returns lane // divisor % modulus."""
    rest: Expr = binary("floordiv", LANE, divisor) if divisor > 1 else LANE
    return affine(rest if divisor * modulus == 32 else binary("mod", rest, modulus))


@dataclass(slots=True)
class MatrixLowering:
    """Lowers one stage with matrix instructions. `base` is the first element of the warp's tile along every axis."""

    stage: Stage
    tiling: Tiling
    base: Mapping[Axis, Affine]

    @property
    def matrix(self) -> MatrixTile:
        assert self.stage.matrix is not None
        return self.stage.matrix

    @property
    def depth(self) -> int:
        return self.matrix.kernel.k

    @property
    def columns(self) -> Axis:
        assert self.stage.vector is not None
        return self.stage.vector

    def lane_base(self) -> dict[Axis, Affine]:
        """Returns the first element of a lane's part of the tile."""
        return self._shifted({self.matrix.rows: _lane(4, 8), self.columns: _lane(1, 4).scaled(MATRIX_LANES)})

    def _shifted(self, by: Mapping[Axis, Affine]) -> dict[Axis, Affine]:
        return {a: form + by[a] if a in by else form for a, form in self.base.items()}

    def tile(self, base: dict[Axis, Affine]) -> RegisterTile:
        """Returns the register tile of a lane that begins at `base`; rows and columns repeat from group to group."""
        stage, lanes, level = self.stage, int(self.tiling.lanes), nest_of(self.stage).register
        counts = {a: int(self.tiling.trips[LoopLevel(a, level)]) for a in stage.axes}
        rows = tuple((a, n) for a, n in counts.items() if a is not stage.vector)
        in_group = MATRIX_LANES // lanes
        repeats = ((self.matrix.rows, 1, GROUP), (self.columns, in_group, GROUP))
        return RegisterTile(stage, base, rows, counts[self.columns] * in_group, lanes, None, repeats)

    def fragments(self, value: Expr, regions: Mapping[Tensor, Region]) -> tuple[Fragment, Fragment]:
        assert isinstance(value, Bin)
        return self._fragment(value.a, regions, is_row=True), self._fragment(value.b, regions, is_row=False)

    def _fragment(self, operand: Expr, regions: Mapping[Tensor, Region], is_row: bool) -> Fragment:
        """Returns the loads of an operand by the lanes: A with `is_row`, else B. One ldmatrix loads four 8 × 8 matrices
        of two groups; lanes 8 i to 8 i + 7 have the addresses of the rows of matrix i. With k 0 and k 1 for the halves
        of the instruction's depth, the matrices are

            A   (group 0, k 0), (group 1, k 0), (group 0, k 1), (group 1, k 1)
            B   (group 0, k 0), (group 0, k 1), (group 1, k 0), (group 1, k 1)
        """
        (load,) = loads(operand)
        along, inner = self.matrix.rows if is_row else self.columns, self.stage.reduce_axes[-1]
        plain = access_of(regions[load.tensor], load.tensor, load.indices, self.base)
        is_across = plain.coefficient(inner) != 1
        item = ITEMSIZE[load.tensor.dtype]
        group, half = (_lane(8, 2), _lane(16, 2)) if is_row else (_lane(16, 2), _lane(8, 2))
        if is_across and item == 4:  # 32-bit elements are not transposed by ldmatrix
            shifts = {along: _lane(4, 8), inner: _lane(1, 4)}
        elif is_across:
            shifts = {inner: _lane(1, 8) + half.scaled(8)}
        else:
            shifts = {along: _lane(1, 8), inner: half.scaled(ROW_BYTES // item)}
        access = access_of(regions[load.tensor], load.tensor, load.indices, self._shifted(shifts))
        access = replace(access, has_dead=True)  # the copy has room for the whole tile
        return Fragment(access, group.expr(), is_across, is_across and item == 4)
