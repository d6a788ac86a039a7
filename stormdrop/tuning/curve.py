"""The course of a search, computed from its trials: improvements, phases, failures, and when it was nearly done.

All functions are pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stormdrop.measure.result import Failure, Timing
from stormdrop.space.schedule import Schedule
from stormdrop.tuning.tuned import Trial, Tuned

QUALITIES = (0.90, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Improvement:
    """A trial that was faster than all before it."""

    trial: int
    elapsed: float
    seconds: float
    phase: str
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class SearchPhase:
    """Consecutive trials of one phase: `first` to `last` by number, `began` to `ended` in seconds of the search."""

    name: str
    first: int
    last: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The number of candidates with one kind of failure, and the message of the first."""

    kind: str
    count: int
    first: str


def improvements(history: Iterable[Trial]) -> list[Improvement]:
    best_so_far: list[Improvement] = []
    for trial in history:
        if isinstance(trial.result, Timing) and (not best_so_far or trial.result.seconds < best_so_far[-1].seconds):
            best_so_far.append(
                Improvement(trial.number, trial.elapsed, trial.result.seconds, trial.phase, trial.schedule)
            )
    return best_so_far


def reached(curve: Sequence[Improvement], quality: float) -> Improvement | None:
    """Returns the first improvement with this share of the last improvement's speed; None if nothing could be timed."""
    return next((i for i in curve if i.seconds <= curve[-1].seconds / quality), None)


def phases(history: Iterable[Trial]) -> list[SearchPhase]:
    """Returns each run of trials of one phase; a run begins at the end of the run before."""
    runs: list[SearchPhase] = []
    for trial in history:
        if runs and runs[-1].name == trial.phase:
            runs[-1] = SearchPhase(trial.phase, runs[-1].first, trial.number, runs[-1].began, trial.elapsed)
        else:
            began = runs[-1].ended if runs else 0.0
            runs.append(SearchPhase(trial.phase, trial.number, trial.number, began, trial.elapsed))
    return runs


def failures(history: Iterable[Trial]) -> list[Failed]:
    """Returns the failures by kind, the most frequent first."""
    messages: dict[str, list[str]] = {}
    for trial in history:
        if isinstance(trial.result, Failure):
            messages.setdefault(trial.result.kind, []).append(trial.result.message)
    return sorted((Failed(kind, len(texts), texts[0]) for kind, texts in messages.items()), key=lambda f: -f.count)


def trials_per_second(tuned: Tuned) -> float:
    """Returns the trials per second of the search itself, without the final timing of the best few candidates."""
    spent = max((t.elapsed for t in tuned.history), default=0.0) or tuned.tuning_seconds
    return tuned.trials / spent if spent > 0 else 0.0


def building_seconds(history: Iterable[Trial]) -> float:
    """Returns the seconds of all builders together."""
    return sum(t.result.build_seconds for t in history)


def running_seconds(history: Iterable[Trial]) -> float:
    """Returns the seconds of the timed runs of all candidates, without warming up."""
    return sum(t.result.seconds * t.result.runs for t in history if isinstance(t.result, Timing))
