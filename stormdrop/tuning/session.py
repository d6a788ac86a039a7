"""One task's search, which can be advanced round by round: ask, build, time, tell, store, emit.

    strategy ──ask──▶ candidates ──measure──▶ Timing | Failure ──tell──▶ strategy, model, store, listeners

Many sessions may share one measurer, one cost model and one store. A session decides nothing about budgets: the calling
loop stops asking, and calls `finish`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf, isfinite
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import RunError, UserError
from stormdrop.builder.building import code_of
from stormdrop.device.arrays import check_memory
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.space.default import ranked
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.store.record import DEFAULT, DONOR, Record, group_name
from stormdrop.store.verdict import NO_CHALLENGER, Verdict
from stormdrop.tuning.candidate_space import CandidateSpace
from stormdrop.tuning.choice import FINAL, Decision, choose
from stormdrop.tuning.cost_model import ModelRanker
from stormdrop.tuning.resources import Resources
from stormdrop.tuning.reuse import Source, refitted, stored_sources
from stormdrop.tuning.strategies import Context
from stormdrop.tuning.strategy import Candidate, Outcome, Proposal, candidate
from stormdrop.tuning.tuned import Trial

MOST_DUELS = 24  # after the last trial
PROOFS = 3  # of one winner, if they seem disturbed
DISTURBED = 0.05  # slower in its fresh process than just before
PROVED = "reference values and every element of the default schedule's output, in a fresh process"
CHECKED = "reference values, whenever it was timed"
UNCHECKED = "nothing: compared with the reference when it is compiled"


class Observer(Protocol):
    """The observer of a session's progress."""

    def measured(self, trial: Trial, value: float | None, is_best: bool) -> None:
        """Receives a trial, and the value that is minimised; None for a failure."""

    def moved(self, phase: str) -> None:
        """Receives the phase whenever a round has ended or a final choice begins."""

    def warned(self, message: str) -> None:
        """Receives a warning for the user."""


