"""Events of tuning one task. The loop emits these values; live view, log and store listen."""

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
    """The task that was tuned."""
    target: Target
    """The machine that the candidates ran on."""
    strategy: str
    """The name of the search."""
    seed: int
    """The seed of the search and of the data."""
    best: Schedule
    """The winner: the schedule to build the kernel with."""
    seconds: float
    """The time of one run of the winner."""
    tuning_seconds: float
    """The duration of the search."""
    history: tuple[Trial, ...]
    """The trials of the search, in order."""
    stopped: str
    """Why the search ended: trials, seconds, no further gain, nothing left, interrupted."""
    verified: bool = True
    """Compared with the reference in a fresh process; False if the user interrupted the search."""
    not_kept: str = ""
    """The reason why the store accepted no more during tuning; empty if all is kept, or nothing was to be."""

    @property
    def trials(self) -> int:
        """The number of candidates that were measured."""
        return len(self.history)

    @property
    def failed(self) -> int:
        """The number of candidates that failed."""
        return sum(isinstance(t.result, Failure) for t in self.history)

    @property
    def interrupted(self) -> bool:
        """True if the user ended the search."""
        return self.stopped == "interrupted"

    @property
    def gflops(self) -> float:
        """The nominal speed of the winner, in 10⁹ operations per second."""
        return self.task.flops / self.seconds / 1e9

    @property
    def median_build_seconds(self) -> float:
        """The median time to build a candidate that was timed; 0 if none was."""
        builds = sorted(t.result.build_seconds for t in self.history if not isinstance(t.result, Failure))
        return builds[len(builds) // 2] if builds else 0.0

    def __repr__(self) -> str:
        return f"<tuned {self.task.name}, {self.seconds * 1e6:.3g} µs, {self.trials} trials>"

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook displays."""
        from stormdrop.report.html import tuned_html  # reports read events, so not before it is needed

        return tuned_html(self)


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """The event that tuning of a task begins; `known` trials of it are in the store. Absent budgets are None."""

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
    """A warning for the user; tuning continues."""

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
    """Ignores every event."""
