"""Gains of verdicts: how many times as long a task's default schedule takes as the schedule that tuning decided for.

The incumbent of a verdict need not be the default: a winner of an earlier tuning was the incumbent of a later one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from stormdrop.errors import StormdropError
from stormdrop.measure.result import Timing
from stormdrop.reservoir.record import DEFAULT, Record
from stormdrop.reservoir.verdict import NO_CHALLENGER, Verdict
from stormdrop.space.judge import judge_of
from stormdrop.space.schedule import Schedule
from stormdrop.space.scorer import Scorer
from stormdrop.space.sketch import replay
from stormdrop.target.machine import Target


@dataclass(frozen=True, slots=True)
class TimedTrials:
    """The schedules of a task that were timed, with the seconds of their fastest runs."""

    seconds: Mapping[Schedule, float]
    default: Schedule | None
    """The newest one that was measured as the task's default; this version's default may be another."""


def timed_trials(trials: Iterable[Record]) -> TimedTrials:
    """Without trials that were stopped early."""
    seconds: dict[Schedule, float] = {}
    default: Schedule | None = None
    for trial in trials:
        if isinstance(trial.result, Timing) and not trial.result.stopped_early:
            seconds[trial.schedule] = min(trial.result.floor, seconds.get(trial.schedule, inf))
            default = trial.schedule if trial.strategy == DEFAULT else default
    return TimedTrials(seconds, default)


def gain_over_default(
    verdict: Verdict,
    timed: TimedTrials,
    target: Target,
    default: Schedule | None = None,
    scorer: Scorer | None = None,
) -> float:
    """How many times as long the task's default takes as the verdict's schedule; infinite where nothing says.

    By the duel, if it was against the default: both were timed in turns. Else by trials, else as the trees predict.
    `default` is this version's; where it is not given or was never timed, what was the default when the task was tuned
    stands for it.
    """
    if default is None or (default not in timed.seconds and default not in (verdict.schedule, verdict.against)):
        unchallenged = verdict.schedule if verdict.method == NO_CHALLENGER else None
        default = timed.default or unchallenged or default
    if default is None:
        return inf
    if verdict.schedule == default:
        return 1.0
    if verdict.against == default:
        return verdict.against_seconds / verdict.seconds
    return relative_seconds(verdict, (default,), default, timed, target, scorer)[0]


def gain_over_incumbent(verdict: Verdict) -> float:
    """By the duel; 1 where the incumbent stayed."""
    return 1.0 if verdict.schedule == verdict.against else verdict.against_seconds / verdict.seconds


def relative_seconds(
    verdict: Verdict,
    candidates: Sequence[Schedule],
    default: Schedule,
    timed: TimedTrials,
    target: Target,
    scorer: Scorer | None,
) -> tuple[float, str]:
    """The time of the fastest of some schedules of a task relative to that of its verdict; and how it is known:
    measured, predicted, or absent. Predictions are of gains over the default, here as elsewhere.
    """
    seconds = timed.seconds.get(verdict.schedule, verdict.seconds)
    measured = [timed.seconds[c] / seconds for c in candidates if c in timed.seconds]
    if measured:
        return min(measured), "measured"
    if scorer is None or not candidates:
        return inf, "absent"
    try:
        places = [replay(verdict.task, schedule, target) for schedule in (default, verdict.schedule, *candidates)]
    except StormdropError:
        return inf, "absent"
    rows = np.concatenate([sketch.features(point[None]) for sketch, point in places])
    own, *others = scorer.gains(rows[1:], rows[0], judge_of(target).features).tolist()
    return float(2.0 ** (own - max(others))), "predicted"
