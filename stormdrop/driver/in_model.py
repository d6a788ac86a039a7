"""What tuning is worth where it counts: in the model. A change enters a model only if the model is not slower with it.

Kernels are tuned one at a time, on memory of their own; in the model they share caches and follow each other. So the
model with the schedules that were found and the one with default schedules are timed in turns. While the former is
slower, the kernels that lose most in it go back to their defaults. What is left is the model's own verdict.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from stormdrop.driver.model_build import build_model
from stormdrop.graph.partition import Partition
from stormdrop.ir.tensor import Task
from stormdrop.measure.race import ROUNDS, race
from stormdrop.reservoir.store import Store, StoreError
from stormdrop.reservoir.verdict import Verdict
from stormdrop.runtime.arrays import random_inputs
from stormdrop.runtime.building import code_of
from stormdrop.runtime.model import Model
from stormdrop.search.model_events import InModel, TunedModel, TunedTask
from stormdrop.search.session import CHECKED
from stormdrop.search.tune import versions
from stormdrop.space.default import default_schedule
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

MOST_REBUILDS = 5
"""After so many the model goes back to all of its defaults. Each reverts twice as many kernels as the one before."""
PROFILED_SECONDS = 0.5
REVERTED = "reverted"


@dataclass(frozen=True, slots=True)
class Weighed:
    """A model timed in turns with the default one. `losses`: where it is slower, seconds of the model by the digest of
    the task that takes longer than by default.
    """

    in_model: InModel
    losses: Mapping[str, float] = field(default_factory=dict[str, float])


Weigh = Callable[[AbstractSet[str]], Weighed]
"""Times the model in which the tasks of these digests are as they were found, and the others by default."""


def settle(changed: AbstractSet[str], weigh: Weigh) -> tuple[AbstractSet[str], InModel]:
    """The changes with which the model is not slower, and what they are worth."""
    kept = set(changed)
    weighed = weigh(kept)
    for rebuild in range(MOST_REBUILDS):
        if not kept or not weighed.in_model.is_slower:
            return kept, weighed.in_model
        losses = weighed.losses
        kept -= set(sorted(kept, key=lambda digest: -losses.get(digest, 0.0))[: 2**rebuild])
        weighed = weigh(kept)
    default = weighed.in_model.default_seconds
    return (set(), InModel(default, default)) if weighed.in_model.is_slower else (kept, weighed.in_model)


def accept(
    parts: Partition,
    tuned: TunedModel,
    store: Store | None = None,
    seconds: float = 1.0,
    tell: Callable[[str], None] = lambda _: None,
    rules: Sequence[Rule] = RULES,
) -> TunedModel:
    """What the model accepts of what was found, and what that is worth; it is kept in the store as its verdict, unless
    the store takes no more: `not_kept` says so.

    Each model is timed for about so many seconds; `tell` hears what is done. Raises as compiling does.
    """
    bench = _Bench(parts, tuned, seconds, tell, rules)
    kept, worth = settle({t.task.digest for t in tuned.tasks if t.schedule not in (None, t.default)}, bench.weigh)
    tasks = tuple(t if t.task.digest in kept else _reverted(t, tuned.target, rules) for t in tuned.tasks)
    accepted = replace(tuned, tasks=tasks, in_model=worth)
    if store is not None and not tuned.not_kept:
        found = [_verdict(parts.digest, accepted, t, t.schedule, worth, store, rules) for t in tasks if t.schedule]
        try:
            store.add_verdicts(found)
        except StoreError as error:
            return replace(accepted, not_kept=str(error))
    return accepted


def _reverted(task: TunedTask, target: Target, rules: Sequence[Rule]) -> TunedTask:
    if task.schedule in (None, task.default):
        return task
    default = task.default or default_schedule(task.task, target, rules)
    was = {"default": default, "schedule": default, "seconds": task.default_seconds}
    return replace(task, **was, verified=False, phase=REVERTED)


def _verdict(
    model: str,
    tuned: TunedModel,
    task: TunedTask,
    schedule: Schedule,
    worth: InModel,
    store: Store,
    rules: Sequence[Rule],
) -> Verdict:
    """Its proof and its code are those of the task's own verdict where that is of the same schedule."""
    target, alone = tuned.target, store.verdict(task.task, tuned.target, rules=rules)
    if alone is not None and alone.schedule == schedule:
        proof, code = alone.proof, alone.code
    else:
        proof, code = CHECKED, code_of(task.task, schedule, target, rules)
    decided = schedule, worth.seconds, task.default or schedule, worth.default_seconds, "in the model", ROUNDS, proof
    return Verdict(task.task, target, *decided, versions(target), code, model, created=time.time())


class _Bench:
    """The default model, and others beside it."""

    def __init__(
        self,
        parts: Partition,
        tuned: TunedModel,
        seconds: float,
        tell: Callable[[str], None],
        rules: Sequence[Rule],
    ) -> None:
        self._parts, self._tuned, self._seconds, self._tell, self._rules = parts, tuned, seconds, tell, rules
        tell("compiling with defaults")
        self._default = build_model(parts, tuned.target, tuned.defaults, rules)
        self._arrays = list(random_inputs(self._default.inputs).values())
        self._default_profile: dict[str, float] = {}

    def weigh(self, kept: AbstractSet[str]) -> Weighed:
        tuned, default, arrays = self._tuned, self._default, self._arrays

        def schedule_of(task: Task) -> Schedule | None:
            return tuned.schedules(task) if task.digest in kept else tuned.defaults(task)

        if not kept:
            self._tell("timing the model")
            seconds = race({"default": lambda: default(*arrays)}, self._seconds)["default"].seconds
            return Weighed(InModel(seconds, seconds))
        self._tell("compiling with what was found")
        found = build_model(self._parts, tuned.target, schedule_of, self._rules)
        self._tell("timing both in turns")
        runs = race({"found": lambda: found(*arrays), "default": lambda: default(*arrays)}, self._seconds)
        worth = InModel(runs["found"].seconds, runs["default"].seconds)
        if not worth.is_slower:
            return Weighed(worth)
        self._tell("looking for kernels that lose in the model")
        self._default_profile = self._default_profile or self._profile(default, worth.default_seconds)
        profile = self._profile(found, worth.seconds)
        return Weighed(worth, {digest: s - self._default_profile.get(digest, s) for digest, s in profile.items()})

    def _profile(self, model: Model, seconds: float) -> dict[str, float]:
        repeats = max(5, min(100, int(PROFILED_SECONDS / seconds)))
        return {row.digest: row.seconds for row in model.profile(*self._arrays, repeats=repeats).by_task().rows}
