"""Operands: the tensors that a stage's inner loops access, and the properties of their indices that hold at every
point.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stormdrop.ir.affine import ZERO, affine, conjuncts
from stormdrop.ir.expr import ITEMSIZE, Axis, Cmp, Expr, Select
from stormdrop.ir.memo import memoised
from stormdrop.ir.shape import row_strides
from stormdrop.ir.tensor import Tensor
from stormdrop.space.access import axes_of, operand_load, operands
from stormdrop.space.structure import Stage, Structure

MOST_POSITIONS = 2048
"""The most positions of an axis that are enumerated or sampled."""


class Dim(NamedTuple):
    """The index of one dimension: its linear terms (|coefficient|), and the axes of each non-linear term."""

    extent: int
    terms: tuple[tuple[Axis, int], ...]
    others: tuple[frozenset[Axis], ...]


Border = tuple[Axis, Axis, float]
"""A spatial axis, a reduce axis, and the share of their index pairs that is not padding."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One access of the inner loops."""

    tensor: Tensor
    indices: tuple[Expr, ...]
    axes: frozenset[Axis]
    packed: bool
    stride: int | None  # in elements, along the vector axis; 0: broadcast; None: not linear
    guarded: bool  # a padded load: a select on indices
    dims: tuple[Dim, ...]  # innermost first
    row_bytes: tuple[tuple[Axis, int], ...]  # stride in bytes along each other spatial axis; empty if packed
    borders: tuple[Border, ...] = ()

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.tensor.dtype]


@memoised()
def packed_tensors(s: Structure) -> frozenset[Tensor]:
    """Returns the tensors that copies write, packed in the order of their reads."""
    return frozenset(stage.tensor for stage in s.stages if stage.reader is not None)


@memoised()
def stage_operands(stage: Stage, packed: frozenset[Tensor]) -> tuple[Operand, ...]:
    """Returns the loads of the reduction body (or of the elementwise stage), then the store, always last."""
    accesses: list[Operand] = []
    body = stage.body if stage.is_reduction else stage.finish
    for op in operands(body):
        load = operand_load(op)
        access = _operand(stage, load.tensor, load.indices, load.tensor in packed, isinstance(op, Select))
        if isinstance(op, Select) and stage.is_reduction:
            access = replace(access, borders=_borders(stage, op))
        accesses.append(access)
    if not stage.is_reduction:
        seen = {operand_load(op) for op in operands(body)}
        accesses += [_operand(stage, x.tensor, x.indices, False, False) for x in stage.reads if x not in seen]
    accesses.append(_operand(stage, stage.tensor, stage.place, stage.tensor in packed, False))
    return tuple(accesses)


def _operand(stage: Stage, tensor: Tensor, indices: tuple[Expr, ...], packed: bool, guarded: bool) -> Operand:
    axes = frozenset[Axis]().union(*(axes_of(i) for i in indices))
    dims = tuple(_dim(i, n) for i, n in zip(reversed(indices), reversed(tensor.shape)))
    address = sum((affine(i).scaled(s) for i, s in zip(indices, row_strides(tensor.shape))), ZERO)
    rows = {a: abs(address.coefficient(a)) * ITEMSIZE[tensor.dtype] for a in stage.axes if a is not stage.vector}
    row_bytes = () if packed else tuple((a, stride) for a, stride in rows.items() if stride)
    stride: int | None = 0
    if stage.vector is not None and stage.vector in axes:
        is_linear = all(affine(i).coefficient(stage.vector) for i in indices if stage.vector in axes_of(i))
        stride = 1 if packed else address.coefficient(stage.vector) if is_linear else None
    return Operand(tensor, indices, axes, packed, stride, guarded, dims, row_bytes)


def _dim(index: Expr, extent: int) -> Dim:
    terms = affine(index).terms
    linear = tuple((a, abs(c)) for a, c in terms if isinstance(a, Axis))
    return Dim(extent, linear, tuple(axes_of(a) for a, _ in terms if not isinstance(a, Axis)))


def _borders(stage: Stage, op: Select) -> tuple[Border, ...]:
    """Returns `Operand.borders`: one entry for each spatial and reduce axis that a bounds check relates."""
    tied: dict[tuple[Axis, Axis], list[Expr]] = {}
    for part in conjuncts(op.condition):
        spatial = [a for a in stage.axes if a in axes_of(part)]
        reduced = [a for a in stage.reduce_axes if a in axes_of(part)]
        if len(spatial) == 1 and len(reduced) == 1 and isinstance(part, Cmp):
            tied.setdefault((spatial[0], reduced[0]), []).append(part)
    borders: list[Border] = []
    for (a, r), parts in tied.items():
        grid = {a: _positions(a)[:, None], r: _positions(r)[None, :]}
        inside = np.ones((grid[a].size, grid[r].size), bool)
        for part in parts:
            assert isinstance(part, Cmp)
            form = affine(part.a) + affine(part.b).scaled(-1)
            gap = form.constant + sum(c * grid[x] for x, c in form.terms if isinstance(x, Axis))
            inside &= {"ge": gap >= 0, "gt": gap > 0, "le": gap <= 0, "lt": gap < 0}.get(part.op, inside)
        borders.append((a, r, float(inside.mean())))
    return tuple(borders)


def _positions(a: Axis) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the positions of an axis, sampled evenly if too many: running sums relate axes of a million positions."""
    if a.extent <= MOST_POSITIONS:
        return np.arange(a.extent)
    return np.linspace(0, a.extent - 1, MOST_POSITIONS).astype(np.int64)
