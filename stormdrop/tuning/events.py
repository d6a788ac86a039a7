"""Events of tuning, of a single task and of models. The loop emits these values; live view, log and store listen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stormdrop.tuning.tuned import TaskRow, Trial, Tuned


@dataclass(frozen=True, slots=True)
class Started:
    """The event that tuning begins. Absent budgets are None."""

    name: str
    rows: tuple[TaskRow, ...]
    strategy: str
    trials: int | None
    seconds: float | None
    cold: bool
    is_model: bool = True

    @property
    def known(self) -> int:
        """The trials of the tasks that the store holds already."""
        return sum(row.known for row in self.rows)

    @property
    def known_tasks(self) -> int:
        """The tasks of which the store holds trials."""
        return sum(row.known > 0 for row in self.rows)


@dataclass(frozen=True, slots=True)
class Measured:
    """One more trial of a task is done; `is_best` if the trial is the task's fastest so far."""

    row: TaskRow
    trial: Trial
    is_best: bool
    elapsed: float
    expected_gain: float | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """The state of a task has changed: a round has ended, a final choice begins, or a decision is made."""

    row: TaskRow
    elapsed: float
    expected_gain: float | None = None
    """The expected gain of all tasks together, at this moment."""


@dataclass(frozen=True, slots=True)
class Proving:
    """The search is over; the winners of so many tasks are about to be timed in turns and proved."""

    tasks: int
    elapsed: float


@dataclass(frozen=True, slots=True)
class StageStarted:
    """A step after the search begins: the model itself is compiled and timed."""

    text: str


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning for the user; tuning continues."""

    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The results of a task or a model are final."""

    tuned: Tuned


Event = Started | Measured | Moved | Proving | StageStarted | Warned | Ended
Listener = Callable[[Event], None]


def ignore(_: object) -> None:
    """Ignores every event."""
