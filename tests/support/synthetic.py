"""Synthetic spaces with known optima and a bench that times their points: no compiler, no clock.

A bench counts what a search costs, and fails on what no search may do: measure a candidate twice, leave the space, time
what is illegal or not canonical.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.knobs import Knob
from stormdrop.tuning.strategy import Candidate, Outcome, Points, Proposal, Space, Strategy

Cost = Callable[[tuple[int, ...]], float]
"""What a point truly takes; infinite where it fails."""
Noise = Callable[[int, np.random.Generator], NDArray[np.float64]]
"""So many factors, one for each timing in a row."""


def flat(point: tuple[int, ...]) -> float:
    """All points are equally fast."""
    return 1.0


@dataclass(frozen=True)
class SyntheticSpace:
    """Knobs with a cost. Points whose product exceeds `limit` are illegal.

    Axes with an extent are clamped from their last knob outwards, as a sketch does. The prior is the cost where it
    `tells`.
    """

    knobs: tuple[Knob, ...]
    cost: Cost = flat
    limit: float = float("inf")
    extents: Mapping[str, int] = field(default_factory=dict[str, int])
    tells: bool = False

    def canonical(self, points: Points) -> Points:
        found = points.copy()
        for axis, extent in self.extents.items():
            rest = np.full(len(points), extent)
            for i in reversed([i for i, k in enumerate(self.knobs) if k.name.rpartition(".")[0] == axis]):
                found[:, i] = np.minimum(found[:, i], rest)
                rest = -(-rest // found[:, i])
        return found

    def legal(self, points: Points) -> NDArray[np.bool_]:
        return points.astype(np.float64).prod(axis=1) <= self.limit

    def snapped(self, points: Points) -> Points:
        found = points.copy()
        for i, k in enumerate(self.knobs):
            found[:, i] = np.array(k.choices)[np.maximum(0, np.searchsorted(k.choices, points[:, i], "right") - 1)]
        return found

    def sample_legal(self, n: int, rng: np.random.Generator) -> Points:
        drawn = self.canonical(np.stack([rng.choice(k.choices, size=8 * n) for k in self.knobs], axis=1))
        return rng.permutation(np.unique(drawn[self.legal(drawn)], axis=0))[:n]

    def features(self, points: Points) -> NDArray[np.float64]:
        return points.astype(np.float64)

    def prior(self, points: Points) -> NDArray[np.float64]:
        return np.array([self.cost(tuple(p)) if self.tells else 1.0 for p in points.tolist()])


def knobs(*choices: Sequence[int], axes: Sequence[str] | None = None) -> tuple[Knob, ...]:
    """Knobs of an axis each, or of the named axes, numbered from 1 within each."""
    names = list(axes) if axes is not None else [f"s0.a{i}" for i in range(len(choices))]
    return tuple(Knob(f"{a}.{names[: i + 1].count(a)}", tuple(c)) for i, (a, c) in enumerate(zip(names, choices)))


def bowl(dimensions: int, size: int = 7, optimum: int = 3, tells: bool = False) -> SyntheticSpace:
    """Separable and convex: 1 + the squared distance from the optimum."""

    def cost(point: tuple[int, ...]) -> float:
        return 1.0 + sum((v - optimum) ** 2 for v in point)

    return SyntheticSpace(knobs(*[range(size)] * dimensions), cost, tells=tells)


def plateau(dimensions: int, size: int = 7) -> SyntheticSpace:
    return SyntheticSpace(knobs(*[range(size)] * dimensions))


def silence(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.ones(n)


def lognormal(sigma: float) -> Noise:
    return lambda n, rng: np.exp(sigma * rng.standard_normal(n))


def heavy_tailed(sigma: float, share: float = 0.1) -> Noise:
    """Lognormal, and a share of timings takes three to ten times as long."""

    def factors(n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        outliers = np.where(rng.random(n) < share, rng.uniform(3, 10, n), 1.0)
        return np.exp(sigma * rng.standard_normal(n)) * outliers

    return factors


class Drifting:
    """Lognormal on a machine that changes its pace by a random share every now and then, for all alike."""

    def __init__(self, sigma: float, jump: float, every: int = 20) -> None:
        self.sigma, self.jump, self.every = sigma, jump, every
        self._pace, self._left = 1.0, 0

    def __call__(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        found = np.exp(self.sigma * rng.standard_normal(n))
        for i in range(n):
            if self._left == 0:
                self._pace, self._left = (
                    float(np.exp(self.jump * rng.standard_normal())),
                    int(rng.integers(1, 2 * self.every)),
                )
            self._left -= 1
            found[i] *= self._pace
        return found


class Bench:
    """Measures proposals. `trials` are first measurements, `timings` those of duels, each candidate of each round."""

    def __init__(
        self, spaces: Sequence[SyntheticSpace], noise: Noise = silence, seed: int = 0, placement: float = 0.0
    ) -> None:
        """`placement` is the standard deviation that a candidate's place in memory brings, which is its own in every
        proposal.
        """
        self.spaces, self._noise, self._rng, self._placement = spaces, noise, np.random.default_rng(seed), placement
        self.measured: list[Candidate] = []
        self.duels: list[Proposal] = []
        self.known: set[Candidate] = set()

    @property
    def trials(self) -> int:
        return len(self.measured)

    @property
    def pairings(self) -> Counter[tuple[Candidate, Candidate]]:
        """How often each challenger was timed beside each incumbent."""
        found: Counter[tuple[Candidate, Candidate]] = Counter()
        for p in self.duels:
            found.update({(p.candidates[0], c): p.rounds for c in p.candidates[1:]})
        return found

    @property
    def timings(self) -> int:
        return sum(p.rounds * len(p.candidates) for p in self.duels)

    def cost(self, c: Candidate) -> float:
        return self.spaces[c.sketch].cost(c.point)

    def measure(self, proposal: Proposal) -> list[Outcome]:
        for c in proposal.candidates:
            self._check(c)
        if not proposal.rounds:
            assert not set(proposal.candidates) & set(self.measured), "a candidate is measured twice"
            assert len(set(proposal.candidates)) == len(proposal.candidates)
            self.measured += proposal.candidates
            self.known |= set(proposal.candidates)
            placed = np.exp(self._placement * self._rng.standard_normal(len(proposal.candidates)))
            return [self._outcome(c, f * self._noise(1, self._rng), False) for c, f in zip(proposal.candidates, placed)]
        assert set(proposal.candidates) <= self.known, "a duel is for candidates that were measured before"
        self.duels.append(proposal)
        n = len(proposal.candidates)
        factors = self._noise(n * proposal.rounds, self._rng).reshape(proposal.rounds, n)
        factors *= np.exp(self._placement * self._rng.standard_normal(n))
        return [self._outcome(c, factors[:, i], True) for i, c in enumerate(proposal.candidates)]

    def _check(self, c: Candidate) -> None:
        space, row = self.spaces[c.sketch], np.array([c.point])
        assert np.array_equal(space.canonical(row), row), f"{c} is not canonical"
        assert space.legal(row)[0], f"{c} is illegal"

    def _outcome(self, c: Candidate, factors: NDArray[np.float64], is_duel: bool) -> Outcome:
        cost = self.cost(c)
        if not np.isfinite(cost):
            return Outcome(c, None)
        samples = (cost * factors).tolist()
        return Outcome(c, float(np.median(samples)), tuple(samples) if is_duel else ())


def drive(strategy: Strategy, bench: Bench, trials: float = float("inf"), batch: int = 16) -> Bench:
    """The tuning loop without anything around it."""
    while (left := trials - bench.trials) > 0:
        proposal = strategy.ask(int(min(batch, left)))
        if not proposal.candidates:
            break
        strategy.tell(bench.measure(proposal))
    return bench


class PriorRanker:
    """The analytic prior alone: minus the logarithm of estimated seconds."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._spaces = spaces

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
        return -np.log(self._spaces[sketch].prior(points))
