"""What happens while a whole model is tuned, and what comes out of it.

The loop emits these values; views and logs listen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from stormdrop.ir.tensor import Task
from stormdrop.reservoir.verdict import Verdict
from stormdrop.search.events import Event, Warned
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

SAME = 0.005
"""Models whose medians differ by less are equally fast."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """Where one task stands. `known` trials were in the store before.

    `seconds`, of the best, and `default_seconds` are timed alike: in turns for those that were proved, else the fastest
    runs of single trials. They are None until something could be timed.
    """

    id: str
    label: str
    count: int
    flops: float
    seconds: float | None = None
    default_seconds: float | None = None
    trials: int = 0
    failed: int = 0
    known: int = 0
    phase: str = ""
    """The strategy's, or how the task ended: proved, confirmed, not proved, default, small, known, failed, reverted."""
    origin: str = ""
    """Where the best schedule came from: default, verdict, stored, donor, or the phase of the strategy that proposed
    it."""
    expected_gain: float | None = None
    """What another minute of search is expected to gain here, as a share of the goal; of the latency, where the goal is
    latency targets. None where that is unknown: before its turn came."""
    spent: float = 0.0
    """Seconds of search: sketches and donors, rounds with their duels, and the proof."""

    @property
    def total(self) -> float:
        """Seconds of the model."""
        return self.count * (self.seconds or 0.0)

    @property
    def gflops(self) -> float | None:
        return self.flops / self.seconds / 1e9 if self.seconds and self.flops else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedTask(TaskRow):
    """What was found for one task. Without `schedule` nothing could be timed, or the budget ended before its turn."""

    task: Task
    schedule: Schedule | None
    default: Schedule | None
    """The default schedule, where it was worked out."""
    verified: bool
    """The schedule was compared with the reference in a process that runs nothing but winners, now or before."""
    failure: str = ""
    """Why nothing could be timed, if so."""
    before: Verdict | None = None
    """The task's verdict before it was tuned."""
    is_default_timed: bool = False
    """The default schedule was timed while it was tuned, which compares it with the reference."""

    @property
    def ended(self) -> str:
        return self.phase

    @property
    def gain(self) -> float:
        """Seconds of the model that were saved."""
        if self.seconds is None or self.default_seconds is None:
            return 0.0
        return self.count * (self.default_seconds - self.seconds)

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "label": self.label,
            "digest": self.task.digest,
            "count": self.count,
            "flops": self.flops,
            "seconds": self.seconds,
            "default_seconds": self.default_seconds,
            "gflops": self.gflops,
            "trials": self.trials,
            "failed": self.failed,
            "known": self.known,
            "verified": self.verified,
            "ended": self.ended,
            "origin": self.origin or None,
            "expected_gain": self.expected_gain,
            "search_seconds": self.spent,
            "failure": self.failure or None,
            "schedule": None if self.schedule is None else self.schedule.to_json(),
        }


@dataclass(frozen=True, slots=True)
class InModel:
    """Seconds of one run of the whole model, with what tuning found and with default schedules: medians of many, in
    turns.
    """

    seconds: float
    default_seconds: float

    @property
    def is_slower(self) -> bool:
        """By more than two medians of equal models differ."""
        return self.seconds > (1 + SAME) * self.default_seconds

    def to_json(self) -> dict[str, float]:
        return {"seconds": self.seconds, "default_seconds": self.default_seconds}


