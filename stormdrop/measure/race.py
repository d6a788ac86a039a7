"""Ways to run one model, timed in turns.

Each has its turn in every round, so that a machine that slows down slows all of them. Runtimes keep their threads
spinning for a while after a call, onnxruntime's for 34 ms here: a turn begins with a pause, in which the other side's
fall asleep, and with runs that do not count. Nothing here knows what is run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from stormdrop.measure.stopwatch import Runs

ROUNDS = 5
PAUSE_SECONDS = 0.1
SETTLING = 2
"""Runs at the beginning of a turn that do not count."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What each side gets: so many timed runs, or seconds of them."""

    repeats: int | None = None
    seconds: float = 3.0
    warm_up: int = 3


def race(
    sides: Mapping[str, Callable[[], object]],
    budget: Budget,
    clock: Callable[[], float] = time.perf_counter,
    pause: Callable[[float], None] = time.sleep,
    tell: Callable[[int], None] = lambda _: None,
) -> dict[str, Runs]:
    """Time them; `tell` hears the number of each round. One side alone needs no pauses."""
    for run in sides.values():
        for _ in range(budget.warm_up):
            run()
    each: dict[str, list[float]] = {name: [] for name in sides}
    rounds = ROUNDS if budget.repeats is None else min(ROUNDS, budget.repeats)
    for number in range(rounds):
        tell(number + 1)
        for name, run in sides.items():
            if len(sides) > 1:
                pause(PAUSE_SECONDS)
                for _ in range(SETTLING if budget.warm_up else 0):
                    run()
            each[name] += _turn(run, budget, rounds, number, clock)
    return {name: Runs(np.array(seconds), False) for name, seconds in each.items()}


def _turn(
    run: Callable[[], object], budget: Budget, rounds: int, number: int, clock: Callable[[], float]
) -> list[float]:
    """One side's share of the budget, one run at least."""
    found: list[float] = []
    # What is left over by the division goes to the first rounds.
    count = None if budget.repeats is None else budget.repeats // rounds + (number < budget.repeats % rounds)
    spent = 0.0
    while (len(found) < count) if count is not None else (not found or spent < budget.seconds / rounds):
        began = clock()
        run()
        found.append(clock() - began)
        spent += found[-1]
    return found
