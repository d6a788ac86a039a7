"""The strategies by name, and the composite strategy: a storm, then droplets from its best points.

A user's own strategy is a function from a `Context` to a `Strategy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.tuning.droplet import Droplet
from stormdrop.tuning.reuse import Reuse
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.storm import Storm
from stormdrop.tuning.strategy import Candidate, Outcome, Proposal, Ranker, Space, Strategy, candidate


@dataclass(frozen=True, slots=True)
class Context:
    """The arguments of a strategy factory.

    `seeds` begin with the best known start; `trials` and `seconds` are budgets, if any.
    """

    spaces: Sequence[Space]
    ranker: Ranker
    rng: np.random.Generator
    seeds: Sequence[Candidate]
    trials: int | None
    seconds: float | None
    clock: Callable[[], float]
    """Seconds spent on this search so far."""
    settings: TuneSettings
    is_planned: bool = False
    """`trials` is an expectation of the calling loop, not a limit set by the user."""
    opening: int = 0
    """So many of the seeds, where other tasks gave some of them, are searched from before anything else."""


StrategyFactory = Callable[[Context], Strategy]
DRAWS = 4
"""The attempts to find an unseen point of a sketch before its turn passes."""


class RandomSearch:
    """Random search, the yardstick for every other strategy: seeds, then legal points of all sketches in turn.

    No point is proposed twice, and outcomes do not influence later proposals. The search ends once no sketch yields a
    new point.
    """

    phase = "random"
    eager = True

    def __init__(self, spaces: Sequence[Space], rng: np.random.Generator, seeds: Iterable[Candidate] = ()) -> None:
        self._spaces, self._rng = spaces, rng
        self._seeds = list(dict.fromkeys(seeds))[::-1]
        self._asked: set[Candidate] = set()
        self._drawn: list[list[Candidate]] = [[] for _ in spaces]
        self._turn = 0

    def ask(self, n: int) -> Proposal:
        """Returns at most `n` candidates that were never proposed before; fewer, or none, once no further points are
        drawn.
        """
        proposed: list[Candidate] = []
        barren = 0
        while len(proposed) < n and barren < len(self._spaces):
            one = self._seeds.pop() if self._seeds else self._next(n)
            if one is None:
                barren += 1
            elif one not in self._asked:
                self._asked.add(one)
                proposed.append(one)
                barren = 0
        return Proposal(tuple(proposed))

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        """Marks the candidates of all outcomes as proposed, also candidates from elsewhere."""
        self._asked.update(outcome.candidate for outcome in outcomes)

    def _next(self, n: int) -> Candidate | None:
        """Returns a new point of the next sketch in turn."""
        k = self._turn = (self._turn + 1) % len(self._spaces)
        for _ in range(DRAWS):
            while self._drawn[k]:
                one = self._drawn[k].pop()
                if one not in self._asked:
                    return one
            self._drawn[k] = [candidate(k, row) for row in self._spaces[k].sample_legal(max(16, n), self._rng)]
        return None


class EndingStorm:
    """A storm of at most so many trials that ends when it stops gaining."""

    phase = "storm"

    def __init__(self, context: Context, most: int) -> None:
        self._storm, self._settings, self._left = _endless_storm(context), context.settings, most
        self._best = inf
        self._idle = 0  # outcomes since the last gain
        self.waiting = 0
        """Proposed candidates without outcomes."""

    @property
    def goes_on(self) -> bool:
        return self._left > 0 and self._idle < self._settings.storm_patience

    eager = goes_on

    def ask(self, n: int) -> Proposal:
        proposal = self._storm.ask(min(n, self._left)) if self.goes_on else Proposal(())
        if not proposal.candidates:
            self._left = 0
        self._left -= len(proposal.candidates)
        self.waiting += len(proposal.candidates)
        return proposal

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        self._idle += min(self.waiting, len(outcomes))  # outcomes of other proposals do not count for the storm
        self.waiting = max(0, self.waiting - len(outcomes))
        self._storm.tell(outcomes)
        best = min((o.value for o in outcomes if o.value is not None), default=inf)
        if self._best == inf or best < self._best - self._settings.gain * abs(self._best):
            self._idle = 0
        self._best = min(self._best, best)


class StormThenDroplet:
    """Explore as a storm, exploit as a raindrop: some measured kernels, then coordinate descent from the best.

    Where other tasks gave seeds, these and a short descent from the best of them come first.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        first = replace(context, seeds=context.seeds[: context.opening])
        self._opening = SeedsThenDroplet(first) if context.opening else None
        most = context.settings.storm_trials
        if context.trials is not None:
            most = min(most, max(1, round(context.settings.storm_share * context.trials)))
        self._storm = EndingStorm(context, most)
        self._droplet: Droplet | None = None
        self._values: dict[Candidate, float | None] = {}
        self._brief: set[Candidate] = set()

    @property
    def phase(self) -> str:
        if self._opening is not None:
            return self._opening.phase
        return "storm" if self._droplet is None else "droplet"

    @property
    def eager(self) -> bool:
        return self._opening is None and self._storms()

    def ask(self, n: int) -> Proposal:
        if self._opening is not None:
            if (proposal := self._opening.ask(n)).candidates:
                return proposal
            self._opening = None
        if self._storms() and (proposal := self._storm.ask(n)).candidates:
            return proposal
        if self._storm.waiting:
            return Proposal(())  # the droplets' starts are among the missing outcomes
        if self._droplet is None:
            c, settings = self._context, self._context.settings.droplet
            starts = best_of_each(self._values, self._brief, settings.starts)
            self._droplet = Droplet(c.spaces, starts, c.ranker, c.rng, settings, self._values)
        return self._droplet.ask(n)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        if self._droplet is not None:
            self._droplet.tell(outcomes)
            return
        if self._opening is not None:
            self._opening.tell(outcomes)
            outcomes = [o for o in outcomes if not o.samples]  # duels are its own affair
        self._storm.tell(outcomes)
        for outcome in outcomes:
            self._values[outcome.candidate] = outcome.value
            if outcome.brief:
                self._brief.add(outcome.candidate)

    def _storms(self) -> bool:
        """Returns whether the storm continues: it has trials and seconds left, and has gained lately."""
        settings, seconds = self._context.settings, self._context.seconds
        has_starts = bool(self._values)  # a droplet needs some, however late it is
        is_late = seconds is not None and has_starts and self._context.clock() > settings.storm_share * seconds
        return self._storm.goes_on and not is_late


