"""What the estimate charges for data that one core reads and another one wrote."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from stormdrop.operators.catalogue import build
from stormdrop.space.columns import Num
from stormdrop.space.footprint import StageCost
from stormdrop.space.nest import LoopLevel
from stormdrop.space.sketch import sketches
from stormdrop.target.cpu import Cpu, cross
from tests.support.costs import stage_costs

THREADS = 4


def _one(n: Num) -> float:
    """The value of a column of one row."""
    return float(np.asarray(n).ravel()[0])


def _fetched_by_threads(cost: StageCost) -> dict[bool, float]:
    """By whether an operand is constant: the boxes of units that each thread meets, counted one by one."""
    loops = [loop for loop in cost.boxes.loops if loop in {LoopLevel(a, 0) for a in cost.stage.axes}]
    first = cost.boxes.loops.index(loops[0])
    trips = [int(_one(cost.tiling.trips[loop])) for loop in reversed(loops)]
    units = list(product(*map(range, trips)))
    run = -(-len(units) // min(THREADS, len(units)))
    found = {True: 0.0, False: 0.0}
    for o, footprint in zip(cost.operands, cost.boxes.footprints):
        own = [k for k, loop in enumerate(reversed(loops)) if loop.axis in o.axes]
        for start in range(0, len(units), run):
            boxes = {tuple(unit[k] for k in own) for unit in units[start : start + run]}
            found[o.tensor.constant] += len(boxes) * _one(footprint[first])
    return found


def test_bytes_between_cores_are_those_of_the_boxes_that_threads_meet() -> None:
    """Exactly where threads have runs of whole rows of units; elsewhere a run may reach into one more row."""
    task = build("GMM", (1, 512, 1024, 8))
    rng = np.random.default_rng(0)
    exact = 0
    for sketch in sketches(task, cross("avx2").with_threads(THREADS)):
        for point in sketch.sample_legal(200, rng):
            for cost in stage_costs(sketch, point[None]):
                if cost.stage.host is not None or _one(cost.parallel) < THREADS:
                    continue
                counted, given = _fetched_by_threads(cost), cost.fetched(THREADS, ())
                for is_constant, value in zip((True, False), map(_one, given)):
                    assert value <= 2 * counted[is_constant]
                    assert counted[is_constant] <= 2 * value
                    exact += value == counted[is_constant]
    assert exact > 40


@pytest.fixture
def slow() -> Cpu:
    """A machine on which what another core wrote comes at a tenth of the shared cache's rate."""
    target = cross("avx512").with_threads(THREADS)
    return replace(target, handover_gbs=target.l3_gbs / 10)


def test_a_kernel_of_several_phases_is_estimated_slower_where_cores_hand_over_slowly(slow: Cpu) -> None:
    """A softmax in one phase hands over its input and output alone."""
    fast = replace(slow, handover_gbs=slow.l3_gbs)
    task = build("TBG", (1, 64, 4, 32))
    rates: list[tuple[int, float]] = []
    for here, there in zip(sketches(task, fast), sketches(task, slow)):
        assert here.structure.steps == there.structure.steps
        point = here.sample_legal(1, np.random.default_rng(1))
        if len(point):
            rates.append((len(here.structure.roots), float(there.prior(point)[0] / here.prior(point)[0])))
    assert all(rate >= 1.0 for _, rate in rates)
    few, many = min(n for n, _ in rates), max(n for n, _ in rates)
    assert few < many
    mean = {n: float(np.mean([rate for phases, rate in rates if phases == n])) for n in (few, many)}
    assert mean[many] > mean[few] > 1.0
