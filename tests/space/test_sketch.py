"""Sketches, points and schedules: canonical rows, legality, replay, re-fitting to other shapes, rules of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from stormdrop.base.errors import ScheduleError
from stormdrop.builder.building import lowered
from stormdrop.codegen.emit import emit
from stormdrop.device.host import detect
from stormdrop.ir import build as sd
from stormdrop.ir.tensor import Task, axis, compute, reduce_axis, tensor
from stormdrop.operators.catalogue import build
from stormdrop.operators.contract import matmul_nd
from stormdrop.space.rules import RULES
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch, replay, sketches
from stormdrop.space.structure import DerivationStep
from stormdrop.target.cpu import cross
from tests.support import crew
from tests.support.own_rules import Reverse
from tests.support.tasks import NAMES, Rng, random_task
from tests.support.trials import GRAPHS
from tests.support.winograd import winograd_variant

SERVER = cross("avx512")
"""Four threads, as Ansor's tests assume, and the same on every machine."""


def random_sketches(count: int, seed: int = 0) -> Iterator[tuple[Sketch, Rng]]:
    """Sketches of random tasks, every operator alike."""
    for k in range(count):
        rng = np.random.default_rng([11, seed, k])
        task = random_task(NAMES[k % len(NAMES)], rng, long=rng.random() < 0.2)
        found = sketches(task, detect().with_threads(int(rng.choice([1, 2, 4]))))
        yield found[int(rng.integers(len(found)))], rng


def raw_points(sketch: Sketch, n: int, rng: Rng) -> Points:
    """Any combination of choices, not yet canonical."""
    if not sketch.knobs:
        return np.zeros((n, 0), np.int64)
    return np.stack([rng.choice(np.asarray(k.choices, np.int64), n) for k in sketch.knobs], axis=1)


def program_text(sketch: Sketch, row: Sequence[int] | Points) -> str:
    return str(lowered(sketch, row))


def test_canonical_changes_nothing_the_second_time() -> None:
    for sketch, rng in random_sketches(84):
        once = sketch.canonical(raw_points(sketch, 200, rng))
        np.testing.assert_array_equal(sketch.canonical(once), once)


def test_canonical_never_changes_the_program() -> None:
    for sketch, rng in random_sketches(84, seed=1):
        for row in raw_points(sketch, 12, rng):
            (clamped,) = sketch.canonical(row[None, :])
            if sketch.legal(clamped[None, :])[0]:
                assert program_text(sketch, row) == program_text(sketch, clamped)


def test_equal_programs_are_equal_rows() -> None:
    """Small extents, so that many rows meet."""
    for k in range(3 * len(NAMES)):
        rng = np.random.default_rng([12, k])
        task = random_task(NAMES[k % len(NAMES)], rng, most=400)
        found = sketches(task, detect().with_threads(2))
        sketch = found[int(rng.integers(len(found)))]
        rows = np.unique(sketch.canonical(raw_points(sketch, 200, rng)), axis=0)
        rows = rows[sketch.legal(rows)][:40]
        seen: dict[str, Points] = {}
        for row in rows:
            text = program_text(sketch, row)
            assert text not in seen, f"{sketch.values(row)} and {sketch.values(seen[text])} are one program\n{text}"
            seen[text] = row


def test_sampled_points_are_legal_canonical_and_distinct() -> None:
    for sketch, rng in random_sketches(84, seed=2):
        points = sketch.sample_legal(50, rng)
        assert 1 <= len(points) <= 50
        assert sketch.legal(points).all()
        assert len(np.unique(points, axis=0)) == len(points)
        np.testing.assert_array_equal(sketch.canonical(points), points)
        for column, knob in zip(points.T, sketch.knobs):
            assert column.min() >= min(knob.choices)
            assert column.max() <= max(knob.choices)


def test_the_same_seed_samples_the_same_points() -> None:
    for sketch, _ in random_sketches(28, seed=3):
        one, two = (sketch.sample_legal(20, np.random.default_rng(5)) for _ in range(2))
        np.testing.assert_array_equal(one, two)


def test_legal_points_always_generate_code() -> None:
    """Machine code is made of them, and run, by the property test."""
    for sketch, rng in random_sketches(84, seed=4):
        for row in sketch.sample_legal(2, rng):
            assert emit(lowered(sketch, row), sketch.target)


def test_matrices_say_of_each_row_what_they_say_of_it_alone() -> None:
    for sketch, rng in random_sketches(28, seed=5):
        points = sketch.sample(30, rng)
        for f in (sketch.legal, sketch.prior, sketch.features):
            together = f(points)
            alone = np.concatenate([f(points[i : i + 1]) for i in range(len(points))])
            np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_repair_makes_any_point_legal_and_keeps_legal_ones() -> None:
    for sketch, rng in random_sketches(56, seed=6):
        points = sketch.canonical(raw_points(sketch, 8, rng))
        mended = sketch.repair(points)
        assert sketch.legal(mended).all()
        kept = sketch.legal(points)
        np.testing.assert_array_equal(mended[kept], points[kept])
        np.testing.assert_array_equal(sketch.repair(points), mended)


