"""The number of parts of a split reduction is a knob: search moves it, and extents follow."""

from __future__ import annotations

import numpy as np

from stormdrop.builder.building import lowered
from stormdrop.model.kernel import build as build_kernel
from stormdrop.operators.catalogue import build
from stormdrop.space.knobs import neighbour_rows
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch, replay, sketches
from stormdrop.target.cpu import cross

SERVER = cross("avx512").with_threads(4)
TASK = build("DOT", (100_003,))
KNOB = "parts"


def split_sketch() -> Sketch:
    """Vectors run along the elements of a part."""
    found = [s for s in sketches(TASK, SERVER) if s.structure.splits]
    return next(s for s in found if s.structure.stage("s0p").vector_is_reduced)


def test_a_move_changes_the_number_of_parts() -> None:
    sketch = split_sketch()
    point = sketch.sample_legal(1, np.random.default_rng(0))[0]
    column = sketch.names.index(KNOB)
    moves, rows = neighbour_rows(sketch.knobs, point.tolist())
    reached = {int(row[column]) for move, row in zip(moves, rows) if move.knob == column}
    assert reached
    assert int(point[column]) not in reached


def test_every_number_of_parts_is_lowered_to_as_many_parallel_units() -> None:
    sketch = split_sketch()
    column = sketch.names.index(KNOB)
    choices = sketch.knobs[column].choices
    assert len(choices) >= 4
    for parts in choices:
        row = np.array([k.choices[0] for k in sketch.knobs])
        row[column] = parts
        point = sketch.repair(sketch.canonical(row[None]))[0]
        assert point[column] == parts
        assert lowered(sketch, point).phases[0].extent == parts


def test_parts_that_would_not_be_even_are_clamped() -> None:
    sketch = split_sketch()
    row = np.array([[k.choices[0] for k in sketch.knobs]])
    row[0, sketch.names.index(KNOB)] = 99_999  # two elements each: 50,002 parts
    assert sketch.canonical(row)[0, sketch.names.index(KNOB)] == 50_002


def test_points_of_different_parts_are_judged_as_each_by_itself() -> None:
    sketch = split_sketch()
    points = sketch.sample_legal(64, np.random.default_rng(3))
    assert len(np.unique(points[:, sketch.names.index(KNOB)])) >= 3
    alone = np.concatenate([sketch.features(p[None]) for p in points])
    np.testing.assert_array_equal(sketch.features(points), alone)
    np.testing.assert_array_equal(sketch.assess(points), np.concatenate([sketch.assess(p[None]) for p in points]))


def test_a_schedule_that_fixes_the_number_of_parts_is_still_replayed() -> None:
    steps = [["rfactor", 1, "s0", "r0", 7], ["tile", 1, "s0", "SSRS", "r0"], ["tile", 1, "s0p", "SSRS", "r0"]]
    fixed = Schedule.from_json({"class": TASK.class_key, "variant": 0, "steps": steps, "values": {}})
    sketch, point = replay(TASK, fixed, SERVER)
    assert KNOB not in sketch.names
    assert lowered(sketch, point).phases[0].extent <= 7


def test_the_parts_of_a_stored_schedule_are_those_that_run() -> None:
    sketch = split_sketch()
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(100_003).astype(np.float32) for _ in range(2))
    for point in sketch.sample_legal(4, rng):
        kernel = build_kernel(TASK, schedule=Schedule.from_json(sketch.schedule(point).to_json()), threads=2)
        assert kernel.schedule is not None
        assert kernel.schedule.by_name[KNOB] == point[sketch.names.index(KNOB)]
        np.testing.assert_allclose(kernel(a, b), np.dot(a.astype(np.float64), b), rtol=1e-4, atol=1e-3)
