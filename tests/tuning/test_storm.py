"""The storm on synthetic spaces with known optima, and on sketches of real tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.operators.catalogue import build
from stormdrop.space.default import ranked
from stormdrop.space.knobs import Knob
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.target.cpu import cross
from stormdrop.tuning.evolve import Operators
from stormdrop.tuning.storm import ORIGINS, Storm, StormSettings
from stormdrop.tuning.strategies import RandomSearch
from stormdrop.tuning.strategy import Candidate, Outcome, Points, Proposal, Strategy, candidate
from tests.support.synthetic import Bench, PriorRanker, SyntheticSpace, bowl, drive, knobs, plateau
from tests.support.tasks import random_task

SMALL = StormSettings(population=512, rows_per_sketch=128)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rugged(dimensions: int = 6, size: int = 8, optimum: int = 5) -> SyntheticSpace:
    """A bowl under waves that make most single steps from most points useless; the optimum takes exactly 1."""

    def cost(point: tuple[int, ...]) -> float:
        away = [abs(v - optimum) for v in point]
        waves = sum((1 - np.cos(np.pi * d)) for d in away) + 0.5 * abs(away[0] - away[-1])
        return float(1.0 + 0.15 * sum(d * d for d in away) + 0.15 * waves)

    return SyntheticSpace(knobs(*[range(1, size + 1)] * dimensions), cost)


class Neighbourly:
    """A ranker that learns: the mean of what was measured, by distance."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[list[tuple[int, ...]], list[float]]] = {}

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        for o in outcomes:
            if o.value is not None:
                points, scores = self._known.setdefault(o.candidate.sketch, ([], []))
                points.append(o.candidate.point)
                scores.append(-float(np.log(o.value)))

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
        if sketch not in self._known:
            return np.zeros(len(points))
        known, scores = self._known[sketch]
        away = np.abs(points[:, None, :] - np.array(known)[None]).sum(axis=2)
        weights = np.exp(-0.7 * away) + 1e-9
        return weights @ np.array(scores) / weights.sum(axis=1)


class Learning:
    """A strategy whose ranker is told too, as the loop does."""

    eager = True

    def __init__(self, strategy: Strategy, ranker: Neighbourly) -> None:
        self._strategy, self._ranker = strategy, ranker

    @property
    def phase(self) -> str:
        return self._strategy.phase

    def ask(self, n: int) -> Proposal:
        return self._strategy.ask(n)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        self._strategy.tell(outcomes)
        self._ranker.tell(outcomes)


def trials_to_optimum(strategy: Strategy, space: SyntheticSpace, most: int) -> int:
    bench = drive(strategy, Bench([space]), most)
    return next((i for i, c in enumerate(bench.measured, 1) if bench.cost(c) <= 1.0), most + 1)


def test_it_is_a_strategy_in_its_storm_phase() -> None:
    storm: Strategy = Storm([bowl(2)], PriorRanker([bowl(2)]), rng(), SMALL)
    assert storm.phase == "storm"
    assert storm.eager


def test_nothing_is_proposed_twice_over_a_long_run_that_goes_on_proposing() -> None:
    space = bowl(6, tells=True)
    bench = drive(Storm([space], PriorRanker([space]), rng(), SMALL), Bench([space]), 2000, batch=64)
    assert bench.trials == 2000, "the bench fails on a candidate that is measured twice, illegal, or not canonical"


def test_only_legal_canonical_points_are_proposed() -> None:
    space = SyntheticSpace(
        knobs(*[(1, 2, 3, 4, 6, 8, 12, 16)] * 5, axes=["i", "i", "i", "j", "j"]),
        lambda p: 1.0 + sum(p),
        200.0,
        {"i": 17, "j": 13},
    )
    bench = drive(Storm([space], PriorRanker([space]), rng(1), SMALL), Bench([space]), 400, batch=32)
    assert bench.trials > 100


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_a_tiny_space_is_exhausted_and_then_nothing_is_proposed(batch: int) -> None:
    space = plateau(3, 4)
    storm = Storm([space], PriorRanker([space]), rng(), SMALL)
    bench = drive(storm, Bench([space]), batch=batch)
    assert bench.trials == 64
    assert storm.ask(5) == Proposal(())


