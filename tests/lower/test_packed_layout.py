"""Constants packed alike by tasks that differ in a run-time extent."""

from __future__ import annotations

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.base.codec import decode, encode
from stormdrop.builder.building import artifact_of, lowered
from stormdrop.device.host_device import host_device
from stormdrop.ir.interp import evaluate
from stormdrop.lower.packed_layout import PackedLayout, layout_of, sharing_point
from stormdrop.model.prepared import PreparedKernel
from stormdrop.space.default import default_point
from stormdrop.space.sketch import sketches
from stormdrop.target.cpu import cross
from stormdrop.target.machine import Target

TARGET = cross("avx512").with_threads(2)


def product(rows: int, columns: int = 96, inner: int = 40) -> sd.Task:
    a, b = sd.tensor("x0", (rows, inner)), sd.tensor("x1", (inner, columns), constant=True)
    i, j, k = sd.axis(rows), sd.axis(columns), sd.reduce_axis(inner)
    return sd.Task([sd.compute("out", (i, j), sd.sum(a[i, k] * b[k, j], k))])


def layouts(task: sd.Task, target: Target = TARGET) -> set[PackedLayout]:
    found: set[PackedLayout] = set()
    for sketch in sketches(task, target):
        for point in sketch.sample_legal(40, np.random.default_rng(0)):
            found.add(layout_of(sketch, point))
    return {layout for layout in found if layout.tensors}


def test_a_layout_says_how_wide_panels_are_and_nothing_of_the_rows() -> None:
    small, large = layouts(product(8)), layouts(product(64))
    assert small == large
    assert {tensor[3] for layout in small for tensor in layout.tensors} <= {16, 32, 48, 64, 96}
    assert len(small) > 2


def test_layouts_survive_json() -> None:
    for layout in layouts(product(8)):
        assert decode(PackedLayout, encode(layout)) == layout


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_task_can_follow_any_layout_of_another_size(rows: int) -> None:
    task = product(rows)
    for layout in layouts(product(32)):
        sketch, point = sharing_point(task, None, TARGET, known=[layout], may_own=False)
        if layout_of(*default_point(task, TARGET)).tensors:
            assert layout_of(sketch, point) == layout
        assert sketch.legal(point[None]).all()


def test_what_follows_a_layout_computes_the_same_from_the_same_bytes() -> None:
    here = sd.detect(1)
    rng = np.random.default_rng(3)
    b = rng.standard_normal((40, 96)).astype(np.float32)
    layout = sorted(layouts(product(32), here), key=str)[0]
    packed: list[bytes] = []
    for rows in (7, 20):
        task = product(rows)
        a = rng.standard_normal((rows, 40)).astype(np.float32)
        artifact = artifact_of(lowered(*sharing_point(task, None, here, known=[layout], may_own=False)), here)
        kernel = PreparedKernel(artifact, {"x1": b}, host_device(1))
        out = np.empty((rows, 96), np.float32)
        recording = kernel.record()
        recording.bind([a], [out])
        recording.run()
        np.testing.assert_allclose(out, evaluate(task, {"x0": a, "x1": b})["out"], rtol=1e-4, atol=1e-5)
        (place,) = [place for place in kernel._kept if place is not None]
        packed.append(place.memory.read(0, place.memory.nbytes).tobytes())
    assert packed[0] == packed[1]


def test_a_default_whose_layout_is_known_or_much_better_stays() -> None:
    task = product(64)
    sketch, point = default_point(task, TARGET)
    own = layout_of(sketch, point)
    same = sharing_point(task, None, TARGET, known=[own], may_own=False)
    assert same[0].schedule(same[1]) == sketch.schedule(point)
    worst = max(layouts(task) - {own}, key=lambda layout: _seconds(task, layout))
    assert _seconds(task, worst) > 1.03 * float(sketch.prior(point[None])[0])
    assert layout_of(*sharing_point(task, None, TARGET, known=[worst])) == own
    assert layout_of(*sharing_point(task, None, TARGET, known=[worst], may_own=False)) == worst


def _seconds(task: sd.Task, layout: PackedLayout) -> float:
    sketch, point = sharing_point(task, None, TARGET, known=[layout], may_own=False)
    return float(sketch.prior(point[None])[0])
