"""The features of a program on a CPU: the terms of the estimate and their inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stormdrop.space.columns import Num, maximum, prod_of
from stormdrop.space.features import FeatureSet
from stormdrop.space.footprint import StageCost, variants
from stormdrop.space.nest import nest_of

if TYPE_CHECKING:
    from stormdrop.space.cpu_judge import CpuAssessment

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
    ratios=(
        ("prior", "nominal"),
        ("executed", "nominal"),
        ("code", "nominal"),
        ("tiles", "units"),
        ("steps", "tiles"),
    ),
)
"""Unprefixed names describe the stage with the most work; `other_*` aggregates all other stages."""


def features(a: CpuAssessment) -> list[Num]:
    """Returns the `FEATURES` of points, before log2(1 + x)."""
    costs, terms = a.costs, a.terms
    main = max(range(len(costs)), key=lambda k: _nominal(costs[k]))
    c, t = costs[main], costs[main].tiling
    stage = t.stage
    host = next(x for x in costs if x.stage.id == (stage.host or stage.id))
    others = [x for k, x in enumerate(costs) if k != main]
    bounds = [terms[main][name] * 1e9 for name in BOUNDS]
    inner = t.inner_reduce_trips(stage.reduce_axes[-1]) if stage.is_reduction else 1.0
    blocks = prod_of([t.outer_reduce_trips(a) for a in stage.reduce_axes]) if nest_of(stage).is_blocked else 1.0
    values: list[Num] = [
        a.prior * 1e9,
        *bounds,
        float(len(costs)),
        float(sum(x.stage.host is None for x in costs)),
        host.parallel,
        a.imbalance[stage.host or stage.id] * 16.0,
        a.code,
        sum(
            (prod_of([x.tiling.extent[a] for a in x.stage.axes]) * 4.0 for x in costs if x.stage.host),
            0.0,
        ),
        c.vector_steps * t.lanes,
        _nominal(c),
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
    values += _operand_features(c, a.capacities)
    values += [
        sum((x.vector_steps for x in others), 0.0),
        sum((a.stage_seconds(terms[k]) for k in range(len(costs)) if k != main), 0.0) * 1e9,
        sum((x.loads * x.steps for x in others), 0.0),
        sum((x.boxes.footprints[-1][-1] * x.executions for x in others), 0.0),
        sum((x.vector_steps * x.tiling.lanes / max(1.0, _nominal(x)) for x in others), 0.0),
    ]
    return values


def _nominal(c: StageCost) -> float:
    total = 1.0
    for a in (*c.stage.axes, *c.stage.reduce_axes):
        total *= a.extent
    return total


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