def test_all_sketches_of_several_are_exhausted() -> None:
    spaces = [
        plateau(2, 3),
        plateau(3, 2),
        SyntheticSpace(knobs((4,))),
        SyntheticSpace(knobs(range(1, 9), range(1, 9)), limit=6.0),
    ]
    bench = drive(Storm(spaces, PriorRanker(spaces), rng(), SMALL), Bench(spaces))
    assert [sum(c.sketch == k for c in bench.measured) for k in range(4)] == [9, 8, 1, 14]


def test_the_optimum_of_a_rugged_function_is_found_far_sooner_than_at_random() -> None:
    space, most = rugged(), 400
    storms: list[int] = []
    randoms: list[int] = []
    for seed in range(5):
        ranker = Neighbourly()
        storms.append(trials_to_optimum(Learning(Storm([space], ranker, rng(seed), SMALL), ranker), space, most))
        randoms.append(trials_to_optimum(RandomSearch([space], rng(seed)), space, most))
    assert np.median(storms) < 0.6 * most, storms
    assert np.median(randoms) > most, randoms


def test_a_seed_determines_every_proposal() -> None:
    def proposals(seed: int) -> list[Candidate]:
        spaces = [bowl(4, tells=True), bowl(4, optimum=1, tells=True)]
        return drive(Storm(spaces, PriorRanker(spaces), rng(seed), SMALL), Bench(spaces), 100).measured

    assert proposals(3) == proposals(3)
    assert proposals(3) != proposals(4)


def test_values_move_between_sketches_that_share_knobs() -> None:
    spaces = [bowl(4, tells=True), bowl(4, tells=True)]
    storm = Storm(spaces, PriorRanker(spaces), rng(), SMALL)
    drive(storm, Bench(spaces), 60)
    assert storm.statistics["move"].kept > 0
    apart = [bowl(4, tells=True), SyntheticSpace(tuple(Knob(f"x{i}.1", tuple(range(7))) for i in range(4)))]
    storm = Storm(apart, PriorRanker(apart), rng(), SMALL)
    drive(storm, Bench(apart), 60)
    assert storm.statistics["move"].made == 0


def test_a_move_carries_the_optimum_into_another_sketch() -> None:
    """The second sketch's cost is the first's, halved; only movement is allowed to make children."""
    fast = SyntheticSpace(knobs(*[range(12)] * 6), lambda p: 0.5 + sum(abs(v - 9) for v in p))
    slow = SyntheticSpace(knobs(*[range(12)] * 6), lambda p: 1.0 + sum(abs(v - 9) for v in p))
    only = replace(SMALL, operators=Operators(0, 0, 0, 0, 0, 0, 1.0), eps=0.0)
    storm = Storm([slow, fast], Truthful([slow, fast]), rng(), only, seeds=[Candidate(0, (9,) * 6)])
    bench = drive(storm, Bench([slow, fast]), 64)
    assert Candidate(1, (9,) * 6) in bench.measured


class Truthful:
    """A ranker that knows the cost."""

    def __init__(self, spaces: Sequence[SyntheticSpace]) -> None:
        self._spaces = spaces

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
        return np.array([-np.log(self._spaces[sketch].cost(tuple(p))) for p in points.tolist()])


@pytest.mark.parametrize("eps", [0.0, 0.25, 1.0])
def test_a_share_of_candidates_is_random(eps: float) -> None:
    space = bowl(6, tells=True)
    storm = Storm([space], PriorRanker([space]), rng(), replace(SMALL, eps=eps, patience=10_000))
    drive(storm, Bench([space]), 200, batch=10)
    assert storm.statistics["random"].picked >= round(200 * eps)
    counted = sum(c.picked for c in storm.statistics.values())
    assert counted == 200
    if eps == 1.0:
        assert storm.statistics["random"].picked == 200


