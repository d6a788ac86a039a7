"""The measurer, stores and settings that the sessions of one tuning run share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from stormdrop.base.errors import StormdropError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Result, Timing
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.store.record import Record, Versions
from stormdrop.store.store import Store
from stormdrop.store.verdict import Verdict
from stormdrop.target.machine import Target
from stormdrop.tuning.cost_model import CostModel
from stormdrop.tuning.events import Warned, ignore
from stormdrop.tuning.reuse import Reuse
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.strategies import StrategyFactory

KernelValue = Callable[[Timing], float]
"""The function of a candidate's timing that is minimised: by default the seconds of the fastest run.

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


@dataclass(slots=True)
class Keeper:
    """A store that all sessions of a run write to. When a write fails, the store is given up with one warning."""

    store: Store | None = None
    warn: Callable[[Warned], None] = ignore
    failure: str = ""
    """The reason why the store accepted no more; empty while it accepts everything."""
    decided: list[Verdict] | None = None
    """The list that receives verdicts instead of the store, if given."""

    def add(self, records: Sequence[Record]) -> None:
        self._add(lambda store: store.add(records))

    def add_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        if self.decided is not None:
            self.decided += verdicts
        else:
            self._add(lambda store: store.add_verdicts(verdicts))

    @property
    def is_open(self) -> bool:
        return self.store is not None and not self.failure

    def _add(self, write: Callable[[Store], None]) -> None:
        if self.store is None or self.failure:
            return
        try:
            write(self.store)
        except StormdropError as error:
            self.failure = str(error)
            self.warn(Warned(f"what is measured from here on is not kept: {error}"))


@dataclass(frozen=True, slots=True)
class Resources:
    """The measurer, stores and settings that the sessions of one tuning run share."""

    target: Target
    measurer: Measures
    factory: StrategyFactory
    origin: RecordOrigin
    cost: CostModel
    keeper: Keeper = field(default_factory=Keeper)
    kernel_value: KernelValue | None = None
    settings: TuneSettings = field(default_factory=TuneSettings)
    rules: tuple[Rule, ...] = RULES
    reuse: Reuse = field(default_factory=Reuse)

    @property
    def timing_store(self) -> Store | None:
        """The store, if time is minimised; None with a value of the user's, because the store holds times only."""
        return self.keeper.store if self.kernel_value is None else None
