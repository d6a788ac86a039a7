"""The cost of one stage, at one point or a column of points: instructions, loads, bytes at every cache level.

Every quantity is a formula over tile sizes and index expressions; counting in the lowered program gives the same
numbers. A *step* is one iteration of the innermost reduce loop, for a whole register tile. A *box* is the
bounding box of the elements of an operand that some inner loops touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.affine import affine
from stormdrop.ir.expr import Axis, Bin, Call, Cmp, Const, Expr, Load, Select, walk
from stormdrop.space.access import TRANSCENDENTAL, axes_of, transposing_axis
from stormdrop.space.columns import Column, Num, ceil_div, equal, is_multiple, maximum, minimum, rounded_down, where
from stormdrop.space.nest import CACHED, LoopLevel, nest_of
from stormdrop.space.operands import Dim, Operand
from stormdrop.space.structure import Stage
from stormdrop.space.tiling import Tiling
from stormdrop.target.coefficients import CpuCoefficients


def _useful(tiling: Tiling, tile: Mapping[Axis, Num], ops: tuple[Operand, ...]) -> Num:
    """The share of steps that is executed: padding that loop ranges or unrolled copies exclude is not."""
    stage = tiling.stage
    share: Num = 1.0
    for o in ops:
        for a, r, inside in o.borders:
            skipped = equal(tile[a], 1)
            if len(stage.reduce_axes) > 1 and r is stage.reduce_axes[-2]:
                skipped = skipped | ((tiling.peel > 0) & (tile[a] >= a.extent))
            share = share * where(skipped, inside, 1.0)
    return share * density(stage) if stage.unrolled else share


def box_bytes(o: Operand, lens: Mapping[Axis, Num], line_bytes: int) -> Num:
    """Bytes of an operand's box, given the length of every axis; a row shorter than a cache line counts as a line."""
    if o.packed:
        return prod_of([lens[a] for a in o.axes]) * o.itemsize
    size: Num = o.itemsize
    for d, dim in enumerate(o.dims):
        size = size * _index_box(dim, lens)
        if d == 0:
            size = maximum(size, min(line_bytes, dim.extent * o.itemsize))
    return size


def _index_box(dim: Dim, lens: Mapping[Axis, Num]) -> Num:
    size: Num = 1
    for axis, c in dim.terms:
        size = size + c * (lens[axis] - 1)
    for axes in dim.others:  # a quotient or remainder: at most one value per combination of its axes
        size = size + (prod_of([lens[a] for a in axes]) - 1)
    return minimum(size, dim.extent)


def prod_of(values: Iterable[Num]) -> Num:
    """A product of integers, exact in any order: constants are folded before columns."""
    known: Num = 1
    result: Num = None
    for v in values:
        if type(v) is not Column:
            known = known * v
        else:
            result = v if result is None else result * v
    return known if result is None else result * known


@dataclass(slots=True)
class StageCost:
    """The cost of one stage; every Num is a number or a column."""

    tiling: Tiling
    tile: Mapping[Axis, Num]  # elements of the register tile
    operands: tuple[Operand, ...]
    executions: Num  # of the nest: 1 for a root stage
    rows: Num
    vectors: Num
    accumulators: Num
    tiles: Num  # register tiles over all executions
    steps: Num  # over all tiles and executions
    vector_steps: Num  # body instances: one row, one vector, one reduce step
    loads: Num  # load instructions per step
    lane_use: Num
    code: Num
    lines_per_set: Num
    parallel: Num
    streams: Num  # concurrent access streams: rows of unpacked operands in a register tile
    useful: Num  # share of the steps that is not skipped padding
    footprints: list[list[Num]] = field(
        default_factory=list[list[Num]]
    )  # box bytes by operand; entry p: inside loops[p]; the last: whole stage
    totals: list[Num] = field(default_factory=list[Num])  # footprints, summed over operands
    blocks: list[Num] = field(default_factory=list[Num])  # the number of such boxes in the whole stage
    loops: list[LoopLevel] = field(default_factory=list[LoopLevel])  # innermost first


