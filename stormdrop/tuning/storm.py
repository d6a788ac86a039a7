"""Storm: exploration. A population over all sketches evolves under a ranker, and its best unmeasured rows are proposed.

    seeds, random rows, the elite ─operators─▶ canonical, unseen, legal ─ranker─▶ pools ─▶ picks ─measured─▶ elite

Thousands of rows are judged for each batch that is measured. No canonical point is proposed twice, and failed points
have no offspring. The ranker may change between two calls of `ask`: pools are scored anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from stormdrop.tuning import evolve
from stormdrop.tuning.evolve import OPERATORS, Codes, Operators, Rows
from stormdrop.tuning.population import CandidatePool, Floats, Population
from stormdrop.tuning.strategy import Candidate, Outcome, Points, Proposal, Ranker, Space, candidate

MAX_STRENGTH = 8.0
MAX_URGENCY = 4.0
UNKNOWN = 1e9  # the prior of a sketch without any legal point


@dataclass(frozen=True, slots=True)
class StormSettings:
    """Sizes and shares of a storm.

    The defaults judge about 160 rows for each candidate; many more rows would select points that the ranker
    overestimates.
    """

    population: int = 4096
    """Rows of one generation, over all sketches, at most."""
    rows_per_pick: int = 40
    """Rows of one generation for each candidate asked for."""
    generations: int = 4
    rows_per_sketch: int = 512
    """So many rows are worth a sketch's fixed cost; with fewer for all, fewer sketches take part in a batch."""
    eps: float = 0.05
    """The share of candidates that are random."""
    operators: Operators = field(default_factory=Operators)
    fresh: float = 0.2
    """The share of a sketch's rows that are drawn anew for each batch."""
    elite: int = 64
    """So many of a sketch's fastest measured points have offspring."""
    elite_share: float = 0.4
    """The share of parents from the elite; the rest are the ranker's favourites."""
    pressure: float = 2.0
    """The strength of the preference for parents by rank; 0 draws them evenly."""
    floor: float = 0.15
    """The share of rows that goes evenly to all sketches that may still win."""
    turns: float = 0.15
    """The share of candidates that are drawn by sketch first, then by rank within it."""
    first_turns: float = 0.5
    """The same share while nothing was measured."""
    first_random: float = 0.3
    """The share of candidates, while nothing was measured, that are each the best of a random handful."""
    near: float = 0.3
    """The share of candidates that may differ in one knob only from a better one."""
    seed_share: float = 0.5
    """The share of a batch that seeds take, until all were measured."""
    seed_reach: float = 4.0
    """The last seeds, if their priors are this much worse than the best one's, are not measured for being seeds."""
    hope: float = 4.0
    """A sketch never measured counts as this much faster than it seems; the bonus falls with the root of its trials."""
    closeness: float = 1.25
    """A sketch this much slower than the best gets 1/e of its rows."""
    patience: int = 192
    """After so many candidates without a gain mutations grow stronger, and random candidates more."""
    attempts: int = 3
    """The number of evolutions of a batch, with stronger mutations each time, while too few rows are unseen."""
    enumerable: int = 1 << 16
    """A sketch of no more combinations is listed as a whole when evolution finds too little in it."""


ORIGINS = (*OPERATORS, "random", "seed")
MOVE, RANDOM, SEED = (ORIGINS.index(name) for name in ("move", "random", "seed"))


@dataclass(slots=True)
class Tally:
    """Counts of the rows of one origin: made, new and legal, proposed, faster than everything before."""

    made: int = 0
    kept: int = 0
    picked: int = 0
    gained: int = 0


