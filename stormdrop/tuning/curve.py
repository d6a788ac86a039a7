"""Statistics of a finished search, from its trials: improvements, phases, failures, and seconds by activity.

`history` is the trials of one search in the order of their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stormdrop.measure.result import Failure, Timing
from stormdrop.space.schedule import Schedule
from stormdrop.tuning.tuned import Trial, Tuned

QUALITIES = (0.90, 0.95, 0.99)
"""The shares of the final speed for which a report lists the first trial that reached them."""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A trial faster than all earlier trials: a kernel of `seconds`, timed `elapsed` seconds into the search."""

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
class FailureCount:
    """The number of trials with one kind of failure, and the message of the first of these trials."""

    kind: str
    count: int
    first_message: str


def improvements(history: Iterable[Trial]) -> list[Improvement]:
    """Returns the trials that were faster than all earlier trials; the last of them is the best."""
    best_so_far: list[Improvement] = []
    for trial in history:
        if isinstance(trial.result, Timing) and (not best_so_far or trial.result.seconds < best_so_far[-1].seconds):
            best_so_far.append(
                Improvement(trial.number, trial.elapsed, trial.result.seconds, trial.phase, trial.schedule)
            )
    return best_so_far


def first_reaching(curve: Sequence[Improvement], quality: float) -> Improvement | None:
    """Returns the first improvement with this share of the last improvement's speed; None for an empty curve."""
    return next((i for i in curve if i.seconds <= curve[-1].seconds / quality), None)


def phases(history: Iterable[Trial]) -> list[SearchPhase]:
    """Returns the phases in order; each begins at the end of the phase before. A phase may occur several times."""
    runs: list[SearchPhase] = []
    for trial in history:
        if runs and runs[-1].name == trial.phase:
            runs[-1] = SearchPhase(trial.phase, runs[-1].first, trial.number, runs[-1].began, trial.elapsed)
        else:
            began = runs[-1].ended if runs else 0.0
            runs.append(SearchPhase(trial.phase, trial.number, trial.number, began, trial.elapsed))
    return runs


def failures(history: Iterable[Trial]) -> list[FailureCount]:
    """Returns the failures by kind, the most frequent first."""
    messages: dict[str, list[str]] = {}
    for trial in history:
        if isinstance(trial.result, Failure):
            messages.setdefault(trial.result.kind, []).append(trial.result.message)
    counts = [FailureCount(kind, len(texts), texts[0]) for kind, texts in messages.items()]
    return sorted(counts, key=lambda f: -f.count)


def trials_per_second(tuned: Tuned) -> float:
    """Returns the trials per second until the last trial, without the final timing of the best few candidates."""
    seconds = max((t.elapsed for t in tuned.history), default=0.0) or tuned.tuning_seconds
    return tuned.trials / seconds if seconds > 0 else 0.0


def building_seconds(history: Iterable[Trial]) -> float:
    """Returns the sum of the build seconds of all trials, over all builder processes."""
    return sum(t.result.build_seconds for t in history)


def running_seconds(history: Iterable[Trial]) -> float:
    """Returns Σ seconds · runs over the timed trials; warm-up runs do not count."""
    return sum(t.result.seconds * t.result.runs for t in history if isinstance(t.result, Timing))