class SeedsThenDroplet:
    """No storm: the seeds, then a short descent from the best of them."""

    eager = False

    def __init__(self, context: Context) -> None:
        self._context = context
        self._fresh = list(context.seeds)
        self._droplet: Droplet | None = None
        self._values: dict[Candidate, float | None] = {}
        self._brief: set[Candidate] = set()
        self._left = context.settings.reuse_trials

    @property
    def phase(self) -> str:
        return "seeds" if self._droplet is None else "droplet"

    def ask(self, n: int) -> Proposal:
        if self._fresh:
            proposal, self._fresh = Proposal(tuple(self._fresh[:n])), self._fresh[n:]
            return proposal
        if self._droplet is None:
            c, settings = self._context, replace(self._context.settings.droplet, starts=1)
            starts = best_of_each(self._values, self._brief, settings.starts)
            self._droplet = Droplet(c.spaces, starts, c.ranker, c.rng, settings, self._values)
        proposal = self._droplet.ask(min(n, self._left))
        if not proposal.rounds:
            self._left -= len(proposal.candidates)
        return proposal

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        if self._droplet is not None:
            self._droplet.tell(outcomes)
            return
        for outcome in outcomes:
            self._values[outcome.candidate] = outcome.value
            if outcome.brief:
                self._brief.add(outcome.candidate)


def best_of_each(
    values: Mapping[Candidate, float | None], brief: set[Candidate], most: int
) -> list[tuple[Candidate, float | None]]:
    """Returns the best point of each of the best few sketches, best first."""
    best: dict[int, tuple[Candidate, float]] = {}
    for one, value in values.items():
        if value is not None and one not in brief and (one.sketch not in best or value < best[one.sketch][1]):
            best[one.sketch] = one, value
    return list(sorted(best.values(), key=lambda pair: pair[1])[:most])


def _random(context: Context) -> Strategy:
    return RandomSearch(context.spaces, context.rng, context.seeds)


def _endless_storm(context: Context) -> Storm:
    c = context
    return Storm(c.spaces, c.ranker, c.rng, c.settings.storm, c.seeds)


def _storm(context: Context) -> Strategy:
    """Returns a storm for all trials of the user's limit; without a limit, a storm that ends."""
    if context.trials is not None and not context.is_planned:
        return _endless_storm(context)
    return EndingStorm(context, context.settings.storm_trials)


def _droplet(context: Context) -> Strategy:
    starts = [(seed, None) for seed in context.seeds[: context.settings.droplet.starts]]
    return Droplet(context.spaces, starts, context.ranker, context.rng, context.settings.droplet)


STRATEGIES: Mapping[str, StrategyFactory] = {
    "random": _random,
    "storm": _storm,
    "droplet": _droplet,
    "storm+droplet": StormThenDroplet,
}
REUSE_ONLY = "reuse"
"""The name of a search that begins from other tasks' schedules and does not storm."""


def named(search: str | StrategyFactory, reuse: Reuse | None = None) -> tuple[str, StrategyFactory]:
    """Returns a strategy with its name: from the table, from the user, or for `reuse` alone the strategy for reuse.

    Raises UserError for a name that is not in the table.
    """
    if reuse is not None and reuse.mode == "only":
        return REUSE_ONLY, SeedsThenDroplet
    if not isinstance(search, str):
        return getattr(search, "__name__", type(search).__name__), search
    if search not in STRATEGIES:
        raise UserError(f"unknown search strategy {search!r}; there are {', '.join(STRATEGIES)}")
    return search, STRATEGIES[search]
