"""The results of tuning: trials, the state of each task, and the result of a task or a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Literal

from stormdrop.base.errors import UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result
from stormdrop.space.schedule import Schedule
from stormdrop.store.verdict import Verdict
from stormdrop.target.machine import Target
from stormdrop.tuning.statistics import PairedSpeedup, paired_speedup

SAME = 0.005
"""The relative difference of medians below which models are equally fast."""
Change = Literal["faster", "slower", "none"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured candidate, the `number`-th of its task (from 1), done `elapsed` seconds after the task's search
    began.
    """

    schedule: Schedule
    result: Result
    number: int = 0
    elapsed: float = 0.0
    phase: str = ""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """The state of one task. `known` trials were in the store before.

    `seconds`, of the best schedule, and `default_seconds` are timed alike: in turns for proved tasks, else as the
    fastest runs of single trials. They are None until something could be timed.
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
    """The source of the best schedule: default, verdict, stored, donor, or the phase of the strategy that proposed it.
    """
    expected_gain: float | None = None
    """The expected gain of another minute of search for this task, as a share of the goal; of the latency, if the goal
    is latency targets. None until the task's first turn.
    """
    spent: float = 0.0
    """Seconds of search: sketches and donors, rounds with their duels, and the proof."""
    shapes: str = ""
    """The operands and the output of its first call."""
    node: str = ""
    """The main ONNX node of its first call."""
    sketches: int = 0
    """The number of sketches that are searched; 0 until the task's search begins."""

    @property
    def total(self) -> float:
        """Seconds of the model."""
        return self.count * (self.seconds or 0.0)

    @property
    def gflops(self) -> float | None:
        return self.flops / self.seconds / 1e9 if self.seconds and self.flops else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedTask(TaskRow):
    """The result for one task. Without `schedule`, nothing could be timed, or the budget ended before its turn."""

    task: Task
    schedule: Schedule | None
    default: Schedule | None
    """The default schedule, if it was derived."""
    verified: bool
    """The schedule was compared with the reference in a process that runs nothing but winners, now or before."""
    failure: str = ""
    """Why nothing could be timed, if so."""
    before: Verdict | None = None
    """The task's verdict before it was tuned."""
    is_default_timed: bool = False
    """The default schedule was timed while it was tuned, which compares it with the reference."""
    history: tuple[Trial, ...] = field(default=(), repr=False)
    """The trials of the search, in order."""

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
            "shapes": self.shapes,
            "node": self.node,
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
    """Seconds of one run of the whole model, tuned and with default schedules: medians of rounds in turns."""

    seconds: float
    default_seconds: float
    rounds: tuple[tuple[float, float], ...] = field(default=(), compare=False, repr=False)
    """The seconds of each round, tuned and by default; empty if both are estimates."""

    @property
    def speedup(self) -> PairedSpeedup:
        """The speed of the tuned model over the default one, by rounds; without rounds there is no interval."""
        if self.rounds:
            return paired_speedup(*zip(*self.rounds))
        return PairedSpeedup(self.default_seconds / self.seconds if self.seconds else 1.0)

    @property
    def is_slower(self) -> bool:
        """By more than two medians of equal models differ."""
        return self.speedup.ratio * (1 + SAME) < 1

    @property
    def change(self) -> Change:
        """The change that the rounds prove: beyond chance, and by more than equal models differ."""
        speedup = self.speedup
        if not speedup.is_certain or 1 / (1 + SAME) <= speedup.ratio <= 1 + SAME:
            return "none"
        return "faster" if speedup.ratio > 1 else "slower"

    @staticmethod
    def total(worth: Sequence[InModel], weights: Sequence[float]) -> InModel:
        """Returns the weighted sum over models, round by round."""

        def summed(each: Sequence[float]) -> float:
            return sum(w * seconds for w, seconds in zip(weights, each, strict=True))

        rounds = tuple(
            (summed([tuned for tuned, _ in pairs]), summed([default for _, default in pairs]))
            for pairs in zip(*(w.rounds for w in worth))
        )
        return InModel(summed([w.seconds for w in worth]), summed([w.default_seconds for w in worth]), rounds)

    def to_json(self) -> dict[str, object]:
        speedup = self.speedup
        return {
            "seconds": self.seconds,
            "default_seconds": self.default_seconds,
            "speedup": speedup.ratio,
            "interval": [speedup.low, speedup.high] if speedup.high < inf else None,
            "rounds": speedup.rounds,
            "change": self.change,
        }