def test_a_part_of_the_first_batch_is_the_best_of_random_handfuls() -> None:
    space = bowl(8, tells=True)

    def random_picks(share: float) -> tuple[Storm, list[Candidate]]:
        storm = Storm([space], PriorRanker([space]), rng(), replace(SMALL, eps=0.0, first_random=share))
        return storm, list(storm.ask(20).candidates)

    storm, first = random_picks(0.4)
    assert storm.statistics["random"].picked >= 8
    storm.tell([Outcome(c, space.cost(c.point)) for c in first])
    before = storm.statistics["random"].picked
    storm.ask(20)
    assert storm.statistics["random"].picked - before < 8, "only while nothing is measured"
    _, all_of_them = random_picks(1.0)
    costs = [space.cost(c.point) for c in all_of_them]
    even = [space.cost(tuple(p)) for p in space.sample_legal(200, rng()).tolist()]
    assert max(costs) < np.median(even), "each is the best of many"
    assert len({c.point[0] for c in all_of_them}) > 3, "and they lie apart"


def test_only_the_operators_that_the_settings_allow_make_rows() -> None:
    space = bowl(5, tells=True)
    storm = Storm([space], PriorRanker([space]), rng(), replace(SMALL, operators=Operators(1.0, 0, 0, 0, 0.5, 0, 0)))
    drive(storm, Bench([space]), 50)
    assert {name for name in ORIGINS if storm.statistics[name].made} == {"step", "shift", "random"}


def test_the_size_of_a_generation_follows_the_settings() -> None:
    def made(settings: StormSettings) -> int:
        space = bowl(8, tells=True)
        storm = Storm([space], PriorRanker([space]), rng(), settings)
        storm.ask(8)
        return sum(storm.statistics[name].made for name in ORIGINS if name not in ("random", "seed"))

    assert made(StormSettings(population=4096, rows_per_pick=100, rows_per_sketch=1, generations=3)) == 2400
    assert made(StormSettings(population=500, rows_per_pick=100, rows_per_sketch=1, generations=2)) == 1000
    assert made(StormSettings(population=4096, rows_per_pick=1, rows_per_sketch=512, generations=1)) == 512


class Listed(SyntheticSpace):
    """A space that notes every row that is judged, and draws none but one at random."""

    judged: set[tuple[int, ...]]

    def legal(self, points: Points) -> NDArray[np.bool_]:
        self.judged.update(map(tuple, points.tolist()))
        return super().legal(points)

    def sample_legal(self, n: int, rng: np.random.Generator) -> Points:
        return np.zeros((1, len(self.knobs)), np.int64)


def test_what_fails_has_no_offspring() -> None:
    """Only steps from measured points make children: none lies beside a failure alone."""
    space = Listed(knobs(*[range(30)] * 3))
    object.__setattr__(space, "judged", set())
    settings = replace(SMALL, operators=Operators(1.0, 0, 0, 0, 0, 0, 0), elite_share=1.0, generations=1)
    storm = Storm([space], PriorRanker([space]), rng(), settings)
    storm.tell([Outcome(Candidate(0, (20, 20, 20)), None), Outcome(Candidate(0, (10, 10, 10)), 1.0)])
    batch = storm.ask(4).candidates
    assert Candidate(0, (20, 20, 20)) not in batch
    assert space.judged == {(10 + a, 10 + b, 10 + c) for a, b, c in STEPS}


STEPS = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]


def test_a_value_that_turns_into_a_failure_leaves_the_elite() -> None:
    space = bowl(3)
    storm = Storm([space], PriorRanker([space]), rng(), SMALL)
    c = Candidate(0, (1, 1, 1))
    storm.tell([Outcome(c, 2.0)])
    assert len(storm._all[0].elite(8)) == 1
    storm.tell([Outcome(c, None)])
    assert len(storm._all[0].elite(8)) == 0


def test_seeds_come_first_and_take_at_most_their_share_of_a_batch() -> None:
    space = bowl(5, tells=True)
    seeds = [Candidate(0, (3, 3, 3, 1 + k, 3)) for k in (2, 1, 3)]
    storm = Storm([space], PriorRanker([space]), rng(), SMALL, seeds)
    first = storm.ask(4).candidates
    assert first[:2] == tuple(seeds[:2])
    assert len(first) == 4
    storm.tell([Outcome(c, 1.0) for c in first])
    assert set(seeds) <= {*first, *storm.ask(4).candidates}
    assert Storm([space], PriorRanker([space]), rng(), SMALL, seeds).ask(1).candidates == (seeds[0],)


