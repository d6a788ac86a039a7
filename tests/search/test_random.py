"""The strategy on synthetic sketches: functions with known optima, no compiler, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from stormdrop.search.random import Candidate, Outcome, RandomSearch
from stormdrop.space.knobs import Knob
from stormdrop.space.sketch import Points, Sketch

Cost = Callable[[tuple[int, ...]], float]


@dataclass
class Synthetic:
    """As much of a sketch as the strategy sees. Points whose product exceeds `limit` are illegal; the prior knows nothing."""

    knobs: tuple[Knob, ...]
    limit: int = 10**9

    def canonical(self, points: Points) -> Points:
        return points

    def legal(self, points: Points) -> NDArray[np.bool_]:
        return points.prod(axis=1) <= self.limit

    def prior(self, points: Points) -> NDArray[np.float64]:
        return np.zeros(len(points))

    def sample_legal(self, n: int, rng: np.random.Generator) -> Points:
        drawn = np.stack([rng.choice(k.choices, size=8 * n) for k in self.knobs], axis=1)
        return rng.permutation(np.unique(drawn[self.legal(drawn)], axis=0))[:n]


def space(*choices: tuple[int, ...], limit: int = 10**9) -> Sketch:
    return cast(Sketch, Synthetic(tuple(Knob(f"s{k}.a0.1", c) for k, c in enumerate(choices)), limit))


def drive(search: RandomSearch, cost: Cost, trials: int, batch: int = 16) -> list[tuple[Candidate, float]]:
    """The loop without measuring; a negative cost is a failure."""
    seen: list[tuple[Candidate, float]] = []
    while len(seen) < trials and (asked := search.ask(min(batch, trials - len(seen)))):
        seen += [(c, cost(c.point)) for c in asked]
        search.tell(Outcome(c, cost(c.point) if cost(c.point) >= 0 else None) for c in asked)
    return seen


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


TWELVE = tuple(range(1, 13))


def test_no_candidate_is_asked_twice() -> None:
    search = RandomSearch([space(TWELVE, TWELVE), space(TWELVE, (1, 2))], rng(), 120)
    asked = [c for c, _ in drive(search, lambda p: float(sum(p)), 120)]
    assert len(asked) == 120
    assert len(set(asked)) == 120


def test_a_space_that_is_used_up_ends_the_search() -> None:
    search = RandomSearch([space((1, 2, 3), (1, 2)), space((1, 2))], rng(), 100)
    asked = [c for c, _ in drive(search, lambda p: float(sum(p)), 100)]
    assert len(asked) == 8
    assert search.ask(4) == []


def test_seeds_come_first_and_once() -> None:
    seeds = [Candidate(1, (3, 2)), Candidate(0, (5, 5)), Candidate(1, (3, 2))]
    search = RandomSearch([space(TWELVE, TWELVE), space(TWELVE, TWELVE)], rng(), 40, seeds)
    asked = [c for c, _ in drive(search, lambda p: float(sum(p)), 40)]
    assert asked[:2] == [Candidate(1, (3, 2)), Candidate(0, (5, 5))]
    assert len(set(asked)) == 40


def test_every_sketch_is_sampled() -> None:
    search = RandomSearch([space(TWELVE, TWELVE) for _ in range(7)], rng(), 64)
    assert {c.sketch for c in search.ask(14)} == set(range(7))


def test_only_legal_points_are_asked() -> None:
    search = RandomSearch([space(TWELVE, TWELVE, limit=20)], rng(), 60)
    assert all(c.point[0] * c.point[1] <= 20 for c, _ in drive(search, lambda p: 100.0 - sum(p), 60))


def test_it_climbs_to_the_optimum_of_a_separable_function() -> None:
    """Six knobs of twelve choices are three million points; the optimum is one of them."""
    optimum = (3, 11, 7, 2, 9, 5)

    def cost(p: tuple[int, ...]) -> float:
        return 1.0 + sum((a - b) ** 2 for a, b in zip(p, optimum))

    for seed in range(5):
        search = RandomSearch([space(*[TWELVE] * 6)], rng(seed), 300)
        best = min(drive(search, cost, 300), key=lambda pair: pair[1])
        assert best[0].point == optimum


def test_it_climbs_in_the_sketch_that_holds_the_optimum() -> None:
    near, far = space(*[TWELVE] * 4), space(*[TWELVE[:6]] * 4)
    search = RandomSearch([near, far], rng(), 200)
    seen = drive(search, lambda p: 1.0 + sum((v - 10) ** 2 for v in p), 200)
    assert min(seen, key=lambda pair: pair[1])[0] == Candidate(0, (10, 10, 10, 10))


def test_failures_are_neither_repeated_nor_climbed_from() -> None:
    """Half of the space fails, the cheapest half by the same formula."""

    def cost(p: tuple[int, ...]) -> float:
        return -1.0 if p[0] <= 6 else float(sum(p))

    search = RandomSearch([space(*[TWELVE] * 3)], rng(), 200)
    seen = drive(search, cost, 200)
    assert len({c for c, _ in seen}) == 200
    assert min(value for _, value in seen if value >= 0) == 9.0


def test_a_search_in_which_everything_fails_goes_on_sampling() -> None:
    search = RandomSearch([space(*[TWELVE] * 3)], rng(), 50)
    assert len({c for c, _ in drive(search, lambda _: -1.0, 50)}) == 50


def test_the_same_seed_asks_the_same() -> None:
    runs = [drive(RandomSearch([space(*[TWELVE] * 4)], rng(3), 80), lambda p: float(sum(p)), 80) for _ in range(2)]
    assert runs[0] == runs[1]
