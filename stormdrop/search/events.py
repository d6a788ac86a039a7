"""What happens while a task is tuned. The loop emits these values; live view, log and store listen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured candidate, the `number`-th (from 1), done `elapsed` seconds after its search began."""

    schedule: Schedule
    result: Result
    number: int = 0
    elapsed: float = 0.0
    phase: str = ""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The fastest schedule found, and how it was found.

    `seconds` comes from the deciding measurement, in turns with the incumbent; `history` holds every trial in order.
    """

    task: Task
    target: Target
    strategy: str
    seed: int
    best: Schedule
    seconds: float
    tuning_seconds: float
    history: tuple[Trial, ...]
    stopped: str
    """Why the search ended: trials, seconds, no further gain, nothing left, interrupted."""
    verified: bool = True
    """Compared with the reference in a fresh process; not where the user broke off."""
    not_kept: str = ""
    """Why the store took no more while it was tuned; empty where all is kept, or nothing was to be."""

    @property
    def trials(self) -> int:
        return len(self.history)

    @property
    def failed(self) -> int:
        return sum(isinstance(t.result, Failure) for t in self.history)

    @property
    def interrupted(self) -> bool:
        return self.stopped == "interrupted"

    @property
    def gflops(self) -> float:
        return self.task.flops / self.seconds / 1e9

    @property
    def median_build_seconds(self) -> float:
        builds = sorted(t.result.build_seconds for t in self.history if not isinstance(t.result, Failure))
        return builds[len(builds) // 2] if builds else 0.0

    def __repr__(self) -> str:
        return f"<tuned {self.task.name}, {self.seconds * 1e6:.3g} µs, {self.trials} trials>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from stormdrop.report.html import tuned_html  # reports read events, so not before it is needed

        return tuned_html(self)


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """Tuning of a task begins; `known` trials of it are in the store. Budgets are None where there is none."""

    task: Task
    sketches: int
    strategy: str
    trials: int | None
    seconds: float | None
    known: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """One more trial is done."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class NewBest:
    """This trial is the fastest so far."""

    trial: Trial
    seconds: float


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """A batch was measured; `best` (seconds) is None while every candidate has failed."""

    phase: str
    measured: int
    failed: int
    best: float | None
    elapsed: float


@dataclass(frozen=True, slots=True)
class Retiming:
    """The best few are about to be timed in turns."""

    candidates: int


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know; tuning goes on."""

    message: str


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A winner is declared."""

    tuned: Tuned


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """No candidate could be timed."""

    first: Failure


Event = TaskStarted | Measured | NewBest | RoundEnded | Retiming | Warned | TaskEnded | TaskFailed
Listener = Callable[[Event], None]


def ignore(_: object) -> None:
    """A listener to whatever happens."""