@dataclass(frozen=True)
class TunedModel:
    """A tuned model: `schedules` is what compiling it takes."""

    name: str
    target: Target
    strategy: str
    seed: int
    tasks: tuple[TunedTask, ...]
    tuning_seconds: float
    stopped: str
    """Why the search ended: trials, seconds, no further gain, target met, nothing left, interrupted."""
    expected_gain: float | None = None
    """What another minute of search was expected to gain after the proofs, of all tasks together. None where some were
    not measured."""
    in_model: InModel | None = None
    """What it is worth in the model; None where the model was not timed."""
    not_kept: str = ""
    """Why the store took no more while it was tuned; empty where all is kept, or nothing was to be."""

    def schedules(self, task: Task) -> Schedule | None:
        """The schedule to compute a task with; None: its default."""
        return self._by_digest.get(task.digest)

    def defaults(self, task: Task) -> Schedule | None:
        """The default schedule, if it is known here: working it out again takes time."""
        return self._default_by_digest.get(task.digest)

    @cached_property
    def _default_by_digest(self) -> dict[str, Schedule]:
        return {t.task.digest: t.default for t in self.tasks if t.default is not None}

    @cached_property
    def _by_digest(self) -> dict[str, Schedule]:
        return {t.task.digest: t.schedule for t in self.tasks if t.schedule is not None}

    @property
    def seconds(self) -> float:
        """The model's latency as the sum of its kernels', each timed alone; what could not be timed is left out."""
        return sum(t.count * t.seconds for t in self.tasks if t.seconds is not None)

    @property
    def default_seconds(self) -> float:
        """The same with default schedules."""
        return sum(t.count * (t.default_seconds or t.seconds or 0.0) for t in self.tasks)

    @property
    def trials(self) -> int:
        return sum(t.trials for t in self.tasks)

    @property
    def failed(self) -> int:
        return sum(t.failed for t in self.tasks)

    @property
    def known(self) -> int:
        return sum(t.known for t in self.tasks)

    @property
    def cold(self) -> bool:
        """Weights were out of cache when kernels were timed."""
        return self.target.is_cold

    @property
    def interrupted(self) -> bool:
        return self.stopped == "interrupted"

    def __repr__(self) -> str:
        tuned = sum(t.schedule not in (None, t.default) for t in self.tasks)
        return f"<tuned model {self.name}, {tuned} of {len(self.tasks)} tasks tuned, {self.trials} trials>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from stormdrop.report.model_html import model_html  # reports read events, so not before it is needed

        return model_html(self)

    def to_json(self) -> dict[str, object]:
        return {
            "model": self.name,
            "threads": self.target.threads,
            "strategy": self.strategy,
            "seed": self.seed,
            "cold": self.cold,
            "stopped": self.stopped,
            "expected_gain": self.expected_gain,
            "not_kept": self.not_kept,
            "trials": self.trials,
            "failed": self.failed,
            "known": self.known,
            "tuning_seconds": self.tuning_seconds,
            "estimated_seconds": self.seconds,
            "estimated_default_seconds": self.default_seconds,
            "tasks": [t.to_json() for t in self.tasks],
        }


@dataclass(frozen=True, slots=True)
class ModelStarted:
    """Tuning of a model begins. Budgets are None where there is none."""

    name: str
    rows: tuple[TaskRow, ...]
    strategy: str
    trials: int | None
    seconds: float | None
    cold: bool

    @property
    def known(self) -> int:
        """Trials that the store has of its tasks."""
        return sum(row.known for row in self.rows)

    @property
    def known_tasks(self) -> int:
        return sum(row.known > 0 for row in self.rows)


@dataclass(frozen=True, slots=True)
class TaskMoved:
    """Something happened to one task, which now stands so; `event` is its session's, if it is one of those."""

    row: TaskRow
    elapsed: float
    event: Event | None = None
    expected_gain: float | None = None
    """Of all tasks together, at this moment."""


@dataclass(frozen=True, slots=True)
class Proving:
    """The search is over; the winners of so many tasks are about to be timed in turns and proved."""

    tasks: int
    elapsed: float


@dataclass(frozen=True, slots=True)
class ModelEnded:
    """All winners are declared."""

    tuned: TunedModel


ModelEvent = ModelStarted | TaskMoved | Proving | Warned | ModelEnded
ModelListener = Callable[[ModelEvent], None]
