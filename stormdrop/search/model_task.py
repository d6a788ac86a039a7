"""One task of a model that is being tuned: its session, once it has begun, and what that has said so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass

from stormdrop.graph.partition import TaskUse
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.reservoir.record import Record
from stormdrop.search.divide import NEGLIGIBLE, Standing
from stormdrop.search.events import Event, Measured, NewBest, Retiming, RoundEnded
from stormdrop.search.model_events import TaskRow, TunedTask
from stormdrop.search.session import Session, Tools
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

LAUNCH_SECONDS = 3e-6
"""What calling the smallest kernel costs, for estimates."""
DOUBT = 3.0
"""An unmeasured task may take so many times what its bytes and operations need at least."""


@dataclass(frozen=True, slots=True)
class Score:
    """What a schedule came to: the value that is minimised, and seconds. They are the same without an objective."""

    value: float
    seconds: float


class ModelTask:
    """What is known of one task; `tell` is called whenever that changes, with its session's event if it was one."""

    def __init__(self, use: TaskUse, tools: Tools, tell: Callable[[ModelTask, Event | None], None]) -> None:
        self.use, self._tell = use, tell
        self.estimate = least_seconds(use.task, tools.target)
        self.known = 0
        self.stored: Record | None = None
        if tools.store is not None and tools.objective is None:  # the store has times, not values of objectives
            self.known = tools.store.known(use.task, tools.target)
            self.stored = tools.store.best(use.task, tools.target, rules=tools.rules) if self.known else None
        self.session: Session | None = None
        self.is_over = False
        self.trials = self.failed = 0
        self.spent = 0.0
        self.best: Score | None = None
        self.leader: Schedule | None = None
        self.default: Score | None = None
        self.failure: Failure | None = None
        self.is_verified = False
        self.phase = ""

    @property
    def name(self) -> str:
        return f"{self.use.id} {self.use.calls[0].label}"

    @property
    def row(self) -> TaskRow:
        use, seconds = self.use, (_seconds(self.best), _seconds(self.default))
        counts = self.trials, self.failed, self.known
        return TaskRow(use.id, use.calls[0].label, use.count, use.task.flops, *seconds, *counts, self.phase)

    @property
    def standing(self) -> Standing:
        is_open = self.session is not None and not self.is_over
        idle = self.session.idle_trials if self.session is not None else 0
        return Standing(self.use.count, _seconds(self.best), self.known + self.trials, idle, is_open)

    @property
    def total(self) -> float:
        """Seconds of the model, as far as they are known."""
        return self.use.count * (self.best.seconds if self.best is not None else self.estimate)

    @property
    def gain(self) -> float:
        """What its leader saves the model: seconds, unless there is another objective."""
        if self.best is None or self.default is None:
            return 0.0
        return self.use.count * (self.default.value - self.best.value)

    def needs_proof(self, gain: float) -> bool:
        """The leader is not the default, saves something, and was not proved before."""
        if self.session is None or self.best is None or self.is_verified or self.leader == self.session.default:
            return False
        if self.default is not None and self.best.value >= self.default.value - gain * abs(self.default.value):
            return False
        return not self.was_proved

    @property
    def was_proved(self) -> bool:
        return self.stored is not None and self.stored.verified and self.stored.schedule == self.leader

    def take_stored(self) -> bool:
        """Be content with what the store knows, if it knows something."""
        if self.stored is None or not isinstance(self.stored.result, Timing):
            return False
        seconds = self.stored.result.floor
        self.best, self.leader = Score(seconds, seconds), self.stored.schedule
        self.default = self.default or self.best
        return True

    def move(self, phase: str) -> None:
        self.phase = phase
        self._tell(self, None)

    def listen(self, event: Event) -> None:
        """What the session says."""
        match event:
            case Measured(trial):
                self.trials += 1
                if isinstance(trial.result, Failure):
                    self.failed += 1
                    self.failure = self.failure or trial.result
                elif self.session is not None and trial.schedule == self.session.default:
                    self.default = self._score(trial.result, self.session.value(trial.result))
            case NewBest(trial, value):
                self.best, self.leader = self._score(trial.result, value), trial.schedule
            case RoundEnded(phase):
                self.phase = phase
            case Retiming():
                self.phase = "final"
            case _:
                pass
        self._tell(self, event)

    def _score(self, result: Result, value: float | None) -> Score | None:
        return Score(value, result.floor) if isinstance(result, Timing) and value is not None else None

    def finished(self) -> TunedTask:
        schedule = self.leader if self.best is not None else None
        return TunedTask(
            *astuple(self.row),
            task=self.use.task,
            schedule=schedule,
            default=self.session.default if self.session is not None else None,
            verified=self.is_verified or (schedule is not None and self.was_proved),
            failure=str(self.failure or "") if self.best is None else "",
        )


def _seconds(score: Score | None) -> float | None:
    return None if score is None else score.seconds


def least_seconds(task: Task, target: Target) -> float:
    """What a task's operations and bytes need at least, and the cost of a call: an estimate before measuring."""
    compute, memory = task.flops / (target.peak_gflops * target.threads), task.minimal_bytes / target.l3_gbs
    return max(compute, memory) / 1e9 + LAUNCH_SECONDS


def negligible(tasks: Iterable[ModelTask]) -> set[ModelTask]:
    """Those whose share of the model is too small to notice, however slow they turn out within reason."""
    every = list(tasks)
    whole = sum(t.use.count * t.estimate for t in every)
    return {t for t in every if DOUBT * t.use.count * t.estimate < NEGLIGIBLE * whole}
