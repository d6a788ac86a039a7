"""Access analysis: reuse, contiguity, the axes of an expression, and the operands of a stage's inner loops.

The properties of an `Operand`'s indices hold at every point.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from stormdrop.ir.affine import ZERO, affine, bounds, conjunction, conjuncts, decide, index_condition, opposite
from stormdrop.ir.dtypes import HALVES, Dtype
from stormdrop.ir.expr import (
    ITEMSIZE,
    Axis,
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Expr,
    Load,
    Select,
    children,
    compare,
    rewrite,
    walk,
)
from stormdrop.ir.memo import memoised
from stormdrop.ir.shape import row_strides
from stormdrop.ir.tensor import Tensor
from stormdrop.space.structure import Stage, Structure

TRANSCENDENTAL = frozenset({"exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "sin", "cos"})
NARROW: frozenset[Dtype] = frozenset({*HALVES, "i8", "u8", "i16", "u16"})
LONG_OPERATIONS = frozenset({"pow", "fmod"})
"""Binary operators that expand to many instructions."""


@memoised()
def axes_of(e: Expr) -> frozenset[Axis]:
    """Returns the axes an expression mentions."""
    return frozenset(n for n in walk(e) if isinstance(n, Axis))


@memoised(4096)
def operands(body: Expr) -> tuple[Expr, ...]:
    """Returns the distinct loads of an expression; a padded load is the whole `select(in bounds, load, constant)`."""
    loads: list[Expr] = []
    seen: set[Expr] = set()

    def visit(e: Expr) -> None:
        if e in seen:
            return
        seen.add(e)
        if isinstance(e, Load) or _is_border(e):
            loads.append(e)
            return
        for child in children(e):
            visit(child)

    visit(body)
    return tuple(loads)


def _is_border(e: Expr) -> bool:
    return isinstance(e, Select) and isinstance(e.a, Load) and isinstance(e.b, Const) and index_condition(e.condition)


def operand_load(operand: Expr) -> Load:
    """Returns the load inside an operand."""
    load = operand.a if isinstance(operand, Select) else operand
    assert isinstance(load, Load)
    return load


def indexes_last(indices: tuple[Expr, ...], axis: Axis) -> bool:
    """Returns whether only the last index contains the axis, linearly (any stride). Shapes do not matter."""
    if [d for d, i in enumerate(indices) if axis in axes_of(i)] != [len(indices) - 1]:
        return False
    return all(atom is axis or axis not in axes_of(atom) for atom, _ in affine(indices[-1]).terms)


def without_ones(shape: Sequence[int], indices: Sequence[Expr]) -> tuple[Expr, ...]:
    """Returns the indices of the dimensions of extent > 1. Only these indices affect the address."""
    return tuple(i for i, n in zip(indices, shape) if n != 1)


def is_linear(indices: tuple[Expr, ...]) -> bool:
    """Returns whether every index is affine in the axes: no quotient, remainder or select."""
    return all(isinstance(atom, Axis) for i in indices for atom, _ in affine(i).terms)


def has_reuse(stage: Stage) -> bool:
    """Returns whether the stage reuses data (Ansor): a reduction with an operand invariant in some spatial axis."""
    if not stage.is_reduction:
        return False
    return any(set(stage.axes) - axes_of(op) for op in operands(stage.body)) and bool(stage.axes)


@memoised()
def transposing_axis(stage: Stage) -> Axis | None:
    """Returns the axis along which an elementwise stage reads contiguously, unless that axis is its vector axis.

    Such a stage is a register-blocked transpose: loads a lanes x lanes tile and shuffles it.
    """
    if stage.is_reduction or stage.vector is None:
        return None
    for load in stage.reads:
        if stage.vector in axes_of(load) and not indexes_last(load.indices, stage.vector):
            for a in stage.axes:
                if a is not stage.vector and indexes_last(load.indices, a):
                    return a
    return None


def choosing_axes(e: Expr) -> frozenset[Axis]:
    """Returns the axes compared with constants (`axis == k`): they select entries of a matrix, e.g. Winograd's."""
    return frozenset(
        n.a for n in walk(e) if isinstance(n, Cmp) and n.op == "eq" and isinstance(n.a, Axis) and isinstance(n.b, Const)
    )


@memoised()
def index_conditions(e: Expr) -> tuple[Expr, ...]:
    """Returns the conditions on indices in an expression that hold at some positions only."""
    selects = [n.condition for n in walk(e) if isinstance(n, Select) and index_condition(n.condition)]
    return tuple(c for condition in selects for c in conjuncts(condition) if decide(c, lambda _: None) is None)