def test_a_schedule_goes_through_json_and_replays_to_the_same_point() -> None:
    for sketch, rng in random_sketches(84, seed=7):
        for row in sketch.sample_legal(3, rng):
            schedule = sketch.schedule(row)
            again = Schedule.from_json(json.loads(json.dumps(schedule.to_json())))
            assert again == schedule
            assert hash(again) == hash(schedule)
            replayed, point = replay(sketch.task, again, sketch.target)
            np.testing.assert_array_equal(point, row)
            assert replayed.schedule(point) == schedule
            assert program_text(replayed, point) == program_text(sketch, row)


def test_a_schedule_of_one_shape_computes_any_other_shape_of_its_class() -> None:
    """A random point of one random shape, re-fitted to another: legal, and right."""
    seeds = [*range(1000, 1000 + 3 * len(NAMES)), *range(GRAPHS, GRAPHS + 2 * len(NAMES))]
    outcome = crew.run(seeds, crew.Orders(refit=True))
    assert outcome.points > 8 * len(NAMES)
    assert not outcome.failures, "\n\n".join(outcome.failures[:5])


def test_a_schedule_of_another_class_is_refused() -> None:
    sketch = sketches(build("GMM", (1, 8, 8, 8)), SERVER)[0]
    schedule = sketch.schedule(sketch.sample_legal(1, np.random.default_rng(0))[0])
    with pytest.raises(ScheduleError, match="class"):
        replay(build("DOT", (8,)), schedule, SERVER)


def test_an_unknown_rule_or_rule_version_is_refused() -> None:
    task = build("GMM", (1, 8, 8, 8))
    sketch = sketches(task, SERVER)[0]
    schedule = sketch.schedule(sketch.sample_legal(1, np.random.default_rng(0))[0])
    newer = replace(schedule, steps=tuple(replace(s, version=s.version + 1) for s in schedule.steps))
    with pytest.raises(ScheduleError, match="v2"):
        replay(task, newer, SERVER)
    with pytest.raises(ScheduleError, match="levitate"):
        replay(task, replace(schedule, steps=(DerivationStep("levitate", 1, "s0"), *schedule.steps)), SERVER)


# The vector axis


def _cast(*shape: int) -> Task:
    x, axes = tensor("X", shape, "i64"), tuple(axis(n) for n in shape)
    return Task([compute("Y", axes, sd.cast(x[axes], "i32"))])


def _row_sums(*shape: int) -> Task:
    x, axes = tensor("X", shape), [axis(n) for n in shape]
    k = reduce_axis(shape[1])
    return Task([compute("Y", (axes[0], *axes[2:]), sd.sum(x[(axes[0], k, *axes[2:])], k))])


ONES = {
    "cast 4x32x1": (lambda: _cast(4, 32, 1), {"s0.a1"}),
    "cast 4x1x1": (lambda: _cast(4, 1, 1), {"s0.a0"}),
    "cast 1x1": (lambda: _cast(1, 1), {"s0.a1"}),
    "cast 4x1x3": (lambda: _cast(4, 1, 3), {"s0.a2"}),
    "sums of 8x20x1": (lambda: _row_sums(8, 20, 1), {"s0.r0"}),
    "sums of 1x20x1": (lambda: _row_sums(1, 20, 1), {"s0.r0"}),
    "sums of 8x1x1": (lambda: _row_sums(8, 1, 1), {"s0.a0"}),
    "matrix times column": (lambda: _matmul(16, 1, 24), {"s0.a0", "s0.r0"}),
    "row times column": (lambda: _matmul(1, 1, 24), {"s0.r0"}),
    "convolution to one channel": (lambda: build("C2D", (1, 9, 9, 5, 1, 3, 1, 1)), {"s0.a3", "s1.a2", "s1.r2"}),
}


@pytest.mark.parametrize("isa", ["avx512", "avx2", "sse"])
@pytest.mark.parametrize("name", ONES)
def test_vectors_run_along_an_axis_of_extent_1_only_where_there_is_no_other(name: str, isa: str) -> None:
    """A dimension of extent 1 does not separate the one before it from its neighbour in memory."""
    task, expected = ONES[name][0](), ONES[name][1]
    chosen = {
        f"{stage.id}.{stage.axis_id(stage.vector)}"
        for sketch in sketches(task, cross(isa))
        for stage in sketch.structure.stages
        if stage.vector is not None and stage.reader is None
    }
    assert chosen <= expected
    assert chosen


def test_no_random_task_has_vectors_along_an_axis_of_extent_1_beside_a_longer_one() -> None:
    for sketch, _ in random_sketches(84, seed=8):
        for stage in sketch.structure.stages:
            longest = max((a.extent for a in (*stage.axes, *stage.reduce_axes)), default=1)
            assert stage.vector is None or stage.vector.extent > 1 or longest == 1, f"{stage.id} of {sketch.task}"


# A rule of one's own


