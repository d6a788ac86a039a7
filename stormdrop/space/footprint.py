"""The cost of one stage, at one point or a column of points: instructions, loads, bytes at every cache level.

Every quantity is a formula over tile sizes and index expressions; counting in the lowered program gives the same
numbers. A *step* is one iteration of the innermost reduce loop, for a whole register tile. A *box* is the
bounding box of the elements of an operand that some inner loops touch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.affine import affine
from stormdrop.ir.expr import Axis, Bin, Call, Cmp, Const, Expr, Load, Select, walk
from stormdrop.ir.memo import memoised
from stormdrop.ir.tensor import Tensor
from stormdrop.space.access import TRANSCENDENTAL, Dim, Operand, axes_of, transposing_axis
from stormdrop.space.columns import (
    Num,
    ceil_div,
    equal,
    is_multiple,
    is_one,
    maximum,
    minimum,
    prod_of,
    rounded_down,
    sum_of,
    where,
)
from stormdrop.space.nest import LoopLevel, nest_of
from stormdrop.space.structure import Stage
from stormdrop.space.tiling import Tiling
from stormdrop.target.coefficients import CpuCoefficients


def box_bytes(o: Operand, lens: Mapping[Axis, Num], line_bytes: int) -> Num:
    """Returns the bytes of an operand's box, given the length of every axis; a shorter row counts as a cache line."""
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


@memoised()
def body_cost(stage: Stage, coefficients: CpuCoefficients) -> tuple[float, float]:
    """Returns the vector operations of a body instance and of an epilogue: multiply-add 1, transcendental about 20."""
    finish = _operations(stage.finish, coefficients)
    if not stage.is_reduction:
        return 0.0, finish
    op = stage.body.op if isinstance(stage.body, Bin) else ""
    if stage.unrolled or op == "dot":  # coefficients are literals; a dot is one instruction
        return 1.0, finish
    fused = op == "mul" and stage.combiner == "sum"
    combine = 0.0 if fused else 1.0 if stage.combiner in ("sum", "prod") else coefficients.minmax_operations
    return max(1.0, _operations(stage.body, coefficients) + combine), finish


def _operations(e: Expr, coefficients: CpuCoefficients) -> float:
    k = coefficients
    of_binary = {"pow": k.pow_operations, "fmod": k.fmod_operations, "div": k.division_operations}
    of_binary |= dict.fromkeys(("min", "max"), k.minmax_operations)
    of_call = dict.fromkeys(TRANSCENDENTAL, k.function_operations)
    of_call |= dict.fromkeys(("sqrt", "rsqrt"), k.root_operations)
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