def test_seeds_that_are_told_already_are_not_proposed() -> None:
    space = bowl(4, tells=True)
    seed = Candidate(0, (3, 3, 3, 3))
    storm = Storm([space], PriorRanker([space]), rng(), SMALL, [seed])
    storm.tell([Outcome(seed, 1.0)])
    assert seed not in storm.ask(8).candidates


def test_seeds_far_worse_than_the_best_are_not_measured_for_being_seeds() -> None:
    spaces = [
        SyntheticSpace(knobs(range(50), range(50)), lambda p, f=f: f * (1.0 + sum(p)), tells=True)
        for f in (1.0, 2.0, 100.0)
    ]
    seeds = [Candidate(k, (0, 0)) for k in range(3)]
    storm = Storm(spaces, PriorRanker(spaces), rng(), SMALL, seeds)
    storm.ask(8)
    assert storm.statistics["seed"].picked == 2
    known = Storm(spaces, PriorRanker(spaces), rng(), SMALL, seeds[::-1])
    assert known.ask(6).candidates[:3] == tuple(seeds[::-1]), "the caller's order says more than the prior"


def test_seeds_are_made_canonical_and_illegal_ones_are_dropped() -> None:
    space = SyntheticSpace(knobs((1, 2, 4, 8), (1, 2, 4, 8), axes=["i", "i"]), extents={"i": 6}, limit=12.0)
    storm = Storm([space], PriorRanker([space]), rng(), SMALL, [Candidate(0, (8, 4)), Candidate(0, (8, 8))])
    assert storm.ask(1).candidates == (Candidate(0, (2, 4)),)
    assert storm.ask(2).candidates[0] == Candidate(0, (1, 6))


def test_a_sketch_that_wins_gets_most_candidates_and_one_that_may_win_is_not_forgotten() -> None:
    spaces = [
        SyntheticSpace(knobs(*[range(7)] * 5), lambda p, f=f: f * (1.0 + sum((v - 3) ** 2 for v in p)), tells=True)
        for f in (1.0, 1.2, 1.5)
    ]
    bench = drive(Storm(spaces, PriorRanker(spaces), rng(), SMALL), Bench(spaces), 320, batch=32)
    counts = [sum(c.sketch == k for c in bench.measured) for k in range(3)]
    assert counts[0] == max(counts)
    assert min(counts) >= 8


def test_a_sketch_that_the_ranker_underrates_is_found() -> None:
    """The ranker sees the good sketch ten times slower than it is."""
    bad = SyntheticSpace(knobs(*[range(7)] * 4), lambda p: 3.0 + sum((v - 3) ** 2 for v in p), tells=True)
    good = SyntheticSpace(knobs(*[range(7)] * 4), lambda p: 1.0 + sum((v - 3) ** 2 for v in p), tells=True)

    class Misled(PriorRanker):
        def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
            return super().score(sketch, points) - (2.3 if sketch == 1 else 0.0)

    storm = Storm([bad, good], Misled([bad, good]), rng(), SMALL)
    bench = drive(storm, Bench([bad, good]), 128, batch=16)
    assert min(bench.cost(c) for c in bench.measured) == 1.0


def test_a_sketch_in_which_everything_fails_is_soon_left_alone() -> None:
    """The ranker knows nothing, so all that is left is what was told."""

    class Blind:
        def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
            return draws.random(len(points))

    draws = rng(1)
    spaces = [SyntheticSpace(knobs(*[range(7)] * 4), lambda p, f=f: f * (10.0 + sum(p))) for f in (float("inf"), 1.0)]
    storm = Storm(spaces, Blind(), rng(), replace(SMALL, turns=1.0))
    late = drive(storm, Bench(spaces), 200).measured[100:]
    assert sum(c.sketch == 0 for c in late) < 0.15 * len(late)


