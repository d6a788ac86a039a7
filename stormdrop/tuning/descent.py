"""One descent: from a start to a point that no move improves, on measured values.

    sweep:   measure the neighbours in batches, first earlier improvements and the ranker's favourites
    leap:    some look faster by more than noise -> all of them at once, the best one twice as far, while that is faster
    duel:    the fastest few and the incumbent in turns; a candidate faster beyond chance is the next incumbent
    end:     a whole sweep, the nearly equal candidates and a few pairs of moves brought no gain

A candidate is measured once; only duels time it again. An incumbent is replaced only by a duel's winner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.knobs import Move, moved, neighbour_rows
from stormdrop.tuning.duel import DuelSettings, Exchange, duel
from stormdrop.tuning.statistics import gain_of_medians, relative_noise
from stormdrop.tuning.strategy import Candidate, Outcome, Proposal, Ranker, Space, candidate

NEAR = 0.1  # two moves that each cost at most this much may gain together
MOST_MARGIN = 0.1  # where the machine is noisier than this, everything would have to duel
SHORTEST_SWEEP = 16  # trials, where a start has few neighbours
DRIFT = 0.15  # the most that a machine slows down between two duels
RECENT = 16  # samples of the incumbent that measure its present speed
PAIRED = 8  # of the best single moves are paired


@dataclass(frozen=True, slots=True)
class DropletSettings:
    starts: int = 3
    reach: float = 0.05
    """A start that is so much slower than the fastest one is not descended from: a storm has looked there already. The
    fewer points it has measured, the less its order of sketches means: five points of doubt are shared among them."""
    batch: int = 8
    """Candidates measured between two decisions; fewer decide sooner, more keep more builders busy."""
    alpha: float = 0.05
    """The probability of leaving an incumbent although no candidate around it is faster."""
    margin: float = 0.02
    """The smallest significant difference of first measurements; twice the noise of duels counts instead if that is
    more.
    """
    group: int = 3
    """Challengers in one duel."""
    challengers: int = 18
    """That may duel one incumbent; each of them takes a share of `alpha`."""
    max_step: int = 16
    """The most choices that one move may advance, by doubling."""
    pairs: int = 24
    """The number of pairs of moves that are tried when no single move helps."""
    worth: float = 0.01
    """The least total gain over one sweep's number of trials; a descent with less ends."""
    behind: float = 0.12
    """A descent that is so much slower than the best end, a sweep's worth of trials after its start, is given up."""
    duel: DuelSettings = field(default_factory=DuelSettings)


@dataclass(frozen=True, slots=True)
class Way:
    """A candidate, and the moves that lead to it from the incumbent, each `step` choices far."""

    end: Candidate
    moves: tuple[Move, ...] = ()
    step: int = 1

    @property
    def is_single(self) -> bool:
        return self.step == 1 and len(self.moves) == 1


