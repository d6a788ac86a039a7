"""One operator, by default or after one or several searches, beside the machine's peak: for `stormdrop op`.

Compared searches begin with nothing: no search sees the store or the trials of another search. The trials of a search
are kept once it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stormdrop.base.errors import RunError, StormdropError
from stormdrop.builder.building import lowered, program_of
from stormdrop.device.arrays import check_memory
from stormdrop.device.targets import peak_meter
from stormdrop.ir.tensor import Task
from stormdrop.lower.executed import executed_flops
from stormdrop.lower.program import Program
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure, Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.default import default_point
from stormdrop.space.rules import RULES, Rule
from stormdrop.store.record import Record
from stormdrop.store.store import Store
from stormdrop.target.machine import Target
from stormdrop.tuning.curve import failures, improvements, trials_per_second
from stormdrop.tuning.events import Event, Listener, Moved, Warned
from stormdrop.tuning.subject import Subject
from stormdrop.tuning.tune import TuneOptions, tune
from stormdrop.tuning.tuned import Trial, Tuned, TunedTask

STEADY = 0.9  # a machine to itself keeps its peak within a few percent
PEAK_SECONDS = 1.0
"""The peak is timed again between two rounds, not more often than this; it takes 5 ms, and nothing else runs then."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The work on an operator. Without searches, its default schedule is timed. Absent budgets are None."""

    op: str
    args: tuple[int, ...]
    task: Task
    target: Target
    searches: tuple[str, ...]
    trials: int | None = None
    seconds: float | None = None
    seed: int = 0
    store: Store | None = None
    """The store that keeps trials, if any."""
    rules: tuple[Rule, ...] = RULES

    @property
    def is_comparison(self) -> bool:
        return len(self.searches) > 1


@dataclass(frozen=True, slots=True)
class OperatorSearch:
    """One search and the program of its winner."""

    tuned: Tuned
    program: Program
    stored: str | None = None
    """The file that keeps its trials, if any."""

    @property
    def executed_gflops(self) -> float:
        """The rate of the operations that the loops execute; `tuned.gflops` counts those of the direct algorithm."""
        return executed_flops(self.program) / self.tuned.seconds / 1e9

    def to_json(self, peak_gflops: float) -> dict[str, object]:
        tuned = self.tuned
        return {
            "strategy": tuned.strategy,
            "seed": tuned.seed,
            "stopped": tuned.stopped,
            "verified": tuned.verified,
            "store": self.stored,
            "not_kept": tuned.not_kept,
            "trials": tuned.trials,
            "failed": tuned.failed,
            "failures": {f.kind: f.count for f in failures(tuned.history)},
            "tuning_seconds": tuned.tuning_seconds,
            "median_build_seconds": tuned.median_build_seconds,
            "candidates_per_second": trials_per_second(tuned),
            "progress": [[i.trial, i.elapsed, i.seconds] for i in improvements(tuned.history)],
            "best": {
                "seconds": tuned.seconds,
                "gflops": tuned.gflops,
                "executed_gflops": self.executed_gflops,
                "share_of_peak": tuned.gflops / peak_gflops,
                "schedule": tuned.best.to_json(),
            },
        }


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """A measured operator, with its searches in the order in which they were run."""

    plan: Plan
    peak_gflops: float
    searches: tuple[OperatorSearch, ...]

    @property
    def best(self) -> OperatorSearch:
        return min(self.searches, key=lambda search: search.tuned.seconds)

    @property
    def is_comparison(self) -> bool:
        return len(self.searches) > 1

    def to_json(self) -> dict[str, object]:
        """Returns the operator's keys beside the keys of a single search, or beside the list `searches`."""
        head: dict[str, object] = {
            "op": self.plan.op,
            "args": list(self.plan.args),
            "dtype": self.plan.task.inputs[0].dtype,
            "threads": self.plan.target.threads,
            "peak_gflops": self.peak_gflops,
        }
        searches = [search.to_json(self.peak_gflops) for search in self.searches]
        return head | ({"searches": searches} if self.is_comparison else searches[0])


