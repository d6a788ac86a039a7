"""The measurer, stores and settings that the sessions of one tuning run share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Result
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.store.record import Versions
from stormdrop.store.store import Store
from stormdrop.target.machine import Target
from stormdrop.tuning.cost_model import CostModel
from stormdrop.tuning.keeping import Keeper
from stormdrop.tuning.reuse import Reuse
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.strategies import StrategyFactory

Objective = Callable[[Result], float]
"""The function that is minimised: the seconds of the fastest run, unless the user gives another.

A value that is not finite counts as a failure.
"""


class Measures(Protocol):
    """The measurer of a session: `Measurer` in `stormdrop.measure` measures, `AnsweringMeasurer` looks up."""

    def measure(
        self,
        task: Task,
        candidates: Sequence[Schedule],
        best: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Result]: ...
    def retime(self, task: Task, candidates: Sequence[Schedule], rounds: int) -> list[Result]: ...
    def prove(self, task: Task, candidate: Schedule, witness: Schedule | None = None) -> Result: ...


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """The provenance in every record of a session."""

    strategy: str
    seed: int
    versions: Versions
    model: str = ""


@dataclass(frozen=True, slots=True)
class Tools:
    """The measurer, stores and settings that the sessions of one tuning run share."""

    target: Target
    measurer: Measures
    factory: StrategyFactory
    origin: RecordOrigin
    cost: CostModel
    keeper: Keeper = field(default_factory=Keeper)
    objective: Objective | None = None
    settings: TuneSettings = field(default_factory=TuneSettings)
    rules: tuple[Rule, ...] = RULES
    reuse: Reuse = field(default_factory=Reuse)

    @property
    def store(self) -> Store | None:
        return self.keeper.store

    @property
    def timing_store(self) -> Store | None:
        """The store, if time is minimised; None with an objective, because the store holds times only."""
        return self.store if self.objective is None else None
