"""Droplets on synthetic spaces: functions with known optima, and noise with known laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log2

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.tuning.droplet import Droplet, DropletSettings
from stormdrop.tuning.strategy import Candidate, Outcome, Points, Proposal
from tests.support.synthetic import (
    Bench,
    Drifting,
    Noise,
    PriorRanker,
    SyntheticSpace,
    bowl,
    drive,
    heavy_tailed,
    knobs,
    lognormal,
    plateau,
    silence,
)

Start = tuple[Candidate, float | None]


def at(*point: int, sketch: int = 0) -> Candidate:
    return Candidate(sketch, point)


def droplet(
    spaces: Sequence[SyntheticSpace], starts: Sequence[Start], settings: DropletSettings | None = None, seed: int = 0
) -> Droplet:
    return Droplet(spaces, starts, PriorRanker(spaces), np.random.default_rng(seed), settings)


def descend(
    space: SyntheticSpace,
    start: Sequence[int],
    noise: Noise = silence,
    seed: int = 0,
    settings: DropletSettings | None = None,
) -> tuple[tuple[int, ...], Bench, Droplet]:
    """Run one droplet to its end, from a start that is not measured yet."""
    found = droplet([space], [(at(*start), None)], settings, seed)
    bench = drive(found, Bench([space], noise, seed))
    best = found.best()
    assert found.ask(1).candidates == ()
    assert best is not None
    return best.point, bench, found


# ---- where it gets, and how soon
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("batch", [8, 16])
def test_the_optimum_of_twelve_knobs_is_found_within_120_measurements(batch: int, seed: int) -> None:
    """From a corner, three choices away in every coordinate, with a ranker that knows nothing; every duelling candidate
    counts.
    """
    start = [0] * 12 if seed == 0 else np.random.default_rng(seed).choice([0, 6], 12).tolist()
    point, bench, _ = descend(bowl(12), start, seed=seed, settings=DropletSettings(batch=batch))
    assert point == (3,) * 12
    measured = next(i for i, c in enumerate(bench.measured, 1) if bench.cost(c) == 1.0)
    assert measured + bench.timings // 6 <= 120
    assert bench.trials <= 120  # until it knows that it is the optimum
    assert set(bench.pairings.values()) == {6}  # without noise every duel is over as soon as it may be


def test_twenty_knobs_need_measurements_in_proportion() -> None:
    """A grid has 7^20 points, and the neighbourhood of all masks two million."""
    totals: list[int] = []
    for seed in range(8):
        point, bench, _ = descend(bowl(20), np.random.default_rng(seed).choice([0, 6], 20).tolist(), seed=seed)
        assert point == (3,) * 20
        totals.append(bench.trials)
    assert np.mean(totals) <= 200


def test_a_ranker_that_knows_saves_measurements() -> None:
    """Neighbours are measured in its order."""
    blind = sum(descend(bowl(20), [0] * 20, seed=s)[1].trials for s in range(4))
    seeing = sum(descend(bowl(20, tells=True), [0] * 20, seed=s)[1].trials for s in range(4))
    assert seeing < 0.9 * blind


def test_both_signs_of_every_knob_are_tried_before_it_ends() -> None:
    """And no more than that, without gain, but a few pairs: the neighbourhood does not grow exponentially."""
    _, bench, found = descend(bowl(20), [3] * 20)
    steps = {tuple(v - 3 for v in c.point) for c in bench.measured}
    assert {tuple(s * (i == k) for i in range(20)) for k in range(20) for s in (-1, 1)} <= steps
    assert bench.trials <= 1 + 40 + DropletSettings().pairs
    assert found.descents[0].stopped == "no move helps"


def test_a_ridge_that_only_shifts_climb_is_climbed() -> None:
    """The product of two levels of one axis must stay; a single move triples the cost, and pairs are switched off."""

    def cost(p: tuple[int, ...]) -> float:
        return 1.0 + 2 * abs(log2(p[0] * p[1]) - 8) + 0.1 * abs(log2(p[0]) - 7) + (p[2] - 2) ** 2

    levels = [2**i for i in range(9)]
    one_axis = SyntheticSpace(knobs(levels, levels, range(4), axes=["s0.a0", "s0.a0", "s0.a1"]), cost)
    settings = DropletSettings(pairs=0)
    assert descend(one_axis, [1, 256, 0], settings=settings)[0] == (128, 2, 2)
    two_axes = replace(one_axis, knobs=knobs(levels, levels, range(4)))
    assert descend(two_axes, [1, 256, 0], settings=settings)[0] == (1, 256, 2)


def test_pairs_of_moves_that_each_nearly_help_are_tried_last() -> None:
    def cost(p: tuple[int, ...]) -> float:
        return 0.9 if p[:2] == (4, 2) else 1.0 + 0.03 * sum(v != 3 for v in p)

    space = SyntheticSpace(knobs(*[range(7)] * 6), cost)
    won = [descend(space, [3] * 6, seed=s, settings=DropletSettings(pairs=40))[0][:2] == (4, 2) for s in range(20)]
    assert any(won)
    assert descend(space, [3] * 6, settings=DropletSettings(pairs=0))[0] == (3,) * 6


def test_doubling_reaches_a_far_optimum_in_logarithmically_many_steps() -> None:
    def cost(p: tuple[int, ...]) -> float:
        return 1.01 ** abs(p[0] - 700)

    space = SyntheticSpace(knobs(range(1024)), cost)
    point, bench, found = descend(space, [0], settings=DropletSettings(max_step=1024))
    assert point == (700,)
    assert len(found.descents[0].path) - 1 <= 2 * log2(700)
    assert bench.trials <= 60
    slow = descend(space, [600], settings=DropletSettings(max_step=1))[2]
    assert len(slow.descents[0].path) - 1 == 100


def test_a_knob_that_must_go_on_in_the_same_direction_may() -> None:
    """What was visited is a point, not a direction."""
    for start, optimum in ((0, 6), (6, 0)):
        space = bowl(1, optimum=optimum)
        assert descend(space, [start], settings=DropletSettings(max_step=1))[0] == (optimum,)


def test_canonical_points_between_choices_are_left_in_both_directions() -> None:
    """An extent of 100 clamps the outer level to 34, 17, 13, …, which are no choices; the bench refuses what is not
    canonical.
    """

    def cost(p: tuple[int, ...]) -> float:
        return 1.0 + abs(log2(p[0] / 17)) + abs(log2(p[1] / 6)) + 0.2 * p[2]

    tiles = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    space = SyntheticSpace(
        knobs(tiles, tiles, range(3), axes=["s0.a0", "s0.a0", "s0.a1"]), cost, extents={"s0.a0": 100}
    )
    for start in ((34, 3, 2), (1, 64, 2), (13, 8, 2), (1, 1, 1)):
        point, _, _ = descend(space, start)
        assert cost(point) <= cost((16, 6, 0))


def test_only_legal_points_are_measured() -> None:
    """The unconstrained optimum is illegal; the bench refuses illegal points."""
    space = replace(bowl(3, size=9, optimum=8), limit=120)
    point, bench, _ = descend(space, [1, 1, 1])
    grid = np.stack(np.meshgrid(*[range(9)] * 3), axis=-1).reshape(-1, 3)
    optimum = min(space.cost(tuple(p)) for p in grid[space.legal(grid)].tolist())
    assert bench.cost(at(*point)) <= 1.4 * optimum


def test_a_space_without_knobs_is_done_at_once() -> None:
    point, bench, found = descend(SyntheticSpace(()), [])
    assert point == ()
    assert bench.trials == 1
    assert len(found.descents[0].path) - 1 == 0


# ---- noise
# ---------------------------------------------------------------------------------------------------------------


def test_among_equal_candidates_with_heavy_tails_at_most_one_run_in_twenty_moves() -> None:
    runs = 360
    sigmas = (0.01, 0.05, 0.2)
    moved = sum(
        descend(plateau(12), [3] * 12, heavy_tailed(sigmas[seed % 3]), seed)[0] != (3,) * 12 for seed in range(runs)
    )
    assert moved <= 0.05 * runs


def test_where_a_candidate_lies_in_memory_is_not_mistaken_for_its_speed() -> None:
    """As long as it is loaded it may seem 2 % faster than its equals, in every round; only loading it again tells."""
    moved = 0
    for seed in range(100):
        one = droplet([plateau(12)], [(at(*[3] * 12), None)], seed=seed)
        drive(one, Bench([plateau(12)], lognormal(0.001), seed, placement=0.02))
        moved += one.best() != at(*[3] * 12)
    assert moved <= 5


def test_a_start_that_was_measured_as_too_fast_or_too_slow_does_not_mislead() -> None:
    """Half of what it takes: a gain of 10 % must still be seen. Twice of it: nothing must be moved to."""

    def cost(p: tuple[int, ...]) -> float:
        return 0.9 if p[0] == 4 else 1.0

    found, stayed = 0, 0
    for seed in range(20):
        for value, space in ((0.5, SyntheticSpace(knobs(*[range(7)] * 5), cost)), (2.0, plateau(5))):
            one = droplet([space], [(at(3, 3, 3, 3, 3), value)], seed=seed)
            bench = Bench([space], lognormal(0.01), seed)
            bench.known.add(at(3, 3, 3, 3, 3))
            drive(one, bench)
            best = one.best()
            assert best is not None
            found += value < 1 and best.point[0] == 4
            stayed += value > 1 and best.point == (3,) * 5
    assert found == 20
    assert stayed >= 18


def improved_by(gain: float, seed: int) -> tuple[SyntheticSpace, tuple[int, ...]]:
    """A plateau on which one neighbour of the middle is faster."""
    rng = np.random.default_rng(seed)
    k, sign = int(rng.integers(12)), int(rng.choice([-1, 1]))
    good = tuple(3 + sign * (i == k) for i in range(12))
    return SyntheticSpace(knobs(*[range(7)] * 12), lambda p: 1 - gain if p == good else 1.0), good


def share_found(gain: float, noise: Noise, runs: int) -> float:
    cases = [improved_by(gain, seed) for seed in range(runs)]
    return sum(descend(space, [3] * 12, noise, seed)[0] == good for seed, (space, good) in enumerate(cases)) / runs


def test_two_percent_are_found_at_one_percent_of_noise() -> None:
    assert share_found(0.02, lognormal(0.01), 100) >= 0.95


def test_ten_percent_are_found_where_a_tenth_of_timings_are_outliers() -> None:
    """A tenth of first measurements, too: those neighbours are lost, and the bench has no mercy."""
    assert share_found(0.1, heavy_tailed(0.01), 100) >= 0.8


def test_ten_percent_are_found_on_a_machine_that_drifts_by_ten() -> None:
    assert share_found(0.1, Drifting(0.005, 0.1, every=60), 40) >= 0.9


def test_a_gain_too_small_to_matter_is_not_worth_a_move() -> None:
    space, _ = improved_by(0.004, 1)
    assert descend(space, [3] * 12)[0] == (3,) * 12


def test_a_descent_that_gains_too_little_for_its_trials_ends() -> None:
    """One knob after the other gains 0.7 %, and only in this order."""

    def cost(p: tuple[int, ...]) -> float:
        right = next((i for i, v in enumerate(p) if v != 4), len(p))
        return 0.993**right * 1.05 ** sum(v != 3 for v in p[right:])

    space = SyntheticSpace(knobs(*[range(7)] * 12), cost)
    far, patient, _ = descend(space, [3] * 12, settings=DropletSettings(worth=0.0))
    near, brisk, found = descend(space, [3] * 12, settings=DropletSettings(worth=0.05))
    assert cost(far) < cost(near) < cost((3,) * 12)
    assert brisk.trials < patient.trials
    assert found.descents[0].stopped == "gains too little"


# ---- failures and starts
# -------------------------------------------------------------------------------------------------


def test_failures_are_never_asked_again_and_never_duel() -> None:
    def cost(p: tuple[int, ...]) -> float:
        return inf if p[0] % 2 else 1.0 + sum((v - 3) ** 2 for v in p[1:])

    space = SyntheticSpace(knobs(*[range(7)] * 5), cost)
    point, bench, _ = descend(space, [2, 0, 0, 6, 6])
    assert point == (2, 3, 3, 3, 3)
    assert any(cost(c.point) == inf for c in bench.measured)
    assert all(cost(c.point) < inf for p in bench.duels for c in p.candidates)


def test_a_failed_start_gives_way_to_the_next() -> None:
    def cost(p: tuple[int, ...]) -> float:
        return inf if p[0] == 0 else 1.0 + abs(p[0] - 4)

    space = SyntheticSpace(knobs(range(7)), cost)
    one = droplet([space], [(at(0), None), (at(2), None)])
    drive(one, Bench([space]))
    assert one.best() == at(4)
    none = droplet([space], [(at(0), None)])
    drive(none, Bench([space]))
    assert none.ask(1).candidates == ()
    assert none.best() is None


class Breaking(Bench):
    """Some candidates run once and fail in their first duel."""

    fragile: frozenset[Candidate] = frozenset()

    def measure(self, proposal: Proposal) -> list[Outcome]:
        outcomes = super().measure(proposal)
        return [Outcome(o.candidate, None) if proposal.rounds and o.candidate in self.fragile else o for o in outcomes]


def test_an_incumbent_that_fails_in_a_duel_is_left() -> None:
    space = bowl(2)
    for fragile, expected in ((at(0, 0), None), (at(3, 3), at(3, 2))):
        one = droplet([space], [(at(0, 0), None)], DropletSettings(max_step=1))
        bench = Breaking([space])
        bench.fragile = frozenset([fragile])
        drive(one, bench)
        best = one.best()
        assert (
            best is None
            if expected is None
            else best is not None and space.cost(best.point) == space.cost(expected.point)
        )


def test_outcomes_belong_to_candidates_whatever_their_order() -> None:
    space = bowl(6)
    ends: list[tuple[Candidate | None, int]] = []
    for shuffle in (False, True):
        one, bench = droplet([space], [(at(0, 6, 0, 6, 0, 6), None)]), Bench([space])
        while (proposal := one.ask(5)).candidates:
            outcomes = bench.measure(proposal)
            one.tell(outcomes[::-1] if shuffle else outcomes)
        ends.append((one.best(), bench.trials))
    assert ends[0] == ends[1] == (at(*[3] * 6), ends[0][1])


def test_what_was_measured_elsewhere_is_not_measured_again_but_counts() -> None:
    space = bowl(4)
    start = at(1, 1, 1, 1)
    elsewhere: dict[Candidate, float | None] = {at(2, 1, 1, 1): space.cost((2, 1, 1, 1)), at(1, 2, 1, 1): None}
    one = Droplet(
        [space], [(start, space.cost(start.point))], PriorRanker([space]), np.random.default_rng(0), asked=elsewhere
    )
    later = at(1, 1, 2, 1)
    one.tell([Outcome(later, space.cost(later.point))])
    bench = Bench([space])
    bench.known = {start, later, *elsewhere}
    drive(one, bench)
    assert not {*elsewhere, start, later} & set(bench.measured)
    assert one.best() == at(3, 3, 3, 3)


def test_starts_run_one_after_the_other_and_a_duel_settles_between_their_ends() -> None:
    """The slower start leads to the faster end."""
    spaces = [bowl(3), SyntheticSpace(knobs(*[range(7)] * 3), lambda p: 0.5 + sum((v - 3) ** 2 for v in p))]
    one = droplet(spaces, [(at(0, 0, 0, sketch=1), None), (at(1, 1, 1), None)], DropletSettings(reach=9.0))
    bench = drive(one, Bench(spaces, lognormal(0.01)))
    assert [d.path[0].end for d in one.descents] == [at(1, 1, 1), at(0, 0, 0, sketch=1)]
    assert one.best() == at(3, 3, 3, sketch=1)
    assert any({c.sketch for c in p.candidates} == {0, 1} for p in bench.duels)


def test_equal_ends_keep_the_first() -> None:
    spaces = [bowl(3), bowl(3)]
    kept = 0
    for seed in range(20):
        one = droplet(spaces, [(at(2, 2, 2), 4.0), (at(2, 2, 2, sketch=1), 4.1)], seed=seed)
        bench = Bench(spaces, lognormal(0.01), seed)
        bench.known = {at(2, 2, 2), at(2, 2, 2, sketch=1)}
        best = drive(one, bench) and one.best()
        kept += best == at(3, 3, 3)
    assert kept >= 18


def test_a_descent_that_stays_behind_is_given_up_after_its_first_sweep() -> None:
    """The second sketch can never be as fast as the first."""
    slow = SyntheticSpace(knobs(*[range(30)] * 8), lambda p: 100.0 + sum((v - 29) ** 2 for v in p))
    spaces = [bowl(8), slow]
    one = droplet(
        spaces, [(at(*[2] * 8), None), (at(*[0] * 8, sketch=1), None)], DropletSettings(max_step=1, reach=1e4)
    )
    drive(one, Bench(spaces))
    assert one.descents[1].stopped == "behind"
    assert one.descents[1].screened <= 40
    assert one.best() == at(*[3] * 8)


def test_a_start_far_behind_the_fastest_is_left_alone() -> None:
    spaces = [bowl(3), bowl(3), bowl(3)]
    starts = [(at(2, 2, 2), 4.0), (at(2, 2, 2, sketch=1), 4.1), (at(2, 2, 3, sketch=2), 4.9)]
    elsewhere = {at(0, a, b, sketch=2): 25.0 for a in range(7) for b in range(7)} | {
        at(6, a, b): 25.0 for a in range(7) for b in range(7)
    }
    for asked, taken in (
        ({}, [0, 1, 2]),
        (elsewhere, [0, 1]),
    ):  # of few points a storm has not learned which sketch is best
        one = Droplet(spaces, starts, PriorRanker(spaces), np.random.default_rng(0), None, asked | dict(starts))
        bench = Bench(spaces)
        bench.known = {*asked, *(c for c, _ in starts)}
        drive(one, bench)
        assert [d.path[0].end.sketch for d in one.descents] == taken


def test_a_descent_that_comes_where_another_was_ends_there() -> None:
    space = bowl(4)
    one = droplet([space], [(at(2, 2, 2, 2), None), (at(4, 4, 4, 3), None)], DropletSettings(reach=9.0))
    drive(one, Bench([space]))
    assert one.best() == at(3, 3, 3, 3)
    assert one.descents[1].stopped == "another descent was here"


# ---- asking and telling
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 5, 64])
def test_no_more_is_proposed_than_asked_for(n: int) -> None:
    """Except that a duel has two sides; it costs no trial."""
    space = bowl(6)
    one, bench = droplet([space], [(at(0, 0, 0, 6, 6, 6), None)]), Bench([space])
    while (proposal := one.ask(n)).candidates:
        assert len(proposal.candidates) <= (max(n, 2) if proposal.rounds else n)
        one.tell(bench.measure(proposal))
    assert one.best() == at(*[3] * 6)


def test_stopping_at_any_time_leaves_an_incumbent_that_is_no_worse_than_the_start() -> None:
    space = bowl(6)
    start = at(0, 0, 0, 6, 6, 6)
    costs: list[float] = []
    for trials in range(1, 60, 7):
        one = droplet([space], [(start, None)])
        drive(one, Bench([space]), trials)
        best = one.best()
        assert best is not None
        costs.append(space.cost(best.point))
    assert costs[0] == space.cost(start.point)
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 1.0


def test_the_same_seed_asks_the_same() -> None:
    runs = [descend(bowl(6), [0] * 6, lognormal(0.02), seed=5)[1] for _ in range(2)]
    assert runs[0].measured == runs[1].measured
    assert runs[0].duels == runs[1].duels


class Liking:
    """Scores points by one coordinate."""

    def __init__(self, knob: int) -> None:
        self._knob = knob

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
        return points[:, self._knob].astype(np.float64)


def test_the_rankers_favourite_is_measured_first_and_what_it_dislikes_last() -> None:
    space = plateau(5)
    one, bench = Droplet([space], [(at(*[3] * 5), 1.0)], Liking(2), np.random.default_rng(0)), Bench([space])
    bench.known.add(at(*[3] * 5))
    drive(one, bench, batch=1)
    singles = [c.point for c in bench.measured if sum(v != 3 for v in c.point) == 1]
    assert singles[0] == (3, 3, 4, 3, 3)
    assert singles[-1] == (3, 3, 2, 3, 3)
