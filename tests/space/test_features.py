"""What features count equals what running the lowered program's loops counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from stormdrop.builder.building import lowered
from stormdrop.device.host import detect
from stormdrop.ir.affine import affine
from stormdrop.ir.expr import Axis
from stormdrop.space.access import Operand, axes_of, is_linear
from stormdrop.space.cpu_judge import FEATURES
from stormdrop.space.footprint import StageCost
from stormdrop.space.nest import LoopLevel, nest_of
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.space.structure import ComputeAt
from stormdrop.target.coefficients import CPU_COEFFICIENTS
from tests.support.costs import stage_costs
from tests.support.tasks import NAMES, random_task
from tests.support.walker import Visit, Walk, walk_program

POINTS = 1000
MAX_WORK = 6000


class Sample:
    """One point: its costs by the features' arithmetic, and the walk over its program."""

    def __init__(self, sketch: Sketch, row: tuple[int, ...]) -> None:
        self.sketch, self.row = sketch, row
        self.costs = {c.tiling.stage.id: c for c in stage_costs(sketch, np.array([row], np.int64))}
        self.walks = walk_program(lowered(sketch, row))

    def stages(self) -> Iterator[tuple[StageCost, Walk]]:
        for id, cost in self.costs.items():
            yield cost, self.walks[id]

    def __str__(self) -> str:
        return f"{self.sketch.task.name}\n{self.sketch.schedule(self.row)}"


@cache
def samples() -> tuple[Sample, ...]:
    """Two points of up to three sketches of small random tasks, all operators alike."""
    found: list[Sample] = []
    seed = 0
    while len(found) < POINTS:
        rng = np.random.default_rng([7, seed])
        task = random_task(NAMES[seed % len(NAMES)], rng, "f64" if seed % 7 == 6 else "f32", most=MAX_WORK)
        target = detect().with_isa(
            str(rng.choice(["avx2", "sse"])) if detect().isa in ("avx512", "avx2") else detect().isa
        )
        drawn = sketches(task, target.with_threads(2))
        for k in rng.permutation(len(drawn))[:3]:
            found += [Sample(drawn[k], tuple(int(x) for x in p)) for p in drawn[k].sample_legal(2, rng)]
        seed += 1
    return tuple(found[:POINTS])


def scalar(x: object) -> float:
    return float(np.asarray(x).reshape(-1)[0])


def is_even(walk: Walk) -> bool:
    """Whether every execution of an attached nest covers a box of the same size."""
    by_host: Counter[tuple[object, ...]] = Counter()
    for v in walk.visits:
        by_host[v.loops[: host_depth(v)]] += math.prod(n for _, n in v.stretch.values())
    return len(set(by_host.values())) <= 1


def is_regular(s: Sample, cost: StageCost) -> bool:
    """Whether all boxes that a stage is computed in are alike: its own, and those of the attached stages it is computed
    for.
    """
    stage = cost.tiling.stage
    if stage.host is None:
        return True
    readers = [r for r in s.sketch.at(s.sketch.values(s.row)).readers(stage.tensor) if r.host is not None]
    return is_even(s.walks[stage.id]) and all(is_regular(s, s.costs[r.id]) for r in readers)


def host_depth(v: Visit) -> int:
    """How many of the loops around a tile belong to its host."""
    own = v.tile.stage.id
    return sum(f"_{own}" not in var.name for var, _ in v.loops)


def test_a_thousand_points_are_compared() -> None:
    assert len(samples()) == POINTS
    assert {s.sketch.task.name.split()[0] for s in samples()} == set(NAMES)


def test_executions_are_counted_exactly() -> None:
    for s in samples():
        for cost, walk in s.stages():
            stage = cost.tiling.stage
            if stage.level is ComputeAt.UNIT or (stage.level is ComputeAt.REDUCE_BLOCK and is_regular(s, cost)):
                assert walk.entries == scalar(cost.executions), f"{stage.id} of {s}"
            elif stage.host is not None:
                assert walk.entries <= scalar(cost.executions), f"{stage.id} of {s}"