class StageCost:
    """The cost of one stage; a `Num` is a number for one point, or a column for many."""

    def __init__(
        self,
        tiling: Tiling,
        executions: Num,
        operands: tuple[Operand, ...],
        coefficients: CpuCoefficients,
        folds_broadcasts: bool = True,
    ) -> None:
        """`executions` counts the runs of the nest, 1 for a root stage. The last operand is the store."""
        self.tiling, self.executions, self.operands = tiling, executions, operands
        self.stage, self._coefficients = tiling.stage, coefficients
        k = coefficients
        self._broadcast_slots = k.folded_broadcast_slots if folds_broadcasts else k.broadcast_slots
        stage, extent, width = tiling.stage, tiling.extent, tiling.lanes * tiling.vectors
        others = [a for a in stage.axes if a is not stage.vector]
        self.tile = {a: tiling.tile(a) for a in stage.axes}
        self.rows = prod_of([self.tile[a] for a in others])
        self.accumulators = self.rows * tiling.vectors
        self.tiles = executions * prod_of([ceil_div(extent[a], self.tile[a]) for a in stage.axes])
        """Register tiles over all executions."""
        reduce_steps: Num = 1
        for a in stage.reduce_axes:
            reduce_steps = reduce_steps * (ceil_div(extent[a], width) if a is stage.vector else extent[a])
        self.steps = self.tiles * reduce_steps
        """Steps over all tiles and executions."""
        self.vector_steps = executions * prod_of([extent[a] for a in others]) * reduce_steps
        """Body instances: one row, one vector, one reduce step."""
        self.lane_use: Num = 1.0
        if stage.vector is not None:
            blocks = ceil_div(extent[stage.vector], width)
            self.vector_steps = self.vector_steps * tiling.vectors * (1 if stage.vector_is_reduced else blocks)
            self.lane_use = extent[stage.vector] / (blocks * tiling.vectors * tiling.lanes)
        self.loads: Num = 0
        """Load instructions per step."""
        for o in operands[:-1]:
            self.loads = self.loads + self._load_slots(o)

    def _load_slots(self, o: Operand) -> Num:
        """Returns the load slots of one operand in one step: one for a contiguous vector; windows share loads."""
        stage, tiling, coefficients = self.stage, self.tiling, self._coefficients
        count: Num = 1
        for a in stage.axes:
            if a in o.axes and a is not stage.vector:
                count = count * self._distinct_rows(o, a)
        if stage.vector is None or stage.vector not in o.axes:
            return count * (self._broadcast_slots if tiling.lanes > 1 else 1.0)
        if o.stride == 1:
            return count * tiling.vectors
        turned = transposing_axis(stage)
        slots: Num = coefficients.gather_slots * tiling.lanes
        if turned is not None:  # a register-blocked transpose
            slots = where(is_multiple(self.tile[turned], tiling.lanes), coefficients.transpose_slots, slots)
        return count * tiling.vectors * slots

    def _distinct_rows(self, o: Operand, axis: Axis) -> Num:
        """Returns the rows of the tile along `axis` that a step loads."""
        stage, rows = self.stage, self.tile[axis]
        inner = stage.reduce_axes[-1] if stage.is_reduction else None
        if inner is None or inner is stage.vector:
            return rows
        for i in o.indices:
            form = affine(i)
            a, k = abs(form.coefficient(axis)), abs(form.coefficient(inner))
            if a and k and inner.extent > 1:
                window = (a * (rows - 1) + k * (inner.extent - 1) + 1.0) / inner.extent
                return where(self.tiling.unroll >= inner.extent, minimum(rows, window), rows)
        return rows

    @cached_property
    def code(self) -> Num:
        """Instructions of all code variants of the register tile: unrolled and peeled steps, epilogue and stores."""
        stage, tiling = self.stage, self.tiling
        body, finish = body_cost(stage, self._coefficients)
        per_step = self.rows * tiling.vectors * body + self.loads
        steps: Num = tiling.unroll
        if stage.is_reduction:
            inner = stage.reduce_axes[-1]
            length = tiling.block(inner) if nest_of(stage).is_blocked else tiling.extent[inner]
            trips = ceil_div(length, tiling.lanes * tiling.vectors if inner is stage.vector else 1)
            remainder = trips - rounded_down(trips / tiling.unroll) * tiling.unroll  # of the unrolled loop
            steps = steps + remainder
            if len(stage.reduce_axes) > 1 and not stage.unrolled:
                steps = steps * where(tiling.peel > 0, stage.reduce_axes[-2].extent, 1)
        if stage.unrolled:
            steps = steps * prod_of([a.extent for a in stage.reduce_axes[:-1]]) * density(stage)
        epilogue = self.rows * tiling.vectors * (finish + len(self.operands) + 2)
        return (per_step * steps + epilogue) * variants(tiling)

    @cached_property
    def guarded_loads(self) -> Num:
        """Loads of an unrolled stage's tile that test for padding. Each such load has code of its own."""
        stage = self.stage
        if not stage.unrolled:
            return 0.0
        per_step = sum_of([self._load_slots(o) for o in self.operands[:-1] if o.guarded])
        return per_step * prod_of([a.extent for a in stage.reduce_axes])

    @property
    def live_vectors(self) -> Num:
        """Live vector registers in a step: accumulators, the vector operand (or its sliding window), a broadcast."""
        stage, t = self.stage, self.tiling
        if not stage.is_reduction:
            return self.accumulators
        if stage.unrolled:  # rows are independent chains: the compiler may spill them
            return minimum(self.accumulators, self._coefficients.most_unrolled_rows) * t.vectors
        operand: Num = t.vectors if stage.vector is not None and not stage.vector_is_reduced else 1
        inner = stage.reduce_axes[-1]
        indices = [i for o in self.operands for i in o.indices]
        slides = any(affine(i).coefficient(inner) and not axes_of(i).isdisjoint(stage.axes) for i in indices)
        if slides and inner.extent > 1 and inner is not stage.vector:
            operand = where(t.unroll > 1, operand * minimum(t.unroll, inner.extent), operand)
        return self.accumulators + operand + 1.0

    @cached_property
    def useful(self) -> Num:
        """The share of steps that is executed. Loop ranges or unrolled copies exclude steps in padding."""
        stage, share = self.stage, 1.0
        for o in self.operands:
            for a, r, inside in o.borders:
                skipped = equal(self.tile[a], 1)
                if len(stage.reduce_axes) > 1 and r is stage.reduce_axes[-2]:
                    skipped = skipped | ((self.tiling.peel > 0) & (self.tile[a] >= a.extent))
                share = share * where(skipped, inside, 1.0)
        return share * density(stage) if stage.unrolled else share

    @cached_property
    def lines_per_set(self) -> Num:
        """About the most rows of an operand's register tile in one L1 set: their stride decides how far rows spread."""
        worst: Num = 1.0
        way = self._coefficients.way_bytes
        for o in self.operands[:-1]:
            rows = [maximum(1.0, self.tile[a] * (gcd(stride, way) / way)) for a, stride in o.row_bytes]
            worst = maximum(worst, prod_of(rows))
        return worst

    @property
    def parallel(self) -> Num:
        """Iterations of the parallel loop; 1 for an attached stage."""
        return self.tiling.units if self.stage.host is None else 1

    @property
    def streams(self) -> Num:
        """Concurrent access streams: rows of unpacked operands in a register tile."""
        total: Num = 0.0
        for o in self.operands[:-1]:
            if not o.packed:
                total = total + prod_of([n for a, n in self.tile.items() if a in o.axes and a is not self.stage.vector])
        return total

    @cached_property
    def boxes(self) -> Boxes:
        """Footprints from the register tile outwards, loop by loop."""
        t, stage = self.tiling, self.stage
        lens: dict[Axis, Num] = {**self.tile, **dict.fromkeys(stage.reduce_axes, 1)}
        if stage.vector is not None:
            width = t.lanes * t.vectors if stage.vector_is_reduced else self.tile[stage.vector]
            lens[stage.vector] = minimum(width, t.extent[stage.vector])
        loops = [x for x in reversed(nest_of(stage).order) if not is_one(t.extent[x.axis])]
        sizes = [box_bytes(o, lens, self._coefficients.line_bytes) for o in self.operands]
        counts = {a: ceil_div(t.extent[a], n) for a, n in lens.items()}
        blocks = prod_of((self.executions, *counts.values()))
        boxes = Boxes(loops, [[size] for size in sizes], [sum_of(sizes)], [blocks])
        for loop in loops:  # each loop extends one axis: boxes that do not depend on it are unchanged
            axis, trips = loop.axis, t.trips[loop]
            if not is_one(trips):
                lens[axis] = minimum(lens[axis] * trips, t.extent[axis])
                before, counts[axis] = counts[axis], ceil_div(t.extent[axis], lens[axis])
                blocks = blocks / before * counts[axis]  # integers: exact
                for k, o in enumerate(self.operands):
                    if axis in o.axes:
                        sizes[k] = box_bytes(o, lens, self._coefficients.line_bytes)
            for footprint, size in zip(boxes.footprints, sizes):
                footprint.append(size)
            boxes.totals.append(sum_of(sizes))
            boxes.blocks.append(blocks)
        return boxes

    def moved_bytes(self) -> list[list[Num]]:
        """Returns the bytes loaded, by operand and loop, if every iteration loads the box inside the loop anew.

        An operand that is invariant in the loop is loaded once per execution of the loop.
        """
        boxes = self.boxes
        if not boxes.loops:
            return [[footprint[0] * boxes.blocks[0]] for footprint in boxes.footprints]
        return [
            [
                box * blocks if loop.axis in o.axes else box * blocks / self.tiling.trips[loop]
                for loop, box, blocks in zip(boxes.loops, footprint, boxes.blocks)
            ]
            for o, footprint in zip(self.operands, boxes.footprints)
        ]

    def fetched(self, threads: int, local: Collection[Tensor]) -> tuple[Num, Num]:
        """Returns the bytes that all threads fetch into their private caches: of constants, and of tensors that every
        run writes anew, usually on another core. `local` holds the tensors that a unit computes itself.

        A thread executes consecutive units of the parallel loop. A box that several of its units share is fetched once.
        """
        constant: Num = 0
        written: Num = 0
        loops, units = self.boxes.loops, self.parallel
        outer = {LoopLevel(a, 0) for a in self.stage.axes} if self.stage.host is None else set[LoopLevel]()
        first = next((p for p, loop in enumerate(loops) if loop in outer), len(loops))
        busy = minimum(threads, units if self.stage.host is None else self.executions)
        run = ceil_div(units, busy)
        for o, footprint in zip(self.operands, self.boxes.footprints):
            if o.tensor in local:
                continue
            if self.stage.host is not None:
                size = minimum(self.executions * footprint[-1], busy * float(o.tensor.nbytes))
            else:
                size = busy * footprint[first]
                inside: Num = 1
                for loop in loops[first:]:
                    trips = self.tiling.trips[loop]
                    if loop.axis in o.axes:
                        size = size * minimum(trips, ceil_div(run, inside))
                    inside = inside * trips
            if o.tensor.constant:
                constant = constant + size
            else:
                written = written + size
        return constant, written

    def traffic(self, moved: list[Num], capacity: float) -> Num:
        """Returns the bytes moved into a cache of `capacity` bytes; none for a stage that fits as a whole.

        Each box inside the outermost loop with boxes that fit together is loaded once. `moved` holds bytes by loop.
        """
        best, totals = moved[0], self.boxes.totals
        for p in range(1, len(self.boxes.loops)):
            best = where(totals[p] <= capacity, moved[p], best)
        return where(totals[-1] <= capacity, 0.0, best)


