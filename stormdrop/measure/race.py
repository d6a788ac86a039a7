"""Ways to run one model in one process, timed in turns: a machine that slows down slows all of them.

A turn is a sample: the median of its runs. The samples of one round are pairs.
For models of ours, which share one pool of threads. Other runtimes are timed by `stormdrop.compare.steady`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import median

import numpy as np

from stormdrop.measure.stopwatch import Runs

ROUNDS = 24
LEAST_ROUNDS = 8
"""The least number of rounds for slow sides, regardless of the time: rank tests need this many."""
OVERTIME = 3.0
"""Further rounds begin until this multiple of the seconds is spent."""
SETTLING = 2
"""Runs at the beginning of a turn that do not count; a single run if it takes as long as a turn should."""


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
            each[name].append(_turn(run, seconds / ROUNDS, clock))
        turns.rotate(-1)
    return {name: Runs(np.array(samples), False) for name, samples in each.items()}


def _turn(run: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
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