def test_tiles_steps_and_body_instances_are_counted_exactly() -> None:
    for s in samples():
        for cost, walk in s.stages():
            counted = walk.tiles, walk.steps, walk.body_instances
            featured = scalar(cost.tiles), scalar(cost.steps), scalar(cost.vector_steps)
            if is_regular(s, cost):
                assert counted == featured, f"{cost.tiling.stage.id} of {s}"
            else:  # a box at the end is smaller than the features say
                assert all(a <= b for a, b in zip(counted, featured)), f"{cost.tiling.stage.id} of {s}"


def test_no_point_of_the_iteration_space_is_computed_twice_or_left_out() -> None:
    for s in samples():
        for cost, walk in s.stages():
            stage = cost.tiling.stage
            whole = math.prod(a.extent for a in (*stage.axes, *stage.reduce_axes))
            assert walk.lanes_live == whole if stage.host is None else walk.lanes_live >= 1, f"{stage.id} of {s}"


def test_lane_use_is_the_share_of_lanes_that_are_live() -> None:
    for s in samples():
        for cost, walk in s.stages():
            if cost.tiling.stage.host is None and cost.tiling.stage.vector is not None:
                used = walk.lanes_live / (walk.body_instances * cost.tiling.lanes)
                assert used == pytest.approx(scalar(cost.lane_use)), f"{cost.tiling.stage.id} of {s}"


def rolled(cost: StageCost) -> list[LoopLevel]:
    """The loops that turn more than once, outermost first."""
    return [slot for slot in nest_of(cost.tiling.stage).order if scalar(cost.tiling.trips[slot]) > 1]


def axis_of(v: Visit, position: int) -> Axis:
    var = v.loops[position][0]
    return next(a for a, form in v.tile.base.items() if form.coefficient(var))


def test_trip_counts_are_those_of_the_loops() -> None:
    for s in samples():
        for cost, walk in s.stages():
            stage, slots = cost.tiling.stage, rolled(cost)
            first = walk.visits[0]
            skip = host_depth(first) if stage.host is not None else 0
            outer = [slot for slot in slots if not (slot.axis.kind == "reduce" and is_innermost(cost, slot))]
            loops = first.loops[skip:]
            turning = [k for k in range(len(loops)) if max(v.loops[skip + k][1] for v in walk.visits) > 0]
            assert [axis_of(first, skip + k) for k in turning] == [slot.axis for slot in outer], f"{stage.id} of {s}"
            most = [1 + max(v.loops[skip + k][1] for v in walk.visits) for k in turning]
            assert most == [scalar(cost.tiling.trips[slot]) for slot in outer], f"{stage.id} of {s}"


def is_innermost(cost: StageCost, slot: LoopLevel) -> bool:
    levels = [x.number for x in nest_of(cost.tiling.stage).order if x.axis is slot.axis]
    return slot.number == max(levels)


def box(o: Operand, stretches: list[dict[Axis, tuple[int, int]]]) -> float:
    """Bytes of the box that an operand's indices cover; what is not packed has its last dimension rounded up to a cache
    line.
    """
    ends: dict[Axis, tuple[int, int]] = {}
    for stretch in stretches:
        for a, (first, n) in stretch.items():
            low, high = ends.get(a, (first, first + n - 1))
            ends[a] = min(low, first), max(high, first + n - 1)
    size = float(o.itemsize)
    if o.packed:
        return size * math.prod(ends[a][1] - ends[a][0] + 1 for a in o.axes)
    for d in range(len(o.indices) - 1, -1, -1):
        form = affine(o.indices[d])
        reach = sum(abs(c) * (ends[a][1] - ends[a][0]) for a, c in form.terms if isinstance(a, Axis))
        size *= min(reach + 1, o.tensor.shape[d])
        if d == len(o.indices) - 1:
            size = max(size, min(CPU_COEFFICIENTS.line_bytes, o.tensor.shape[d] * o.itemsize))
    return size