@lru_cache(maxsize=CACHED)
def body_cost(stage: Stage, coefficients: CpuCoefficients) -> tuple[float, float]:
    """Vector operations of one body instance and of one epilogue: 1 for a multiply-add, about 20 for a function."""
    finish = _operations(stage.finish, coefficients)
    if not stage.is_reduction:
        return 0.0, finish
    if stage.unrolled:  # coefficients are literals
        return 1.0, finish
    if isinstance(stage.body, Bin) and stage.body.op == "dot":  # one instruction; pairs are loaded as one element
        return 1.0, finish
    fused = isinstance(stage.body, Bin) and stage.body.op == "mul" and stage.combiner == "sum"
    combine = 0.0 if fused else 1.0 if stage.combiner in ("sum", "prod") else coefficients.minmax_operations
    return max(1.0, _operations(stage.body, coefficients) + combine), finish


def _operations(e: Expr, coefficients: CpuCoefficients) -> float:
    of_binary = {
        "pow": coefficients.pow_operations,
        "fmod": coefficients.fmod_operations,
        "div": coefficients.division_operations,
        "min": coefficients.minmax_operations,
        "max": coefficients.minmax_operations,
    }
    of_call = dict.fromkeys(TRANSCENDENTAL, coefficients.function_operations)
    of_call |= dict.fromkeys(("sqrt", "rsqrt"), coefficients.root_operations)
    total = 0.0
    for n in walk(e):
        if n.dtype in ("i64", "bool"):
            continue
        if isinstance(n, Call):
            total += of_call.get(n.fn, 1.0)
        elif isinstance(n, Bin):
            total += of_binary.get(n.op, 1.0)
        elif isinstance(n, Select) and not isinstance(n.a, Load):
            total += 1.0
    return total


def cost_of(tiling: Tiling, executions: Num, ops: tuple[Operand, ...], coefficients: CpuCoefficients) -> StageCost:
    """The cost of a stage that runs `executions` times, before `add_boxes`. The last of `ops` is the store."""
    stage = tiling.stage
    vector = stage.vector
    tile = {a: tiling.tile(a) for a in stage.axes}
    rows = prod_of([tile[a] for a in stage.axes if a is not vector])
    lanes = tiling.lanes
    vectors = tiling.vectors
    counts = [ceil_div(tiling.extent[a], tile[a]) for a in stage.axes]
    tiles = executions * prod_of(counts)
    reduce_steps: Num = 1
    for a in stage.reduce_axes:
        reduce_steps = reduce_steps * (ceil_div(tiling.extent[a], lanes * vectors) if a is vector else tiling.extent[a])
    whole_rows = prod_of([tiling.extent[a] for a in stage.axes if a is not vector])
    if vector is not None and vector in stage.axes:
        vector_steps = (
            executions * whole_rows * ceil_div(tiling.extent[vector], lanes * vectors) * vectors * reduce_steps
        )
        lane_use = tiling.extent[vector] / (ceil_div(tiling.extent[vector], lanes * vectors) * vectors * lanes)
    elif vector is not None:
        vector_steps = executions * whole_rows * reduce_steps * vectors
        lane_use = tiling.extent[vector] / (ceil_div(tiling.extent[vector], lanes * vectors) * vectors * lanes)
    else:
        vector_steps, lane_use = executions * whole_rows * reduce_steps, 1.0
    loads: Num = 0
    for o in ops[:-1]:
        loads = loads + _loads(tiling, tile, o, coefficients)
    code = _code_size(tiling, rows, loads, len(ops), body_cost(stage, coefficients))
    cost = StageCost(
        tiling,
        tile,
        ops,
        executions,
        rows,
        vectors,
        rows * vectors,
        tiles,
        tiles * reduce_steps,
        vector_steps,
        loads,
        lane_use,
        code,
        _lines_per_set(tile, ops, coefficients.way_bytes),
        1,
        sum(
            (
                prod_of([tile[a] for a in stage.axes if a in o.axes and a is not vector])
                for o in ops[:-1]
                if not o.packed
            ),
            0.0,
        ),
        _useful(tiling, tile, ops),
    )
    if stage.host is None:
        cost.parallel = prod_of([tiling.parallel_trips(a) for a in stage.axes])
    return cost


def _loads(tiling: Tiling, tile: Mapping[Axis, Num], o: Operand, coefficients: CpuCoefficients) -> Num:
    """Load slots of one operand in one step; a contiguous vector load is one slot.

    Rows of an unrolled sliding window share loads: (rows + window - 1) / window per step.
    """
    stage, lanes = tiling.stage, tiling.lanes
    count: Num = 1
    for a in stage.axes:
        if a in o.axes and a is not stage.vector:
            count = count * _distinct(tiling, tile[a], o, a)
    if stage.vector is None or stage.vector not in o.axes:
        return count * (coefficients.broadcast_slots if lanes > 1 else 1.0)
    if o.stride == 1:
        return count * tiling.vectors
    turned = transposing_axis(stage)
    slots: Num = coefficients.gather_slots * lanes
    if turned is not None:  # a register-blocked transpose
        slots = where(is_multiple(tile[turned], lanes), coefficients.transpose_slots, slots)
    return count * tiling.vectors * slots


