"""The CPU judge: constraints, cost estimate and features, as formulas over numbers or columns.

The estimate is a roofline per stage,

    seconds = max(multiply-adds or their latency, loads, L2, L3 and DRAM bytes over bandwidth) · imbalance
              + tile and loop overheads,

summed over stages, plus a fork per phase. The estimate is made to rank points, not to predict seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.memo import memoised
from stormdrop.space.access import packed_tensors, stage_operands
from stormdrop.space.columns import (
    Num,
    ceil_div,
    is_multiple,
    maximum,
    minimum,
    prod_of,
    rounded_up,
    sum_of,
    where,
    within,
)
from stormdrop.space.features import FeatureSet
from stormdrop.space.footprint import StageCost, body_cost, density, variants
from stormdrop.space.knobs import smallest_values
from stormdrop.space.nest import is_copy, nest_of
from stormdrop.space.structure import ComputeAt, Stage, Structure
from stormdrop.space.tiling import Tiling, tile_all
from stormdrop.target.coefficients import CpuCoefficients
from stormdrop.target.cpu import Cpu

OPERANDS, LEVELS = 3, 5
BOUNDS = ("fma", "load", "ends", "l2", "l3", "dram")
FEATURES = FeatureSet(
    version=4,
    names=(
        "prior",
        *BOUNDS,
        *("stages", "phases", "units", "imbalance", "code", "attached_bytes", "executed", "nominal"),
        *("tiles", "steps", "rows", "vectors", "accumulators", "loads", "reuse", "unroll", "peel", "turns", "blocks"),
        *("lane_use", "lines_per_set", "variants", "reduced", "gathers", "guards"),
        *(
            f"operand{k}.{what}"
            for k in range(OPERANDS)
            for what in (*(f"box{n}" for n in range(LEVELS)), "l1", "l2", "l3", "stride")
        ),
        *("other_steps", "other_seconds", "other_loads", "other_bytes", "recompute"),
    ),
    terms=(*BOUNDS, "other_seconds"),
    ratios=(("prior", "nominal"), ("executed", "nominal"), ("code", "nominal"), ("tiles", "units"), ("steps", "tiles")),
)
"""Unprefixed names describe the stage with the most work; `other_*` aggregates all other stages."""


@dataclass(frozen=True, eq=False)
class CpuJudge:
    """See `stormdrop.space.judge.Judge`."""

    target: Cpu

    @property
    def coefficients(self) -> CpuCoefficients:
        return self.target.coefficients

    features: ClassVar = FEATURES

    def assess(self, s: Structure, values: Mapping[str, Num]) -> CpuAssessment:
        return CpuAssessment(self, s, values)

    def combined(self, s: Structure, amounts: NDArray[np.float64]) -> NDArray[np.float64]:
        total = Amounts(*amounts)
        fits = (total.code <= most_code(self, s)) & (total.scratch <= self.coefficients.most_scratch_bytes)
        return np.where((total.misfits == 0.0) & fits, self.prior(s, total.seconds, total.code), np.inf)

    def prior(self, s: Structure, seconds: Num, code: Num) -> Num:
        """Returns the estimated seconds of a program: `seconds` of all stages, scaled by code size, plus forks and
        instruction fetch. Every phase adds one fork. A model's code is in no near cache.
        """
        phases = sum(stage.level is not ComputeAt.LOAD and stage.host is None for stage in s.stages)
        k = self.coefficients
        return seconds * (1.0 + code / k.code_scale) + k.fork_seconds * phases + k.code_seconds * code

    def least_seconds(self, s: Structure) -> float:
        """Returns a lower bound: multiply-adds at peak on all lanes and threads, padding skipped."""
        total, target = 0.0, self.target
        packed = packed_tensors(s)
        for stage in s.stages:
            if stage.level is not ComputeAt.LOAD:
                lanes = target.vector_bytes // stage.itemsize if stage.vector is not None else 1
                shares = [inside for o in stage_operands(stage, packed) for _, _, inside in o.borders]
                steps = stage.points / lanes * prod(shares)
                steps = steps * density(stage) if stage.unrolled else steps
                body, _ = body_cost(stage, self.coefficients)
                total += steps * body / (target.fma_per_cycle * target.threads * target.ghz * 1e9)
        return total

    def fits(self, s: Structure) -> bool:
        """Returns whether the scratch of the smallest point is within the limit."""
        most = self.coefficients.most_scratch_bytes
        whole = sum(prod(a.extent for a in x.axes) * x.itemsize for x in s.stages if x.host is not None)
        return whole <= most // 2 or float(_smallest(self, s).scratch) <= most


@memoised()
def most_code(judge: CpuJudge, s: Structure) -> float:
    """Returns the limit on instructions, never below the smallest point's count: the smallest point is legal."""
    stages = [x for x in s.stages if x.level is not ComputeAt.LOAD]
    usual = judge.coefficients.most_instructions * max(1, len(stages) ** 0.5)
    if not any(x.unrolled for x in stages) and sum(_most_of_one(judge, x) for x in stages) <= usual:
        return usual  # the smallest point is certainly shorter
    return max(usual, float(_smallest(judge, s).code))


