"""A strategy on a recorded table: a session with a measurer that looks times up. No workers, the same every time.

Every candidate that is measured for the first time counts as a trial. Timing known candidates in turns does not; such
duels are counted separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stormdrop.measure.result import Result
from stormdrop.space.judge import judge_of
from stormdrop.space.schedule import Schedule
from stormdrop.store.record import Versions
from stormdrop.testing.tables import Request, Table, TableMeasurer
from stormdrop.tuning.cost_model import CostModel
from stormdrop.tuning.resources import RecordOrigin, Resources
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.session import Session
from stormdrop.tuning.strategies import StrategyFactory


@dataclass(frozen=True, slots=True)
class Replayed:
    """The course of a search on a table."""

    candidates: tuple[Schedule, ...]
    """The measured candidates, in the order of their first measurements."""
    curve: tuple[float, ...]
    """The fewest seconds, by the table, of all candidates so far; infinite while everything failed."""
    duels: int
    """Timings of candidates that were known already."""

    def needed(self, seconds: float) -> int | None:
        """Returns the number of candidates measured until one took at most `seconds`; None if there is no such
        candidate.
        """
        return next((i for i, best in enumerate(self.curve, 1) if best <= seconds), None)


def run_on_table(
    table: Table,
    factory: StrategyFactory,
    trials: int,
    seed: int,
    settings: TuneSettings | None = None,
    noise: float = 0.0,
    enough: float = 0.0,
) -> Replayed:
    """Runs a strategy for at most `trials` candidates; it ends early with a candidate of at most `enough` seconds.

    The cost model starts empty. `noise` is the noise of a `TableMeasurer`; the reported curve is free of it.
    """
    settings = settings or TuneSettings()
    books = _Books(table, noise, seed)
    features = judge_of(table.target).features
    origin = RecordOrigin("replay", seed, Versions("", "", features.version))
    cost = CostModel(features, settings.cost)
    resources = Resources(table.target, books, factory, origin, cost, settings=settings)
    session = Session(table.task, resources, trials=trials, spaces=table.spaces)
    curve = books.curve
    while len(curve) < trials and not (curve and curve[-1] <= enough):
        if not session.round(min(settings.batch, trials - len(curve))):
            break
    return Replayed(tuple(books.measured), tuple(curve), books.duels)


class _Books(TableMeasurer):
    """A table measurer that counts measured candidates; its curve holds the table's times, without noise."""

    def __init__(self, table: Table, noise: float, seed: int) -> None:
        super().__init__(table, noise, seed)
        self.measured: dict[Schedule, float] = {}
        self.curve: list[float] = []
        self.duels = 0

    def answers(self, asked: Request) -> list[Result]:
        if asked.kind != "prove":
            self._count(asked.candidates, asked.rounds)
        return super().answers(asked)

    def _count(self, candidates: Sequence[Schedule], timings: int) -> None:
        for one in candidates:
            if one in self.measured:
                self.duels += timings
                continue
            place = self.table.find(one)
            seconds = float(place[0].seconds[place[1]]) if place else np.nan
            self.measured[one] = np.inf if np.isnan(seconds) else seconds
            self.curve.append(min(self.measured[one], self.curve[-1] if self.curve else np.inf))