def measure_operator(
    plan: Plan, watch: PeakWatch, listeners: Sequence[Listener], tell: Callable[[str], None]
) -> OperatorReport:
    """Carries out a plan; the peak is timed before, after, and between rounds. `tell` receives remarks for the user.

    An interrupted search is the last one. Raises RunError if no candidate could be timed.
    """
    searches: list[OperatorSearch] = []

    def listen(event: Event) -> None:
        for listener in (*listeners, watch):
            listener(event)

    if not plan.searches:
        searches.append(_default(plan, tell))
    for search in plan.searches:
        searches.append(_search(plan, search, listen))
        if searches[-1].tuned.interrupted:
            break
    if len(searches) < len(plan.searches):
        tell(f"not run: {', '.join(plan.searches[len(searches) :])}")
    watch.take()
    low, high = watch.lowest, watch.highest
    if low < STEADY * high:
        tell(f"the peak moved between {low:.0f} and {high:.0f} GFLOP/s: is something else running here?")
    return OperatorReport(plan, high, tuple(searches))


def known(plan: Plan) -> Record | None:
    """Returns the store's best trial of the task itself; None if there is none."""
    best = plan.store.best(plan.task, plan.target, rules=plan.rules) if plan.store is not None else None
    return best if best is not None and isinstance(best.result, Timing) else None


def _search(plan: Plan, search: str, listen: Listener) -> OperatorSearch:
    alone, not_kept = Store.in_memory() if plan.is_comparison and plan.store is not None else None, ""
    try:
        options = TuneOptions(search=search, trials=plan.trials, seconds=plan.seconds, seed=plan.seed, rules=plan.rules)
        subjects = [Subject.of_task(plan.task)]
        (tuned,) = tune(subjects, plan.target, options, store=alone or plan.store, listen=listen)
    finally:
        if alone is not None and plan.store is not None:
            try:
                plan.store.add(alone.trials(plan.task, plan.target, rules=plan.rules))
            except StormdropError as error:
                not_kept = str(error)
                listen(Warned(f"what was measured is not kept: {error}"))
    tuned = replace(tuned, not_kept=tuned.not_kept or not_kept)
    stored = str(plan.store.path) if plan.store is not None and plan.store.path is not None else None
    return OperatorSearch(tuned, program_of(plan.task, tuned.best, plan.target, rules=plan.rules), stored)


def _default(plan: Plan, tell: Callable[[str], None]) -> OperatorSearch:
    began = time.perf_counter()
    task, target = plan.task, plan.target
    check_memory(task)
    tell(f"timing the default schedule of {task.name}")
    sketch, point = default_point(task, target, plan.rules)
    schedule = sketch.schedule(point)
    with Measurer(target, MeasureSettings(seed=plan.seed), rules=plan.rules) as measurer:
        result = measurer.prove(task, schedule)
    if isinstance(result, Failure):
        raise RunError(f"{task.name}: the default schedule could not be timed: {result}")
    spent = time.perf_counter() - began
    trial = Trial(schedule, result, 1, spent, "default")
    tuned_task = TunedTask(
        "t0",
        task.name,
        1,
        task.flops,
        seconds=result.seconds,
        default_seconds=result.seconds,
        trials=1,
        task=task,
        schedule=schedule,
        default=schedule,
        verified=True,
        history=(trial,),
    )
    about = task.name, target, "default", plan.seed, (tuned_task,), spent, "nothing left"
    return OperatorSearch(Tuned(*about, is_model=False), lowered(sketch, point))


class PeakWatch:
    """A listener that times the machine's peak now and then."""

    def __init__(self, target: Target) -> None:
        self._meter = peak_meter(target)
        self.highest = self.lowest = self._meter.gflops()
        self._at = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Moved) and time.monotonic() - self._at > PEAK_SECONDS:
            self.take()

    def take(self) -> None:
        rate = self._meter.gflops()
        self.highest, self.lowest = max(self.highest, rate), min(self.lowest, rate)
        self._at = time.monotonic()