class Session:
    """The search for one task. `best` is None until a candidate could be timed."""

    def __init__(
        self,
        task: Task,
        resources: Resources,
        *,
        start: Schedule | None = None,
        trials: int | None = None,
        seconds: float | None = None,
        is_planned: bool = False,
        observer: Observer | None = None,
        spaces: Sequence[Sketch] | None = None,
        siblings: Sequence[Source] = (),
    ) -> None:
        """Opens a session: derives the sketches, and reads the store's verdicts, trials and donors.

        `is_planned`: `trials` is an expectation of the caller, not a limit set by the user. `siblings` are schedules of
        related tasks to begin from, besides the store's.

        Raises UserError if `start` is a schedule of another class, and for a task larger than this machine's memory.
        """
        check_memory(task)
        self._began = time.monotonic()
        self.task, self.target, self.origin = task, resources.target, resources.origin
        self._rules, self._measurer, self._keeper = resources.rules, resources.measurer, resources.keeper
        self._store, self._kernel_value = resources.timing_store, resources.kernel_value
        self._settings, self._cost, self._observer = resources.settings, resources.cost, observer
        self._group = group_name(task.digest, self.target.is_cold)
        ranking = ranked(spaces or sketches(task, self.target, self._rules))
        self._space = CandidateSpace(task, self.target, self._rules, [sketch for sketch, _, _ in ranking])
        self.spaces = self._space.sketches
        best_sketch, best_point, _ = ranking[0]
        self._default, self.default = candidate(0, best_point), best_sketch.schedule(best_point)
        seeds = [candidate(k, point) for k, (_, point, _) in enumerate(ranking)]
        self.verdict, self._incumbent, decided = self._decided()
        stored = self._stored()
        self.known = len(stored)
        timed = sorted((c for c, v in stored.items() if v is not None), key=lambda c: stored[c] or 0.0)
        fresh = [c for c in seeds if c not in stored]
        first = [] if start is None else [self._space.locate(start)]
        self._ranker = ModelRanker(self.spaces, self._cost, self._group)
        self._suggested: list[Candidate] = []
        self._reuse = resources.reuse
        donated = self._best_donated(self._sources(siblings), spaces is not None)
        donated = [c for c in donated if c not in stored and c != self._default]
        self._donated = {self._space.schedule(c) for c in donated}
        if self._reuse.mode == "only":
            seeds = [*first, self._incumbent, *decided, *timed[:1], self._default, *donated]
        else:
            # The incumbent comes first: a task with only one candidate is not left with an import's claim.
            known = [*decided, *timed[: self._settings.known]]
            seeds = [*first, self._incumbent, *known, *fresh[:1], *donated, *fresh[1:]]
        seeds = list(dict.fromkeys(seeds))
        self._opening = 1 + max(map(seeds.index, donated)) if donated else 0
        self.history: list[Trial] = []
        self._values: dict[Candidate, float] = {}  # of candidates measured here, and not too briefly
        self._settled: set[Candidate] = set()  # with values timed in turns
        self.remeasured = frozenset(self._space.schedule(c) for c in [*decided, *timed[: self._settings.known]])
        """The schedules to measure again: the schedules of the store's verdicts, and the store's fastest."""
        self.final_values: dict[Schedule, float] = {}
        """The values of the finalists, timed in turns."""
        self.best: float | None = None
        self._gained_at, self._gained = 0, inf  # the trial that last brought a gain worth its name, and its value
        self._upcoming: Proposal | None = None
        context = Context(
            self.spaces,
            self._ranker,
            np.random.default_rng(self.origin.seed),
            seeds,
            trials,
            seconds,
            lambda: self.elapsed,
            self._settings,
            is_planned,
            self._opening,
        )
        self.strategy = resources.factory(context)
        again = set(seeds)
        if old := [Outcome(c, v) for c, v in stored.items() if c not in again]:
            self.strategy.tell(old)

    # ---- what is known ---------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() - self._began

    @property
    def measured(self) -> int:
        return len(self.history)

    @property
    def idle_trials(self) -> int:
        """The trials since the last significant gain."""
        return len(self.history) - self._gained_at

    @property
    def default_seconds(self) -> float | None:
        """The default schedule's fastest run in this search; None if it could not be timed.

        The store's time of the default schedule does not count, since it may be imported.
        """
        results = [t.result for t in self.history if t.schedule == self.default]
        return min((result.floor for result in results if isinstance(result, Timing)), default=None)

    @property
    def incumbent(self) -> Schedule:
        """The schedule in use unless this search finds a better schedule: an earlier verdict's, else the default."""
        return self._space.schedule(self._incumbent)

    def _decided(self) -> tuple[Verdict | None, Candidate, list[Candidate]]:
        """Returns the verdict that holds, the incumbent, and the candidates of verdicts of all machines."""
        if self._store is None:
            return None, self._default, []
        located: list[tuple[Verdict, Candidate]] = []
        for is_imported in (False, True):
            verdict = self._store.verdict(self.task, self.target, rules=self._rules, is_imported=is_imported)
            with suppress(UserError):
                located += [] if verdict is None else [(verdict, self._space.locate(verdict.schedule))]
        holding = [(v, c) for v, c in located if v.provenance != "imported"]
        verdict, incumbent = holding[0] if holding else (None, self._default)
        return verdict, incumbent, [c for _, c in located]

    def _stored(self) -> dict[Candidate, float | None]:
        """Returns the store's trials of this task that are points of its sketches."""
        if self._store is None:
            return {}
        seconds_by_candidate: dict[Candidate, float | None] = {}
        for record in self._store.trials(self.task, self.target, rules=self._rules):
            try:
                place = self._space.locate(record.schedule)
            except UserError:
                continue
            seconds = record.result.floor if isinstance(record.result, Timing) else None
            before = seconds_by_candidate.get(place)
            seconds_by_candidate[place] = seconds if before is None else min(before, seconds or before)
        return seconds_by_candidate

    def _sources(self, siblings: Sequence[Source]) -> list[Source]:
        """Returns schedules of other tasks to begin from."""
        if self._reuse.mode == "off":
            return []
        if self._store is None:
            return list(siblings)
        return [*siblings, *stored_sources(self.task, self.target, self._store, self._reuse, self._rules)]

    def _best_donated(self, sources: Sequence[Source], is_limited: bool) -> list[Candidate]:
        """Returns candidates from other tasks' schedules: the best few by the cost model, and the nearest task's.

        With `is_limited`, only candidates that are legal in the given sketches.
        """
        schedules = refitted(self.task, sources, self.target, self._rules)
        if is_limited:
            known = self._space.new_candidates(schedules)
            donated = [c for c in known if self.spaces[c.sketch].legal(np.array([c.point], dtype=np.int64))[0]]
        else:
            donated = list(dict.fromkeys(map(self._space.locate, schedules)))
        best = sorted(donated, key=self._score, reverse=True)[: self._settings.donated]
        return list(dict.fromkeys([*best, *donated[:1]]))

    def suggest(self, sources: Sequence[Source]) -> bool:
        """Adds the best new candidate from other tasks' schedules to the next round.

        The candidate must be a point of a sketch that is searched. Returns whether there is such a candidate.
        """
        if fresh := self._space.new_candidates(refitted(self.task, sources, self.target, self._rules)):
            best = max(fresh, key=self._score)
            self._suggested.append(best)
            self._donated.add(self._space.schedule(best))
        return bool(fresh)

    def _score(self, c: Candidate) -> float:
        return float(self._ranker.score(c.sketch, np.array([c.point], dtype=np.int64))[0])

    # ---- a round ---------------------------------------------------------------------------------------------------

    def round(self, n: int, ahead: int = 0) -> bool:
        """Measures one proposal of at most `n` candidates; returns False if the strategy has nothing left to propose.

        During the builds, an eager strategy is asked for up to `ahead` candidates of the next round.
        """
        proposal = self._next(n)
        if not proposal.candidates:
            return False
        if not proposal.rounds and len(proposal.candidates) > n:  # the budget was larger when it was proposed
            self._upcoming = Proposal(proposal.candidates[n:])
            proposal = Proposal(proposal.candidates[:n])
        if proposal.rounds:
            self._duel(proposal)
            return True

        def meanwhile() -> None:
            if ahead > 0 and self._upcoming is None and self.strategy.eager:
                upcoming = self._ask(ahead)
                self._upcoming = upcoming if upcoming.candidates else None  # it may propose more after the outcomes

        size = self._settings.opening_batch if self.measured < self._opening else n
        pieces = [proposal.candidates[k : k + size] for k in range(0, len(proposal.candidates), size)]
        for piece in pieces:
            self._measure(piece, meanwhile if piece is pieces[-1] else None)
        return True

    def _measure(self, candidates: Sequence[Candidate], meanwhile: Callable[[], None] | None) -> None:
        schedules = [self._space.schedule(c) for c in candidates]
        best = self.best if self._kernel_value is None else None
        self._take(candidates, schedules, self._measurer.measure(self.task, schedules, best, meanwhile))

    def _next(self, n: int) -> Proposal:
        """Returns the suggested candidates and the strategy's next proposal; a duel of the strategy comes alone."""
        suggested, proposal = self._suggested[:n], self._upcoming or Proposal(())
        if self._upcoming is None and len(suggested) < n:
            proposal = self._ask(n - len(suggested))
        self._upcoming = None
        if proposal.rounds or not suggested:
            return proposal
        del self._suggested[: len(suggested)]
        return Proposal(tuple(dict.fromkeys([*suggested, *proposal.candidates])))

    def settle(self) -> None:
        """Runs the duels that the strategy still wants: they cost no trial, and confirm its last gain."""
        for _ in range(MOST_DUELS):
            proposal = self._upcoming or self._ask(0)
            if not proposal.rounds:
                return
            self._upcoming = None
            self._duel(proposal)

    def _ask(self, n: int) -> Proposal:
        self._cost.refresh()
        return self.strategy.ask(n)

    def _take(self, candidates: Sequence[Candidate], schedules: Sequence[Schedule], results: Sequence[Result]) -> None:
        """Passes the results of a batch to the cost model, the history, the listener and the strategy."""
        features = self._space.features(candidates)
        numbered = enumerate(zip(schedules, results), 1 + len(self.history))
        phase = self.strategy.phase
        trials = [
            Trial(s, r, number, self.elapsed, DONOR if s in self._donated else phase) for number, (s, r) in numbered
        ]
        values = [self.value(r) for r in results]
        self._cost.add(self._group, features, np.array([np.nan if v is None else v for v in values]))
        for c, trial, value in zip(candidates, trials, values):
            self.history.append(trial)
            if value is not None and not _is_brief(trial.result):
                self._values[c] = value
            is_best = False
            if value is not None and (self.best is None or value < self.best):
                is_best = True
                if self.best is None or value < self._gained - self._settings.gain * abs(self._gained):
                    self._gained_at, self._gained = trial.number, value
                self.best = value
            if self._observer is not None:
                self._observer.measured(trial, value, is_best)
        self.strategy.tell([Outcome(c, v, (), _is_brief(r)) for c, v, r in zip(candidates, values, results)])
        self._keeper.add([self._record(t, row) for t, row in zip(trials, features)])
        self._move(phase)

    def _move(self, phase: str) -> None:
        if self._observer is not None:
            self._observer.moved(phase)

    def _duel(self, proposal: Proposal) -> None:
        """Times candidates in turns, which costs no trial."""
        results = self._measurer.retime(
            self.task, [self._space.schedule(c) for c in proposal.candidates], proposal.rounds
        )
        outcomes: list[Outcome] = []
        for c, result in zip(proposal.candidates, results):
            samples = self._samples(result)
            value = median(samples) if samples else None
            outcomes.append(Outcome(c, value, tuple(samples)))
            if value is None:
                self._values.pop(c, None)
            else:
                self._values[c] = value
                self._settled.add(c)
        self.strategy.tell(outcomes)

    def value(self, result: Result) -> float | None:
        """Returns the value that is minimised; None for a failure."""
        if isinstance(result, Failure):
            return None
        value = result.floor if self._kernel_value is None else float(self._kernel_value(result))
        return value if isfinite(value) else None

    # ---- keeping ---------------------------------------------------------------------------------------------------

    def _record(self, trial: Trial, features: NDArray[np.float64], verified: bool = False) -> Record:
        o, row = self.origin, features.astype(np.float32)
        from_donor, is_default = trial.schedule in self._donated, trial.schedule == self.default
        strategy = DONOR if from_donor else DEFAULT if is_default else o.strategy
        measured = self.task, trial.schedule, self.target, trial.result, o.versions, strategy, o.seed
        return Record(*measured, trial.number, trial.elapsed, o.model, verified, time.time(), row)

    def _decide(
        self, schedule: Schedule, seconds: float, against: tuple[Schedule, float], method: str, rounds: int, proof: str
    ) -> None:
        """Stores a verdict. With a value of the user's there is none, since the winner would not be the fastest."""
        if not self._keeper.is_open or self._kernel_value is not None:
            return
        code = code_of(self.task, schedule, self.target, self._rules)
        decided = schedule, seconds, *against, method, rounds, proof
        verdict = Verdict(self.task, self.target, *decided, self.origin.versions, code, created=time.time())
        self._keeper.add_verdicts([verdict])

    def stay(self) -> None:
        """Decides for the default schedule without a duel, since nothing seemed faster. An earlier verdict stays.

        If the default was not timed in this search, nothing is decided: no output of it was compared.
        """
        if self.verdict is None and (seconds := self.default_seconds) is not None:
            self._decide(self.default, seconds, (self.default, seconds), NO_CHALLENGER, 0, CHECKED)

    # ---- the end ---------------------------------------------------------------------------------------------------

    def finish(self) -> tuple[Schedule, float]:
        """Returns the winner and its seconds: the best few candidates challenge the incumbent, the winner is proved in
        a fresh process, and the verdict is recorded.

        A finalist that fails now is out. Raises RunError with the first failure if no candidate could be timed.
        """
        left = sorted(self._values, key=self._values.__getitem__)
        # Single measurements flatter lucky candidates: the best that were timed in turns are first finalists too.
        left = [*[c for c in left if c in self._settled][: self._settings.finalists // 2], *left]
        left = list(dict.fromkeys([*left, self._incumbent, self._default] if left else []))
        while left:
            incumbent = next((c for c in (self._incumbent, self._default) if c in left), left[0])
            finalists = dict.fromkeys([*left[: self._settings.finalists], *[c for c in left if c == self._default]])
            decision = self._choose(incumbent, [c for c in finalists if c != incumbent])
            out = set(decision.failed)
            if decision.chosen is not None:
                proved = self._proved(decision.chosen, decision.value(decision.chosen))
                if isinstance(proved, Timing):
                    return self._won(decision.chosen, decision, proved)
                if self._observer is not None:
                    self._observer.warned(f"the fastest candidate is out: {proved}")
                out.add(decision.chosen)
            left = [c for c in left if c not in out]
        first = next((t.result for t in self.history if isinstance(t.result, Failure)), None)
        first = first or Failure("schedule", "there was no candidate to measure")
        raise RunError(f"{self.task.name}: none of {len(self.history)} candidates could be timed; the first: {first}")

    def _choose(self, incumbent: Candidate, challengers: Sequence[Candidate]) -> Decision:
        self._move("final")

        def in_turns(candidates: Sequence[Candidate], rounds: int) -> dict[Candidate, list[float]]:
            results = self._measurer.retime(self.task, [self._space.schedule(c) for c in candidates], rounds)
            return {c: self._samples(result) for c, result in zip(candidates, results)}

        decision = choose(incumbent, challengers, in_turns, replace(FINAL, min_gain=self._settings.gain))
        self.final_values |= {self._space.schedule(c): decision.value(c) for c in decision.samples}
        return decision

    def _proved(self, c: Candidate, expected: float) -> Result:
        """Returns the proof of a winner, repeated if its time is so far off that the measurement must have been
        disturbed.
        """
        results: list[Timing] = []
        for _ in range(PROOFS):
            result = self._measurer.prove(self.task, self._space.schedule(c), self.default)
            if isinstance(result, Failure):
                return result
            results.append(result)
            value = self.value(result)
            if value is None or value <= expected + DISTURBED * abs(expected):
                break
        return min(results, key=lambda r: r.seconds)

    def _samples(self, result: Result) -> list[float]:
        """Returns the minimised value of every round; an empty list for a failure."""
        if isinstance(result, Failure):
            return []
        return [v for s in result.samples if (v := self.value(replace(result, seconds=s, samples=()))) is not None]

    def _won(self, c: Candidate, decision: Decision, proved: Timing) -> tuple[Schedule, float]:
        schedule = self._space.schedule(c)
        number = next((t.number for t in self.history if t.schedule == schedule), 0)
        trial = Trial(schedule, proved, number, self.elapsed, "final")
        # A store prefers verified records: these must be the fastest, not the best by another value.
        self._keeper.add([self._record(trial, self._space.features([c])[0], verified=self._kernel_value is None)])
        seconds = proved.seconds if self._kernel_value is not None else decision.value(c)
        against = self._space.schedule(decision.incumbent), decision.value(decision.incumbent)
        method = "duel" if len(decision.samples) > 1 else NO_CHALLENGER
        self._decide(schedule, seconds, against, method, decision.rounds, PROVED)
        return schedule, seconds


def _is_brief(result: Result) -> bool:
    return isinstance(result, Timing) and result.stopped_early
