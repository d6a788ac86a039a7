"""One descent: from a start to a point that no move improves, on measured values.

    sweep:   measure the neighbours, those that helped before and those that the ranker likes first, a batch at a time
    leap:    some look faster by more than noise -> all of them at once, the best one twice as far, while that is faster
    duel:    the fastest few and the incumbent in turns; whoever is faster beyond chance is the next incumbent
    end:     a whole sweep, the nearly equal ones and a few pairs of moves brought no gain

A candidate is measured once; only duels time it again. An incumbent gives way to a duel's winner and to nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import inf

import numpy as np
from numpy.typing import NDArray

from stormdrop.search.duel import DuelSettings, Talk, duel
from stormdrop.search.statistics import gain_of_medians, relative_noise
from stormdrop.search.strategy import Candidate, Outcome, Proposal, Ranker, Space, candidate
from stormdrop.space.moves import Move, moved, neighbour_rows

NEAR = 0.1  # two moves that each cost at most this much may gain together
MOST_MARGIN = 0.1  # where the machine is noisier than this, everything would have to duel
SHORTEST_SWEEP = 16  # trials, where a start has few neighbours
DRIFT = 0.15  # what a machine may slow down between two duels
RECENT = 16  # samples of the incumbent say how fast it is now
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
    """How likely an incumbent may be left although no candidate around it is faster."""
    margin: float = 0.02
    """First measurements that differ by less say nothing; twice the noise that duels see counts where that is more."""
    group: int = 3
    """Challengers in one duel."""
    challengers: int = 18
    """That may duel one incumbent; each of them takes a share of `alpha`."""
    max_step: int = 16
    """Choices that one move may go, by doubling."""
    pairs: int = 24
    """Of moves that are tried where no single one helps."""
    worth: float = 0.01
    """A descent whose last sweep's worth of trials gained less than this in all ends."""
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
    """The latest value of every candidate that was measured here or elsewhere; None where it failed."""

    def __init__(self, known: Mapping[Candidate, float | None]) -> None:
        self._values = dict(known)

    def record(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._values[outcome.candidate] = outcome.value

    def revalue(self, samples: Mapping[Candidate, Sequence[float]]) -> None:
        """Take the medians of a duel, unless a candidate failed in it."""
        for c, each in samples.items():
            if each and not self.failed(c):
                self._values[c] = float(np.median(each))

    def knows(self, c: Candidate) -> bool:
        return c in self._values

    def failed(self, c: Candidate) -> bool:
        return c in self._values and self._values[c] is None

    def value(self, c: Candidate) -> float:
        """Infinite for what failed or was not measured."""
        found = self._values.get(c)
        return inf if found is None else found


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
        """`rival`: the value of the best end so far. `passed`: incumbents of other descents, which end this one."""
        self.path: list[Way] = [Way(start)]
        self.stopped = "no move helps"
        self.screened = 0  # candidates measured
        self._space, self._ranker, self._rng = spaces[start.sketch], ranker, rng
        self._settings, self._ledger = settings, ledger
        self._rival, self._passed = rival, set(passed)
        self._noise = 0.0
        self._recent: list[float] = []  # the incumbent's samples
        self._felt: dict[Move, float] = {}  # what a single move gained when it was last tried
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

    def run(self) -> Talk[Candidate | None]:
        """Gives the last incumbent; None where even the start has failed."""
        while self.path:
            here = self.path[-1]
            found = yield from self._improve(here)
            if found is not None:
                self.path.append(found)
                if found.end in self._passed:
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

    def _improve(self, here: Way) -> Talk[Way | None]:
        """The way to a faster candidate; None where there is none, or the incumbent failed."""
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
        """The last way taken again, also twice as far, and all neighbours; the most promising first."""
        moves, _ = neighbour_rows(self._space.knobs, here.end.point)
        again = [(here.moves, step) for step in (1, min(2 * here.step, self._settings.max_step))] if here.moves else []
        ways = self._ways(here, [*(((m,), 1) for m in moves), *again])
        if not ways:
            return []
        # First what helped when it was last tried, last what did not.
        helped = [np.sign(self._felt.get(w.moves[0], 0.0)) if w.is_single else 2.0 for w in ways]
        order = np.lexsort((self._rng.random(len(ways)), -self._scores(ways), -np.array(helped)))
        return [ways[i] for i in order]

    def _ways(self, here: Way, plans: Sequence[tuple[tuple[Move, ...], int]]) -> list[Way]:
        """The legal ends of planned moves, each once."""
        rows = [(moved(self._space.knobs, here.end.point, moves, step), moves, step) for moves, step in plans]
        some = [(row, moves, step) for row, moves, step in rows if row is not None]
        if not some:
            return []
        points = self._space.canonical(np.array([row for row, _, _ in some], dtype=np.int64))
        found: dict[Candidate, Way] = {}
        for point, is_legal, (_, moves, step) in zip(points, self._space.legal(points), some):
            end = candidate(here.end.sketch, point)
            if is_legal and end != here.end:
                found.setdefault(end, Way(end, moves, step))
        return list(found.values())

    def _scores(self, ways: Sequence[Way]) -> NDArray[np.float64]:
        scores = self._ranker.score(ways[0].end.sketch, np.array([w.end.point for w in ways], dtype=np.int64))
        return np.nan_to_num(scores, nan=-inf)

    def _feel(self, here: Way, ways: Mapping[Candidate, Way]) -> None:
        """Remember what single moves gained, so that they come early or late at the next incumbent."""
        before = self._ledger.value(here.end)
        for w in ways.values():
            if w.is_single and self._ledger.knows(w.end):
                self._felt[w.moves[0]] = before - self._ledger.value(w.end)

    # ---- measuring -------------------------------------------------------------------------------------------------

    def _fresh(self, ways: Mapping[Candidate, Way]) -> list[Candidate]:
        return [c for c in ways if not self._ledger.knows(c)]

    def _screen(self, candidates: Sequence[Candidate]) -> Talk[None]:
        """Measure as many of the candidates, in their order, as whoever asks has room for."""
        outcomes = yield Proposal(tuple(candidates))
        self.screened += len(outcomes)
        self._heads.append(min(outcomes, key=self._ledger.value, default=candidates[0]))

    def _faster(self, here: Way, ways: Iterable[Way], by: float) -> list[Way]:
        """The ways whose first measurement is faster than the incumbent by a share, fastest first."""
        limit = (1 - by) * self._ledger.value(here.end)
        return sorted((w for w in ways if self._ledger.value(w.end) < limit), key=lambda w: self._ledger.value(w.end))

    def _leap(self, here: Way, ways: dict[Candidate, Way]) -> Talk[None]:
        """Combine and double what looks faster, as long as that looks faster still."""
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
        """All single moves that look better at once, and the best way twice as far."""
        best = better[0]
        plans = [(_compatible(w.moves[0] for w in better if w.is_single), 1), (best.moves, 2 * best.step)]
        return [(moves, step) for moves, step in plans if moves and step <= self._settings.max_step]

    def _pairs(self, here: Way, ways: Mapping[Candidate, Way]) -> list[Way]:
        """Pairs of single moves that each nearly helped, those that the ranker likes best."""
        singles = [w.moves[0] for w in self._faster(here, ways.values(), -NEAR) if w.is_single][:PAIRED]
        plans = [((a, b), 1) for a, b in combinations(singles, 2) if not set(a.touched) & set(b.touched)]
        found = [w for w in self._ways(here, plans) if w.end not in ways]
        if not found:
            return []
        order = np.argsort(-self._scores(found), kind="stable")
        return [found[i] for i in order[: self._settings.pairs]]

    # ---- settling --------------------------------------------------------------------------------------------------

    def _settle(self, here: Way, ways: Mapping[Candidate, Way], is_last: bool) -> Talk[Way | None]:
        """Let those that look faster duel the incumbent: the fastest now, all and the nearly equal ones in the end."""
        while contenders := self._contenders(here, ways, is_last):
            level = self._level(len(contenders))
            verdict = yield from duel(here.end, contenders, level, self._settings.duel)
            self._duelled |= set(verdict.samples) or set(contenders)
            self._ledger.revalue(verdict.samples)
            self._recent += verdict.samples.get(here.end, ())
            self._ledger.revalue({here.end: self._recent[-RECENT:]})
            self._noise = relative_noise(self._recent[-RECENT:])
            if verdict.winner is not None:
                winning = verdict.samples[verdict.winner]
                self._gains.append((self.screened, gain_of_medians(winning, verdict.samples[here.end])))
                self._recent = list(winning)
                return ways[verdict.winner]
            if not is_last or self._ledger.failed(here.end):
                return None
        return None

    def _contenders(self, here: Way, ways: Mapping[Candidate, Way], is_last: bool) -> list[Candidate]:
        room = min(self._settings.group, 1 + self._settings.challengers - len(self._duelled))
        waiting = [w for w in ways.values() if w.end not in self._duelled]
        found = self._faster(here, waiting, -self._margin if is_last else 0.0)
        if is_last:
            # The machine may have slowed since the incumbent was timed: the fastest of each batch is compared fairly.
            found += [w for w in self._faster(here, waiting, -DRIFT) if w.end in self._heads and w not in found]
            return [w.end for w in found[:room]]
        if not found and not self._recent:
            # The start may have been measured on another day: it rules nothing out before it is timed anew.
            found = self._faster(here, waiting, -inf)[:1]
        if not found:
            return []
        limit = self._ledger.value(found[0].end) * (1 + self._margin)
        return [w.end for w in found if self._ledger.value(w.end) <= limit][:room]

    def _level(self, n: int) -> float:
        """The error allowed for each of `n` challengers: the first group shares half of alpha, all others the rest."""
        s = self._settings
        first = min(s.group, s.challengers)
        if len(self._duelled) == 1 and n <= first:
            return s.alpha / 2 / first
        return s.alpha / 2 / max(1, s.challengers - first)


def _compatible(moves: Iterable[Move]) -> tuple[Move, ...]:
    """As many moves as touch different knobs, the first ones first."""
    touched: set[int] = set()
    found: list[Move] = []
    for move in moves:
        if not touched & set(move.touched):
            touched |= set(move.touched)
            found.append(move)
    return tuple(found)
