"""The default schedule: legal, always the same, and not improved by any single move worth the name."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop.base.errors import ScheduleError
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.partition import partition
from stormdrop.operators.catalogue import build
from stormdrop.space.default import GAIN, default_point, default_schedule, ranked
from stormdrop.space.judge import arithmetic_seconds, judge_of, least_seconds
from stormdrop.space.knobs import neighbour_rows
from stormdrop.space.rules import RULES
from stormdrop.space.sketch import replay, sketches
from stormdrop.target.cpu import cross
from stormdrop.target.gpu import gpu
from tests.support.graphs import graph_of
from tests.support.tasks import random_task

TARGET = cross("avx512")
CASES = [
    ("GMM", [1, 128, 128, 128]),
    ("C2D", [1, 14, 14, 64, 64, 3, 1, 1]),
    ("SFM", [64, 256]),
    ("DEP", [1, 14, 14, 64, 3, 1, 1]),
]


@pytest.mark.parametrize(("name", "args"), CASES)
def test_no_single_move_improves_the_default_by_much(name: str, args: list[int]) -> None:
    task = build(name, args)
    sketch, point = replay(task, default_schedule(task, TARGET), TARGET)
    (here,) = sketch.assess(point[None])
    around = sketch.assess(sketch.canonical(neighbour_rows(sketch.knobs, point.tolist())[1]))
    assert np.isfinite(here)
    assert around.min() >= here * (1 - 1.01 * GAIN)


@pytest.mark.parametrize(("name", "args"), CASES)
def test_the_default_beats_a_thousand_random_points(name: str, args: list[int]) -> None:
    task = build(name, args)
    sketch, point = replay(task, default_schedule(task, TARGET), TARGET)
    best = min(s.prior(s.sample_legal(1000, np.random.default_rng(9))).min() for s in sketches(task, TARGET))
    assert sketch.prior(point[None])[0] <= best


def test_the_same_task_gets_the_same_schedule() -> None:
    one, two = (default_schedule(build("C2D", [1, 7, 7, 32, 32, 3, 1, 1]), TARGET) for _ in range(2))
    assert one == two


@pytest.mark.parametrize("name", ["WIN", "TBG", "CHN", "EXW", "DOT", "INT", "CAP"])
def test_every_sketch_is_ranked_with_a_legal_point_and_its_estimate(name: str) -> None:
    found = sketches(random_task(name, np.random.default_rng(4)), TARGET)
    best = ranked(found, samples=64)
    assert {id(s) for s, _, _ in best} == {id(s) for s in found}
    others = [seconds for _, _, seconds in best[1:]]
    assert others == sorted(others)
    for sketch, point, seconds in best:
        assert np.array_equal(sketch.canonical(point[None])[0], point)
        assert sketch.assess(point[None])[0] == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize(("n", "channels"), [(54, 16), (27, 32), (13, 64)])
def test_a_ranking_begins_with_the_default_schedule(n: int, channels: int) -> None:
    b, ones = GraphBuilder(), (1, 1)
    x, w = b.input("x", (1, n, n, channels), "f32"), b.constant(np.ones((3, 3, channels, 4 * channels), np.float32))
    shape = {"kernel": (3, 3), "strides": ones, "dilations": ones, "before": ones, "after": ones}
    (use,) = partition(graph_of(b, b.emit("Conv", x, w, **shape, groups=1, layout="NHWC"))).tasks
    assert len(use.task.variants) > 1
    sketch, point, _ = ranked(sketches(use.task, TARGET))[0]
    assert sketch.schedule(point) == default_schedule(use.task, TARGET)


def test_no_sketch_is_an_error() -> None:
    with pytest.raises(ScheduleError, match="no sketch"):
        ranked([])


def test_a_variant_is_left_out_only_where_it_cannot_win() -> None:
    for seed in range(4):
        task = random_task("WIN", np.random.default_rng(seed))
        for sketch in sketches(task, TARGET):
            points = sketch.sample_legal(50, np.random.default_rng(seed))
            assert judge_of(TARGET).least_seconds(sketch.structure) <= sketch.prior(points).min()


def test_the_default_of_a_task_is_searched_once_and_cannot_be_changed() -> None:
    task = build("GMM", (1, 16, 16, 16))
    sketch, point = default_point(task, TARGET)
    assert default_point(task, TARGET, list(RULES))[0] is sketch
    assert default_point(task, TARGET.with_threads(TARGET.threads + 1))[0] is not sketch
    with pytest.raises(ValueError, match="read-only"):
        point[0] = 1


def test_the_least_time_of_a_task_is_its_operations_or_its_bytes_at_full_rate() -> None:
    product, total = build("GMM", (1, 2048, 2048, 2048)), build("DOT", (1 << 20,))
    assert least_seconds(product, TARGET) == arithmetic_seconds(product, TARGET) / TARGET.threads
    assert least_seconds(product, gpu()) == pytest.approx(2 * 2048**3 / (gpu().peak_gflops * 1e9))
    assert least_seconds(total, TARGET) == pytest.approx(total.minimal_bytes / (TARGET.l3_gbs * 1e9))
