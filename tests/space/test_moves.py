"""Moves: neighbours in every direction, and factors that go from one level of an axis to another."""

from __future__ import annotations

import numpy as np
import pytest

from stormdrop.device.host import detect
from stormdrop.operators.catalogue import build
from stormdrop.space.knobs import Knob, Move, Neighbourhood, moved, moves_of, neighbour_rows, stepped
from stormdrop.space.sketch import sketches

POWERS = (1, 2, 4, 8, 16)
AXIS = (
    Knob("s0.a0.1", POWERS),
    Knob("s0.a0.2", POWERS),
    Knob("s0.a1.1", (3,)),
    Knob("s0.peel", (0, 1), "flag"),
    Knob("s0.unroll", (1, 2, 4), "steps"),
)


def test_every_knob_moves_both_ways_and_only_levels_of_one_axis_shift() -> None:
    assert set(moves_of(AXIS)) == {
        *(Move(i, sign) for i in (0, 1, 3, 4) for sign in (-1, 1)),
        *(Move(i, sign, 1 - i) for i in (0, 1) for sign in (-1, 1)),
    }


@pytest.mark.parametrize(
    ("value", "step", "expected"),
    [
        (4, 1, 8),
        (4, -1, 2),
        (4, 2, 16),
        (4, 9, 16),
        (4, -9, 1),
        (16, 1, None),
        (1, -1, None),
        (5, 1, 8),
        (5, -1, 4),
        (5, 2, 16),
        (30, -1, 16),
        (30, 1, None),
    ],
)
def test_steps_count_choices_and_end_at_the_last_one(value: int, step: int, expected: int | None) -> None:
    assert stepped(POWERS, value, step) == expected


def test_a_shift_keeps_the_product() -> None:
    assert moved(AXIS, (4, 4, 3, 0, 1), [Move(0, 1, 1)]) == (8, 2, 3, 0, 1)
    assert moved(AXIS, (4, 4, 3, 0, 1), [Move(0, -1, 1)], step=2) == (1, 16, 3, 0, 1)


def test_moves_are_taken_together_and_those_that_cannot_be_stay_out() -> None:
    assert moved(AXIS, (16, 4, 3, 0, 1), [Move(0, 1), Move(1, -1), Move(4, 1)]) == (16, 2, 3, 0, 2)
    assert moved(AXIS, (16, 4, 3, 0, 1), [Move(0, 1)]) is None
    assert moved(AXIS, (16, 4, 3, 0, 1), [], 1) is None


def test_the_neighbourhood_grows_with_the_knobs_and_not_exponentially() -> None:
    knobs = tuple(Knob(f"s0.a{i}.1", tuple(range(7))) for i in range(20))
    moves, rows = neighbour_rows(knobs, [3] * 20)
    assert len(moves) == len(rows) == 40
    assert {tuple(r) for r in (rows - 3).tolist()} == {
        tuple(s if i == k else 0 for i in range(20)) for k in range(20) for s in (-1, 1)
    }


def test_a_point_without_knobs_has_no_neighbours() -> None:
    assert neighbour_rows((), ())[1].shape == (0, 0)
    assert neighbour_rows((Knob("s0.a0.1", (1,)),), (1,))[1].shape == (0, 1)


@pytest.mark.parametrize(("name", "args"), [("C2D", (1, 14, 14, 256, 256, 3, 1, 1)), ("GMM", (1, 509, 509, 64))])
def test_points_of_real_sketches_have_all_neighbours(name: str, args: tuple[int, ...]) -> None:
    """Adjacent choices of every knob, and for every other knob of the axis the choice nearest to the same product."""
    for sketch in sketches(build(name, args), detect(1)):
        for point in sketch.sample_legal(5, np.random.default_rng(0)).tolist():
            expected: set[tuple[int, ...]] = set()
            for i, k in enumerate(sketch.knobs):
                below, above = [c for c in k.choices if c < point[i]], [c for c in k.choices if c > point[i]]
                for choice in below[-1:] + above[:1]:
                    expected.add((*point[:i], choice, *point[i + 1 :]))
                    for j, other in enumerate(sketch.knobs):
                        if (
                            j != i
                            and "flag" not in (k.unit, other.unit)
                            and len(other.choices) > 1
                            and axis(other) == axis(k)
                        ):
                            row = [*point[:i], choice, *point[i + 1 :]]
                            row[j] = other.nearest(point[j] * point[i] / choice)
                            expected.add(tuple(row))
            assert {tuple(r) for r in neighbour_rows(sketch.knobs, point)[1].tolist()} == expected


@pytest.mark.parametrize("step", [1, 2, 5])
def test_all_moves_of_many_points_are_what_each_is_alone(step: int) -> None:
    for sketch in sketches(build("C2D", (1, 14, 14, 256, 256, 3, 1, 1)), detect(1)):
        points = sketch.sample(8, np.random.default_rng(0))
        (owners, moves), rows = Neighbourhood.of(sketch.knobs).rows(points, step)
        found = {(o, m): tuple(row) for o, m, row in zip(owners.tolist(), moves.tolist(), rows.tolist())}
        alone = {
            (o, m): moved(sketch.knobs, point, (move,), step)
            for o, point in enumerate(points.tolist())
            for m, move in enumerate(moves_of(sketch.knobs))
        }
        assert found == {key: row for key, row in alone.items() if row is not None}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 1), (1, 1), (2.8, 2), (2.9, 4), (3, 4), (11.3, 8), (11.4, 16), (99, 16), (5.6, 4), (5.7, 8)],
)
def test_the_nearest_choice_is_nearest_by_ratio(value: float, expected: int) -> None:
    assert Knob("s0.a0.1", POWERS).nearest(value) == expected


def test_of_two_choices_equally_near_the_smaller_is_taken() -> None:
    assert Knob("s0.a0.1", (4, 9)).nearest(6) == 4
    assert Knob("s0.peel", (0, 1), "flag").nearest(0) == 0
    assert Knob("s0.peel", (0, 1), "flag").nearest(1) == 1


def axis(knob: Knob) -> str:
    return knob.name.rpartition(".")[0]