def _distinct(tiling: Tiling, rows: Num, o: Operand, axis: Axis) -> Num:
    stage = tiling.stage
    inner = stage.reduce_axes[-1] if stage.is_reduction else None
    if inner is None or inner is stage.vector:
        return rows
    for i in o.indices:
        form = affine(i)
        a, k = abs(form.coefficient(axis)), abs(form.coefficient(inner))
        if a and k and inner.extent > 1:
            window = (a * (rows - 1) + k * (inner.extent - 1) + 1.0) / inner.extent
            return where(tiling.unroll >= inner.extent, minimum(rows, window), rows)
    return rows


def live_vectors(c: StageCost, coefficients: CpuCoefficients) -> Num:
    """Live vector registers in a step: accumulators, the vector operand (or its sliding window), a broadcast."""
    stage, t = c.tiling.stage, c.tiling
    if not stage.is_reduction:
        return c.accumulators
    if stage.unrolled:  # rows are independent chains: the compiler may spill them
        return minimum(c.accumulators, coefficients.most_unrolled_rows) * c.vectors
    operand: Num = t.vectors if stage.vector is not None and not stage.vector_is_reduced else 1
    inner = stage.reduce_axes[-1]
    if _slides(stage, c.operands) and inner.extent > 1 and inner is not stage.vector:
        operand = where(t.unroll > 1, operand * minimum(t.unroll, inner.extent), operand)
    return c.accumulators + operand + 1.0


def _slides(stage: Stage, ops: tuple[Operand, ...]) -> bool:
    """Whether some index depends on both the innermost reduce axis and a spatial axis: a sliding window."""
    inner, spatial = stage.reduce_axes[-1], set(stage.axes)
    return any(affine(i).coefficient(inner) and not spatial.isdisjoint(axes_of(i)) for o in ops for i in o.indices)


def _code_size(tiling: Tiling, rows: Num, loads: Num, n_operands: int, operations: tuple[float, float]) -> Num:
    """Instructions of all code variants of the register tile: unrolled and peeled steps, epilogue and stores."""
    stage = tiling.stage
    body, finish = operations
    per_step = rows * tiling.vectors * body + loads
    steps: Num = tiling.unroll
    if stage.is_reduction:
        inner = stage.reduce_axes[-1]
        length = tiling.reduce_block(inner) if nest_of(stage).is_blocked else tiling.extent[inner]
        step = tiling.lanes * tiling.vectors if inner is stage.vector else 1
        trips = ceil_div(length, step)
        steps = steps + (
            trips - rounded_down(trips / tiling.unroll) * tiling.unroll
        )  # the remainder of the unrolled loop
        if len(stage.reduce_axes) > 1 and not stage.unrolled:
            middle = stage.reduce_axes[-2].extent
            steps = steps * where(tiling.peel > 0, middle, 1)
    ends = rows * tiling.vectors * (finish + n_operands + 2)
    if stage.unrolled:
        steps = steps * prod_of([a.extent for a in stage.reduce_axes[:-1]]) * density(stage)
    return (per_step * steps + ends) * variants(tiling)


def density(stage: Stage) -> float:
    """The share of an unrolled stage's instances whose coefficient is not zero."""
    return _density(stage.body, stage.unrolled)


@lru_cache(maxsize=512)
def _density(body: Expr, unrolled: tuple[Axis, ...]) -> float:
    zero = _is_zero(body, unrolled)
    return 1.0 - float(np.broadcast_to(zero, tuple(a.extent for a in unrolled)).mean())


def _is_zero(e: Expr, grid: tuple[Axis, ...]) -> NDArray[np.bool_]:
    """Where an expression is known to be zero; dimension k of the result is axis k of `grid`."""
    match e:
        case Const(value):
            return np.asarray(value == 0)
        case Select(Cmp("eq", Axis() as a, Const(k)), x, y) if a in grid:
            here = (np.arange(a.extent) == k).reshape([-1 if b is a else 1 for b in grid])
            return np.where(here, _is_zero(x, grid), _is_zero(y, grid))
        case Bin("mul", x, y):
            return _is_zero(x, grid) | _is_zero(y, grid)
        case _:
            return np.asarray(False)


