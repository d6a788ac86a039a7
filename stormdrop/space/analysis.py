"""The prior, the constraints and the features of a sketch: formulas over numbers, or over columns of them.

The prior is a roofline per stage,

    seconds = max(multiply-adds or their latency, loads, L2, L3 and DRAM bytes over bandwidth) · imbalance
              + tile and loop overheads,

summed over stages, plus a fork for each phase. It ranks; it does not promise seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any

from stormdrop.space.columns import Num, ceil_div, is_multiple, maximum, minimum, rounded_up, where
from stormdrop.space.footprint import (
    StageCost,
    body_cost,
    cost_of,
    density,
    live_vectors,
    moved_at,
    prod_of,
    sum_of,
    traffic,
    variants,
)
from stormdrop.space.knobs import knobs_of
from stormdrop.space.nest import CACHED, is_copy, nest_of
from stormdrop.space.operands import stage_operands
from stormdrop.space.structure import Level, Stage, Structure
from stormdrop.space.tiling import Tiling, tile_all
from stormdrop.target.machine import Target

MAX_INSTRUCTIONS = 1000.0
MAX_REMAINDER_BODIES = 4
MAX_SCRATCH_BYTES = 16 << 20
FORK_SECONDS = 1.5e-6
FETCH_SHARE = 0.65
L2_SHARE = 0.6  # a panel beyond 0.6 of the L2 loses a quarter of the speed
CODE_SCALE = 2e4  # of two equal programs take the shorter: it builds faster
FEATURE_VERSION = 1


def bare_costs(s: Structure, tilings: Mapping[str, Tiling]) -> list[StageCost]:
    """The cost columns that constraints need: all but the boxes."""
    packed = frozenset(stage.tensor for stage in s.stages if is_copy(stage))
    found: list[StageCost] = []
    for stage in s.stages:
        if stage.level is Level.LOAD:
            continue
        executions: Num = 1
        if stage.host is not None:
            reader = tilings[stage.reader] if stage.reader is not None else None
            within = stage.level is Level.BLOCK and reader is not None
            executions = (
                1 if within and reader is not None and reader.stage.host is None else _parallel(tilings[stage.host])
            )
            if within and reader is not None:
                executions = executions * _entries(reader)
        found.append(cost_of(tilings[stage.id], executions, stage_operands(stage, packed)))
    return found


def _parallel(t: Tiling) -> Num:
    return prod_of([t.parallel_trips(a) for a in t.stage.axes])


def _entries(t: Tiling) -> Num:
    """How often the outer reduce loops of a nest are entered: tiles of their inside, which nest exactly."""
    spatial = [ceil_div(t.extent[a], t.reduction_tile(a)) for a in t.stage.axes]
    return prod_of(spatial) * prod_of([ceil_div(t.extent[a], t.reduce_block(a)) for a in t.stage.reduce_axes])


def capacities(target: Target) -> tuple[float, float, float]:
    """Bytes of L1, L2 and L3 that operands may fill."""
    return target.l1_bytes * 0.8, target.l2_bytes * L2_SHARE, target.l3_bytes * 0.7


def _terms(c: StageCost, target: Target, imbalance: Num) -> dict[str, Num]:
    """The seconds of each bound, for the busiest thread."""
    stage = c.tiling.stage
    hertz = target.ghz * 1e9
    share = imbalance / target.threads
    body, finish = body_cost(stage)
    rate = target.fma_per_cycle
    latency = target.fma_latency * rate
    fma = c.vector_steps * c.useful * body / rate
    fma = fma * maximum(1.0, latency / c.accumulators) if stage.is_reduction else fma
    load_rate = max(1.0, rate)  # full vectors a cycle; broadcasts count half
    load = c.steps * c.useful * c.loads / load_rate
    ends = c.tiles * (c.accumulators * (finish / rate + 2.0) + 12.0)
    inner = stage.reduce_axes[-1] if stage.is_reduction else None
    guards = sum(o.guarded for o in c.operands)
    if inner is not None:
        turns = c.tiling.inner_reduce_trips(inner)
        starts = c.steps / turns
        ends = ends + starts * (8.0 + guards * c.rows * where(turns > 16.0, 2.0, 0.5))
        ends = ends + c.steps / c.tiling.unroll * minimum(
            1.0, 3.0 / c.accumulators
        )  # the loop itself, hidden behind a large tile
        if nest_of(stage).is_blocked:
            repeats = prod_of([c.tiling.outer_reduce_trips(a) for a in stage.reduce_axes])
            ends = ends + c.tiles * (repeats - 1.0) * c.accumulators * 3.0
    together = [sum_of(parts) for parts in zip(*moved_at(c))]
    l1, l2, l3 = (traffic(c, together, capacity) for capacity in capacities(target))
    conflict = 1.0 + 0.12 * minimum(maximum(c.lines_per_set / target.l1_ways - 1.0, 0.0), 4.0)
    streams = 1.0 + 0.1 * maximum(0.0, c.streams - 8.0)  # more rows at once than the prefetchers follow
    return {
        "fma": fma * conflict * share / hertz,
        "load": load * conflict * share / hertz,
        "ends": ends * share / hertz,
        "l2": l1 * share / (target.l2_gbs * 1e9),
        "l3": l2 * imbalance * streams / (target.l3_gbs * 1e9),
        "dram": l3 * imbalance * streams / (target.dram_gbs * 1e9),
    }


def _seconds(terms: Mapping[str, Num]) -> Num:
    """The largest bound and a little of the others; streaming from the L2 hides best behind arithmetic."""
    bound: Any = 0.0
    for name in ("fma", "load", "l2", "l3", "dram"):
        bound = maximum(bound, terms[name])
    return bound + 0.03 * (terms["load"] + terms["l3"] + terms["dram"]) + 0.01 * terms["l2"] + terms["ends"]


def _imbalance(c: StageCost, threads: int) -> Num:
    """How much longer the busiest thread works than if all shared evenly: it gets whole, full parallel units."""
    t = c.tiling
    unit: Any = 1.0
    for a in t.stage.axes:
        lanes = t.lanes if a is t.stage.vector else 1
        unit = unit * minimum(1.0, t.unit(a) / (ceil_div(t.extent[a], lanes) * lanes))
    return minimum(float(threads), rounded_up(c.parallel / threads) * threads * unit)


def seconds_of(costs: list[StageCost], target: Target) -> tuple[Num, list[dict[str, Num]]]:
    """What the stages take together, without forks; and the terms of each."""
    roots = {c.tiling.stage.id: c for c in costs if c.tiling.stage.host is None}
    imbalance = {id: _imbalance(c, target.threads) for id, c in roots.items()}
    total: Any = 0.0
    each: list[dict[str, Num]] = []
    for c in costs:
        terms = _terms(c, target, imbalance[c.tiling.stage.host or c.tiling.stage.id])
        each.append(terms)
        total = total + _seconds(terms) + _fetched(c, target)
    return total, each


def _fetched(c: StageCost, target: Target) -> float:
    """The seconds in which constants arrive from memory where they are cold. They come on top, and not at full speed:
    of 415 µs warm a Winograd convolution with 9.4 MB of filters took 620 µs and more in a model.
    """
    constants = {o.tensor: o.tensor.nbytes for o in c.operands if o.tensor.constant} if target.cold else {}
    return sum(constants.values()) / (FETCH_SHARE * target.dram_gbs * 1e9)


def least_seconds(s: Structure, target: Target) -> float:
    """What no point of a structure can beat: multiply-adds alone, all lanes and threads busy, all borders left out."""
    total = 0.0
    packed = frozenset(stage.tensor for stage in s.stages if is_copy(stage))
    for stage in s.stages:
        if stage.level is not Level.LOAD:
            lanes = target.vector_bytes // stage.itemsize if stage.vector is not None else 1
            shares = [inside for o in stage_operands(stage, packed) for _, _, inside in o.borders]
            steps = prod(a.extent for a in (*stage.axes, *stage.reduce_axes)) / lanes * prod(shares)
            steps = steps * density(stage) if stage.unrolled else steps
            total += steps * body_cost(stage)[0] / (target.fma_per_cycle * target.threads * target.ghz * 1e9)
    return total


def prior(seconds: Num, code: Num, phases: int) -> Num:
    """Estimated seconds of a program from those of its stages, its instructions and its phases."""
    return seconds * (1.0 + code / CODE_SCALE) + FORK_SECONDS * phases


def phases(s: Structure) -> int:
    """How many phases a call runs."""
    return sum(stage.level is not Level.LOAD and stage.host is None for stage in s.stages)


def code_of(costs: list[StageCost]) -> Num:
    """Instructions of all stages."""
    return sum(c.code for c in costs)


def scratch_of(costs: list[StageCost]) -> Num:
    """Bytes of scratch: attached stages, and tiles whose outer reduction is cut."""
    scratch: Any = 0.0
    for c in costs:
        stage, t = c.tiling.stage, c.tiling
        if stage.host is not None:
            scratch = scratch + prod_of([t.extent[a] for a in stage.axes]) * stage.itemsize
        if nest_of(stage).is_blocked:
            scratch = (
                scratch + prod_of([minimum(t.reduction_tile(a), t.extent[a]) for a in stage.axes]) * stage.itemsize
            )
    return scratch


def _smallest(s: Structure, target: Target) -> list[StageCost]:
    """The costs of the point whose knobs all have their smallest choice."""
    values = {knob.name: knob.choices[0] for knob in knobs_of(s, target)}
    return bare_costs(s, tile_all(s, target.vector_bytes, values))


@lru_cache(maxsize=CACHED)
def most_code(s: Structure, target: Target) -> float:
    """The instructions that a program may have: as many as its smallest point needs, whatever its expressions are."""
    stages = [x for x in s.stages if x.level is not Level.LOAD]
    usual = MAX_INSTRUCTIONS * max(1, len(stages) ** 0.5)
    if not any(x.unrolled for x in stages) and sum(_most_of_one(x, target) for x in stages) <= usual:
        return usual  # no point can be that long at its smallest
    return max(usual, float(code_of(_smallest(s, target))))


def _most_of_one(stage: Stage, target: Target) -> float:
    """What one element of a stage takes at most: no load is dearer than one that gathers a vector."""
    body, finish = body_cost(stage)
    return body + finish + (2 * target.vector_bytes // stage.itemsize + 1) * len(stage.reads()) + 4


def fits_scratch(s: Structure, target: Target) -> bool:
    """Whether a structure has points whose scratch is not too large: its smallest point is one, or none is."""
    whole = sum(prod(a.extent for a in x.axes) * x.itemsize for x in s.stages if x.host is not None)
    return whole <= MAX_SCRATCH_BYTES // 2 or float(scratch_of(_smallest(s, target))) <= MAX_SCRATCH_BYTES


def own_demands(s: Structure, target: Target, costs: list[StageCost]) -> list[Num]:
    """The constraints on single stages as ratios: legal where none exceeds 1."""
    found: list[Num] = []
    panels = {stage.reader for stage in s.stages if is_copy(stage) and stage.host is None}
    for c in costs:
        stage, t = c.tiling.stage, c.tiling
        found.append(live_vectors(c) / target.vector_registers)
        found.append(variants(t) / float(MAX_REMAINDER_BODIES))
        if stage.host is not None and stage.vector in stage.axes and stage.id in panels:
            # A box must begin at a panel of what was packed for the whole tensor.
            width, box = t.vectors * t.lanes, t.extent[stage.vector]
            found.append(where(is_multiple(box, width) | (box >= stage.vector.extent), 0.0, 2.0))
    return found


def demands(s: Structure, target: Target, costs: list[StageCost]) -> list[Num]:
    """All constraints, those on the whole program included."""
    return [
        *own_demands(s, target, costs),
        code_of(costs) / most_code(s, target),
        scratch_of(costs) / MAX_SCRATCH_BYTES,
    ]


OPERANDS, LEVELS = 3, 5
FEATURES: tuple[str, ...] = (
    "prior",
    "fma",
    "load",
    "ends",
    "l2",
    "l3",
    "dram",
    "stages",
    "phases",
    "units",
    "imbalance",
    "code",
    "attached_bytes",
    "executed",
    "nominal",
    "tiles",
    "steps",
    "rows",
    "vectors",
    "accumulators",
    "loads",
    "reuse",
    "unroll",
    "peel",
    "turns",
    "blocks",
    "lane_use",
    "lines_per_set",
    "variants",
    "reduced",
    "gathers",
    "guards",
    *(
        f"operand{k}.{what}"
        for k in range(OPERANDS)
        for what in (*(f"box{n}" for n in range(LEVELS)), "l1", "l2", "l3", "stride")
    ),
    "other_steps",
    "other_seconds",
    "other_loads",
    "other_bytes",
    "recompute",
)


def features(s: Structure, target: Target, costs: list[StageCost]) -> list[Num]:
    """The `FEATURES` of points, before they are made logarithms."""
    seconds, terms = seconds_of(costs, target)
    total = prior(seconds, code_of(costs), phases(s))
    main = max(range(len(costs)), key=lambda k: _nominal(costs[k]))
    c, t = costs[main], costs[main].tiling
    stage = t.stage
    host = next(x for x in costs if x.tiling.stage.id == (stage.host or stage.id))
    others = [x for k, x in enumerate(costs) if k != main]
    bounds = [terms[main][name] * 1e9 for name in ("fma", "load", "ends", "l2", "l3", "dram")]
    inner = t.inner_reduce_trips(stage.reduce_axes[-1]) if stage.is_reduction else 1.0
    blocks = prod_of([t.outer_reduce_trips(a) for a in stage.reduce_axes]) if nest_of(stage).is_blocked else 1.0
    values: list[Num] = [
        total * 1e9,
        *bounds,
        float(len(costs)),
        float(sum(x.tiling.stage.host is None for x in costs)),
        host.parallel,
        _imbalance(host, target.threads) * 16.0,
        code_of(costs),
        sum(
            (prod_of([x.tiling.extent[a] for a in x.tiling.stage.axes]) * 4.0 for x in costs if x.tiling.stage.host),
            0.0,
        ),
        c.vector_steps * t.lanes,
        _nominal(c),
        c.tiles,
        c.steps,
        c.rows,
        c.vectors,
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
    values += _operand_features(c, target)
    values += [
        sum((x.vector_steps for x in others), 0.0),
        sum((_seconds(terms[k]) for k in range(len(costs)) if k != main), 0.0) * 1e9,
        sum((x.loads * x.steps for x in others), 0.0),
        sum((x.footprints[-1][-1] * x.executions for x in others), 0.0),
        sum((x.vector_steps * x.tiling.lanes / max(1.0, _nominal(x)) for x in others), 0.0),
    ]
    return values


def _nominal(c: StageCost) -> float:
    total = 1.0
    for a in (*c.tiling.stage.axes, *c.tiling.stage.reduce_axes):
        total *= a.extent
    return total


def _operand_features(c: StageCost, target: Target) -> list[Num]:
    """Boxes at five levels, traffic into three caches and stride of the three largest operands."""
    chosen = sorted(range(len(c.operands)), key=lambda k: -c.operands[k].tensor.nbytes)[:OPERANDS]
    values: list[Num] = []
    moved = moved_at(c)
    for k in chosen:
        sizes = c.footprints[k]
        picks = [sizes[min(len(sizes) - 1, round(i * (len(sizes) - 1) / (LEVELS - 1)))] for i in range(LEVELS)]
        stride = c.operands[k].stride
        into = [traffic(c, moved[k], capacity) for capacity in capacities(target)]
        values += [*picks, *into, float(stride if stride is not None else 4096)]
    return values + [0.0] * ((OPERANDS - len(chosen)) * (LEVELS + 4))