def test_candidates_of_one_batch_are_not_all_alike() -> None:
    space = bowl(8, tells=True)
    storm = Storm([space], PriorRanker([space]), rng(), replace(SMALL, near=0.25, eps=0.0, turns=0.0, first_turns=0.0))
    drive(storm, Bench([space]), 64)
    batch = np.array([c.point for c in storm.ask(32).candidates])
    away = (batch[:, None] != batch[None]).sum(axis=2)
    near = sum((away[i, :i] <= 1).any() for i in range(1, len(batch)))
    assert near <= 8


def test_small_batches_look_at_every_sketch() -> None:
    spaces = [
        SyntheticSpace(knobs(*[range(7)] * 5), lambda p, f=f: f * (1.0 + sum(p)), tells=True) for f in (1.0, 1.05, 1.1)
    ]
    bench = drive(Storm(spaces, PriorRanker(spaces), rng()), Bench(spaces), 60, batch=4)
    assert {c.sketch for c in bench.measured} == {0, 1, 2}


def test_an_objective_may_be_negative_or_zero() -> None:
    spaces = [plateau(4), plateau(4)]
    storm = Storm(spaces, PriorRanker(spaces), rng(), SMALL)
    for k in range(6):
        batch = storm.ask(16).candidates
        assert len(batch) == 16
        storm.tell([Outcome(c, float(sum(c.point)) - 5.0 * k - c.sketch) for c in batch])


def test_it_can_be_asked_again_before_it_is_told() -> None:
    space = bowl(5, tells=True)
    storm = Storm([space], PriorRanker([space]), rng(), SMALL)
    first, second = storm.ask(20), storm.ask(20)
    assert not set(first.candidates) & set(second.candidates)
    storm.tell([Outcome(c, 1.0) for c in (*second.candidates, *first.candidates)])
    assert len(storm.ask(20).candidates) == 20


def test_random_candidates_grow_more_while_nothing_is_gained() -> None:
    space = plateau(6)
    storm = Storm([space], PriorRanker([space]), rng(), replace(SMALL, patience=32, eps=0.1))
    drive(storm, Bench([space]), 64, batch=32)
    before = storm.statistics["random"].picked
    drive(storm, Bench([space]), 320, batch=32)
    assert storm.statistics["random"].picked - before > 0.2 * 320


def test_a_ranker_that_gives_no_numbers_does_no_harm() -> None:
    class Broken:
        def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
            return np.full(len(points), np.nan)

    space = bowl(4)
    assert drive(Storm([space], Broken(), rng(), SMALL), Bench([space]), 64).trials == 64


def _checked(found: Sequence[Sketch], proposal: Proposal) -> None:
    for k in {c.sketch for c in proposal.candidates}:
        rows = np.array([c.point for c in proposal.candidates if c.sketch == k]).reshape(-1, len(found[k].knobs))
        assert np.array_equal(found[k].canonical(rows), rows)
        assert found[k].legal(rows).all()


def _run_on_sketches(found: Sequence[Sketch], seeds: Sequence[Candidate], batches: int, n: int) -> Storm:
    storm = Storm(found, PriorRanker(found), rng(), SMALL, seeds)
    seen: set[Candidate] = set()
    for i in range(batches):
        proposal = storm.ask(n)
        _checked(found, proposal)
        assert not seen & set(proposal.candidates)
        seen |= set(proposal.candidates)
        storm.tell([Outcome(c, None if (i + j) % 7 == 0 else 1.0 + j) for j, c in enumerate(proposal.candidates)])
    return storm


def test_proposals_on_a_convolution_s_sketches_are_legal_and_canonical_and_move_between_them() -> None:
    best = ranked(sketches(build("C2D", [1, 14, 14, 256, 256, 3, 1, 1]), cross("avx512")), samples=512)
    seeds = [candidate(k, point) for k, (_, point, _) in enumerate(best)]
    storm = _run_on_sketches([s for s, _, _ in best], seeds, 4, 32)
    assert storm.statistics["move"].kept > 0
    assert storm.statistics["shift"].kept > 0


@pytest.mark.parametrize("name", ["GMM", "DEP", "C1D", "NRM", "SFM", "TBG", "T2D", "GRP"])
def test_proposals_on_random_tasks_are_legal_and_canonical(name: str) -> None:
    found = sketches(random_task(name, rng(len(name))), cross("avx512"))
    _run_on_sketches(found[:4], (), 2, 16)