class Storm:
    """Ansor's evolutionary search over knob matrices, as an ask/tell strategy."""

    phase = "storm"
    eager = True

    def __init__(
        self,
        spaces: Sequence[Space],
        ranker: Ranker,
        rng: np.random.Generator,
        settings: StormSettings = StormSettings(),
        seeds: Sequence[Candidate] = (),
    ) -> None:
        """Creates a storm over `spaces`.

        `seeds`, best first, take a share of every batch until all were measured.
        """
        self._ranker, self._rng, self.settings = ranker, rng, settings
        self._all = [Population(k, s) for k, s in enumerate(spaces)]
        self._links = {
            (a.number, b.number): link
            for a in self._all
            for b in self._all
            if a is not b
            if (link := evolve.linked(a.genome, b.genome)) is not None
        }
        self._asked: dict[Candidate, int] = {}  # with their origins
        self._pending: dict[Candidate, None] = {}  # proposed, without outcome
        self._batch = 0
        self._owed = self._owed_turns = 0.0  # fractions of candidates
        self._strength = 1.0
        self._best = np.inf
        self._since = 0  # outcomes since the best
        self._favour = np.zeros(len(spaces))  # which sketches the ranker's picks were of
        self.statistics: dict[str, Tally] = {name: Tally() for name in ORIGINS}
        self._seeds = self._plant(seeds)

    def ask(self, n: int) -> Proposal:
        """Returns at most `n` candidates that were never proposed; fewer, or none, if no further points exist."""
        self._batch += 1
        self._seeds = [c for c in self._seeds if c not in self._asked]
        picks = self._spend([(c, SEED) for c in self._seeds[: ceil(n * self.settings.seed_share)]])
        wanted = n - len(picks)
        if wanted > 0:
            promise = self._promise()
            self._evolve(wanted, promise)
            self._owed += min(1.0, self.settings.eps * self._urgency) * wanted
            random = self._spend(self._random(min(wanted, int(self._owed))))
            if not np.isfinite(self._best):
                random += self._spend(self._handfuls(ceil(self.settings.first_random * (wanted - len(random)))))
            self._owed -= int(self._owed)
            picks += self._spend(self._ranked(wanted - len(random), promise)) + random
            picks += self._spend(self._random(n - len(picks)))
            picks += self._spend([(c, SEED) for c in self._seeds if c not in self._asked][: n - len(picks)])
        return Proposal(tuple(picks))

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Stores values, also of candidates that were never proposed.

        Failed candidates are not proposed again and have no offspring.
        """
        self._spend([(o.candidate, SEED) for o in outcomes], is_outcome=True)
        for outcome in outcomes:
            c = outcome.candidate
            if c in self._pending:
                del self._pending[c]
                self._since += 1
            self._all[c.sketch].learn(c.point, outcome.value)
            if outcome.value is not None and outcome.value < self._best:
                self._best, self._since = outcome.value, 0
                self.statistics[ORIGINS[self._asked[c]]].gained += 1

    @property
    def _urgency(self) -> float:
        """1, and more the longer nothing better was found."""
        return float(np.clip(self._since / self.settings.patience, 1.0, MAX_URGENCY))

    # ---- where it begins -------------------------------------------------------------------------------------------

    def _plant(self, seeds: Sequence[Candidate]) -> list[Candidate]:
        """Returns the seeds to measure, in order; trailing seeds with far worse priors only wait in their pools."""
        priors: dict[Candidate, float] = {}
        for seed in seeds:
            population = self._all[seed.sketch]
            rows = population.space.canonical(np.array([seed.point], dtype=np.int64).reshape(1, -1))
            known = candidate(seed.sketch, rows[0])
            if known not in priors and population.space.legal(rows)[0]:
                priors[known] = float(population.space.prior(rows)[0])
                population.prior = min(population.prior, priors[known])
                population.seeds.append(known.point)
        limit = self.settings.seed_reach * min(priors.values(), default=0.0)
        last = max((i for i, p in enumerate(priors.values()) if p <= limit), default=-1)
        return list(priors)[: last + 1]

    def _promise(self) -> Floats:
        """Returns each sketch's promise: its best value so far (or its prior), a bonus for few trials, and a floor.

        The promises sum to 1.
        """
        s = self.settings
        for p in self._all:
            if np.isinf(p.prior):
                p.prior = float(p.space.prior(p.space.sample_legal(32, self._rng)).min(initial=UNKNOWN))
        priors = np.array([p.prior for p in self._all])
        values = np.array([p.best for p in self._all])
        measured = np.isfinite(values)
        # A sketch never timed counts as worse than the best timed sketch by the ratio of priors, and by every failure.
        worse = priors / (priors[np.argmin(values)] if measured.any() else priors.min())
        worse *= 1.0 + np.array([p.failed for p in self._all])
        worse[measured] = _ratio(values[measured], values.min())
        trials = np.array([p.trials for p in self._all])
        gap = np.log(worse) - log(s.hope) / np.sqrt(1.0 + trials)
        gap -= max(0.0, gap.min())  # if all sketches failed so far, the least bad sketch counts as good
        quality = np.where(gap > 0, np.exp(-gap / log(s.closeness)), 1.0 - gap / log(s.hope))
        hopeful = gap <= log(s.hope)
        return (1.0 - s.floor) * quality / quality.sum() + s.floor * hopeful / hopeful.sum()

    # ---- how rows come into being ----------------------------------------------------------------------------------

    @property
    def _awake(self) -> list[Population]:
        """The sketches that take part in this batch and have rows to offer."""
        return [p for p in self._all if p.woken == self._batch and len(p.pool)]

    def _evolve(self, wanted: int, promise: Floats) -> None:
        """Fills the pools with generations of children, with ever stronger mutations while too few children are new."""
        s = self.settings
        rows = int(np.clip(s.rows_per_pick * wanted, min(s.population, s.rows_per_sketch), s.population))
        made = kept = 0
        strength = self._strength * self._urgency
        for _ in range(s.attempts):
            active = self._active(rows, promise)
            for p, m in active:
                self._wake(p, m)
            for _ in range(s.generations):
                for p, m in active:
                    made += m
                    kept += self._breed(p, m, min(MAX_STRENGTH, strength))
            for p, _ in active:
                p.barren = not len(p.pool)
            if sum(len(p.pool) for p in self._awake) >= wanted:
                break
            strength *= 2.0
        else:
            for p in self._all:
                if p.genome.combinations <= s.enumerable:
                    self._list(p)
        stale = kept < 0.3 * made
        self._strength = min(MAX_STRENGTH, self._strength * 1.25) if stale else max(1.0, self._strength / 1.25)

    def _active(self, rows: int, promise: Floats) -> list[tuple[Population, int]]:
        """Returns the sketches that take part with their numbers of rows, drawn by promise and by the ranker's
        favour.
        """
        slots = min(len(promise), max(1, rows // self.settings.rows_per_sketch))
        favour = self._favour / self._favour.sum() if slots > 1 and self._favour.any() else promise
        barren = np.array([p.barren for p in self._all])
        shares = 0.5 * (promise + favour) * (1.0 if barren.all() else ~barren)
        with np.errstate(divide="ignore"):
            keys = np.log(shares) + self._rng.gumbel(size=len(shares))
        if slots > 1:
            keys[np.argmax(shares)] = np.inf
        chosen = np.sort(np.argsort(-keys, kind="stable")[: min(slots, np.count_nonzero(shares))])
        part = shares[chosen] / shares[chosen].sum()
        return [(self._all[k], max(self.settings.rows_per_sketch // 4, round(rows * x))) for k, x in zip(chosen, part)]

    def _wake(self, p: Population, m: int) -> None:
        """Rescores a sketch's pool with the current ranker, and adds random rows."""
        first = not p.woken
        if p.woken != self._batch:
            p.woken, p.fresh = self._batch, p.nothing
            if len(p.pool):
                p.pool = p.pool.rescored(self._score(p, p.pool.points))
        if first and p.seeds:
            self._admit(p, np.array(p.seeds, dtype=np.int64), SEED, m, known_legal=True)
        sample = p.space.sample_legal(m if first else ceil(m * self.settings.fresh), self._rng)
        admitted = self._admit(p, sample, RANDOM, m, known_legal=True)
        p.fresh = p.fresh.joined(admitted, len(p.fresh) + len(admitted))

    def _breed(self, p: Population, m: int, strength: float) -> int:
        """Breeds one generation of one sketch; returns the number of new and legal children."""
        if not len(p.genome.live):
            return 0
        operators = self.settings.operators if self._donors(p) else replace(self.settings.operators, move=0.0)
        origins = operators.drawn(m, strength, self._rng)
        rows = evolve.mutated(p.genome, self._parents(p, m), origins, strength, self._rng)
        moves = origins == MOVE
        if moves.any():
            rows[moves] = self._moved(p, rows[moves])
        return len(self._admit(p, p.space.canonical(p.genome.values(rows)), origins, m))

    def _parents(self, p: Population, m: int) -> Rows:
        """Returns rows drawn by rank, of the elite and of the ranker's favourites."""
        s, elite = self.settings, p.elite(self.settings.elite)
        if not len(elite) + len(p.pool):
            return p.genome.random(m, self._rng)
        measured = 0 if not len(elite) else m if not len(p.pool) else round(m * s.elite_share)
        sources = ((elite, measured), (p.pool.points, m - measured))
        drawn = [x[evolve.drawn(len(x), n, s.pressure, self._rng)] for x, n in sources if n]
        return p.genome.places(np.concatenate(drawn))

    def _donors(self, p: Population) -> list[Population]:
        """Returns the sketches that share knobs with this sketch and have points to give."""
        return [d for d in self._all if (p.number, d.number) in self._links and len(d.values) + len(d.pool)]

    def _moved(self, p: Population, rows: Rows) -> Rows:
        """Returns rows with the shared knobs of another sketch's best points; faster sketches donate more."""
        donors = self._donors(p)
        best = np.array([d.best for d in donors])
        weights = np.full(len(donors), 0.1)
        weights[np.isfinite(best)] = 1.0 / _ratio(best[np.isfinite(best)], best.min())
        which = self._rng.choice(len(donors), size=len(rows), p=weights / weights.sum())
        rows = rows.copy()
        for k in np.unique(which):
            at, donor = np.flatnonzero(which == k), donors[k]
            points = donor.elite(self.settings.elite) if donor.values else donor.pool.points
            given = points[evolve.drawn(len(points), len(at), self.settings.pressure, self._rng)]
            rows[at] = evolve.moved(p.genome, rows[at], given, self._links[p.number, donor.number])
        return rows

    def _admit(
        self, p: Population, points: Points, origins: Codes | int, most: int, known_legal: bool = False
    ) -> CandidatePool:
        """Adds new, legal, canonical rows to the pool, which keeps its best `most` rows."""
        codes = np.broadcast_to(np.asarray(origins, dtype=np.int8), len(points))
        hashes = p.hasher(points)
        new = evolve.unseen(hashes, p.asked, p.pool.hashes)
        if len(new) and not known_legal:
            new = new[p.space.legal(points[new])]
        self._count(codes, codes[new])
        if not len(new):
            return p.nothing
        admitted = CandidatePool(points[new], self._score(p, points[new]), hashes[new], codes[new])
        p.pool = p.pool.joined(admitted, most)
        return admitted

    def _list(self, p: Population) -> None:
        """Adds every remaining row of a small sketch to its pool."""
        if p.woken != self._batch:
            p.pool, p.fresh, p.woken = p.nothing, p.nothing, self._batch
        self._admit(p, p.space.canonical(p.genome.values(p.genome.everything())), RANDOM, self.settings.enumerable)

    def _score(self, p: Population, points: Points) -> Floats:
        return np.nan_to_num(self._ranker.score(p.number, points), nan=-np.inf, posinf=np.inf, neginf=-np.inf)

    # ---- what is proposed ------------------------------------------------------------------------------------------

    def _random(self, n: int) -> list[tuple[Candidate, int]]:
        """Returns random rows out of the rows drawn for this batch."""
        rows = self._drawn_rows()
        chosen = self._rng.permutation(len(rows))[: max(0, n)]
        return [(candidate(p.number, p.fresh.points[i]), RANDOM) for p, i in (rows[k] for k in chosen)]

    def _handfuls(self, n: int) -> list[tuple[Candidate, int]]:
        """Returns the best of each of `n` random handfuls of those rows: good points from the whole space."""
        rows = self._drawn_rows()
        scores = np.array([p.fresh.scores[i] for p, i in rows])
        parts = np.array_split(self._rng.permutation(len(rows)), max(1, min(n, len(rows))))
        best = [rows[part[np.argmax(scores[part])]] for part in parts if len(part)]
        return [(candidate(p.number, p.fresh.points[i]), RANDOM) for p, i in best[: max(0, n)]]

    def _drawn_rows(self) -> list[tuple[Population, int]]:
        return [(p, i) for p in self._all if p.woken == self._batch for i in range(len(p.fresh))]

    def _ranked(self, n: int, promise: Floats) -> list[tuple[Candidate, int]]:
        """Returns the ranker's favourites, limited in similarity; some are drawn by sketch, in case the ranker errs on
        a sketch.
        """
        awake = self._awake
        if n <= 0 or not awake:
            return []
        share = min(0.5, self.settings.turns * self._urgency) if np.isfinite(self._best) else self.settings.first_turns
        self._owed_turns += n * share
        turns = int(self._owed_turns)
        self._owed_turns -= turns
        table, pool, owner = _stacked(awake, 8 * n)
        order = np.argsort(-pool.scores, kind="stable")[: 8 * n]
        pending = _rows([c for c in self._pending if len(c.point) + 2 <= table.shape[1]], table.shape[1])
        best = order[evolve.spread(table[order], n - turns, ceil(self.settings.near * n), pending)]
        self._favour *= 0.5
        np.add.at(self._favour, [awake[owner[i]].number for i in best], 1.0)
        left = np.ones(len(table), bool)
        left[best] = False
        weights = promise[[p.number for p in awake]]
        chosen: list[int] = best.tolist()
        for k in self._rng.choice(len(awake), size=turns, p=weights / weights.sum()):
            rest = np.flatnonzero(left & (owner == k))
            rest = rest if len(rest) else np.flatnonzero(left)
            if len(rest):
                left[rest[0]] = False
                chosen.append(int(rest[0]))
        picks: list[tuple[Candidate, int]] = []
        for i in chosen:
            p = awake[owner[i]]
            picks.append((candidate(p.number, table[i, 2 : 2 + len(p.space.knobs)]), int(pool.origins[i])))
        return picks

    def _spend(self, picks: Iterable[tuple[Candidate, int]], is_outcome: bool = False) -> list[Candidate]:
        """Returns the candidates that were never proposed, and marks them as proposed. `is_outcome`: from elsewhere."""
        new = {c: origin for c, origin in picks if c not in self._asked}
        for number in {c.sketch for c in new}:
            self._all[number].spend([c.point for c in new if c.sketch == number])
        self._asked |= new
        if not is_outcome:
            self._pending |= dict.fromkeys(new)
            for origin in new.values():
                self.statistics[ORIGINS[origin]].picked += 1
        return list(new)

    def _count(self, made: Codes, kept: Codes) -> None:
        counts = (np.bincount(codes, minlength=len(ORIGINS)).tolist() for codes in (made, kept))
        for name, m, k in zip(ORIGINS, *counts):
            self.statistics[name].made += m
            self.statistics[name].kept += k