def variants(tiling: Tiling) -> Num:
    """Code variants of the register tile: per axis the full tile and the remainder.

    An attached box that is clipped at the tensor's end has other remainders: four variants per axis.
    """
    stage = tiling.stage
    total: Num = 1
    for a in stage.axes:
        if a is stage.vector:
            continue
        t = tiling.tile(a)
        if isinstance(t, int) and t == 1:
            continue
        exact = is_multiple(tiling.extent[a], t)
        if stage.host is None or (isinstance(tiling.extent[a], int) and tiling.extent[a] == a.extent):
            total = total * where(exact, 1, 2)
        else:
            total = total * where(t > 1, where(tiling.extent[a] >= a.extent, where(exact, 1, 2), 4), 1)
    return total


def _lines_per_set(tile: Mapping[Axis, Num], ops: tuple[Operand, ...], way_bytes: int) -> Num:
    """The most rows of one operand's register tile that map to the same L1 set."""
    worst: Num = 1.0
    for o in ops[:-1]:
        for a, stride in o.row_bytes:
            worst = maximum(worst, tile[a] * (gcd(stride, way_bytes) / way_bytes))
    return worst


def add_boxes(c: StageCost, line_bytes: int) -> None:
    """Fill in footprints, totals, blocks and loops: from the register tile outwards, loop by loop."""
    t, stage = c.tiling, c.tiling.stage
    lens: dict[Axis, Num] = {
        a: c.tile[a] if a is not stage.vector else minimum(c.tile[a], t.extent[a]) for a in stage.axes
    }
    for a in stage.reduce_axes:
        lens[a] = minimum(t.lanes * t.vectors, t.extent[a]) if a is stage.vector else 1
    c.loops = [
        slot
        for slot in reversed(nest_of(stage).order)
        if not (isinstance(t.extent[slot.axis], int) and t.extent[slot.axis] == 1)
    ]
    sizes = [box_bytes(o, lens, line_bytes) for o in c.operands]
    counts = {a: ceil_div(t.extent[a], lens[a]) for a in (*stage.axes, *stage.reduce_axes)}
    blocks = prod_of((c.executions, *counts.values()))
    c.footprints = [[size] for size in sizes]
    c.totals, c.blocks = [sum_of(sizes)], [blocks]
    for slot in c.loops:  # each loop extends one axis: boxes that do not depend on it are unchanged
        axis, trips = slot.axis, t.trips[slot]
        if not (isinstance(trips, int) and trips == 1):
            lens[axis] = minimum(lens[axis] * trips, t.extent[axis])
            before, counts[axis] = counts[axis], ceil_div(t.extent[axis], lens[axis])
            blocks = blocks / before * counts[axis]  # integers: exact
            sizes = [box_bytes(o, lens, line_bytes) if axis in o.axes else size for o, size in zip(c.operands, sizes)]
        for boxes, size in zip(c.footprints, sizes):
            boxes.append(size)
        c.totals.append(sum_of(sizes))
        c.blocks.append(blocks)


def sum_of(values: Iterable[Num]) -> Num:
    total: Num = 0
    for v in values:
        total = total + v
    return total


def moved_at(c: StageCost) -> list[list[Num]]:
    """By operand and loop: bytes loaded if the operand's box inside the loop is loaded anew in every iteration.

    An operand that is invariant in the loop is loaded once per execution of the loop.
    """
    if not c.loops:
        return [[boxes[0] * c.blocks[0]] for boxes in c.footprints]
    return [
        [
            box * blocks if slot.axis in o.axes else box * blocks / c.tiling.trips[slot]
            for slot, box, blocks in zip(c.loops, boxes, c.blocks)
        ]
        for o, boxes in zip(c.operands, c.footprints)
    ]


def traffic(c: StageCost, moved: list[Num], capacity: float) -> Num:
    """Bytes moved into a cache of `capacity`: boxes inside the outermost loop where all fit are loaded once each.

    `moved`: bytes by loop, as `moved_at`, of one operand or summed. A stage that fits entirely is resident: no traffic.
    """
    best = moved[0]
    for p in range(1, len(c.loops)):
        best = where(c.totals[p] <= capacity, moved[p], best)
    return where(c.totals[-1] <= capacity, 0.0, best)