def first_turn(cost: StageCost, walk: Walk, fixed: list[LoopLevel]) -> list[dict[Axis, tuple[int, int]]]:
    """What is covered while the loops `fixed` stand at their first turn and all others run."""
    stage = cost.tiling.stage
    depth = host_depth(walk.visits[0]) if stage.host is not None else 0
    held = [
        k
        for k, slot in enumerate(s for s in rolled(cost) if not is_innermost(cost, s) or s.axis.kind == "spatial")
        if slot in fixed
    ]
    turning = [k for k in range(depth, len(walk.visits[0].loops)) if max(v.loops[k][1] for v in walk.visits) > 0]
    first = [*range(depth), *(turning[k] for k in held)]
    found: list[dict[Axis, tuple[int, int]]] = []
    for v in walk.visits:
        if any(v.loops[k][1] for k in first):
            continue
        stretch = dict(v.stretch)
        for loop in v.reduce:
            if any(slot.axis is loop.axis and is_innermost(cost, slot) for slot in fixed):
                at, n = stretch[loop.axis]
                stretch[loop.axis] = at, min(n, loop.step)
        found.append(stretch)
    return found


def test_footprints_are_the_boxes_that_the_loops_cover() -> None:
    compared = 0
    for s in samples():
        for cost, walk in s.stages():
            for p in range(len(cost.boxes.loops) + 1):
                covered = first_turn(cost, walk, cost.boxes.loops[p:])
                for k, o in enumerate(cost.operands):
                    if is_linear(o.indices):
                        compared += 1
                        assert scalar(cost.boxes.footprints[k][p]) == box(o, covered), (
                            f"{o.tensor.name} at {p} of {cost.tiling.stage.id} of {s}"
                        )
    assert compared > 10 * POINTS


def test_a_load_slot_is_counted_for_every_distinct_element_of_the_register_tile() -> None:
    """A contiguous vector is one slot, a broadcast half a slot or, by an instruction of its own, more than one; sliding
    windows and gathers are estimates.
    """
    compared = 0
    for s in samples():
        for cost, walk in s.stages():
            stage, lanes = cost.tiling.stage, cost.tiling.lanes
            tile = walk.visits[0].tile
            reads = [o for o in cost.operands[:-1] if stage.vector is not None]
            slides = any(
                len(set(stage.reduce_axes) & axes_of(i)) and len(set(stage.axes) & axes_of(i))
                for o in reads
                for i in o.indices
            )
            if not reads or slides or any(o.stride not in (0, 1) or not is_linear(o.indices) for o in reads):
                continue
            broadcast = 0.5 if s.sketch.target.isa == "avx512" else 1.2
            slots = 0.0
            for o in reads:
                rows = math.prod(n for a, n in tile.rows if a in o.axes)
                slots += rows * (tile.vectors if stage.vector in o.axes else broadcast if lanes > 1 else 1.0)
            compared += 1
            assert scalar(cost.loads) == pytest.approx(slots), f"{stage.id} of {s}"
    assert compared > POINTS // 4


def test_the_feature_columns_hold_these_counts() -> None:
    for s in samples()[::5]:
        row = dict(zip(FEATURES.names, s.sketch.features(np.array([s.row], np.int64))[0]))
        costs = list(s.costs.values())
        main = max(
            costs, key=lambda c: math.prod(a.extent for a in (*c.tiling.stage.axes, *c.tiling.stage.reduce_axes))
        )
        walk, stage = s.walks[main.tiling.stage.id], main.tiling.stage
        program = lowered(s.sketch, s.row)
        phases = [p for p in program.phases if not p.at_load]
        whole = math.prod(a.extent for a in (*stage.axes, *stage.reduce_axes))
        wanted = {"stages": len(costs), "phases": len(phases), "nominal": whole}
        if stage.host is None:
            wanted |= {
                "units": next(p.extent for p in phases if p.name == stage.id),
                "tiles": walk.tiles,
                "steps": walk.steps,
            }
            wanted["executed"] = walk.body_instances * main.tiling.lanes
        for name, value in wanted.items():
            assert row[name] == pytest.approx(math.log2(1 + value)), f"{name} of {s}"