@memoised()
def settled(e: Expr) -> Expr:
    """Returns the expression without index conditions that always hold, e.g. after a split without remainder."""

    def visit(n: Expr) -> Expr | None:
        if not isinstance(n, Select) or not index_condition(n.condition):
            return n if isinstance(n, Load) else None
        parts = [part for part in conjuncts(n.condition) if decide(part, lambda _: None) is not True]
        return Select(conjunction(parts), settled(n.a), settled(n.b)) if parts else settled(n.a)

    return rewrite(e, visit)


def is_expensive(e: Expr) -> bool:
    called = {n.fn if isinstance(n, Call) else n.op for n in walk(e) if isinstance(n, (Call, Bin))}
    return not called.isdisjoint(TRANSCENDENTAL | LONG_OPERATIONS)


def converts(e: Expr) -> bool:
    """Returns whether an expression widens elements of 8 or 16 bits: expensive in an inner loop with many reads."""
    return any(isinstance(n, Cast) and isinstance(n.a, Load) and n.a.dtype in NARROW for n in walk(e))


def invert(
    indices: tuple[Expr, ...], own: tuple[Axis, ...], reader: tuple[Axis, ...]
) -> tuple[dict[Axis, Expr], Expr] | None:
    """Inverts an access: the reader's axes in terms of the producer's, and the condition under which they are in range.

    Returns None if the access is not one-to-one.

        C[i, j]             ->  i = a0, j = a1
        C[h // 2, h % 2]    ->  h = a0*2 + a1

    Whether an inverse exists depends on structure alone; extents affect only the condition.
    """
    solved: dict[Axis, Expr] = {}
    quotient: dict[Axis, tuple[Axis, int]] = {}
    remainder: dict[Axis, tuple[Axis, int]] = {}
    inside: list[Expr] = []
    for a, i in zip(own, indices):
        match i:
            case Axis():
                if i in solved:
                    return None
                solved[i] = a
            case Const(value):
                inside.append(compare("eq", a, int(value)) if a.extent > 1 else Const(True, "bool"))
            case Bin("floordiv", Axis() as b, Const(c)):
                quotient[b] = (a, int(c))
            case Bin("mod", Axis() as b, Const(c)):
                remainder[b] = (a, int(c))
            case _:
                return None
    for b, (a, c) in quotient.items():
        if b in solved or b not in remainder or remainder[b][1] != c:
            return None
        rest = remainder[b][0]
        solved[b] = a * c + rest
        if rest.extent > c:
            inside.append(compare("lt", rest, c))
    if set(remainder) - set(quotient) or set(solved) != set(reader):
        return None
    for b, e in solved.items():
        known = bounds(e, lambda _: None)
        if known is None or known[1] >= b.extent:
            inside.append(compare("lt", e, b.extent))
    return solved, conjunction(inside)


def walks(tensor: Tensor, indices: tuple[Expr, ...], axis: Axis) -> bool:
    """Returns `indexes_last` at this shape: dimensions of extent 1 are ignored. A constant stride is allowed."""
    return indexes_last(without_ones(tensor.shape, indices), axis)


@memoised()
def has_load(e: Expr) -> bool:
    return any(isinstance(n, Load) for n in walk(e))


@memoised(4096)
def occurrences(value: Expr, guard: Expr | None = None) -> Mapping[Expr, Collection[tuple[Expr, ...]]]:
    """Returns, for each operand and each load in `value`, the index conditions of its reads, once per occurrence."""
    guards_of: dict[Expr, dict[tuple[Expr, ...], None]] = {}
    seen: set[tuple[Expr, tuple[Expr, ...]]] = set()

    def visit(e: Expr, guards: tuple[Expr, ...]) -> None:
        if (e, guards) in seen or not has_load(e):
            return
        seen.add((e, guards))
        if isinstance(e, Load) or _is_border(e):
            guards_of.setdefault(e, {})[guards] = None
        if isinstance(e, Select) and index_condition(e.condition) and e.a is not e.b:
            visit(e.a, (*guards, *conjuncts(e.condition)))
            visit(e.b, (*guards, *conjuncts(opposite(e.condition))))
            return
        for child in children(e):
            visit(child, guards)

    visit(value, () if guard is None else tuple(conjuncts(guard)))
    return guards_of


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
