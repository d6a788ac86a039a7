"""What features count equals what running the lowered program's loops counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pytest

from stormdrop.ir.expr import Axis
from stormdrop.lower.lower import lower
from stormdrop.space.analysis import FEATURES, stage_costs
from stormdrop.space.footprint import LINE, Operand, StageCost
from stormdrop.space.nest import Slot, nest_order
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.target.machine import detect
from tests.support.tasks import NAMES, random_task
from tests.support.walker import Visit, Walk, values_of, walk_program

POINTS = 1000
MAX_WORK = 6000


class Sample:
    """One point: its costs by the features' arithmetic, and the walk over its program."""

    def __init__(self, sketch: Sketch, row: tuple[int, ...]) -> None:
        self.sketch, self.row = sketch, row
        columns = sketch.columns(np.array([row], np.int64))
        self.costs = {c.tiling.stage.id: c for c in stage_costs(sketch.structure, sketch.target, columns)}
        self.walks = walk_program(lower(sketch.task, sketch.structure, sketch.tilings(sketch.values(row))))

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
        target = detect().with_isa(str(rng.choice(["avx2", "sse"])) if detect().isa in ("avx512", "avx2") else detect().isa)
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
            if cost.tiling.stage.host is not None:
                assert walk.entries == scalar(cost.executions), s


def test_tiles_steps_and_body_instances_are_counted_exactly() -> None:
    for s in samples():
        for cost, walk in s.stages():
            counted = walk.tiles, walk.steps, walk.body_instances
            featured = scalar(cost.tiles), scalar(cost.steps), scalar(cost.vector_steps)
            if cost.tiling.stage.host is None or is_even(walk):
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


def rolled(cost: StageCost) -> list[Slot]:
    """The loops that turn more than once, outermost first."""
    return [slot for slot in nest_order(cost.tiling.stage) if scalar(cost.tiling.trips[slot]) > 1]


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


def is_innermost(cost: StageCost, slot: Slot) -> bool:
    levels = [x.level for x in nest_order(cost.tiling.stage) if x.axis is slot.axis]
    return slot.level == max(levels)


def box(o: Operand, visits: list[Visit], reduce: Mapping[Axis, int] | None) -> float:
    """Bytes of the box that an operand's indices cover in some visits, a last dimension rounded up to a cache line.

    `reduce` cuts the reduce loops inside the tile to so many elements.
    """
    spans: list[set[int]] = [set() for _ in o.indices]
    points: set[tuple[int, ...]] = set()
    for v in visits:
        stretch = {a: (at, min(n, reduce[a]) if reduce and a in reduce else n) for a, (at, n) in v.stretch.items()}
        if o.packed:
            points |= {tuple(x) for x in np.stack(np.meshgrid(*(np.arange(at, at + n) for a, (at, n) in stretch.items() if a in o.axes), indexing="ij"), -1).reshape(-1, len(o.axes)).tolist()}  # noqa: E501
        else:
            for d, i in enumerate(o.indices):
                spans[d] |= values_of(i, stretch)
    if o.packed:
        return len(points) * o.itemsize
    size = float(o.itemsize)
    for d in range(len(o.indices) - 1, -1, -1):
        size *= min(max(spans[d]) - min(spans[d]) + 1, o.tensor.shape[d])
        if d == len(o.indices) - 1:
            size = max(size, min(LINE, o.tensor.shape[d] * o.itemsize))
    return size
