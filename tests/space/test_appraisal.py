"""What is asked of many points at once equals the formulas, run on the points' arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.device.host import detect
from stormdrop.space.columns import Num
from stormdrop.space.judge import CHUNK, judge_of
from stormdrop.space.sketch import Sketch, sketches
from tests.support.costs import assessed
from tests.support.tasks import NAMES, random_task


def drawn(name: str) -> list[Sketch]:
    rng = np.random.default_rng([11, len(name), ord(name[0])])
    found = sketches(random_task(name, rng), detect().with_threads(2))
    return [found[k] for k in rng.permutation(len(found))[:3]]


def rows(values: Sequence[Num], count: int) -> NDArray[np.float64]:
    """Numbers that are the same at all points, and columns, as one matrix."""
    return np.stack([np.broadcast_to(v, count) for v in values])


@pytest.mark.parametrize("name", NAMES)
def test_programs_give_the_bits_of_the_formulas_on_arrays(name: str) -> None:
    for sketch in drawn(name):
        points = sketch.draw(30, np.random.default_rng(5))  # not canonical: it makes no difference
        expected = assessed(sketch, points)
        legal = np.ones(len(points), bool)
        for demand in expected.demands:
            legal &= np.asarray(demand) <= 1.0
        assert np.array_equal(sketch.prior(points), np.broadcast_to(expected.prior, len(points)))
        assert np.array_equal(sketch.legal(points), legal)
        assert np.array_equal(sketch.assess(points), np.where(legal, expected.prior, np.inf))
        assert np.array_equal(sketch.features(points), np.log2(rows(expected.features, len(points)).T + 1.0))
        assert np.array_equal(sketch.amounts(points), rows(expected.amounts, len(points)))


def test_points_beyond_one_chunk_are_judged_as_alone() -> None:
    (sketch,) = sketches(random_task("GMM", np.random.default_rng(1)), detect().with_threads(2))[:1]
    points = sketch.sample(CHUNK + 100, np.random.default_rng(0))
    for ask in (sketch.canonical, sketch.prior, sketch.assess, sketch.features):
        whole = ask(points)
        assert np.array_equal(whole[CHUNK - 5 : CHUNK + 5], ask(points[CHUNK - 5 : CHUNK + 5]))
    assert len(sketch.prior(points[:0])) == len(sketch.legal(points[:0])) == 0


@pytest.mark.parametrize("name", ["C2D", "SFM", "TBG", "WIN", "CHN", "DEN"])
def test_parts_share_no_knob_and_add_up_to_the_sketch(name: str) -> None:
    for sketch in drawn(name):
        parts = sketch.components()
        assert sorted(n for p in parts for n in p.names) == sorted(sketch.names)
        points = sketch.sample(20, np.random.default_rng(2))
        amounts = np.sum([p.amounts(points[:, [sketch.names.index(n) for n in p.names]]) for p in parts], axis=0)
        combined = judge_of(sketch.target).combined(sketch.structure, amounts)
        assert combined == pytest.approx(sketch.assess(points), rel=1e-12)


def test_sketches_of_a_task_share_stages() -> None:
    """Winograd's sketches differ in few of their parts: each is searched once."""
    found = sketches(random_task("WIN", np.random.default_rng(0)), detect().with_threads(2))
    parts = [p.structure.stages for s in found for p in s.components()]
    assert len(set(parts)) < 0.6 * len(parts)
