"""What the sessions of one tuning run share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stormdrop.cost.model import CostModel
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Result
from stormdrop.reservoir.record import Versions
from stormdrop.reservoir.store import Store
from stormdrop.search.keeping import Keeper
from stormdrop.search.reuse import Reuse
from stormdrop.search.settings import TuneSettings
from stormdrop.search.strategies import StrategyFactory
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

Objective = Callable[[Result], float]
"""What is minimised: the seconds of the fastest run, unless the user says otherwise.

What is not finite counts as a failure.
"""


class Measures(Protocol):
    """What a session needs of a measurer: `Measurer` in `stormdrop.measure` measures, `AnsweringMeasurer` looks up."""

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
class Origin:
    """What every record of a session says of where it came from."""

    strategy: str
    seed: int
    versions: Versions
    model: str = ""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the sessions of one tuning run share."""

    target: Target
    measurer: Measures
    factory: StrategyFactory
    origin: Origin
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
        """The store, where what is minimised is time: it has times, not values of objectives."""
        return self.store if self.objective is None else None
