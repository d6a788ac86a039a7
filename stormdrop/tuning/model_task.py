"""A task that is being tuned: its session, once it has begun, and the results of that session so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from math import log2
from typing import Protocol

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure
from stormdrop.space.judge import judge_of, least_seconds
from stormdrop.space.schedule import Schedule
from stormdrop.store.verdict import NO_CHALLENGER, Verdict
from stormdrop.target.machine import Target
from stormdrop.tuning.divide import NEGLIGIBLE, Round, Standing
from stormdrop.tuning.resources import Resources
from stormdrop.tuning.session import Session
from stormdrop.tuning.subject import SubjectTask
from stormdrop.tuning.tuned import TaskRow, Trial, TunedTask

LAUNCH_SECONDS = 3e-6
"""The seconds that a call of the smallest kernel costs, for estimates."""
DOUBT = 3.0
"""The largest assumed ratio between an unmeasured task's time and the least time for its bytes and operations."""
FLOOR_TRUST = 0.9
"""The factor of the judge's lower bound: kernels of recorded tables are up to 4 % faster than the bound, since clocks
boost.
"""


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a schedule: the value that is minimised, and seconds. Equal unless the user gives a value."""

    value: float
    seconds: float


class Overseer(Protocol):
    """The loop, which publishes the changes of its tasks."""

    def measured(self, task: ModelTask, trial: Trial, is_best: bool) -> None: ...
    def moved(self, task: ModelTask) -> None: ...
    def warned(self, task: ModelTask, message: str) -> None: ...


class ModelTask:
    """The state of one task, an `Observer` of its session; it reports every change to an overseer."""

    def __init__(self, about: SubjectTask, counts: Sequence[int], resources: Resources, overseer: Overseer) -> None:
        """Creates the state of a task; `counts` holds the number of its calls in each subject."""
        self.about, self.task, self.counts, self.resources = about, about.task, tuple(counts), resources
        self._overseer = overseer
        self.estimate = estimated_seconds(self.task, resources.target)
        self.known = 0
        self.stored: Verdict | None = None
        if (store := resources.timing_store) is not None:
            self.known = store.known(self.task, resources.target)
            self.stored = store.verdict(self.task, resources.target, rules=resources.rules)
        self.session: Session | None = None
        self.is_over = False
        self.trials = self.failed = 0
        self.spent = 0.0
        """Seconds of its rounds, duels included, and of its proof."""
        self.opening_seconds = 0.0
        """Seconds of its sketches, donors and their ranking: spent once, so no round is expected to take them again."""
        self.history: list[Round] = []
        self.floor = 0.0
        self.expected_gain: float | None = None
        """The expected gain of another minute of search for this task, as in `TaskRow`."""
        self.best: Score | None = None
        self.leader: Schedule | None = None
        self.default: Score | None = None
        self.incumbent: Score | None = None
        self.failure: Failure | None = None
        self.is_verified = False
        self.phase = ""
        self._proposed_by: dict[Schedule, str] = {}
        self._sketches = 0

    @property
    def origin(self) -> str:
        """The source of the leader.

        default    the default schedule
        verdict    an earlier tuning's decision
        stored     a trial that was in the store, without a verdict
        donor      re-fitted from another task's schedule
        storm, droplet, or the phase of another strategy that proposed it
        """
        if self.best is None or self.leader is None:
            return ""
        if self.session is not None and self.leader == self.session.default:
            return "default"
        if self.stored is not None and self.leader == self.stored.schedule:
            return "verdict"
        return self._proposed_by.get(self.leader, "stored")

    @property
    def name(self) -> str:
        return f"{self.about.id} {self.about.label}"

    @property
    def row(self) -> TaskRow:
        about = self.about
        return TaskRow(
            about.id,
            about.label,
            self.count,
            self.task.flops,
            seconds=_seconds(self.best),
            default_seconds=_seconds(self.default),
            trials=self.trials,
            failed=self.failed,
            known=self.known,
            phase=self.phase,
            origin=self.origin,
            expected_gain=self.expected_gain,
            spent=self.opening_seconds + self.spent,
            shapes=about.shapes,
            node=about.node,
            sketches=self._sketches,
        )

    @property
    def count(self) -> int:
        """The number of its calls in all subjects together."""
        return sum(self.counts)

    @property
    def group(self) -> str:
        """The group of comparable tasks: the same class, within a factor of 4 in size, at one temperature.

        Their FLOP/s may be compared.
        """
        temperature = "cold" if self.resources.target.is_cold else "warm"
        return f"{self.task.class_key}/{temperature}/{round(log2(1 + self.task.flops) / 2)}"

    def standing(self, slope: float, proof_seconds: float) -> Standing:
        return Standing(
            slope,
            _seconds(self.best),
            self.history,
            is_open=self.session is not None and not self.is_over,
            known_rounds=self.known / self.resources.settings.batch,
            floor=self.floor,
            flops=self.task.flops,
            group=self.group,
            proof_seconds=proof_seconds,
        )

    def begin(self, session: Session) -> None:
        self.session, self._sketches = session, len(session.spaces)
        judge = judge_of(self.resources.target)
        self.floor = FLOOR_TRUST * min(judge.least_seconds(s.structure) for s in session.spaces)

    def round_ended(self, seconds: float) -> None:
        """Records a round that took `seconds`."""
        self.spent += seconds
        if self.best is not None:
            self.history.append(Round(self.spent, self.best.seconds))

    @property
    def total(self) -> float:
        """Seconds of the model, as far as they are known."""
        return self.count * (self.best.seconds if self.best is not None else self.estimate)

    @property
    def gain(self) -> float:
        """The gain of its leader in the model: seconds, unless the user gives another value."""
        if self.best is None or self.default is None:
            return 0.0
        return self.count * (self.default.value - self.best.value)

    def needs_proof(self, gain: float) -> bool:
        """Returns whether the leader is not the incumbent and seems to gain something."""
        if self.session is None or self.best is None or self.is_verified or self.leader == self.session.incumbent:
            return False
        before = self.incumbent or self.default
        return before is None or self.best.value < before.value - gain * abs(before.value)

    @property
    def was_proved(self) -> bool:
        stored = self.stored
        return stored is not None and stored.method != NO_CHALLENGER and stored.schedule == self.leader

    def take_stored(self) -> bool:
        """Accepts the stored verdict, if there is one."""
        if self.stored is None:
            return False
        seconds = self.stored.seconds
        self.best, self.leader = Score(seconds, seconds), self.stored.schedule
        self.default = self.default or self.best
        return True

    def stay(self) -> None:
        """Keeps the incumbent: the schedule of an earlier verdict, else the default schedule.

        A verdict stays with the seconds that decided it. A single trial of this run beside the default's seconds of an
        earlier run would reflect the machine's state rather than the kernels.
        """
        assert self.session is not None
        if self.stored is not None and self.stored.schedule == self.session.incumbent:
            self.take_stored()
            if self.stored.against == self.session.default:
                self.default = Score(self.stored.against_seconds, self.stored.against_seconds)
        else:
            self.leader, self.best = self.session.default, self.default or self.best

    def decide_for_default(self) -> None:
        """Stores a verdict for the default schedule, if the default stays."""
        if self.session is not None and self.best is not None and self.leader == self.session.default:
            self.session.stay()

    def move(self, phase: str) -> None:
        """Sets the phase. A default schedule that has won is "confirmed": it is not proved against itself."""
        is_default = self.session is not None and self.leader == self.session.default
        self.phase = "confirmed" if phase == "proved" and is_default else phase
        self._overseer.moved(self)

    # ---- the session's progress ------------------------------------------------------------------------------------

    def measured(self, trial: Trial, value: float | None, is_best: bool) -> None:
        assert self.session is not None
        self.trials += 1
        if trial.schedule not in self.session.remeasured:
            self._proposed_by[trial.schedule] = trial.phase
        if isinstance(trial.result, Failure):
            self.failed += 1
            self.failure = self.failure or trial.result
        else:
            score = None if value is None else Score(value, trial.result.floor)
            self.default = score if trial.schedule == self.session.default else self.default
            self.incumbent = score if trial.schedule == self.session.incumbent else self.incumbent
            if is_best:
                self.best, self.leader = score, trial.schedule
        self._overseer.measured(self, trial, is_best)

    def moved(self, phase: str) -> None:
        self.phase = phase
        self._overseer.moved(self)

    def warned(self, message: str) -> None:
        self._overseer.warned(self, message)

    def finish(self) -> None:
        """Decides for a winner and proves it. Raises RunError if no candidate could be timed."""
        assert self.session is not None
        self.leader, seconds = self.session.finish()
        values, is_time = self.session.final_values, self.resources.kernel_value is None
        value = values[self.leader]
        self.best, self.is_verified = Score(value, value if is_time else seconds), True
        if (value := values.get(self.session.default)) is not None:
            self.default = Score(value, value if is_time or self.default is None else self.default.seconds)
        self.move("proved")

    def finished(self, about: SubjectTask) -> TunedTask:
        """Returns the result for one of the subjects, which calls the task as `about` describes."""
        schedule = self.leader if self.best is not None else None
        row = replace(self.row, id=about.id, label=about.label, count=about.count, shapes=about.shapes, node=about.node)
        return TunedTask(
            *astuple(row),
            task=about.task,
            schedule=schedule,
            default=self.session.default if self.session is not None else None,
            verified=self.is_verified or (schedule is not None and self.was_proved),
            failure=str(self.failure or "") if self.best is None else "",
            before=self.stored,
            is_default_timed=self.session is not None and self.session.default_seconds is not None,
            history=tuple(self.session.history) if self.session is not None else (),
        )


def _seconds(score: Score | None) -> float | None:
    return None if score is None else score.seconds


def estimated_seconds(task: Task, target: Target) -> float:
    """Returns the estimate of a task's seconds before measuring: the least seconds, and the cost of a call."""
    return least_seconds(task, target) + LAUNCH_SECONDS


def negligible(tasks: Iterable[ModelTask]) -> set[ModelTask]:
    """Returns the tasks with a negligible share of the model, even if they are `DOUBT` times slower than estimated."""
    every = list(tasks)
    whole = sum(t.count * t.estimate for t in every)
    return {t for t in every if DOUBT * t.count * t.estimate < NEGLIGIBLE * whole}
