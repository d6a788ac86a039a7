"""Searches over many tasks, replayed from the recorded rounds of each task's own search; divisions to compare with.

A task's rounds do not depend on when it gets them, so one recording serves every division.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stormdrop.measure.result import Result
from stormdrop.space.judge import judge_of
from stormdrop.store.record import Versions
from stormdrop.testing.tables import Request, Table, TableMeasurer, TableSpace
from stormdrop.tuning.cost_model import CostModel
from stormdrop.tuning.divide import Divide, Round, Standing, worth_a_round
from stormdrop.tuning.loop import FIRST
from stormdrop.tuning.model_task import FLOOR_TRUST
from stormdrop.tuning.resources import RecordOrigin, Resources
from stormdrop.tuning.session import Session
from stormdrop.tuning.strategies import STRATEGIES
from stormdrop.tuning.tune import MODEL_SETTINGS
from tests.support.tables import formula_table

FOLDER = Path(__file__).parents[1] / "data" / "tables"
OPERATORS = (
    ("C2D", (1, 14, 14, 64, 64, 3, 1, 1)),
    ("C2D", (1, 7, 7, 32, 32, 3, 1, 1)),
    ("C2D", (1, 28, 28, 32, 32, 1, 1, 0)),
    ("GMM", (1, 128, 128, 128)),
    ("DEP", (1, 28, 28, 64, 3, 1, 1)),
    ("C1D", (1, 64, 64, 64, 3, 1, 1)),
    ("SFM", (256, 256)),
)
"""Of the tables that a formula makes, beside the recorded ones."""
DUEL_COST = 0.3
"""To load and time a known candidate once more takes this fraction of a trial."""
MOST_ROUNDS = 120


class RoundRobin:
    """Every task in turn."""

    def next(self, standings: Sequence[Standing]) -> int | None:
        return min(worth_a_round(standings), key=lambda k: len(standings[k].history), default=None)


class ByShare:
    """A task's rounds grow with its share of the goal, and slowly fall behind while they gain nothing."""

    def next(self, standings: Sequence[Standing]) -> int | None:
        return max(worth_a_round(standings), key=lambda k: self._priority(standings[k]), default=None)

    def _priority(self, s: Standing) -> float:
        return s.total / (1 + len(s.history)) / (1 + s.idle_rounds / 4)


@dataclass(frozen=True, slots=True)
class RecordedTask:
    """The rounds that one task's own search took, with what a standing says of it."""

    rounds: Sequence[Round]
    count: int = 1
    floor: float = 0.0
    flops: float = 0.0
    group: str = ""


class _Meter(TableMeasurer):
    """Counts what it is asked for, in trials."""

    def __init__(self, table: Table, seed: int) -> None:
        super().__init__(table, 0.02, seed)
        self.trials = 0.0

    def answers(self, asked: Request) -> list[Result]:
        cost = {"measure": 1.0, "retime": DUEL_COST * asked.rounds, "prove": 0.0}[asked.kind]
        self.trials += cost * len(asked.candidates)
        return super().answers(asked)


def recorded(table: Table, seed: int) -> RecordedTask:
    """A search of a table to its end. A round's `seconds` are trials."""
    meter, features = _Meter(table, seed), judge_of(table.target).features
    origin = RecordOrigin("replay", seed, Versions("", "", features.version))
    cost = CostModel(features, MODEL_SETTINGS.cost)
    resources = Resources(table.target, meter, STRATEGIES["storm+droplet"], origin, cost, settings=MODEL_SETTINGS)
    session = Session(table.task, resources, spaces=table.spaces)
    rounds: list[Round] = []
    while session.round(MODEL_SETTINGS.batch if rounds else FIRST) and len(rounds) < MOST_ROUNDS:
        if session.best is not None:
            rounds.append(Round(meter.trials, session.best))
    bound = min(judge_of(table.target).least_seconds(s.structure) for s in table.spaces)
    # A formula knows nothing of the machine: its kernels may be faster than any machine allows.
    floor = FLOOR_TRUST * min(bound, table.optimum / FLOOR_TRUST)
    return RecordedTask(rounds, 1, floor, table.task.flops, table.task.name)


@cache
def recordings() -> tuple[RecordedTask, ...]:
    """Of the recorded tables, and of tables of a formula with few and with many bumps."""
    tables = [Table.load(path) for path in sorted(FOLDER.glob("*.npz"))]
    tables += [formula_table(name, sizes, 2000, _bumpy(a)) for name, sizes in OPERATORS for a in (0.03, 0.1)]
    return tuple(recorded(table, seed=0) for table in tables)


def _bumpy(height: float) -> Callable[[TableSpace], NDArray[np.float64]]:
    def formula(space: TableSpace) -> NDArray[np.float64]:
        logs = np.log2(np.maximum(space.points, 1))
        return space.prior(space.points) * np.exp(height * np.sin(1.7 * logs + np.arange(logs.shape[1])).sum(axis=1))

    return formula


def drawn_model(seed: int, tasks: int = 20) -> list[RecordedTask]:
    """A model of some recorded tasks, scaled: kernels of 30 µs to 3 ms, trials of 30 ms and 40 runs."""
    rng, found = np.random.default_rng(seed), list[RecordedTask]()
    for k in rng.integers(len(recordings()), size=tasks):
        task = recordings()[k]
        kernel_seconds = 3e-4 * np.exp(rng.normal(0, 1.2))
        scale = kernel_seconds / task.rounds[-1].best
        trial_seconds = 0.03 * np.exp(rng.normal(0, 0.5)) + 40 * kernel_seconds
        rounds = [Round(float(r.seconds * trial_seconds), float(r.best * scale)) for r in task.rounds]
        count = int(rng.choice([1, 1, 1, 2, 3, 6]))
        found.append(
            replace(task, rounds=rounds, count=count, floor=float(task.floor * scale), flops=float(task.flops * scale))
        )
    return found


@dataclass(frozen=True, slots=True)
class ReplayedDivision:
    """Seconds and total latency after every round."""

    seconds: tuple[float, ...]
    latencies: tuple[float, ...]
    spent: tuple[float, ...]
    """On each task."""

    def until(self, latency: float) -> float:
        """Seconds until the total latency was no larger than this."""
        return next(s for s, found in zip(self.seconds, self.latencies) if found <= latency)


def replayed(tasks: Sequence[RecordedTask], divide: Divide, slopes: Sequence[float] | None = None) -> ReplayedDivision:
    """All rounds of all tasks in the order that a division chooses, after one round of each."""
    done = [1] * len(tasks)
    seconds, latencies = list[float](), list[float]()
    while True:
        last = [t.rounds[n - 1] for t, n in zip(tasks, done)]
        seconds.append(sum(r.seconds for r in last))
        latencies.append(sum(t.count * r.best for t, r in zip(tasks, last)))
        standings = [
            Standing(slope, r.best, t.rounds[:n], n < len(t.rounds), 0.0, t.floor, t.flops, t.group)
            for t, r, n, slope in zip(tasks, last, done, slopes or [t.count for t in tasks])
        ]
        chosen = divide.next(standings)
        if chosen is None:
            return ReplayedDivision(tuple(seconds), tuple(latencies), tuple(r.seconds for r in last))
        done[chosen] += 1
