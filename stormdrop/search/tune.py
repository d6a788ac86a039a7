"""The tuning loop: ask, measure, tell, until the trials are spent; then the best few are timed again in turns.

    sketches ──ask──▶ candidates ──measure──▶ Timing | Failure ──tell──▶ … ──retime──▶ Tuned

The loop prints nothing: it emits event values, and whoever shows, logs or stores them listens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np

from stormdrop.errors import RunError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.search.random import Candidate, Outcome, RandomSearch
from stormdrop.space.default import ranked
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.target.machine import Target

BATCH = 16
FINALISTS = 5
ROUNDS = 7


class Measures(Protocol):
    """What the loop needs of a measurer."""

    def measure(self, task: Task, candidates: Sequence[Schedule], best: float | None = None) -> list[Result]: ...
    def retime(self, task: Task, candidates: Sequence[Schedule], rounds: int) -> list[Result]: ...


class Search(Protocol):
    """A strategy: it proposes candidates and learns what became of them."""

    def ask(self, n: int) -> list[Candidate]: ...
    def tell(self, outcomes: Iterable[Outcome]) -> None: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured candidate."""

    schedule: Schedule
    result: Result


@dataclass(frozen=True, slots=True)
class Tuned:
    """The fastest schedule found, and how it was found.

    `seconds` comes from the final, interleaved timing; `history` holds every trial in order.
    """

    best: Schedule
    seconds: float
    trials: int
    failed: int
    tuning_seconds: float
    median_build_seconds: float
    history: tuple[Trial, ...]
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """Tuning of a task begins."""

    task: Task
    sketches: int
    trials: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The `number`-th trial is done."""

    number: int
    trial: Trial


@dataclass(frozen=True, slots=True)
class NewBest:
    """The `number`-th trial is the fastest so far."""

    number: int
    schedule: Schedule
    seconds: float


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A batch was measured; `best` is None while every candidate has failed."""

    measured: int
    failed: int
    best: float | None


@dataclass(frozen=True, slots=True)
class Retiming:
    """The best few are about to be timed in turns."""

    candidates: int


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A winner is declared."""

    tuned: Tuned


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """No candidate could be timed."""

    first: Failure


Event = TaskStarted | Measured | NewBest | RoundEnded | Retiming | TaskEnded | TaskFailed
Listener = Callable[[Event], None]


def _ignore(_: Event) -> None:
    pass


def tune(task: Task, target: Target, measurer: Measures, trials: int, seed: int = 0, listen: Listener = _ignore) -> Tuned:
    """Random search over all sketches of a task; the default point of each is among the first candidates.

    Raises RunError with the first failure if no candidate could be timed.
    """
    found = ranked(sketches(task, target))
    spaces = [sketch for sketch, _, _ in found]
    seeds = [Candidate(k, tuple(int(v) for v in point)) for k, (_, point, _) in enumerate(found)]
    search = RandomSearch(spaces, np.random.default_rng(seed), trials, seeds)
    return run(task, spaces, search, measurer, trials, listen)


def run(task: Task, spaces: Sequence[Sketch], search: Search, measurer: Measures, trials: int, listen: Listener = _ignore) -> Tuned:
    """Tune with any strategy. An interrupt (Ctrl-C) ends it with what is known by then."""
    began = time.perf_counter()
    listen(TaskStarted(task, len(spaces), trials))
    history: list[Trial] = []
    winner: tuple[Schedule, float] | None = None
    interrupted = False
    try:
        _spend(task, spaces, search, measurer, trials, history, listen)
        winner = _final(task, history, measurer, listen)
    except KeyboardInterrupt:
        interrupted = True
        winner = _fastest(history)
        if winner is None:
            raise
    if winner is None:
        first = next((t.result for t in history if isinstance(t.result, Failure)), Failure("schedule", "there was no candidate to measure"))
        listen(TaskFailed(first))
        raise RunError(f"{task.name}: none of {len(history)} candidates could be timed; the first: {first}")
    builds = [t.result.build_seconds for t in history if isinstance(t.result, Timing)]
    failed = sum(isinstance(t.result, Failure) for t in history)
    tuned = Tuned(*winner, len(history), failed, time.perf_counter() - began, median(builds), tuple(history), interrupted)
    listen(TaskEnded(tuned))
    return tuned


def _spend(
    task: Task, spaces: Sequence[Sketch], search: Search, measurer: Measures, trials: int, history: list[Trial], listen: Listener
) -> None:
    """Measure batches until the trials are spent or the strategy has nothing left to propose."""
    best: float | None = None
    failed = 0
    while len(history) < trials:
        batch = search.ask(min(BATCH, trials - len(history)))
        if not batch:
            return
        schedules = [spaces[c.sketch].schedule(c.point) for c in batch]
        results = measurer.measure(task, schedules, best)
        search.tell(Outcome(c, r.seconds if isinstance(r, Timing) else None) for c, r in zip(batch, results))
        for schedule, result in zip(schedules, results, strict=True):
            trial = Trial(schedule, result)
            history.append(trial)
            listen(Measured(len(history), trial))
            if isinstance(result, Failure):
                failed += 1
            elif best is None or result.seconds < best:
                best = result.seconds
                listen(NewBest(len(history), schedule, best))
        listen(RoundEnded(len(history), failed, best))


def _final(task: Task, history: Sequence[Trial], measurer: Measures, listen: Listener) -> tuple[Schedule, float] | None:
    """Time the best few in turns; the fastest of them wins. A finalist that fails now is out, and the next best are tried."""
    timed = [(t.result.seconds, t.schedule) for t in history if isinstance(t.result, Timing)]
    timed.sort(key=lambda pair: pair[0])
    while timed:
        finalists = [schedule for _, schedule in timed[:FINALISTS]]
        listen(Retiming(len(finalists)))
        results = measurer.retime(task, finalists, ROUNDS)
        ranking = [(r.seconds, k) for k, r in enumerate(results) if isinstance(r, Timing)]
        if ranking:
            seconds, k = min(ranking)
            return finalists[k], seconds
        timed = timed[len(finalists) :]
    return None


def _fastest(history: Sequence[Trial]) -> tuple[Schedule, float] | None:
    timed = [(t.schedule, t.result.seconds) for t in history if isinstance(t.result, Timing)]
    return min(timed, key=lambda pair: pair[1], default=None)
