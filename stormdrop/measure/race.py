"""Ways to run one model in one process, timed in turns: a machine that slows down slows all of them.

For models of ours, which share one pool of threads. Other runtimes are timed by `stormdrop.compare.steady`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np

from stormdrop.measure.stopwatch import Runs

ROUNDS = 5
SETTLING = 2
"""Runs at the beginning of a turn that do not count."""


def race(
    sides: Mapping[str, Callable[[], object]], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Runs]:
    """Time each side for about `seconds`, in `ROUNDS` turns of one run at least, in rotating order."""
    each: dict[str, list[float]] = {name: [] for name in sides}
    turns = deque(sides.items())
    for _ in range(ROUNDS):
        for name, run in turns:
            for _ in range(SETTLING):
                run()
            turn: list[float] = []
            while not turn or sum(turn) < seconds / ROUNDS:
                began = clock()
                run()
                turn.append(clock() - began)
            each[name] += turn
        turns.rotate(-1)
    return {name: Runs(np.array(found), False) for name, found in each.items()}
