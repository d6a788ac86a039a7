"""The features of a program on a GPU: the terms of the estimate and their inputs."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from stormdrop.space.columns import Num, maximum, prod_of, sum_of
from stormdrop.space.features import FeatureSet
from stormdrop.space.nest import is_copy

if TYPE_CHECKING:
    from stormdrop.space.gpu_judge import GpuAssessment, PhaseCost

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


def _nominal(phase: PhaseCost) -> float:
    return float(sum(prod(a.extent for a in (*c.stage.axes, *c.stage.reduce_axes)) for c in phase.stages))


def features(a: GpuAssessment) -> list[Num]:
    """Returns the `FEATURES` of points, before log2(1 + x)."""
    phases = a.phases
    main = max(phases, key=_nominal)
    c = main.root
    others = [phase for phase in phases if phase is not main]
    values: list[Num] = [a.prior * 1e9, *(main.terms[name] * 1e9 for name in BOUNDS)]
    values += [float(len(phases)), float(len(a.structure.stages)), main.blocks, main.threads, main.warps, main.resident]
    values += [main.registers, main.shared_bytes, main.code]
    values += [c.accumulators, c.instances, float(c.tiling.lanes), c.steps, c.reduce_blocks, c.tiling.unroll]
    values += [c.tiling.peel, c.tiling.depth, c.tiles, c.tiling.reduce_threads]
    copies = [x.tiling for x in main.inside if is_copy(x.stage)]
    values += [
        c.tiling.residents,
        c.tiling.group,
        sum_of([t.layout for t in copies]),
        prod_of([t.pieces for t in copies]),
    ]
    values += [c.thread_instructions, c.step_instructions, main.l2_bytes, _nominal(main)]
    loads = c.loads[:OPERANDS]
    for o, n, width in loads:
        values += [n, width, float(c.is_coalesced(o))]
    values += [0.0] * (3 * (OPERANDS - len(loads)))
    most_blocks: Num = 0.0
    for phase in others:
        most_blocks = maximum(most_blocks, phase.blocks)
    values += [sum_of([phase.seconds for phase in others]) * 1e9, most_blocks]
    return values