def _most_of_one(judge: CpuJudge, stage: Stage) -> float:
    """Returns an upper bound on the instructions for one element: every load counted as a gather."""
    body, finish = body_cost(stage, judge.coefficients)
    gather = judge.coefficients.gather_slots * (judge.target.vector_bytes // stage.itemsize)
    return body + finish + (gather + 1) * len(stage.reads) + 4


def _smallest(judge: CpuJudge, s: Structure) -> CpuAssessment:
    """Returns the assessment of the point with the smallest choice of every knob."""
    return judge.assess(s, smallest_values(s, judge.target))


class Amounts(NamedTuple):
    """See `stormdrop.space.judge.Assessment.amounts`."""

    seconds: Num
    code: Num
    scratch: Num
    misfits: Num  # components that break a constraint of their own


class CpuAssessment:
    """See `stormdrop.space.judge.Assessment`."""

    def __init__(self, judge: CpuJudge, structure: Structure, values: Mapping[str, Num]) -> None:
        self.judge, self.structure = judge, structure
        self._target, self._coefficients = judge.target, judge.coefficients
        self.tilings = tile_all(structure, judge.target.vector_bytes, values)

    # ---- costs of the stages ---------------------------------------------------------------------------------------

    @cached_property
    def costs(self) -> list[StageCost]:
        """Costs of the stages that run at call time."""
        packed, tilings = packed_tensors(self.structure), self.tilings
        costs: list[StageCost] = []
        for stage in self.structure.stages:
            if stage.level is ComputeAt.LOAD:
                continue
            executions: Num = 1
            reader = tilings[stage.reader] if stage.reader and stage.level is ComputeAt.REDUCE_BLOCK else None
            if stage.host is not None and (reader is None or reader.stage.host is not None):
                executions = tilings[stage.host].units
            if reader is not None:
                executions = executions * _entries(reader)
            operands = stage_operands(stage, packed)
            folds = self._target.folds_broadcasts
            costs.append(StageCost(tilings[stage.id], executions, operands, self._coefficients, folds))
        return costs

    @cached_property
    def code(self) -> Num:
        """Instructions of all stages."""
        return sum(c.code for c in self.costs)

    @cached_property
    def scratch(self) -> Num:
        """Bytes of scratch: results of attached stages, and accumulator tiles of blocked reductions."""
        scratch: Any = 0.0
        for c in self.costs:
            stage, t = c.stage, c.tiling
            if stage.host is not None:
                scratch = scratch + prod_of([t.extent[a] for a in stage.axes]) * stage.itemsize
            if nest_of(stage).is_blocked:
                tile = prod_of([minimum(t.reduction_tile(a), t.extent[a]) for a in stage.axes])
                scratch = scratch + tile * stage.itemsize
        return scratch

    # ---- constraints -----------------------------------------------------------------------------------------------

    @property
    def demands(self) -> list[Num]:
        code = self.code / most_code(self.judge, self.structure)
        return [*self._own_demands, code, self.scratch / self._coefficients.most_scratch_bytes]

    @cached_property
    def _own_demands(self) -> list[Num]:
        """The constraints on single stages."""
        demands: list[Num] = []
        stages = self.structure.stages
        panels = {stage.reader for stage in stages if is_copy(stage) and stage.host is None}
        for c in self.costs:
            stage, t = c.stage, c.tiling
            demands.append(c.live_vectors / self._target.vector_registers)
            demands.append(variants(t) / self._coefficients.most_tile_bodies)
            vector = stage.vector
            if stage.host is not None and stage.id in panels and vector is not None and vector in stage.axes:
                # The operand is packed for the full axis: a box must begin at a panel boundary.
                width, box = t.vectors * t.lanes, t.extent[vector]
                demands.append(where(is_multiple(box, width) | (box >= vector.extent), 0.0, 2.0))
        return demands

    # ---- seconds ---------------------------------------------------------------------------------------------------

    @cached_property
    def imbalance(self) -> dict[str, Num]:
        """The work of the busiest thread over the mean, by phase. Parallel units are indivisible."""
        return {c.stage.id: self._imbalance(c) for c in self.costs if c.stage.host is None}

    def _imbalance(self, c: StageCost) -> Num:
        t, threads = c.tiling, self._target.threads
        unit: Any = 1.0
        for a in t.stage.axes:
            lanes = t.lanes if a is t.stage.vector else 1
            unit = unit * minimum(1.0, t.block(a) / (ceil_div(t.extent[a], lanes) * lanes))
        return minimum(float(threads), rounded_up(c.parallel / threads) * threads * unit)

    @property
    def capacities(self) -> tuple[float, float, float]:
        """Bytes of L1, L2 and L3 that a thread's operands may fill."""
        target, k = self._target, self._coefficients
        l1, l2 = (nbytes / target.threads_per_core for nbytes in (target.l1_bytes, target.l2_bytes))
        return l1 * k.l1_share, l2 * k.l2_share, target.l3_bytes * k.l3_share

    @cached_property
    def terms(self) -> list[dict[str, Num]]:
        """The seconds of each roofline bound on the busiest thread, by stage. `ends` is tile and loop overhead."""
        return [self._terms(c, self.imbalance[c.stage.host or c.stage.id]) for c in self.costs]

    def _terms(self, c: StageCost, imbalance: Num) -> dict[str, Num]:
        stage, target, k = c.stage, self._target, self._coefficients
        hertz = target.ghz * 1e9
        share = imbalance / target.threads
        body, finish = body_cost(stage, k)
        rate = target.fma_per_cycle
        latency = target.fma_latency * rate
        fma = c.vector_steps * c.useful * body / rate
        fma = fma * maximum(1.0, latency / c.accumulators) if stage.is_reduction else fma
        load_rate = max(1.0, rate)  # full vectors a cycle
        load = c.steps * c.useful * c.loads * k.load_slots / load_rate
        ends = c.tiles * (c.accumulators * (finish / rate + k.store_cycles) + k.tile_cycles)
        ends = ends + c.tiles * c.guarded_loads * k.unrolled_guard_cycles
        if stage.is_reduction:
            turns = c.tiling.inner_reduce_trips(stage.reduce_axes[-1])
            guards = sum(o.guarded for o in c.operands)
            guard = where(turns > k.long_loop_turns, k.long_guard_cycles, k.short_guard_cycles)
            ends = ends + c.steps / turns * (k.reduce_start_cycles + guards * c.rows * guard)
            exposed = minimum(1.0, k.hiding_accumulators / c.accumulators)
            ends = ends + c.steps / c.tiling.unroll * exposed  # loop control
            if nest_of(stage).is_blocked:
                repeats = prod_of([c.tiling.outer_reduce_trips(a) for a in stage.reduce_axes])
                ends = ends + c.tiles * (repeats - 1.0) * c.accumulators * k.reload_cycles
        together = [sum_of(parts) for parts in zip(*c.moved_bytes())]
        l1, l2, l3 = (c.traffic(together, capacity) for capacity in self.capacities)
        near = l2 / (target.l3_gbs * 1e9)
        if target.threads > 1 and target.handover_gbs < target.l3_gbs:
            local = frozenset(x.tensor for x in self.structure.stages if x.host is not None)  # in a thread's scratch
            constant, written = c.fetched(target.threads, local)
            near = maximum(near, constant / (target.l3_gbs * 1e9) + written / (target.handover_gbs * 1e9))
        beyond = minimum(maximum(c.lines_per_set / target.l1_ways - 1.0, 0.0), k.most_conflicts)
        conflict = 1.0 + k.conflict_slope * beyond
        streams = 1.0 + k.stream_slope * maximum(0.0, c.streams - k.free_streams)
        return {
            "fma": fma * conflict * share / hertz,
            "load": load * conflict * share / hertz,
            "ends": ends * share / hertz,
            "l2": l1 * share / (target.l2_gbs * 1e9),
            "l3": near * imbalance * streams,
            "dram": l3 * imbalance * streams / (target.dram_gbs * 1e9),
        }

    def stage_seconds(self, terms: Mapping[str, Num]) -> Num:
        """Returns the largest bound, plus a share of the smaller bounds (imperfect overlap), plus the overheads."""
        bound: Any = 0.0
        for name in ("fma", "load", "l2", "l3", "dram"):
            bound = maximum(bound, terms[name])
        k = self._coefficients
        bound = bound + k.overlap_share * (terms["load"] + terms["l3"] + terms["dram"])
        return bound + k.l2_overlap_share * terms["l2"] + terms["ends"]

    def _fetched(self, c: StageCost) -> Num:
        """Returns the seconds of fetches that overlap nothing: cold constants from DRAM, the code of guarded loads."""
        k = self._coefficients
        guards = c.guarded_loads * k.guard_code_seconds
        if not self._target.is_cold:
            return guards
        constants = {o.tensor: o.tensor.nbytes for o in c.operands if o.tensor.constant}
        return guards + sum(constants.values()) / (k.cold_bandwidth_share * self._target.dram_gbs * 1e9)

    @property
    def each_seconds(self) -> list[Num]:
        """Seconds of each stage of `costs`, without forks."""
        return [self.stage_seconds(terms) + self._fetched(c) for c, terms in zip(self.costs, self.terms)]

    @cached_property
    def seconds(self) -> Num:
        """Seconds summed over the stages, without forks."""
        return sum_of(self.each_seconds)

    @property
    def prior(self) -> Num:
        return self.judge.prior(self.structure, self.seconds, self.code)

    @property
    def amounts(self) -> Amounts:
        return Amounts(self.seconds, self.code, self.scratch, where(within(self._own_demands), 0.0, 1.0))

    @property
    def features(self) -> list[Num]:
        """The `FEATURES` of points, before log2(1 + x)."""
        costs, terms = self.costs, self.terms
        main = max(range(len(costs)), key=lambda k: costs[k].stage.points)
        c, t = costs[main], costs[main].tiling
        stage = t.stage
        host = next(x for x in costs if x.stage.id == (stage.host or stage.id))
        others = [x for k, x in enumerate(costs) if k != main]
        bounds = [terms[main][name] * 1e9 for name in BOUNDS]
        inner = t.inner_reduce_trips(stage.reduce_axes[-1]) if stage.is_reduction else 1.0
        blocks = prod_of([t.outer_reduce_trips(a) for a in stage.reduce_axes]) if nest_of(stage).is_blocked else 1.0
        values: list[Num] = [
            self.prior * 1e9,
            *bounds,
            float(len(costs)),
            float(sum(x.stage.host is None for x in costs)),
            host.parallel,
            self.imbalance[stage.host or stage.id] * 16.0,
            self.code,
            sum((prod_of([x.tiling.extent[a] for a in x.stage.axes]) * 4.0 for x in costs if x.stage.host), 0.0),
            c.vector_steps * t.lanes,
            float(stage.points),
            c.tiles,
            c.steps,
            c.rows,
            t.vectors,
            c.accumulators,
            c.loads,
            c.accumulators / maximum(c.loads, 0.25),
            t.unroll,
            t.peel,
            inner,
            blocks,
            c.lane_use * 16.0,
            c.lines_per_set,
            variants(t),
            float(stage.vector_is_reduced) * 3.0,
            float(sum(o.stride not in (0, 1) for o in c.operands)),
            float(sum(o.guarded for o in c.operands)),
        ]
        values += _operand_features(c, self.capacities)
        values += [
            sum((x.vector_steps for x in others), 0.0),
            sum((self.stage_seconds(terms[k]) for k in range(len(costs)) if k != main), 0.0) * 1e9,
            sum((x.loads * x.steps for x in others), 0.0),
            sum((x.boxes.footprints[-1][-1] * x.executions for x in others), 0.0),
            sum((x.vector_steps * x.tiling.lanes / max(1, x.stage.points) for x in others), 0.0),
        ]
        return values


def _entries(t: Tiling) -> Num:
    """Returns the runs of a REDUCE_BLOCK copy per execution of its reader: reduction tiles times reduce blocks."""
    spatial = [ceil_div(t.extent[a], t.reduction_tile(a)) for a in t.stage.axes]
    return prod_of(spatial) * prod_of([ceil_div(t.extent[a], t.block(a)) for a in t.stage.reduce_axes])


def _operand_features(c: StageCost, capacities: tuple[float, ...]) -> list[Num]:
    """Returns the boxes at five levels, traffic into three caches and stride of the three largest operands."""
    chosen = sorted(range(len(c.operands)), key=lambda k: -c.operands[k].tensor.nbytes)[:OPERANDS]
    values: list[Num] = []
    moved = c.moved_bytes()
    for k in chosen:
        sizes = c.boxes.footprints[k]
        picks = [sizes[min(len(sizes) - 1, round(i * (len(sizes) - 1) / (LEVELS - 1)))] for i in range(LEVELS)]
        stride = c.operands[k].stride
        into = [c.traffic(moved[k], capacity) for capacity in capacities]
        values += [*picks, *into, float(stride if stride is not None else 4096)]
    return values + [0.0] * ((OPERANDS - len(chosen)) * (LEVELS + 4))
