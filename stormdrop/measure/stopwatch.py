"""Timing in this process: one kernel, or several ways to run a model.

    repeat   a kernel: warm up, repeat to a budget, stop early when it is clearly slower than the best
    turn     a kernel, for one of the rounds of candidates that are timed in turns
    race     ways to run a model, in turns: a machine that slows down slows all of them

Medians are reported, since on shared machines a few runs always take many times as long as they should. Other runtimes
than Stormdrop's are timed by `stormdrop.compare.steady`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median

import numpy as np

from stormdrop.device.device import Seconds
from stormdrop.measure.settings import MeasureSettings

Bench = Callable[[int], Seconds]
"""Runs a kernel so many times and gives the seconds of each run."""

COLD_FACTOR = 4  # page faults, cold caches and clocks explain a first run this many times too slow, not more
SETTLE_SECONDS = 2e-4  # runs this long, at least two, before the first verdict
LONG_SECONDS = 1e-3  # a first run this long is as good as any other
SHARE = 4  # the budget is spent in so many parts, with a verdict after each
SAMPLES = 32
ROUNDS = 24
LEAST_ROUNDS = 8
"""The least number of rounds for slow sides, regardless of the time: rank tests need this many."""
OVERTIME = 3.0
"""Further rounds begin until this multiple of the seconds is spent."""
SETTLING = 2
"""Runs at the beginning of a turn that do not count; a single run if it takes as long as a turn should."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The seconds of each run that counts."""

    each: Seconds
    stopped_early: bool

    @property
    def seconds(self) -> float:
        return float(np.median(self.each))

    @property
    def spread(self) -> float:
        low, middle, high = np.percentile(self.each, (25, 50, 75))
        return float((high - low) / middle) if middle > 0 else 0.0

    @property
    def samples(self) -> list[float]:
        """The seconds of single runs in their order, evenly thinned."""
        picked = np.linspace(0, len(self.each) - 1, min(len(self.each), SAMPLES)).round().astype(np.int64)
        return [float(s) for s in self.each[picked]]


def repeat(bench: Bench, first: float, best: float | None, settings: MeasureSettings, between: float = 0.0) -> Runs:
    """Times a kernel after a first run of `first` seconds. Between two runs pass `between` seconds, which count towards
    the budget. Two verdicts end the timing early:

    - slower than `slow_factor` times the best in every run so far (two runs suffice),
    - slower than `slower_factor` times the best in every run of a whole part of the budget.
    """
    slow, slower = (inf, inf) if best is None else (best * settings.slow_factor, best * settings.slower_factor)
    if first > max(COLD_FACTOR * slow, LONG_SECONDS):
        return Runs(np.array([first]), True)
    batches = [np.array([first])] if first >= LONG_SECONDS else []
    spent, count = sum(float(b.sum()) for b in batches), 0
    patience = settings.run_timeout / 4
    size = max(2, min(64, ceil(SETTLE_SECONDS / max(first + between, 1e-9))))
    if first > max(slow, LONG_SECONDS):
        size = 1  # it need only be slow twice
    fastest = inf
    while True:
        size = max(1, min(size, settings.max_repeats - count))
        batches.append(bench(size))
        count += size
        lasted = float(batches[-1].sum()) + between * size
        spent += lasted
        fastest = min(fastest, float(batches[-1].min()))
        stopped = fastest > slow or (fastest > slower and spent >= settings.min_seconds / SHARE)
        is_spent = spent >= settings.min_seconds or spent + lasted / size > patience
        if stopped or is_spent or count >= settings.max_repeats:
            return Runs(np.concatenate(batches), stopped)
        left = min(settings.min_seconds - spent, settings.min_seconds / SHARE)
        size = ceil(left * size / max(lasted, 1e-9))


def turn(bench: Bench, settings: MeasureSettings, between: float = 0.0) -> Runs:
    """Times a candidate for one turn: `turn_seconds` of runs, and at least `turn_runs`, unless these runs take more
    than `longest_turn_seconds`. At the first run the caches hold the data of other candidates.
    """
    first = float(bench(1)[0])
    each = repeat(bench, first, None, replace(settings, min_seconds=settings.turn_seconds), between).each
    while len(each) < settings.turn_runs and each.sum() < settings.longest_turn_seconds:
        each = np.append(each, bench(1))
    return Runs(each, False)


def race(
    sides: Mapping[str, Callable[[], object]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Runs]:
    """Times each side for about `seconds`, in `ROUNDS` turns of at least one run, in rotating order.

    Each turn yields a sample, the median of its runs.
    """
    each: dict[str, list[float]] = {name: [] for name in sides}
    turns = deque(sides.items())
    began = clock()
    for number in range(ROUNDS):
        if number >= LEAST_ROUNDS and clock() - began > OVERTIME * seconds * len(sides):
            break
        for name, run in turns:
            each[name].append(_sample(run, seconds / ROUNDS, clock))
        turns.rotate(-1)
    return {name: Runs(np.array(samples), False) for name, samples in each.items()}


def _sample(run: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """Runs a side for about `seconds`, after runs that do not count. Returns the median."""
    began = clock()
    for settled in range(SETTLING):
        if settled and clock() - began > seconds:
            break
        run()
    each: list[float] = []
    while not each or sum(each) < seconds:
        began = clock()
        run()
        each.append(clock() - began)
    return median(each)