@dataclass(frozen=True)
class Tuned:
    """The result of tuning a task or a model: the fastest schedules, and how the search went.

    `sd.compile(model, schedules=tuned.schedules)` uses the schedules of a model, `sd.build(task, schedule=tuned.best)`
    the schedule of a task. `seconds` comes from the deciding measurements, in turns with the incumbents.
    """

    name: str
    """The name of the task or the model."""
    target: Target
    """The machine that the candidates ran on, with the temperature of the weights."""
    strategy: str
    """The name of the search."""
    seed: int
    """The seed of the search and of the data."""
    tasks: tuple[TunedTask, ...]
    """The results of all tasks; of a single task, one."""
    tuning_seconds: float
    """The duration of the search and the proofs."""
    stopped: str
    """Why the search ended: trials, seconds, no further gain, target met, nothing left, interrupted."""
    expected_gain: float | None = None
    """The expected gain of another minute of search after the proofs, of all tasks together. None if some tasks were
    not measured, and for a single task.
    """
    in_model: InModel | None = None
    """The timing of the schedules in the model; None if no model was timed."""
    not_kept: str = ""
    """The reason why the store accepted no more during tuning; empty if all is kept, or nothing was to be."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """The tuned size of a model: the shapes of the inputs by name."""
    is_model: bool = True
    """The result of a model; False for a single task."""

    def schedules(self, task: Task) -> Schedule | None:
        """Returns the schedule to compute a task with; None stands for its default."""
        return self._by_digest.get(task.digest)

    def defaults(self, task: Task) -> Schedule | None:
        """Returns the default schedule, if it is stored here: deriving it again takes time."""
        return self._default_by_digest.get(task.digest)

    @cached_property
    def _default_by_digest(self) -> dict[str, Schedule]:
        return {t.task.digest: t.default for t in self.tasks if t.default is not None}

    @cached_property
    def _by_digest(self) -> dict[str, Schedule]:
        return {t.task.digest: t.schedule for t in self.tasks if t.schedule is not None}

    @property
    def _single(self) -> TunedTask:
        if len(self.tasks) != 1:
            raise UserError(f"{self.name} has {len(self.tasks)} tasks: read the result of each in `tasks`")
        return self.tasks[0]

    @property
    def task(self) -> Task:
        """The task that was tuned. This and `best` raise UserError for a model of several tasks."""
        return self._single.task

    @property
    def best(self) -> Schedule:
        """The winner of a single task: the schedule to build the kernel with."""
        if (schedule := self._single.schedule) is None:
            raise UserError(f"{self.name} has no schedule: {self._single.failure or 'no candidate was timed'}")
        return schedule

    @property
    def history(self) -> tuple[Trial, ...]:
        """The trials of the search, task by task, in order."""
        return tuple(trial for t in self.tasks for trial in t.history)

    @property
    def verified(self) -> bool:
        """All winners were compared with the reference in a fresh process."""
        return all(t.verified for t in self.tasks)

    @property
    def seconds(self) -> float:
        """The latency as the sum of all kernels, each timed alone; kernels that could not be timed are left out."""
        return sum(t.count * t.seconds for t in self.tasks if t.seconds is not None)

    @property
    def default_seconds(self) -> float:
        """The same with default schedules."""
        return sum(t.count * (t.default_seconds or t.seconds or 0.0) for t in self.tasks)

    @property
    def gflops(self) -> float:
        """The nominal speed of the winners, in 10⁹ operations per second."""
        return sum(t.count * t.flops for t in self.tasks) / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def costliest(self) -> TunedTask | None:
        """The task that takes most of the model's time; None if there are no tasks."""
        return max(self.tasks, key=lambda task: task.total, default=None)

    @property
    def trials(self) -> int:
        """The number of candidates that were measured."""
        return sum(t.trials for t in self.tasks)

    @property
    def failed(self) -> int:
        """The number of candidates that failed."""
        return sum(t.failed for t in self.tasks)

    @property
    def known(self) -> int:
        """The number of trials of the tasks that the store held before."""
        return sum(t.known for t in self.tasks)

    @property
    def median_build_seconds(self) -> float:
        """The median time to build a candidate that was timed; 0 if none was."""
        builds = sorted(t.result.build_seconds for t in self.history if not isinstance(t.result, Failure))
        return builds[len(builds) // 2] if builds else 0.0

    @property
    def cold(self) -> bool:
        """Weights were out of cache when kernels were timed."""
        return self.target.is_cold

    @property
    def interrupted(self) -> bool:
        """True if the user ended the search."""
        return self.stopped == "interrupted"

    def __repr__(self) -> str:
        if not self.is_model:
            return f"<tuned {self.name}, {self.seconds * 1e6:.3g} µs, {self.trials} trials>"
        tuned = sum(t.schedule not in (None, t.default) for t in self.tasks)
        return f"<tuned model {self.name}, {tuned} of {len(self.tasks)} tasks tuned, {self.trials} trials>"

    def _repr_html_(self) -> str:
        """Returns the HTML that a notebook displays."""
        from stormdrop.report.html import tuned_html  # reports read results, so not before it is needed

        return tuned_html(self)

    def to_json(self) -> dict[str, object]:
        """Returns the result as a tree for `json.dumps`, without `in_model` and `history`."""
        return {
            "model": self.name,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
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


TunedModel = Tuned
"""The name of `Tuned` for the results of models."""
