"""Measurers without workers: recorded tables, tests and simulations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Result
from stormdrop.space.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a measurer: measure candidates, time them in turns, or prove a candidate."""

    kind: Literal["measure", "retime", "prove"]
    """Measure candidates alone, time them in turns, or prove a winner."""
    task: Task
    """The task of the candidates."""
    candidates: Sequence[Schedule]
    """The schedules to measure."""
    rounds: int = 1
    """The number of turns of each candidate."""
    best: float | None = None
    """Seconds to beat, for `measure`."""


class AnsweringMeasurer(ABC):
    """A measurer (`Measures` in `stormdrop.tuning.resources`) that answers every request by one method."""

    @abstractmethod
    def answers(self, asked: Request) -> list[Result]:
        """Returns a result for each candidate, in order."""

    def measure(
        self,
        task: Task,
        candidates: Sequence[Schedule],
        best: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Result]:
        """Measures each candidate alone; `meanwhile` runs as if during the builds."""
        results = self.answers(Request("measure", task, candidates, best=best))
        if meanwhile is not None:
            meanwhile()
        return results

    def retime(self, task: Task, candidates: Sequence[Schedule], rounds: int) -> list[Result]:
        """Times candidates in turns."""
        return self.answers(Request("retime", task, candidates, rounds))

    def prove(self, task: Task, candidate: Schedule, witness: Schedule | None = None) -> Result:
        """Proves a winner; `witness` is ignored."""
        return self.answers(Request("prove", task, [candidate]))[0]
