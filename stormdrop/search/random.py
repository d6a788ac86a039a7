"""Random search with a climb: sample all sketches for a share of the budget, then improve the best few points.

The strategy sees knob matrices and seconds, nothing else. No point is proposed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.default import neighbours
from stormdrop.space.sketch import Points, Sketch

EXPLORE_SHARE = 0.6
POOL = 32  # legal points drawn for each one proposed; every other proposal is the best of them by the prior
STARTS = 3
CLOSE = 1.25  # a start of another sketch may be this much slower than the best
FALLBACK_STARTS = 32


@dataclass(frozen=True, slots=True)
class Candidate:
    """A canonical point of one of the sketches."""

    sketch: int
    point: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a candidate; `seconds` is None where it failed."""

    candidate: Candidate
    seconds: float | None


class RandomSearch:
    """Seeds first, then samples of every sketch in turn, then a climb from the best few points."""

    def __init__(
        self,
        sketches: Sequence[Sketch],
        rng: np.random.Generator,
        trials: int,
        seeds: Iterable[Candidate] = (),
        explore: float = EXPLORE_SHARE,
    ) -> None:
        """`trials` is the budget of which the share `explore` is sampled; asking for more goes on climbing."""
        self._sketches, self._rng = sketches, rng
        self._seeds = list(dict.fromkeys(seeds))
        self._explore = max(len(self._seeds), round(trials * explore))
        self._asked: set[Candidate] = set()
        self._seconds: dict[Candidate, float] = {}
        self._parent: dict[Candidate, Candidate] = {}  # whose neighbour it is
        self._turn = 0

    def ask(self, n: int) -> list[Candidate]:
        """At most `n` candidates that were never asked before; fewer, or none, once the space holds no others."""
        found = self._take(self._seeds, n)
        found += self._take(self._sampled(n - len(found)), min(n - len(found), self._explore - len(self._asked)))
        found += self._take(self._climbed(), n - len(found))
        return found + self._take(self._sampled(n - len(found)), n - len(found))

    def tell(self, outcomes: Iterable[Outcome]) -> None:
        """Learn the seconds of candidates; failures are not climbed from and not tried again."""
        for outcome in outcomes:
            self._asked.add(outcome.candidate)
            if outcome.seconds is not None:
                self._seconds[outcome.candidate] = outcome.seconds

    def _take(self, candidates: Iterable[Candidate], n: int) -> list[Candidate]:
        taken: list[Candidate] = []
        if n <= 0:
            return taken
        for candidate in candidates:
            if candidate in self._asked:
                continue
            self._asked.add(candidate)
            taken.append(candidate)
            if len(taken) == n:
                break
        return taken

    def _sampled(self, n: int) -> Iterator[Candidate]:
        """Points of all sketches in turn: now the best by the prior of a random handful, now any of them."""
        if n <= 0:
            return
        each = -(-n // len(self._sketches))
        pools: dict[int, list[Points]] = {}
        barren: set[int] = set()
        while len(barren) < len(self._sketches):
            k = self._turn % len(self._sketches)
            rest = pools.get(k)
            if not rest:
                rest = pools[k] = self._fresh(k, each * POOL)
                if not rest:
                    barren.add(k)
            if rest:
                by_prior = (self._turn // len(self._sketches)) % 2 == 0
                point = rest.pop(0 if by_prior else int(self._rng.integers(len(rest))))
                yield _candidate(k, point)
            self._turn += 1

    def _fresh(self, k: int, n: int) -> list[Points]:
        """Legal points of a sketch that were not asked yet, the fastest by the prior first."""
        sketch = self._sketches[k]
        points = sketch.sample_legal(n, self._rng)
        rows = [p for p in points[np.argsort(sketch.prior(points), kind="stable")] if _candidate(k, p) not in self._asked]
        return rows

    def _climbed(self) -> Iterator[Candidate]:
        """What lies around the starts, half of it around the best; then around the next best points."""
        order = sorted(self._seconds, key=self._seconds.__getitem__)
        starts = self._starts(order)
        around = [self._around(start) for start in starts]
        yield from _in_turn([turn for other in around[1:] or around for turn in (around[0], other)] if around else [])
        for start in islice((c for c in order if c not in starts), FALLBACK_STARTS):
            yield from self._around(start)

    def _starts(self, order: Sequence[Candidate]) -> list[Candidate]:
        """The best few points; of different sketches where those are close to the best."""
        if not order:
            return []
        limit = CLOSE * self._seconds[order[0]]
        first_of: dict[int, Candidate] = {}
        for c in order:
            if self._seconds[c] <= limit:
                first_of.setdefault(c.sketch, c)
        return list(dict.fromkeys([*islice(first_of.values(), STARTS), *order]))[:STARTS]

    def _around(self, start: Candidate) -> Iterator[Candidate]:
        """Leaps, then neighbours, the fastest by the prior first."""
        sketch, point = self._sketches[start.sketch], np.array(start.point, dtype=np.int64)
        yield from (_candidate(start.sketch, row) for row in self._leaps(start))
        rows = neighbours(sketch, point)
        rows = rows[sketch.legal(rows)]
        for row in rows[np.argsort(sketch.prior(rows), kind="stable")]:
            found = _candidate(start.sketch, row)
            self._parent.setdefault(found, start)
            yield found

    def _leaps(self, start: Candidate) -> Points:
        """Legal points that take the steps again that made the start and its siblings faster than their parent.

        parent + a and parent + b are faster  ->  from parent + a:  parent + 2a + b,  parent + a + b,  parent + 2a
        """
        parent = self._parent.get(start)
        if parent is None or self._seconds[start] >= self._seconds[parent]:
            return np.zeros((0, len(start.point)), np.int64)
        sketch = self._sketches[start.sketch]
        origin = self._places(parent)
        better = [c for c, p in self._parent.items() if p == parent and self._seconds.get(c, np.inf) < self._seconds[parent]]
        steps = [self._places(c) - origin for c in sorted(better, key=self._seconds.__getitem__)]
        most = np.array([len(k.choices) - 1 for k in sketch.knobs])
        places = self._places(start) + np.array([np.sum(steps, axis=0), *steps])
        places = np.clip(places, 0, most)
        rows = np.stack([np.array(k.choices, np.int64)[places[:, i]] for i, k in enumerate(sketch.knobs)], axis=1)
        rows = sketch.canonical(rows)
        return rows[sketch.legal(rows)]

    def _places(self, c: Candidate) -> NDArray[np.int64]:
        """Where a point stands in the choices of each knob; canonical values between two choices count as the lower one."""
        knobs = self._sketches[c.sketch].knobs
        found = [np.searchsorted(k.choices, value, side="right") - 1 for k, value in zip(knobs, c.point)]
        return np.maximum(np.array(found, np.int64), 0)


def _candidate(sketch: int, point: Points) -> Candidate:
    return Candidate(sketch, tuple(int(v) for v in point))


def _in_turn(sources: Sequence[Iterator[Candidate]]) -> Iterator[Candidate]:
    """One of each source, again and again, until all are empty."""
    waiting = list(sources)
    while waiting:
        for source in list(waiting):
            item = next(source, None)
            if item is None:
                waiting.remove(source)
            else:
                yield item
