"""The cost of one stage in a thread block, at one point or a column of points.

Every quantity is a formula over tile sizes; counting in the lowered program gives the same numbers. A *step* is one
iteration of the innermost reduce loop of one thread, for its whole register tile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from stormdrop.ir.expr import ITEMSIZE, Axis
from stormdrop.ir.tensor import Tensor
from stormdrop.space.access import Operand, settled
from stormdrop.space.boxes import BOX_ELEMENTS, box_elements, is_contiguous, split_axes
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
from stormdrop.space.footprint import body_cost, box_bytes, density
from stormdrop.space.nest import LoopLevel, has_layouts, is_copy, nest_of
from stormdrop.space.structure import Stage
from stormdrop.space.tiling import Tiling, has_cast
from stormdrop.target import ALIGN_BYTES
from stormdrop.target.coefficients import CPU_COEFFICIENTS
from stormdrop.target.gpu import WARP, GpuCoefficients
from stormdrop.target.structures import LoopKind

LINE_BYTES = 128  # of the L1, and one wavefront of shared memory
VECTOR_BYTES = 16  # of the widest access of a thread


@dataclass(frozen=True, eq=False)
class BlockCost:
    """The cost of one stage, executed by the threads of one block."""

    tiling: Tiling
    executions: Num  # of the nest, in one block
    operands: tuple[Operand, ...]  # the last one is the store
    shared: frozenset[Tensor]  # in the block's shared memory
    coefficients: GpuCoefficients
    depth: Num = 1  # of the pipeline, for a copy
    copies: Mapping[Tensor, Tiling] = field(default_factory=dict[Tensor, Tiling])  # the staged operands

    @property
    def stage(self) -> Stage:
        return self.tiling.stage

    # ---- sizes -------------------------------------------------------------------------------------------------------

    def count(self, axis: Axis) -> Num:
        """Returns the number of rows, or vectors, of a thread's register tile along a spatial axis."""
        return self._rows(axis) * self.tiling.virtual_threads(axis)

    @cached_property
    def instances(self) -> Num:
        """Rows times vectors of a thread's register tile."""
        return prod_of([self.count(a) for a in self.stage.axes])

    @property
    def accumulators(self) -> Num:
        """Elements of a thread's register tile."""
        return self.instances * self.tiling.lanes

    @cached_property
    def warps(self) -> Num:
        """Warps that take part."""
        return ceil_div(self.tiling.threads, WARP)

    @cached_property
    def tiles(self) -> Num:
        """Register tiles of one thread in one execution."""
        serial = nest_of(self.stage).numbers(LoopKind.SERIAL)
        return prod_of([self.tiling.trips[LoopLevel(a, n)] for n in serial for a in self.stage.axes])

    @cached_property
    def reduce_blocks(self) -> Num:
        """Reduce blocks of one tile, between which operands are staged; 1 if the reduction is not blocked."""
        if not self.stage.is_reduction or self._is_combined:
            return 1
        return prod_of([self.tiling.outer_reduce_trips(a) for a in self.stage.reduce_axes])

    @cached_property
    def steps(self) -> Num:
        """Steps of one tile of one thread."""
        t, stage = self.tiling, self.stage
        if not stage.is_reduction:
            return 1
        if nest_of(stage).reduces_across_threads:
            return prod_of([t.outer_reduce_trips(a) for a in stage.reduce_axes])
        return prod_of([minimum(t.block(a) * t.outer_reduce_trips(a), t.extent[a]) for a in stage.reduce_axes])

    # ---- instructions ------------------------------------------------------------------------------------------------

    @cached_property
    def _operations(self) -> tuple[float, float]:
        """Operations of one body instance and of one epilogue."""
        return body_cost(replace(self.stage, body=settled(self.stage.body)), CPU_COEFFICIENTS)

    @cached_property
    def body_instructions(self) -> Num:
        """Arithmetic of one step."""
        body, finish = self._operations
        if not self.stage.is_reduction:
            return self.accumulators * finish
        return self.accumulators * body * (density(self.stage) if self.stage.unrolled else 1.0)

    @cached_property
    def loads(self) -> list[tuple[Operand, Num, Num]]:
        """The operands, each with the number of its load instructions in one step and the bytes of one such load."""
        stage, t = self.stage, self.tiling
        loads: list[tuple[Operand, Num, Num]] = []
        for o in self.operands[:-1]:
            counts = prod_of([self.count(a) for a in stage.axes if a in o.axes])
            width: Num = o.itemsize
            if stage.vector in o.axes and not is_one(t.lanes):
                if o.stride == 1:
                    width = t.lanes * o.itemsize
                else:
                    counts = counts * t.lanes
            elif o.tensor in self.shared and stage.is_reduction:
                together = self._together(o)
                counts, width = counts / together, together * o.itemsize
            loads.append((o, counts, width))
        return loads

    def _together(self, o: Operand) -> Num:
        """Returns elements of shared memory per load, along the unrolled reduce axis or in a thread's rows."""
        most, copy = VECTOR_BYTES // o.itemsize, self.copies.get(o.tensor)
        ends_in_unrolled = bool(o.dims) and any(a is self.stage.reduce_axes[-1] and c == 1 for a, c in o.dims[0].terms)
        along_steps = _divisor(self.tiling.unroll, most) if ends_in_unrolled else 1
        if copy is None or not has_layouts(copy.stage):
            return along_steps
        return where(copy.layout, _divisor(self._rows(self._row_axis(copy.stage)), most), along_steps)

    def _row_axis(self, copy: Stage) -> Axis:
        """Returns the innermost axis of a staged operand that is spatial in this stage."""
        spatial, _ = split_axes(copy)
        return self.stage.axis(copy.axis_id(spatial[-1]))

    def _rows(self, axis: Axis) -> Num:
        """Returns the number of neighbouring rows of a thread's tile."""
        return self.tiling.trips[LoopLevel(axis, nest_of(self.stage).register)]

    @cached_property
    def step_instructions(self) -> Num:
        """All instructions of one step."""
        guards = sum_of([n for o, n, _ in self.loads if o.guarded]) * 3
        turn = self.coefficients.turn_instructions / self.tiling.unroll if self.stage.is_reduction else 0.0
        return self.body_instructions + sum_of([n for _, n, _ in self.loads]) + guards + turn

    @property
    def step_cycles(self) -> Num:
        """Cycles of one step of a warp that has its part of a multiprocessor to itself."""
        return self.step_instructions

    @cached_property
    def matrix_products(self) -> Num:
        """Multiply-adds of the matrix instructions of one block, in bf16 multiply-adds."""
        return 0.0

    @cached_property
    def waiting_cycles(self) -> Num:
        """Cycles in which matrix instructions wait for all warps of a block; cycles that other warps hide excluded."""
        return 0.0

    @cached_property
    def tile_instructions(self) -> Num:
        """Beside the steps, for every tile: addresses, the epilogue and the store."""
        _, finish = self._operations
        epilogue = self.accumulators * finish if self.stage.is_reduction else 0.0
        stores = self.instances * self._stores * 2
        return epilogue + stores + self.coefficients.index_instructions * (1 + self.instances / 4)

    @cached_property
    def _stores(self) -> Num:
        """Store instructions of one vector."""
        is_whole = is_contiguous(self.stage, self.tiling.layout) if self._is_staged else self.operands[-1].stride == 1
        return where(is_whole, 1, self.tiling.lanes)

    @property
    def _is_staged(self) -> bool:
        """True if the stage copies an operand into shared memory."""
        return is_copy(self.stage) and self.stage.host is not None

    @property
    def is_asynchronous(self) -> Num:
        """True if the copies of a pipeline need no registers: a thread copies contiguous bytes without conversion."""
        if self._is_rounding:
            return False
        return (self._stores <= 1) & (self.tiling.lanes * self.operands[-1].itemsize >= 4)

    @cached_property
    def thread_instructions(self) -> Num:
        """Instructions of one thread in one block."""
        if self._is_staged:
            return self.executions * self._copy_instructions
        reduce_loops = self.reduce_blocks * self._block_instructions if self.stage.is_reduction else 0.0
        per_tile = self.steps * self.step_instructions + self.tile_instructions + reduce_loops
        return self.executions * self.tiles * per_tile

    @property
    def _block_instructions(self) -> Num:
        """Instructions of one reduce block outside its steps; if blocks differ in length, a loop runs the rest."""
        k, t = self.coefficients, self.tiling
        if nest_of(self.stage).reduces_across_threads:
            return k.loop_cycles
        axis = self.stage.reduce_axes[-1]
        length = minimum(t.block(axis), t.extent[axis])
        left = length - rounded_down(length / t.unroll) * t.unroll
        return where(is_multiple(t.extent[axis], length), k.loop_cycles, 5 * k.loop_cycles + left * k.turn_instructions)

    @property
    def thread_cycles(self) -> Num:
        """Cycles of a thread's instructions if no other warp shares its part of a multiprocessor."""
        if self.stage.matrix is None:
            return self.thread_instructions
        waiting = self.executions * self.tiles * self.steps * (self.step_cycles - self.step_instructions)
        return self.thread_instructions + waiting

    @property
    def _copy_instructions(self) -> Num:
        """Instructions of a thread to copy its share of a box: one per copy if the pipeline is asynchronous."""
        k = self.coefficients
        is_direct = self.is_asynchronous & (self.depth > 1)
        each = self.instances * where(is_direct, 1, 1 + self._stores) + k.copy_instructions
        guards = k.guard_instructions if any(o.guarded for o in self.operands) else 0.0
        if self._is_rounding:
            each = each + self.accumulators * k.rounding_instructions
        return k.loop_cycles + self.tiles * (each + guards)

    @property
    def _is_rounding(self) -> bool:
        """True if a copy rounds an operand for matrix instructions."""
        return bool(self.stage.row_padding) and has_cast(self.stage.finish)

    @cached_property
    def code(self) -> Num:
        """Instructions in the code."""
        unroll: Num = self.tiling.unroll if self.stage.is_reduction else 1
        for a in self.stage.reduce_axes[:-1]:
            if a in self.stage.unrolled:
                unroll = unroll * a.extent
        if len(self.stage.reduce_axes) > 1:
            peeled = self.tiling.extent[self.stage.reduce_axes[-2]]
            unroll = where(equal(self.tiling.peel, 1), unroll * minimum(peeled, 8), unroll)
        return self.step_instructions * unroll * 1.5 + self.tile_instructions * 2

    @cached_property
    def registers(self) -> Num:
        """32-bit registers of a thread that the tile needs: accumulators, and the operands of one step."""
        words = self.stage.itemsize / 4
        operands = sum_of([minimum(n * width / 4 * self._held(o), 64) for o, n, width in self.loads])
        if self.stage.unrolled or not self.stage.is_reduction:
            operands = minimum(operands, 64)
        return self.accumulators * words + operands

    def _held(self, o: Operand) -> Num:
        """Returns the number of steps that one load of a staged operand serves; registers hold all these elements."""
        copy = self.copies.get(o.tensor)
        if copy is None or not has_layouts(copy.stage) or self.stage.vector in o.axes:
            return 1
        return where(copy.layout, 1, self._together(o))

    # ---- memory ------------------------------------------------------------------------------------------------------

    def _neighbours(self, count: Num) -> dict[Axis, Num]:
        """Returns how many of `count` neighbouring threads lie along every axis, the innermost thread axis first."""
        t, stage = self.tiling, self.stage
        spatial = [*(a for a in stage.axes if a is not stage.vector), *(a for a in stage.axes if a is stage.vector)]
        crossing = [a for a in stage.reduce_axes if nest_of(stage).reduces_across_threads]
        order = [*spatial, *crossing] if stage.vector is None else [*crossing, *spatial]
        along: dict[Axis, Num] = {}
        left: Num = count
        for a in reversed(order):
            n = prod_of([t.trips[level] for level in t.thread_levels if level.axis is a])
            along[a] = minimum(n, left)
            left = ceil_div(left, along[a])
        return along

    @cached_property
    def _warp(self) -> dict[Axis, Num]:
        return self._neighbours(WARP)

    def wavefronts(self, o: Operand, width: Num) -> Num:
        """Returns the cycles of one load instruction of a warp in the L1 or in shared memory.

        Shared memory serves as many threads at once as access 128 bytes in total, even of the same bytes.
        """
        if o.tensor in self.shared:
            return maximum(1.0, width * WARP / LINE_BYTES) * self._conflicts(o, width)
        distinct = minimum(prod_of([n for a, n in self._warp.items() if a in o.axes]), WARP)
        return maximum(1.0, distinct * width / LINE_BYTES) if self.is_coalesced(o) else distinct

    def _conflicts(self, o: Operand, width: Num) -> Num:
        """Returns how often bank conflicts repeat an access of a staged operand."""
        copy, vector = self.copies.get(o.tensor), self.stage.vector
        if copy is None:
            return 1.0
        near = self._neighbours(minimum(WARP, LINE_BYTES / width))
        if vector is not None and vector in o.axes:  # vectors of one thread lie side by side
            return _same_banks(near[vector], self._rows(vector) * width, width)
        if not has_layouts(copy.stage):
            return 1.0
        axis = self._row_axis(copy.stage)
        _, reduced = split_axes(copy.stage)
        row = prod_of([copy.extent[a] for a in reduced]) * o.itemsize + VECTOR_BYTES
        return _same_banks(near[axis], self._rows(axis) * where(copy.layout, o.itemsize, row), width)

    @cached_property
    def _store_conflicts(self) -> Num:
        """Repetitions of stores to a staged operand in layout 1, if neighbouring threads store along a reduce axis."""
        stage, t = self.stage, self.tiling
        if not has_layouts(stage) or stage.vector is None:
            return 1.0
        spatial, reduced = split_axes(stage)
        if stage.vector not in reduced:
            return 1.0
        item = ITEMSIZE[stage.tensor.dtype]
        row = ceil_div(prod_of([t.extent[a] for a in spatial]) * item, VECTOR_BYTES) * VECTOR_BYTES + VECTOR_BYTES
        beside = ceil_div(WARP, self._warp[stage.vector]) * item
        return where(t.layout, _same_banks(self._warp[stage.vector], t.lanes * row, beside), 1.0)

    def is_coalesced(self, o: Operand) -> bool:
        """Returns whether neighbouring threads read neighbouring elements, or the same element."""
        if o.tensor in self.shared or o.packed:
            return True
        stage = self.stage
        along = stage.vector if stage.vector is not None else stage.reduce_axes[-1] if stage.reduce_axes else None
        if along is None or along not in o.axes:
            return True
        return bool(o.dims) and any(a is along for a, _ in o.dims[0].terms)

    def _cycles(self, in_shared: bool) -> Num:
        per_step: Num = 0.0
        for o, n, width in self.loads:
            if (o.tensor in self.shared) == in_shared:
                per_step = per_step + n * self.wavefronts(o, width)
        store = self.operands[-1]
        if not in_shared and nest_of(self.stage).numbers(LoopKind.VIRTUAL_THREAD):
            per_step = per_step * self.coefficients.unstaged_factor
        total = self.steps * per_step
        if (store.tensor in self.shared) == in_shared:
            width = self.tiling.lanes / self._stores * store.itemsize
            once = self.wavefronts(store, width) * self._store_conflicts
            total = total + self.instances * self._stores * once
        return self.executions * self.tiles * self.warps * total

    @cached_property
    def shared_cycles(self) -> Num:
        """Wavefronts in shared memory, of one block."""
        return self._cycles(True)

    @cached_property
    def global_cycles(self) -> Num:
        """Wavefronts in the L1, of one block."""
        return self._cycles(False)

    @cached_property
    def l2_bytes(self) -> Num:
        """Bytes that a block moves from and to the L2: the box of each global operand, once per execution."""
        t, stage = self.tiling, self.stage
        lens: dict[Axis, Num] = {}
        for a in stage.axes:
            lens[a] = minimum(t.block(a), a.extent) if stage.host is None else minimum(t.extent[a], a.extent)
        for a in stage.reduce_axes:
            lens[a] = t.extent[a]
        total: Num = 0.0
        for o in self.operands:
            if o.tensor not in self.shared:
                total = total + box_bytes(o, lens, 32)
        return self.executions * total

    @cached_property
    def latency_cycles(self) -> Num:
        """Cycles that a block waits for memory if it runs alone: batches of loads that wait for each other."""
        k = self.coefficients
        reads_global = any(o.tensor not in self.shared for o in self.operands[:-1])
        batches: Num = self.tiles
        if self.stage.is_reduction:
            batches = self.tiles * ceil_div(self.steps, self.tiling.unroll)
            if not reads_global:
                return self.executions * self.tiles * self.steps * 2.0
        if is_copy(self.stage):  # the loads of a copy do not wait for each other
            batches = 1 + self.tiles * 0.05
        return self.executions * batches * (k.memory_cycles if reads_global else 30.0)

    @property
    def _is_combined(self) -> bool:
        """True if threads of a block share the reduction of an element."""
        return self.stage.is_reduction and nest_of(self.stage).reduces_across_threads

    @property
    def _shuffled(self) -> Num:
        """Accumulators of an element that one warp combines by shuffles."""
        return minimum(self.tiling.reduce_threads, WARP) if self.stage.vector is None else 1

    @cached_property
    def combine_cycles(self) -> Num:
        """Cycles to combine accumulators across threads."""
        if not self._is_combined:
            return 0.0
        k, shuffled = self.coefficients, self._shuffled
        groups = self.tiling.reduce_threads / shuffled
        one = where(shuffled > 1, 5 * k.shuffle_cycles * self.accumulators, 0.0) if self.stage.vector is None else 0.0
        through = 2 * k.barrier_cycles + groups * self.accumulators * 30.0 / 4
        return self.executions * self.tiles * (one + where(groups > 1, through, 0.0))

    def shared_bytes(self, threads: Num) -> Num:
        """Returns the shared memory of the stage's result, if attached, and of accumulators that threads exchange."""
        return self._box_bytes + self._exchange_bytes(threads)

    @cached_property
    def _box_bytes(self) -> Num:
        """Bytes of all boxes of a pipeline. A single box is not rounded up."""
        stage, t = self.stage, self.tiling
        if stage.host is None:
            return 0
        dims = {a: maximum(1, t.extent[a]) for a in stage.place if isinstance(a, Axis)}
        box = box_elements(stage, dims, t.layout)
        elements = where(self.depth > 1, self.depth * ceil_div(box, BOX_ELEMENTS) * BOX_ELEMENTS, box)
        return _lines(elements * ITEMSIZE[stage.tensor.dtype])

    def _exchange_bytes(self, threads: Num) -> Num:
        if not self._is_combined:
            return 0
        x = self.tiling.reduce_threads
        slots = ceil_div(threads, self._shuffled)
        return where(x > self._shuffled, _lines(slots * self.accumulators * ITEMSIZE[self.stage.acc.dtype]), 0)


def _lines(nbytes: Num) -> Num:
    """Returns `nbytes` rounded up to lines, plus one line, as lowering allocates scratch."""
    return ceil_div(nbytes, ALIGN_BYTES) * ALIGN_BYTES + ALIGN_BYTES


def _divisor(n: Num, most: int) -> Num:
    """Returns the largest power of two up to `most` that divides `n`."""
    divisor: Num = 1
    while most > 1:
        divisor = where(is_multiple(n, most) & equal(divisor, 1), most, divisor)
        most //= 2
    return divisor


def _same_banks(threads: Num, stride_bytes: Num, width: Num) -> Num:
    """Returns how many times longer strided threads take than contiguous threads, with `width` bytes a thread.

    At a multiple of 128 bytes all threads begin in the same bank, at a multiple of 64 every second thread, and so on.
    """
    apart: Num = minimum(32.0, maximum(1.0, LINE_BYTES / width))  # threads that one wavefront serves at best
    served = apart
    for nbytes in (16, 32, 64, 128):
        served = where(is_multiple(stride_bytes, nbytes), minimum(served, LINE_BYTES / nbytes), served)
    return maximum(1.0, minimum(threads, apart) / served)
