"""The GPU judge: constraints, cost estimate and features, as formulas over numbers or columns.

The estimate of a phase, in cycles of one multiprocessor that runs `r` blocks at a time,

    max(r · max(instructions issued, shared-memory wavefronts, L1 wavefronts), one block's latencies)

for every wave of blocks, but at least the bytes of L2 and DRAM over their bandwidths; plus the gap between two
launches. A block's latency is the sum of the latencies of its reduce blocks. Therefore splitting a long reduction pays
if the blocks are few. The estimate is made to rank points, not to predict seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.tensor import Tensor
from stormdrop.space.access import packed_tensors, stage_operands
from stormdrop.space.block_cost import LINE_BYTES, BlockCost
from stormdrop.space.columns import (
    Num,
    ceil_div,
    maximum,
    minimum,
    prod_of,
    rounded_down,
    rounded_up,
    square_root,
    sum_of,
    where,
    within,
)
from stormdrop.space.features import FeatureSet
from stormdrop.space.footprint import body_cost, density
from stormdrop.space.knobs import smallest_values
from stormdrop.space.matrix_cost import MatrixCost
from stormdrop.space.nest import is_copy, nest_of
from stormdrop.space.structure import ComputeAt, Stage, Structure
from stormdrop.space.tiling import Tiling, tile_all
from stormdrop.target.coefficients import CPU_COEFFICIENTS
from stormdrop.target.gpu import WARP, Gpu

EXPOSED_SHARE = 0.5
"""The share of a memory latency that the neighbours of a block with matrix instructions do not hide."""
L2_SHARE, OVERLAP = 0.5, 0.8
"""The share of the L2's unoverlapped time that counts; the hidden share of the shorter of L2 time and instruction time.
Both were fitted to matrix products of 4096³ on an H200."""
SPARED_REGISTERS = 16
"""The registers that the assembler may save compared with the count. The limit for several resident blocks does not
rely on the saving."""


BOUNDS = ("issue", "shared", "global", "latency", "waves", "l2", "dram")
OPERANDS = 3
FEATURES = FeatureSet(
    version=2,
    names=(
        "prior",
        *BOUNDS,
        *("phases", "stages", "blocks", "threads", "warps", "resident", "registers", "shared_bytes", "code"),
        *("accumulators", "instances", "lanes", "steps", "reduce_blocks", "unroll", "peel", "depth", "tiles"),
        *("reduce_threads", "residents", "group", "turned_operands", "pieces"),
        *("thread_instructions", "step_instructions", "l2_bytes", "nominal"),
        *(f"operand{k}.{what}" for k in range(OPERANDS) for what in ("loads", "width", "coalesced")),
        *("other_seconds", "other_blocks"),
    ),
    terms=(*BOUNDS, "other_seconds"),
    ratios=(("prior", "nominal"), ("thread_instructions", "steps"), ("l2_bytes", "nominal"), ("blocks", "resident")),
)
"""Unprefixed names describe the phase with the most work; `other_*` all other phases."""


@dataclass(frozen=True, eq=False)
class GpuJudge:
    """See `stormdrop.space.judge.Judge`."""

    target: Gpu

    features: ClassVar = FEATURES

    def assess(self, s: Structure, values: Mapping[str, Num]) -> GpuAssessment:
        return GpuAssessment(self, s, values)

    def combined(self, s: Structure, amounts: NDArray[np.float64]) -> NDArray[np.float64]:
        total = GpuAmounts(*amounts)
        return np.where(total.misfits == 0.0, total.seconds, np.inf)

    def least_seconds(self, s: Structure) -> float:
        """Returns a lower bound: arithmetic at peak on all lanes, and the launches."""
        total, target = 0.0, self.target
        for stage in s.stages:
            if stage.level is not ComputeAt.LOAD:
                body, _ = body_cost(stage, CPU_COEFFICIENTS)
                steps = stage.points * (density(stage) if stage.unrolled else 1)
                total += steps * body / (target.fma_lanes * target.multiprocessors * target.clock_ghz * 1e9)
                total += target.coefficients.launch_seconds * (stage.host is None)
        return total * 0.5

    def fits(self, s: Structure) -> bool:
        """Returns whether the shared memory of the smallest point is within the limit."""
        smallest = self.assess(s, smallest_values(s, self.target))
        return all(float(phase.shared_bytes) <= self.target.shared_bytes_per_block for phase in smallest.phases)


class GpuAmounts(NamedTuple):
    """See `stormdrop.space.judge.Assessment.amounts`."""

    seconds: Num
    misfits: Num  # components that break a constraint of their own


@dataclass(frozen=True, eq=False)
class PhaseCost:
    """One launch: a root stage and the stages inside its blocks."""

    target: Gpu
    root: BlockCost
    inside: tuple[BlockCost, ...]

    @property
    def stages(self) -> tuple[BlockCost, ...]:
        return (self.root, *self.inside)

    @property
    def points(self) -> int:
        return sum(c.stage.points for c in self.stages)

    # ---- what a block needs ------------------------------------------------------------------------------------------

    @cached_property
    def threads(self) -> Num:
        """Threads of a block: whole warps if accumulators are combined across threads."""
        threads = self.root.tiling.threads
        crossing: Num = 1
        for c in self.stages:
            crossing = maximum(crossing, c.tiling.reduce_threads)
        return where(crossing > 1, ceil_div(threads, WARP) * WARP, threads)

    @cached_property
    def warps(self) -> Num:
        return ceil_div(self.threads, WARP)

    @cached_property
    def shared_bytes(self) -> Num:
        return sum_of([c.shared_bytes(self.threads) for c in self.stages])

    @cached_property
    def registers(self) -> Num:
        """Registers of a thread: the assembler's estimated need, at most the thread's share with `residents` blocks."""
        return minimum(self._wanted_registers, self._allotted)

    @cached_property
    def _allotted(self) -> Num:
        """Registers that a thread may have if `residents` blocks are to run at the same time."""
        t = self.target
        share = t.registers_per_multiprocessor / (self.warps * WARP * self.root.tiling.residents)
        return maximum(8, minimum(t.registers_per_thread, rounded_down(share / 8) * 8))

    @cached_property
    def _wanted_registers(self) -> Num:
        most: Num = 0
        for c in self.inside:
            most = maximum(most, minimum(c.registers, 64))
        needed = maximum(self.root.registers, most) + self.target.coefficients.spare_registers
        return maximum(32, ceil_div(needed, 8) * 8)

    @cached_property
    def code(self) -> Num:
        return sum_of([c.code for c in self.stages])

    @property
    def demands(self) -> list[Num]:
        t = self.target
        residents = self.root.tiling.residents
        return [
            self.threads / t.threads_per_block,
            self.shared_bytes / t.shared_bytes_per_block,
            self._wanted_registers / (self._allotted + where(residents > 1, 0, SPARED_REGISTERS)),
            residents * self.warps * WARP / t.threads_per_multiprocessor,
            residents * (self.shared_bytes + 1024) / t.shared_bytes_per_multiprocessor,
            self.code / t.coefficients.most_instructions if not self.root.stage.unrolled else 0.0,
            self.blocks / (2.0**31 - 1),
        ]

    # ---- seconds -----------------------------------------------------------------------------------------------------

    @property
    def blocks(self) -> Num:
        return self.root.tiling.units

    @cached_property
    def resident(self) -> Num:
        """Blocks that a multiprocessor runs at a time."""
        t = self.target
        registers = minimum(self.registers, t.registers_per_thread)
        by_registers = t.registers_per_multiprocessor / (registers * self.warps * WARP)
        by_shared = t.shared_bytes_per_multiprocessor / (self.shared_bytes + 1024)
        by_threads = t.threads_per_multiprocessor / (self.warps * WARP)
        most = minimum(minimum(by_registers, by_shared), minimum(by_threads, t.blocks_per_multiprocessor))
        return maximum(1, rounded_down(most))

    @cached_property
    def issue_cycles(self) -> Num:
        """Cycles of one block to issue: warp instructions, or matrix products, over their rate of a multiprocessor."""
        k = self.target.coefficients
        rate = k.issue_per_cycle * self.target.fma_lanes / 128.0
        issued = sum_of([c.warps * c.thread_instructions for c in self.stages]) / rate
        if self.root.stage.matrix is None:
            return issued
        loads = where(self._waits_for_loads, self.root.reduce_blocks * (k.memory_cycles * EXPOSED_SHARE), 0.0)
        waiting = self.root.waiting_cycles + self.root.executions * self.root.tiles * loads
        return maximum(issued, self.root.matrix_products / self.target.matrix_products) + waiting

    @cached_property
    def _waits_for_loads(self) -> Num:
        """True if every reduce block waits for its staged operands: no pipeline, or no asynchronous copies."""
        waits: Num = self.root.tiling.depth <= 1
        for c in self.inside:
            if is_copy(c.stage):
                waits = waits | (c.is_asynchronous < 1)
        return waits

    @cached_property
    def shared_cycles(self) -> Num:
        nbytes = sum_of([c.shared_cycles for c in self.stages]) * LINE_BYTES
        return nbytes / self.target.coefficients.shared_bytes_per_cycle

    @cached_property
    def global_cycles(self) -> Num:
        return sum_of([c.global_cycles for c in self.stages]) / self.target.coefficients.load_issue_per_cycle

    @cached_property
    def latency_cycles(self) -> Num:
        """Cycles of a block that runs alone: waits for memory, barriers, its own instructions, its start and end."""
        k = self.target.coefficients
        copies = [c for c in self.inside if is_copy(c.stage)]
        total: Num = k.block_cycles + sum_of([c.latency_cycles for c in self.stages if not is_copy(c.stage)])
        if copies:
            blocks, depth = self.root.reduce_blocks, self.root.tiling.depth
            own = self.root.steps * self.root.step_cycles * maximum(1.0, self.root.warps / 4) / blocks
            hidden = maximum(0.0, k.memory_cycles / maximum(1, depth - 1) - own)
            l2_bytes_per_cycle = self.target.l2_gbs / (self.target.multiprocessors * self.target.clock_ghz)
            transferred = sum_of([c.l2_bytes / c.executions for c in copies]) / l2_bytes_per_cycle
            hidden = where(self._waits_for_loads, maximum(hidden, 0.5 * k.memory_cycles), hidden)
            exposed = where(depth <= 1, k.memory_cycles + transferred, hidden)
            waits = where(depth > 1, k.barrier_cycles, 2 * k.barrier_cycles)
            total = total + self.root.tiles * (blocks * (exposed + waits) + where(depth > 1, k.memory_cycles, 0.0))
        attached = sum(not is_copy(c.stage) for c in self.inside)
        total = total + attached * k.barrier_cycles + sum_of([c.combine_cycles for c in self.stages])
        alone = sum_of([c.thread_cycles * maximum(1.0, c.warps / 4) for c in self.stages])
        return total + alone * 1.2

    def _wave(self, blocks: Num) -> Num:
        """Returns the cycles in which a multiprocessor runs `blocks` blocks side by side."""
        k = self.target.coefficients
        work = _bound(_bound(self.issue_cycles, self.shared_cycles), self.global_cycles)
        work = work * (1.0 + k.warp_gap / (blocks * self.warps))
        return _bound(blocks * (work + self.target.coefficients.start_cycles), self.latency_cycles)

    @cached_property
    def wave_cycles(self) -> Num:
        """Cycles of the busiest multiprocessor."""
        per_wave = self.resident * self.target.multiprocessors
        whole = rounded_down(self.blocks / per_wave)
        rest = self.blocks - whole * per_wave
        last = rounded_up(rest / self.target.multiprocessors)
        return whole * self._wave(self.resident) + where(rest > 0, self._wave(maximum(1, last)), 0.0)

    @cached_property
    def l2_bytes(self) -> Num:
        return self.blocks * sum_of([c.l2_bytes for c in self.stages])

    @cached_property
    def dram_bytes(self) -> float:
        """Bytes from DRAM: all tensors if together they exceed the L2, else the constants if they are cold."""
        tensors = {o.tensor for c in self.stages for o in c.operands if o.tensor not in c.shared}
        total = float(sum(t.nbytes for t in tensors))
        cold = float(sum(t.nbytes for t in tensors if t.constant)) if self.target.is_cold else 0.0
        return total if total > self.target.l2_bytes else cold

    @cached_property
    def terms(self) -> dict[str, Num]:
        """Seconds of each bound alone."""
        t = self.target
        hertz = t.clock_ghz * 1e9
        blocks = rounded_up(self.blocks / t.multiprocessors)
        return {
            "issue": blocks * self.issue_cycles / hertz,
            "shared": blocks * self.shared_cycles / hertz,
            "global": blocks * self.global_cycles / hertz,
            "latency": self.latency_cycles / hertz,
            "waves": self.wave_cycles / hertz,
            "l2": self.l2_bytes / (t.l2_gbs * 1e9),
            "dram": self.dram_bytes / (t.dram_gbs * 1e9),
        }

    @cached_property
    def seconds(self) -> Num:
        k, terms = self.target.coefficients, self.terms
        bound = maximum(terms["waves"], maximum(terms["l2"], terms["dram"]))
        if self.root.stage.matrix is not None:  # fast enough for the L2 to matter: the two overlap in part
            l2 = L2_SHARE * terms["l2"]
            overlapped = maximum(terms["waves"], l2) + (1.0 - OVERLAP) * minimum(terms["waves"], l2)
            bound = maximum(overlapped, terms["dram"])
        total = bound + 0.1 * (terms["l2"] + terms["global"])
        tiling = self.root.tiling
        fetched = maximum(0.0, self.code - k.cached_instructions) / k.fetch_scale
        # of equals take the simplest
        preference = fetched + self.code / k.code_scale + 1e-4 * (tiling.residents + tiling.group)
        return total * (1.0 + preference) + k.launch_seconds


def _bound(a: Num, b: Num) -> Num:
    """Returns the time of two overlapping activities: the fourth root of the sum of the fourth powers.

    Two equal times give 1.19 times either. The exponent was fitted to products on an H200.
    """
    squares = a * a, b * b
    return square_root(square_root(squares[0] * squares[0] + squares[1] * squares[1]))


class GpuAssessment:
    """See `stormdrop.space.judge.Assessment`."""

    def __init__(self, judge: GpuJudge, structure: Structure, values: Mapping[str, Num]) -> None:
        self.judge, self.structure, self.target = judge, structure, judge.target
        self.tilings: dict[str, Tiling] = tile_all(structure, judge.target.vector_bytes, values)

    @cached_property
    def phases(self) -> list[PhaseCost]:
        phases: list[PhaseCost] = []
        for root in (x for x in self.structure.stages if x.level is ComputeAt.PHASE):
            inside = self.structure.attached(root)
            shared = frozenset(x.tensor for x in inside)
            costs = [self._cost(x, shared) for x in (root, *inside)]
            phases.append(PhaseCost(self.target, costs[0], tuple(costs[1:])))
        return phases

    def _cost(self, stage: Stage, shared: frozenset[Tensor]) -> BlockCost:
        tiling = self.tilings[stage.id]
        executions: Num = 1
        if stage.level is ComputeAt.REDUCE_BLOCK and stage.reader is not None:
            reader = self.tilings[stage.reader]
            blocks = prod_of([reader.outer_reduce_trips(a) for a in reader.stage.reduce_axes])
            executions = blocks * prod_of(
                [n for x, n in reader.trips.items() if x.axis.kind == "spatial" and x.number == 1]
            )
            assert nest_of(reader.stage).outside_reduction == 1
        operands = stage_operands(stage, packed_tensors(self.structure))
        depth = self.tilings[stage.reader].depth if is_copy(stage) and stage.reader is not None else 1
        copies = {x.tensor: self.tilings[x.id] for x in self.structure.stages if x.reader == stage.id}
        kind = BlockCost if stage.matrix is None else MatrixCost
        return kind(tiling, executions, operands, shared, self.target.coefficients, depth, copies)

    @property
    def demands(self) -> list[Num]:
        return [demand for phase in self.phases for demand in phase.demands]

    @cached_property
    def seconds(self) -> Num:
        return sum_of([phase.seconds for phase in self.phases])

    @property
    def prior(self) -> Num:
        return self.seconds

    @property
    def amounts(self) -> GpuAmounts:
        return GpuAmounts(self.seconds, where(within(self.demands), 0.0, 1.0))

    @property
    def features(self) -> list[Num]:
        """The `FEATURES` of points, before log2(1 + x)."""
        phases = self.phases
        main = max(phases, key=lambda phase: phase.points)
        c = main.root
        others = [phase for phase in phases if phase is not main]
        values: list[Num] = [self.prior * 1e9, *(main.terms[name] * 1e9 for name in BOUNDS)]
        values += [float(len(phases)), float(len(self.structure.stages)), main.blocks, main.threads, main.warps]
        values += [main.resident, main.registers, main.shared_bytes, main.code]
        values += [c.accumulators, c.instances, float(c.tiling.lanes), c.steps, c.reduce_blocks, c.tiling.unroll]
        values += [c.tiling.peel, c.tiling.depth, c.tiles, c.tiling.reduce_threads]
        copies = [x.tiling for x in main.inside if is_copy(x.stage)]
        values += [c.tiling.residents, c.tiling.group]
        values += [sum_of([t.layout for t in copies]), prod_of([t.pieces for t in copies])]
        values += [c.thread_instructions, c.step_instructions, main.l2_bytes, float(main.points)]
        loads = c.loads[:OPERANDS]
        for o, n, width in loads:
            values += [n, width, float(c.is_coalesced(o))]
        values += [0.0] * (3 * (OPERANDS - len(loads)))
        most_blocks: Num = 0.0
        for phase in others:
            most_blocks = maximum(most_blocks, phase.blocks)
        values += [sum_of([phase.seconds for phase in others]) * 1e9, most_blocks]
        return values