def _ratio(values: Floats, best: float) -> Floats:
    """Returns the ratio of values to the best value, or an equivalent that also holds for negative objectives."""
    return 1.0 + (values - best) / max(abs(best), 1e-12)


def _stacked(populations: Sequence[Population], most: int) -> tuple[Points, CandidatePool, NDArray[np.int64]]:
    """Returns the best rows of all pools in one matrix, with scores and owners.

    Two leading columns hold the sketch's number, so that rows of two sketches are never near each other.
    """
    width = 2 + max(len(p.space.knobs) for p in populations)
    tops = [p.pool.at(slice(0, most)) for p in populations]
    owner = np.repeat(np.arange(len(tops)), [len(t) for t in tops])
    table = np.zeros((len(owner), width), np.int64)
    table[:, :2] = np.array([p.number for p in populations])[owner, None]
    for k, t in enumerate(tops):
        table[owner == k, 2 : 2 + t.points.shape[1]] = t.points
    pool = CandidatePool(
        table, *(np.concatenate([getattr(t, name) for t in tops]) for name in ("scores", "hashes", "origins"))
    )
    return table, pool, owner


def _rows(candidates: Sequence[Candidate], width: int) -> Points:
    padded = [(c.sketch, c.sketch, *c.point, *[0] * (width - 2 - len(c.point))) for c in candidates]
    return np.array(padded, dtype=np.int64).reshape(len(padded), width)
