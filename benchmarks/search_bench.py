"""What the parts of the search's figures share: one case of each operator, and winners timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from benchmarks.stored import StoredRows
from stormdrop.device.device import Seconds
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

Case = tuple[str, tuple[int, ...]]

ROUNDS = 15
TURNS = 5
TURN_SECONDS = 0.02  # of each candidate in each round, where two are compared
ONE_EACH: tuple[Case, ...] = (
    ("GMM", (1, 512, 512, 512)),
    ("C1D", (1, 64, 256, 256, 5, 1, 2)),
    ("C2D", (1, 14, 14, 256, 256, 3, 1, 1)),
    ("C3D", (1, 16, 7, 7, 512, 512, 3, 1, 1)),
    ("GRP", (1, 14, 14, 256, 256, 3, 1, 1, 4)),
    ("DIL", (1, 7, 7, 512, 512, 3, 1, 1, 2)),
    ("DEP", (1, 112, 112, 32, 3, 1, 1)),
    ("T2D", (1, 8, 8, 256, 128, 4, 2, 1)),
    ("CAP", (1, 8, 8, 32, 32, 3, 1, 1)),
    ("NRM", (1, 512, 512)),
    ("SFM", (512, 512)),
    ("CBR", (1, 28, 28, 128, 256, 1, 2, 0)),
    ("TBG", (1, 128, 12, 64)),
    ("MXP", (1, 56, 56, 192, 3, 2, 1)),
    ("ADR", (1, 56, 56, 256)),
    ("GMV", (1000, 2048)),
    ("DOT", (1048576,)),
    ("TRN", (1024, 1024)),
    ("DEN", (12, 128, 128, 64)),
)


class Bench:
    """The machine, the results so far, and how many seeds are wanted."""

    def __init__(self, target: Target, seeds: int, rows: StoredRows, only: Sequence[str]) -> None:
        self.target, self.seeds, self.once, self._only = target, seeds, rows.once, only

    def cases(self, some: Sequence[Case]) -> list[Case]:
        return [case for case in some if not self._only or case[0] in self._only]

    def measurer(self, seed: int = 0) -> Measurer:
        return Measurer(self.target, MeasureSettings(seed=seed))


def seconds_in_turns(
    target: Target, task: Task, schedules: Sequence[Schedule], rounds: int = ROUNDS
) -> list[list[float]]:
    """Seconds of every round, in a process that has seen none of the schedules."""
    with Measurer(target, MeasureSettings(seed=12345, turn_seconds=TURN_SECONDS)) as measurer:
        results = measurer.retime(task, schedules, rounds)
    return [list(r.samples) if isinstance(r, Timing) else [float("nan")] for r in results]


def medians_in_turns(benches: Sequence[Callable[[int], Seconds]], repeats: int) -> list[float]:
    """The median seconds of each bench, of `repeats` runs that are made in a few turns: A B A B … here."""
    turns = [[bench(repeats // TURNS) for bench in benches] for _ in range(TURNS)]
    return [float(np.median(np.concatenate(runs))) for runs in zip(*turns, strict=True)]


def ratio(slow: Sequence[float], fast: Sequence[float]) -> float:
    """How much faster the second is: the median of the rounds' ratios."""
    return median(a / b for a, b in zip(slow, fast))