def test_a_user_passes_a_rule_of_her_own() -> None:
    task = build("C1D", (1, 9, 5, 17, 3, 1, 1))
    usual, extended = sketches(task, SERVER), sketches(task, SERVER, rules=(*RULES, Reverse()))
    assert len(extended) == 2 * len(usual)
    turned = next(s for s in extended if any(step.rule == "reverse" for step in s.structure.steps))
    point = turned.sample_legal(1, np.random.default_rng(1))[0]
    schedule = turned.schedule(point)
    replayed, again = replay(task, schedule, SERVER, rules=(*RULES, Reverse()))
    np.testing.assert_array_equal(again, point)
    assert [a.name for a in replayed.structure.stage("s1").reduce_axes] == ["ci", "kw"]
    assert emit(lowered(replayed, again), SERVER)
    with pytest.raises(ScheduleError, match="reverse"):
        replay(task, schedule, SERVER)


# Sketch counts beside Ansor's


def _matmul(n: int, m: int, k: int) -> Task:
    return Task([matmul_nd(tensor("A", (n, k)), tensor("B", (k, m)))])


def _two_matmuls() -> Task:
    a, b, c = (tensor(name, (512, 512)) for name in "ABC")
    return Task([matmul_nd(matmul_nd(a, b), c)])


def _row_minimum() -> Task:
    i, k = axis(10), reduce_axis(1024)
    x = tensor("X", (10, 1024))
    return Task([compute("Y", i, sd.reduce_min(x[i, k], k))])


def _total() -> Task:
    k = reduce_axis(128)
    return Task([compute("Y", (), sd.sum(tensor("X", (128,))[k], k))])


def _winograd() -> Task:
    x, w = tensor("X", (1, 28, 28, 128)), tensor("W", (3, 3, 128, 128), constant=True)
    return Task(variants=[winograd_variant(x, w, 1, 4)])


@dataclass(frozen=True)
class Count:
    """One workload: its task, our number of sketches, Ansor's for a CPU of four cores, and why they differ."""

    task: Callable[[], Task]
    ours: int
    ansors: int
    reason: str


COUNTS = {
    "matmul 512³": Count(
        lambda: _matmul(512, 512, 512),
        4,
        3,
        "sums stay in registers, no cache write; B plain or packed at three levels",
    ),
    "matmul 8x8x512": Count(
        lambda: _matmul(8, 8, 512), 4, 5, "as above; a reduction of 512 is too short to be worth two phases"
    ),
    "two matmuls 512": Count(
        _two_matmuls, 28, 9, "the first in its own phase or in the second's thread tile, times the packings of both"
    ),
    "conv2d+bn+relu": Count(
        lambda: build("CBR", (1, 56, 56, 512, 512, 3, 1, 1)),
        3,
        3,
        "always finished in registers; the border is tested, copied per thread or copied at once",
    ),
    "max_pool2d": Count(lambda: build("MXP", (1, 56, 56, 512, 3, 2, 1)), 1, 1, "the pad is inlined"),
    "min over (10, 1024)": Count(_row_minimum, 1, 3, "vectors along the row; 1,024 is too short for rfactor"),
    "softmax (1, 1024)": Count(
        lambda: build("SFM", (1, 1024)), 2, 9, "exp once or twice; a single row shares no thread tile"
    ),
    "winograd F(4,3)": Count(
        _winograd, 10, 3, "pad inlined or copied, transforms in phases of their own or in the thread tile"
    ),
    "zero-rank sum 128": Count(_total, 1, 3, "128 elements are too few for rfactor"),
    "matrix norm (1, 256, 256)": Count(
        lambda: build("NRM", (1, 256, 256)),
        2,
        3,
        "rfactor or not; into how many parts is a knob",
    ),
}


def test_sketch_counts_stand_beside_ansors() -> None:
    found = {name: len(sketches(count.task(), SERVER)) for name, count in COUNTS.items()}
    for name, count in COUNTS.items():
        print(f"{name:28} ours {found[name]:3}   Ansor {count.ansors:3}   {count.reason}")
    assert found == {name: count.ours for name, count in COUNTS.items()}


def test_a_convolution_has_a_million_legal_distinct_programs() -> None:
    """By the birthday estimate: n legal draws with c equal pairs come from about n²/2c programs, from more if not all
    are alike.
    """
    sketch = sketches(build("C2D", (1, 14, 14, 256, 256, 3, 1, 1)), SERVER)[0]
    rng = np.random.default_rng(0)
    drawn = sketch.canonical(raw_points(sketch, 150_000, rng))
    drawn = drawn[sketch.legal(drawn)]
    _, times = np.unique(drawn, axis=0, return_counts=True)
    pairs = int(np.sum(times * (times - 1) // 2))
    estimate = len(drawn) ** 2 / (2 * max(1, pairs))
    print(
        f"{len(drawn)} legal of 150,000 drawn, {pairs} equal pairs: at least {estimate:.3g} programs in the first of "
        "its sketches"
    )
    assert estimate >= 1e6