class Boxes(NamedTuple):
    """Boxes by loop. Entry p of a list is about the boxes inside loop p, the last entry about the whole stage."""

    loops: list[LoopLevel]  # innermost first
    footprints: list[list[Num]]  # bytes, by operand
    totals: list[Num]  # footprints, summed over operands
    blocks: list[Num]  # the number of such boxes in the whole stage


def density(stage: Stage) -> float:
    """Returns the share of an unrolled stage's instances with a nonzero coefficient."""
    return _density(stage.body, stage.unrolled)


@memoised(512)
def _density(body: Expr, unrolled: tuple[Axis, ...]) -> float:
    zero = _is_zero(body, unrolled)
    return 1.0 - float(np.broadcast_to(zero, tuple(a.extent for a in unrolled)).mean())


def _is_zero(e: Expr, grid: tuple[Axis, ...]) -> NDArray[np.bool_]:
    """Returns the positions at which an expression is certainly zero; dimension k of the result is axis k of `grid`."""
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
    """Returns the number of code variants of the register tile: per axis the full tile and the remainder.

    An attached stage with a box clipped at the tensor's end has different remainders there: four variants per axis.
    """
    stage = tiling.stage
    total: Num = 1
    for a in stage.axes:
        t, extent = tiling.tile(a), tiling.extent[a]
        if a is stage.vector or is_one(t):
            continue
        remainders = where(is_multiple(extent, t), 1, 2)
        if stage.host is not None and not (isinstance(extent, int) and extent == a.extent):
            remainders = where(t > 1, where(extent >= a.extent, remainders, 4), 1)
        total = total * remainders
    return total
