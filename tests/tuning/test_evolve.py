"""Operators on matrices of places: what each may change, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stormdrop.operators.catalogue import build
from stormdrop.space.knobs import Knob
from stormdrop.space.sketch import sketches
from stormdrop.target.cpu import cross
from stormdrop.tuning import evolve
from stormdrop.tuning.evolve import Genome, Hasher, Rows

KNOBS = (
    Knob("s0.a0.1", (1, 2, 3, 4, 6, 8, 12)),
    Knob("s0.a0.2", (1, 2, 4, 8)),
    Knob("s0.a1.1", (1, 2, 3, 5, 7)),
    Knob("s0.a1.2", (1,)),
    Knob("s0.peel", (0, 1), "flag"),
    Knob("s1.a0.1", (1, 3, 9)),
)
GENOME = Genome(KNOBS)
N = 400


def _rows(seed: int = 0) -> Rows:
    return GENOME.random(N, np.random.default_rng(seed))


def test_places_and_values_are_inverse() -> None:
    rows = _rows()
    assert np.array_equal(GENOME.places(GENOME.values(rows)), rows)
    assert {tuple(r) for r in GENOME.values(rows)} <= {tuple(r) for r in GENOME.values(GENOME.everything())}


def test_a_value_that_is_no_choice_stands_for_the_next_larger_one() -> None:
    points = np.array([[5, 3, 4, 1, 0, 2], [99, 99, 99, 99, 99, 99], [0, 0, 0, 0, 0, 0]])
    assert GENOME.values(GENOME.places(points)).tolist() == [
        [6, 4, 5, 1, 0, 3],
        [12, 8, 7, 1, 1, 9],
        [1, 1, 1, 1, 0, 1],
    ]


def test_places_are_the_same_where_choices_are_too_large_for_a_table() -> None:
    large = Genome((*KNOBS, Knob("s2.a0.1", (1, 3, 1 << 30))))
    points = np.random.default_rng(0).integers(0, 14, size=(N, 6))
    wide = np.concatenate([points, np.full((N, 1), 4)], axis=1)
    assert np.array_equal(large.places(wide)[:, :6], GENOME.places(points))
    assert (large.places(wide)[:, 6] == 2).all()


def test_canonical_points_of_a_sketch_survive_the_way_through_places() -> None:
    for sketch in sketches(build("C2D", [1, 7, 7, 24, 40, 3, 1, 1]), cross("avx512"))[:4]:
        points = sketch.sample_legal(500, np.random.default_rng(1))
        genome = Genome(sketch.knobs)
        assert np.array_equal(sketch.canonical(genome.values(genome.places(points))), points)


def test_nearest_agrees_with_the_knob() -> None:
    rng = np.random.default_rng(2)
    knobs = rng.integers(0, len(KNOBS), size=N)
    values = rng.choice([0.0, 0.3, 0.75, 1.0, 1.4, 1.5, 2.0, 2.5, 5.0, 7.0, 9.9, 10.0, 40.0], size=N)
    found = GENOME.value(knobs, GENOME.nearest(knobs, values))
    assert found.tolist() == [KNOBS[k].nearest(v) for k, v in zip(knobs, values)]


def test_everything_lists_each_combination_once() -> None:
    rows = GENOME.everything()
    assert len(rows) == GENOME.combinations == 7 * 4 * 5 * 1 * 2 * 3
    assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize("operator", [evolve.stepped, evolve.redrawn, evolve.scaled])
def test_single_mutations_change_at_most_one_knob_and_stay_among_the_choices(
    operator: Callable[[Genome, Rows, np.random.Generator], Rows],
) -> None:
    rows = _rows()
    before = rows.copy()
    children = operator(GENOME, rows, np.random.default_rng(3))
    assert np.array_equal(rows, before)
    changed = (children != rows).sum(axis=1)
    assert changed.max() == 1
    assert changed.mean() > 0.5
    assert (children >= 0).all()
    assert (children < GENOME.counts).all()
    assert {int(k) for k in np.nonzero(children != rows)[1]} == {int(k) for k in GENOME.live}


def test_a_step_goes_to_an_adjacent_choice_and_turns_back_at_the_ends() -> None:
    rows = _rows()
    children = evolve.stepped(GENOME, rows, np.random.default_rng(4))
    assert (np.abs(children - rows).sum(axis=1) == 1).all()


def test_scaling_goes_to_about_half_or_twice_the_value() -> None:
    rows = np.tile(GENOME.places(np.array([[4, 2, 3, 1, 0, 3]])), (N, 1))
    children = GENOME.values(evolve.scaled(GENOME, rows, np.random.default_rng(5)))
    assert set(children[:, 0].tolist()) == {1, 2, 4, 8, 12}
    assert set(children[:, 1].tolist()) == {1, 2, 4, 8}


def test_scattering_changes_more_knobs_the_stronger_it_is() -> None:
    rows = _rows()
    weak, strong = (
        (evolve.scattered(GENOME, rows, np.random.default_rng(6), strength) != rows).sum(axis=1).mean()
        for strength in (0.5, 8.0)
    )
    assert 0.5 < weak < strong


def test_a_shift_moves_a_factor_between_two_levels_of_one_axis() -> None:
    rows = np.tile(GENOME.places(np.array([[4, 4, 3, 1, 0, 3]])), (N, 1))
    children = GENOME.values(evolve.shifted(GENOME, rows, np.random.default_rng(7)))
    assert (children[:, 2:] == GENOME.values(rows)[:, 2:]).all(), "only the axis with two levels that can move"
    product = children[:, 0] * children[:, 1]
    assert (children[:, 0] != 4).any()
    assert (children[:, 1] != 4).any()
    # 4·4 = 16; what differs is where no choice fits the other factor exactly.
    assert np.median(product) == 16
    assert product.min() >= 8
    assert product.max() <= 32


def test_a_shift_steps_where_no_axis_has_two_levels() -> None:
    genome = Genome((Knob("s0.a0.1", (1, 2, 3)), Knob("s0.a1.1", (1, 2, 3))))
    rows = genome.random(N, np.random.default_rng(0))
    assert (np.abs(evolve.shifted(genome, rows, np.random.default_rng(1)) - rows).sum(axis=1) == 1).all()


def test_crossover_takes_every_knob_from_one_of_both_parents() -> None:
    rows, mates = _rows(1), _rows(2)
    children = evolve.crossed(GENOME, rows, mates, np.random.default_rng(8))
    assert ((children == rows) | (children == mates)).all()
    assert (children != rows).any()
    assert (children != mates).any()


def test_some_crossovers_keep_the_levels_of_an_axis_together() -> None:
    rows, mates = np.zeros((N, 6), np.int64), np.ones((N, 6), np.int64)
    mates[:, 3] = 0
    children = evolve.crossed(GENOME, rows, mates, np.random.default_rng(9))
    together = (children[:, 0] == children[:, 1]).mean()
    # A third by knob agrees half the time; axes and stages always do.
    assert 0.75 < together < 0.92


def test_values_move_between_spaces_by_name_to_the_nearest_choice() -> None:
    other = Genome((Knob("s9.x", (1, 2)), Knob("s0.a1.1", (2, 4, 8)), Knob("s0.a0.1", (1, 5, 10))))
    link = evolve.linked(other, GENOME)
    assert link is not None
    donors = np.array([[12, 1, 7, 1, 0, 1], [2, 1, 1, 1, 0, 1]])
    children = evolve.moved(other, np.array([[1, 0, 0], [0, 1, 1]]), donors, link)
    assert other.values(children).tolist() == [[2, 8, 10], [1, 2, 1]]


def test_spaces_that_share_too_few_knobs_are_not_linked() -> None:
    other = Genome((Knob("s0.a0.1", (1, 2)), Knob("b", (1, 2)), Knob("c", (1, 2))))
    assert evolve.linked(other, GENOME) is None
    assert evolve.linked(Genome((Knob("s0.a0.1", (1,)),)), GENOME) is None, "nothing can move"


def test_unseen_keeps_the_first_of_equal_rows_and_none_that_is_known() -> None:
    hasher = Hasher(3)
    rows = np.array([[1, 2, 3], [3, 2, 1], [1, 2, 3], [0, 0, 7], [4, 4, 4]])
    known = hasher(np.array([[0, 0, 7]]))
    assert evolve.unseen(hasher(rows), known, hasher(rows[4:])).tolist() == [0, 1]


def test_hashes_tell_all_rows_of_a_grid_apart() -> None:
    rows = Genome(tuple(Knob(f"k{i}", tuple(range(8))) for i in range(5))).everything()
    assert len(np.unique(Hasher(5)(rows))) == len(rows)


def test_pressure_draws_low_ranks_more_often() -> None:
    even = evolve.drawn(100, 20_000, 0.0, np.random.default_rng(0))
    strong = evolve.drawn(100, 20_000, 3.0, np.random.default_rng(0))
    assert strong.min() >= 0
    assert strong.max() <= 99
    assert even.mean() == pytest.approx(49.5, abs=1.5)
    assert strong.mean() == pytest.approx(19.5, abs=1.5)


def test_spread_takes_the_best_rows_but_few_that_are_alike() -> None:
    points = np.array([[0, 0, 0], [0, 0, 1], [0, 0, 2], [5, 5, 5], [0, 1, 1], [7, 8, 9]])
    assert evolve.spread(points, 3, 0, points[:0]) == [0, 3, 4]
    assert evolve.spread(points, 4, 1, points[:0]) == [0, 1, 3, 5]
    assert evolve.spread(points, 6, 0, points[:0]) == [0, 3, 4, 5, 1, 2], "what was passed over fills up"
    assert evolve.spread(points, 2, 0, np.array([[0, 0, 5]])) == [3, 4]


def test_a_space_without_knobs_has_one_row() -> None:
    genome = Genome(())
    assert genome.combinations == 1
    assert genome.everything().shape == (1, 0)
    assert genome.places(np.zeros((2, 0), np.int64)).shape == (2, 0)
    assert len(Hasher(0)(np.zeros((3, 0), np.int64))) == 3