class Ledger:
    """The latest value of every candidate that was measured here or elsewhere; None if it failed."""

    def __init__(self, known: Mapping[Candidate, float | None]) -> None:
        self._values = dict(known)

    def record(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._values[outcome.candidate] = outcome.value

    def revalue(self, samples: Mapping[Candidate, Sequence[float]]) -> None:
        """Stores the medians of a duel, unless a candidate failed in it."""
        for c, each in samples.items():
            if each and not self.failed(c):
                self._values[c] = float(np.median(each))

    def knows(self, c: Candidate) -> bool:
        return c in self._values

    def failed(self, c: Candidate) -> bool:
        return c in self._values and self._values[c] is None

    def value(self, c: Candidate) -> float:
        """Returns the value of a candidate; infinity if it failed or was not measured."""
        value = self._values.get(c)
        return inf if value is None else value


class DropletDescent:
    """The descent from one start. `incumbent` is the last candidate that won its duel, or the start."""

    def __init__(
        self,
        start: Candidate,
        spaces: Sequence[Space],
        ranker: Ranker,
        rng: np.random.Generator,
        settings: DropletSettings,
        ledger: Ledger,
        rival: float = inf,
        passed: Iterable[Candidate] = (),
    ) -> None:
        """Creates a descent from `start`.

        `rival` is the value of the best end so far. `passed` holds incumbents of other descents; reaching any of them
        ends this descent.
        """
        self.path: list[Way] = [Way(start)]
        self.stopped = "no move helps"
        self.screened = 0  # candidates measured
        self._space, self._ranker, self._rng = spaces[start.sketch], ranker, rng
        self._settings, self._ledger = settings, ledger
        self._rival, self._passed = rival, set(passed)
        self._noise = 0.0
        self._recent: list[float] = []  # the incumbent's samples
        self._last_gain: dict[Move, float] = {}  # the gain of a single move in its last trial
        self._sweep = 0  # how many trials make a sweep's worth
        self._gains: list[tuple[int, float]] = []  # of every duel that was won, and after how many trials
        self._duelled: set[Candidate] = set()  # with the incumbent
        self._heads: list[Candidate] = []  # the fastest of each batch around the incumbent

    @property
    def incumbent(self) -> Candidate | None:
        return self.path[-1].end if self.path else None

    @property
    def _margin(self) -> float:
        return min(max(self._settings.margin, 2 * self._noise), MOST_MARGIN)

    def run(self) -> Exchange[Candidate | None]:
        """Runs the descent; returns the last incumbent, None if even the start has failed."""
        while self.path:
            here = self.path[-1]
            improved = yield from self._improve(here)
            if improved is not None:
                self.path.append(improved)
                if improved.end in self._passed:
                    self.stopped = "another descent was here"
                    break
                if self._is_slow():
                    self.stopped = "gains too little"
                    break
            elif self._ledger.failed(here.end):
                self.path.pop()
                self._recent = []
            else:
                break
        return self.incumbent

    def _improve(self, here: Way) -> Exchange[Way | None]:
        """Returns the way to a faster candidate; None if there is none, or if the incumbent failed."""
        self._duelled, self._heads = {here.end}, []
        ways = {w.end: w for w in self._around(here)}
        self._sweep = max(self._sweep, len(ways), SHORTEST_SWEEP)
        while fresh := self._fresh(ways):
            if self._is_behind(here):
                self.stopped = "behind"
                return None
            yield from self._screen(fresh)
            self._feel(here, ways)
            yield from self._leap(here, ways)
            winner = yield from self._settle(here, ways, is_last=False)
            if winner is not None or self._ledger.failed(here.end):
                return winner
        winner = yield from self._settle(here, ways, is_last=True)
        if winner is not None or self._ledger.failed(here.end):
            return winner
        pairs = self._pairs(here, ways)
        ways |= {w.end: w for w in pairs}
        while fresh := self._fresh({w.end: w for w in pairs}):
            yield from self._screen(fresh)
        return (yield from self._settle(here, ways, is_last=True))

    def _is_behind(self, here: Way) -> bool:
        return self.screened >= self._sweep and self._ledger.value(here.end) > (1 + self._settings.behind) * self._rival

    def _is_slow(self) -> bool:
        since = self.screened - self._sweep
        return since >= 0 and sum(gain for trial, gain in self._gains if trial > since) < self._settings.worth

    # ---- neighbours ------------------------------------------------------------------------------------------------

    def _around(self, here: Way) -> list[Way]:
        """Returns the last way repeated, also with twice the step, and all neighbours; the most promising first."""
        moves, _ = neighbour_rows(self._space.knobs, here.end.point)
        again = [(here.moves, step) for step in (1, min(2 * here.step, self._settings.max_step))] if here.moves else []
        ways = self._ways(here, [*(((m,), 1) for m in moves), *again])
        if not ways:
            return []
        # First the moves that helped in their last trial, last the moves that did not.
        helped = [np.sign(self._last_gain.get(w.moves[0], 0.0)) if w.is_single else 2.0 for w in ways]
        order = np.lexsort((self._rng.random(len(ways)), -self._scores(ways), -np.array(helped)))
        return [ways[i] for i in order]

    def _ways(self, here: Way, plans: Sequence[tuple[tuple[Move, ...], int]]) -> list[Way]:
        """Returns the legal ends of planned moves, each once."""
        rows = [(moved(self._space.knobs, here.end.point, moves, step), moves, step) for moves, step in plans]
        some = [(row, moves, step) for row, moves, step in rows if row is not None]
        if not some:
            return []
        points = self._space.canonical(np.array([row for row, _, _ in some], dtype=np.int64))
        way_by_end: dict[Candidate, Way] = {}
        for point, is_legal, (_, moves, step) in zip(points, self._space.legal(points), some):
            end = candidate(here.end.sketch, point)
            if is_legal and end != here.end:
                way_by_end.setdefault(end, Way(end, moves, step))
        return list(way_by_end.values())

    def _scores(self, ways: Sequence[Way]) -> NDArray[np.float64]:
        scores = self._ranker.score(ways[0].end.sketch, np.array([w.end.point for w in ways], dtype=np.int64))
        return np.nan_to_num(scores, nan=-inf)

    def _feel(self, here: Way, ways: Mapping[Candidate, Way]) -> None:
        """Stores the gains of single moves, so that they come early or late at the next incumbent."""
        before = self._ledger.value(here.end)
        for w in ways.values():
            if w.is_single and self._ledger.knows(w.end):
                self._last_gain[w.moves[0]] = before - self._ledger.value(w.end)

    # ---- measuring -------------------------------------------------------------------------------------------------

    def _fresh(self, ways: Mapping[Candidate, Way]) -> list[Candidate]:
        return [c for c in ways if not self._ledger.knows(c)]

    def _screen(self, candidates: Sequence[Candidate]) -> Exchange[None]:
        """Measures the candidates in order, as many as the caller of `ask` has room for."""
        outcomes = yield Proposal(tuple(candidates))
        self.screened += len(outcomes)
        self._heads.append(min(outcomes, key=self._ledger.value, default=candidates[0]))

    def _faster(self, here: Way, ways: Iterable[Way], by: float) -> list[Way]:
        """Returns the ways whose first measurement is faster than the incumbent by a share, fastest first."""
        limit = (1 - by) * self._ledger.value(here.end)
        return sorted((w for w in ways if self._ledger.value(w.end) < limit), key=lambda w: self._ledger.value(w.end))

    def _leap(self, here: Way, ways: dict[Candidate, Way]) -> Exchange[None]:
        """Combines and doubles the moves that look faster, as long as the combination looks faster still."""
        best: Way | None = None
        while (better := self._faster(here, ways.values(), self._margin)) and better[0] != best:
            best = better[0]
            plans = {w.end: w for w in self._ways(here, self._leaps(better)) if w.end not in ways}
            ways |= plans
            if fresh := self._fresh(plans):
                yield from self._screen(fresh)
            for c in self._fresh(plans):
                del ways[c]  # there was no room for it

    def _leaps(self, better: Sequence[Way]) -> list[tuple[tuple[Move, ...], int]]:
        """Returns all single moves that look better, combined, and the best way with twice the step."""
        best = better[0]
        plans = [(_compatible(w.moves[0] for w in better if w.is_single), 1), (best.moves, 2 * best.step)]
        return [(moves, step) for moves, step in plans if moves and step <= self._settings.max_step]

    def _pairs(self, here: Way, ways: Mapping[Candidate, Way]) -> list[Way]:
        """Returns pairs of single moves that each nearly helped, the pairs with the best scores by the ranker."""
        singles = [w.moves[0] for w in self._faster(here, ways.values(), -NEAR) if w.is_single][:PAIRED]
        plans = [((a, b), 1) for a, b in combinations(singles, 2) if not set(a.touched) & set(b.touched)]
        pairs = [w for w in self._ways(here, plans) if w.end not in ways]
        if not pairs:
            return []
        order = np.argsort(-self._scores(pairs), kind="stable")
        return [pairs[i] for i in order[: self._settings.pairs]]

    # ---- settling --------------------------------------------------------------------------------------------------

    def _settle(self, here: Way, ways: Mapping[Candidate, Way], is_last: bool) -> Exchange[Way | None]:
        """Runs duels of faster-looking candidates against the incumbent.

        Until the end, only the fastest candidates duel; at the end all of them do, and also the nearly equal
        candidates.
        """
        while contenders := self._contenders(here, ways, is_last):
            level = self._level(len(contenders))
            result = yield from duel(here.end, contenders, level, self._settings.duel)
            self._duelled |= set(result.samples) or set(contenders)
            self._ledger.revalue(result.samples)
            self._recent += result.samples.get(here.end, ())
            self._ledger.revalue({here.end: self._recent[-RECENT:]})
            self._noise = relative_noise(self._recent[-RECENT:])
            if result.winner is not None:
                winning = result.samples[result.winner]
                self._gains.append((self.screened, gain_of_medians(winning, result.samples[here.end])))
                self._recent = list(winning)
                return ways[result.winner]
            if not is_last or self._ledger.failed(here.end):
                return None
        return None

    def _contenders(self, here: Way, ways: Mapping[Candidate, Way], is_last: bool) -> list[Candidate]:
        room = min(self._settings.group, 1 + self._settings.challengers - len(self._duelled))
        waiting = [w for w in ways.values() if w.end not in self._duelled]
        faster = self._faster(here, waiting, -self._margin if is_last else 0.0)
        if is_last:
            # The machine may have slowed since the incumbent was timed: the fastest of each batch is compared fairly.
            faster += [w for w in self._faster(here, waiting, -DRIFT) if w.end in self._heads and w not in faster]
            return [w.end for w in faster[:room]]
        if not faster and not self._recent:
            # The start may have been measured on another day: it rules nothing out before it is timed anew.
            faster = self._faster(here, waiting, -inf)[:1]
        if not faster:
            return []
        limit = self._ledger.value(faster[0].end) * (1 + self._margin)
        return [w.end for w in faster if self._ledger.value(w.end) <= limit][:room]

    def _level(self, n: int) -> float:
        """Returns the error allowed for each of `n` challengers.

        The first group shares half of alpha, all later challengers the rest.
        """
        s = self._settings
        first = min(s.group, s.challengers)
        if len(self._duelled) == 1 and n <= first:
            return s.alpha / 2 / first
        return s.alpha / 2 / max(1, s.challengers - first)


def _compatible(moves: Iterable[Move]) -> tuple[Move, ...]:
    """Returns as many moves as touch different knobs, earlier moves preferred."""
    touched: set[int] = set()
    compatible: list[Move] = []
    for move in moves:
        if not touched & set(move.touched):
            touched |= set(move.touched)
            compatible.append(move)
    return tuple(compatible)
