"""A strategy on a recorded table: no workers, no clock, the same every time.

Every candidate that is measured for the first time counts; timing known ones in turns does not, and is counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormdrop.cost.model import CostModel
from stormdrop.cost.ranker import ModelRanker
from stormdrop.measure.replay import Table, TableMeasurer, TableSpace
from stormdrop.measure.result import Timing
from stormdrop.search.settings import TuneSettings
from stormdrop.search.strategies import Context, StrategyFactory
from stormdrop.search.strategy import Candidate, Outcome, Points, Proposal, candidate
from stormdrop.space.default import ranked
from stormdrop.space.judge import judge_of

GROUP = "table"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a search did on a table."""

    candidates: tuple[Candidate, ...]
    """In the order in which they were first measured."""
    curve: tuple[float, ...]
    """The fewest seconds, by the table, of what was measured so far; infinite while everything failed."""
    duels: int
    """Timings of candidates that were known already."""

    def needed(self, seconds: float) -> int | None:
        """How many candidates were measured until one took at most so long; None where none did."""
        return next((i for i, best in enumerate(self.curve, 1) if best <= seconds), None)


def run_on_table(
    table: Table,
    factory: StrategyFactory,
    trials: int,
    seed: int,
    settings: TuneSettings | None = None,
    noise: float = 0.0,
    enough: float = 0.0,
) -> Replayed:
    """Let a strategy measure at most `trials` candidates; it ends early with one that takes at most `enough` seconds.

    The cost model starts empty. `noise` is that of a `TableMeasurer`; what is reported is free of it.
    """
    settings = settings or TuneSettings()
    found = ranked(table.spaces)
    run = _Run(
        table, [s for s, _, _ in found if isinstance(s, TableSpace)], TableMeasurer(table, noise, seed), settings
    )
    context = Context(
        run.spaces,
        run,
        np.random.default_rng(seed),
        [candidate(k, p) for k, (_, p, _) in enumerate(found)],
        trials,
        None,
        lambda: 0.0,
        settings,
    )
    strategy = factory(context)
    while len(run.curve) < trials and not (run.curve and run.curve[-1] <= enough):
        proposal = strategy.ask(min(settings.batch, trials - len(run.curve)))
        if not proposal.candidates:
            break
        strategy.tell(run.outcomes(proposal))
    return Replayed(tuple(run.measured), tuple(run.curve), run.duels)


class _Run:
    """Measures proposals and keeps the books; a ranker too: the model learns what is new only when it is asked."""

    def __init__(
        self, table: Table, spaces: Sequence[TableSpace], measurer: TableMeasurer, settings: TuneSettings
    ) -> None:
        self.spaces = spaces
        self.measured: dict[Candidate, float] = {}
        self.curve: list[float] = []
        self.duels = 0
        self._table, self._measurer = table, measurer
        self._cost = CostModel(judge_of(table.target).features, settings.cost)
        self._ranker = ModelRanker(spaces, self._cost, GROUP)
        self._is_behind = True
        self._best: float | None = None

    def score(self, sketch: int, points: Points) -> NDArray[np.float64]:
        if self._is_behind:
            self._cost.refresh()
            self._is_behind = False
        return self._ranker.score(sketch, points)

    def outcomes(self, proposal: Proposal) -> list[Outcome]:
        task, asked = self._table.task, proposal.candidates
        schedules = [self.spaces[c.sketch].schedule(c.point) for c in asked]
        if proposal.rounds:
            results = self._measurer.retime(task, schedules, proposal.rounds)
        else:
            results = self._measurer.measure(task, schedules, self._best)
        outcomes: list[Outcome] = []
        for c, result in zip(asked, results):
            self._count(c, max(1, proposal.rounds))
            if not isinstance(result, Timing):
                outcomes.append(Outcome(c, None))
                continue
            outcomes.append(Outcome(c, result.seconds, result.samples if proposal.rounds else (), result.stopped_early))
            self._best = result.seconds if self._best is None else min(self._best, result.seconds)
        if not proposal.rounds:
            self._learn(outcomes)
        return outcomes

    def _count(self, c: Candidate, timings: int) -> None:
        if c in self.measured:
            self.duels += timings
            return
        space = self.spaces[c.sketch]
        row = int(space.rows(np.array([c.point], dtype=np.int64))[0])
        seconds = float(space.seconds[row]) if row >= 0 else np.nan
        self.measured[c] = np.inf if np.isnan(seconds) else seconds
        self.curve.append(min(self.measured[c], self.curve[-1] if self.curve else np.inf))

    def _learn(self, outcomes: Sequence[Outcome]) -> None:
        self._is_behind = True
        for k in sorted({o.candidate.sketch for o in outcomes}):
            told = [o for o in outcomes if o.candidate.sketch == k]
            points = np.array([o.candidate.point for o in told], dtype=np.int64)
            values = np.array([np.nan if o.value is None else o.value for o in told])
            self._cost.add(GROUP, self.spaces[k].features(points), values)
