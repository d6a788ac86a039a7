"""The default search against storms that are much longer: how fast its winners are, and how little time it takes.

Both are whole searches that begin with nothing; their winners are timed in turns in a process that has seen neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import exp, log
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.core import label
from benchmarks.search_bench import ONE_EACH, Bench, Case, ratio, seconds_in_turns
from stormdrop.measure.result import Timing
from stormdrop.operators.catalogue import build
from stormdrop.target.machine import Target
from stormdrop.tuning.api import tune
from stormdrop.tuning.tuned import Tuned

LONG_TRIALS = 2000
LONG: tuple[Case, ...] = tuple(case for case in ONE_EACH if case[0] != "C3D")
"""Without the convolution of 11 GFLOP: 2,000 trials of it take longer than those of all others."""
LONGEST_TRIALS = 10_000
LONGEST: tuple[Case, ...] = (
    ("GMM", (1, 128, 128, 128)),
    ("C2D", (1, 56, 56, 64, 64, 1, 1, 0)),
    ("CAP", (1, 8, 8, 16, 16, 3, 1, 1)),
)
SEEDS = 3
RESAMPLED = 4000


def part_long(bench: Bench) -> None:
    _compared(bench, "long", LONG, LONG_TRIALS)


def part_longest(bench: Bench) -> None:
    _compared(bench, "longest", LONGEST, LONGEST_TRIALS)


LONG_PARTS: Mapping[str, Callable[[Bench], None]] = {"long": part_long, "longest": part_longest}
EXPECTED = {"long": SEEDS * len(LONG), "longest": SEEDS * len(LONGEST)}
"""Runs of each part, when it is whole."""


def _compared(bench: Bench, part: str, cases: Sequence[Case], trials: int) -> None:
    for seed in range(bench.seeds):
        for case in bench.cases(cases):
            bench.once(part, f"{label(*case)} seed {seed}", partial(against_a_storm, bench.target, case, seed, trials))


def against_a_storm(target: Target, case: Case, seed: int, trials: int) -> dict[str, Any]:
    """A short search with droplets against a long storm, both with the same code and settings."""
    task = build(*case)
    short = tune(task, target, seed=seed)
    long = tune(task, target, search="storm", trials=trials, seed=seed)
    seconds = seconds_in_turns(target, task, [long.best, short.best])
    return {
        "speed": 1.0 if short.best == long.best else ratio(seconds[0], seconds[1]),
        "time": short.tuning_seconds / long.tuning_seconds,
        "short_trials": short.trials,
        "short_seconds": short.tuning_seconds,
        "long_trials": long.trials,
        "long_seconds": long.tuning_seconds,
        "reached": _reached(long, short.seconds),
        "seconds": [median(s) for s in seconds],
    }


def _reached(tuned: Tuned, seconds: float) -> list[float] | None:
    """The trial and the time at which a search first measured something as fast."""
    for t in tuned.history:
        if isinstance(t.result, Timing) and t.result.seconds <= seconds:
            return [t.number, t.elapsed]
    return None


def long_table(part: str, rows: Mapping[str, Any], expected: int) -> list[str]:
    """Every run, of `expected` that are wanted, and the mean of all operators, each of which counts alike."""
    lines = [f"| {part} | speed against the long storm | share of its time | it got there after |", "|---|---|---|---|"]
    for key, r in rows.items():
        reached = "never" if r["reached"] is None else f"{r['reached'][0]:.0f} trials, {r['reached'][1]:.0f} s"
        lines.append(f"| {key} | {r['speed']:.3f} | {r['time']:.2f} | {reached} |")
    speed, low, high = mean_and_interval(rows, "speed")
    time, _, _ = mean_and_interval(rows, "time")
    spent, whole = (sum(r[k] for r in rows.values()) for k in ("short_seconds", "long_seconds"))
    operators = len({_operator(key) for key in rows})
    return [
        *lines,
        f"| geometric mean of {operators} operators | {speed:.3f} ({low:.3f} to {high:.3f}) | {time:.2f} | |",
        "",
        f"{len(rows)} of {expected} runs; in brackets the 95 % interval. All searches together took "
        f"{spent / whole:.2f} of the seconds of the long storms.",
    ]


def mean_and_interval(rows: Mapping[str, Any], value: str) -> tuple[float, float, float]:
    """The geometric mean of all operators' geometric means, and between what 95 % of such means lie if operators, and
    runs of each of them, are drawn again.
    """
    logs: dict[str, list[float]] = defaultdict(list)
    for key, row in rows.items():
        logs[_operator(key)].append(log(row[value]))
    each, rng = [np.array(values) for values in logs.values()], np.random.default_rng(0)
    means = np.stack([rng.choice(v, (RESAMPLED, len(each), len(v))).mean(axis=2) for v in each])
    drawn = rng.integers(len(each), size=(RESAMPLED, len(each)))
    resampled = means[drawn, np.arange(RESAMPLED)[:, None], np.arange(len(each))].mean(axis=1)
    low, high = np.percentile(resampled, (2.5, 97.5))
    return exp(mean(float(v.mean()) for v in each)), exp(float(low)), exp(float(high))


def _operator(key: str) -> str:
    return key.partition(" ")[0]
