"""The gain of tuning inside the model: a change enters a model only if the model is not slower with it.

Kernels are tuned one at a time, on memory of their own; in the model they share caches and follow each other. So the
tuned model is timed in turns with the incumbent: the model as it is compiled without this tuning. Incumbent schedules
are schedules that the model accepted before, the tasks' earlier verdicts, and default schedules. While the tuned model
is slower, kernels that lose in it go back to the incumbent's schedules. The remaining schedules are the model's own
verdicts, which are kept together with the verdicts of its tasks. The gain is reported against default schedules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial

from stormdrop.builder.building import code_of
from stormdrop.compiler.choose import Choice, Origin, choice_of
from stormdrop.compiler.model_build import build_model
from stormdrop.device.arrays import random_inputs
from stormdrop.graph.index_ranges import index_ranges
from stormdrop.graph.partition import Partition
from stormdrop.ir.tensor import Task
from stormdrop.measure.stopwatch import Runs, race
from stormdrop.model.model import Model
from stormdrop.space.default import default_schedule
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.store.record import versions
from stormdrop.store.store import Store, StoreError
from stormdrop.store.verdict import Verdict
from stormdrop.target.machine import Target
from stormdrop.tuning.events import Listener, StageStarted, ignore
from stormdrop.tuning.session import CHECKED, UNCHECKED
from stormdrop.tuning.tuned import InModel, Tuned, TunedTask

MOST_REBUILDS = 5
"""The rebuilds before the model goes back to the incumbent. Each reverts twice as many kernels as the last."""
PROFILED_SECONDS = 0.5
REVERTED = "reverted"


@dataclass(frozen=True, slots=True)
class Weighed:
    """A model timed in turns with the incumbent and with the default model."""

    in_model: InModel
    against: InModel
    """The same with the incumbent in place of the default model."""
    losses: Mapping[str, float] = field(default_factory=dict[str, float])
    """The loss of each task by its digest, if the model is slower than the incumbent (`_Bench._loss`)."""

    @property
    def incumbent_seconds(self) -> float:
        return self.against.default_seconds

    @property
    def is_slower(self) -> bool:
        """Slower than the incumbent, by the rule that holds against defaults."""
        return self.against.is_slower

    @property
    def of_incumbent(self) -> Weighed:
        """The incumbent in place of the model."""
        before = [(incumbent, incumbent) for _, incumbent in self.against.rounds]
        beside = [(i, default) for (i, _), (_, default) in zip(before, self.in_model.rounds)]
        seconds = self.incumbent_seconds
        default_seconds = self.in_model.default_seconds
        return Weighed(InModel(seconds, default_seconds, tuple(beside)), InModel(seconds, seconds, tuple(before)))


Weigh = Callable[[AbstractSet[str]], Weighed]
"""A function that times the model with the tuned schedules of these digests, and the incumbent's for other tasks."""


def settle(changed: AbstractSet[str], weigh: Weigh) -> tuple[AbstractSet[str], Weighed]:
    """Returns the changes with which the model is not slower than the incumbent, and the model with them."""
    kept = set(changed)
    weighed = weigh(kept)
    for rebuild in range(MOST_REBUILDS):
        if not kept or not weighed.is_slower:
            return kept, weighed
        losses = weighed.losses
        kept -= set(sorted(kept, key=lambda digest: -losses.get(digest, 0.0))[: 2**rebuild])
        weighed = weigh(kept)
    return (set(), weighed.of_incumbent) if weighed.is_slower else (kept, weighed)


def accept(
    parts: Partition,
    tuned: Tuned,
    store: Store | None = None,
    seconds: float = 1.0,
    listen: Listener = ignore,
    rules: Sequence[Rule] = RULES,
    decided: Sequence[Verdict] = (),
    size: str = "",
) -> Tuned:
    """Times the model and reverts schedules that make it slower; returns the accepted schedules and their gain.

    The incumbent has precedence: the store's verdicts of the model, then the tasks' earlier verdicts. Each model is
    timed for about `seconds`. The store keeps the result as the model's verdicts, together with `decided`, the verdicts
    of its tasks; `not_kept` is the reason if the store accepts no more. The model's verdicts are also kept under
    `size`, the key of a model with open dimensions at this size (`size_key`). Raises as compiling does.
    """
    bench = _Bench(parts, tuned, _running(parts, tuned, store, rules), seconds, listen, rules)
    incumbents = [bench.incumbent(t.task.digest) for t in tuned.tasks]
    changed = {t.task.digest for t, i in zip(tuned.tasks, incumbents) if t.schedule not in (None, i or t.default)}
    kept, weighed = settle(changed, bench.weigh)
    tasks = tuple(
        t if t.task.digest in kept else _reverted(t, incumbent, tuned.target, rules)
        for t, incumbent in zip(tuned.tasks, incumbents)
    )
    accepted = replace(tuned, tasks=tasks, in_model=weighed.in_model)
    if store is None or tuned.not_kept:
        return accepted
    # The proof of a default that failed alone would fail whenever the model is compiled.
    recorded = [(t, incumbent) for t, incumbent in zip(tasks, incumbents) if t.schedule is not None or not t.failure]
    of_tasks = verdicts_of(tuned, decided)
    of_model = [_verdict(parts.digest, tuned.target, t, i, weighed, of_tasks, store, rules) for t, i in recorded]
    of_size = [replace(v, model=size) for v in of_model] if size else []
    return kept_in(store, accepted, [*of_tasks, *of_model, *of_size])


def verdicts_of(tuned: Tuned, decided: Sequence[Verdict]) -> list[Verdict]:
    """Returns the verdicts for tasks of the model at its temperature."""
    digests = {t.task.digest for t in tuned.tasks}
    return [v for v in decided if v.task.digest in digests and v.target.is_cold == tuned.target.is_cold]


def kept_in(store: Store, tuned: Tuned, verdicts: Sequence[Verdict]) -> Tuned:
    """Keeps verdicts; if the store accepts no more, `not_kept` of the result is the reason."""
    try:
        store.add_verdicts([] if tuned.not_kept else verdicts)
    except StoreError as error:
        return replace(tuned, not_kept=str(error))
    return tuned


def _running(parts: Partition, tuned: Tuned, store: Store | None, rules: Sequence[Rule]) -> dict[str, Verdict]:
    """Returns the verdicts with which the model is compiled without this tuning, by the digest of the task: the model's
    own, else the task's.
    """
    if store is None:
        return {}
    verdicts = (store.verdict(t.task, tuned.target, rules=rules, model=parts.digest) or t.before for t in tuned.tasks)
    return {verdict.task.digest: verdict for verdict in verdicts if verdict is not None}


def _reverted(task: TunedTask, incumbent: Schedule | None, target: Target, rules: Sequence[Rule]) -> TunedTask:
    """Returns the task with the incumbent's schedule; None stands for the default."""
    if task.schedule is None:
        return replace(task, schedule=incumbent)
    if task.schedule == (incumbent or task.default):
        return task
    default = task.default or default_schedule(task.task, target, rules)
    # An incumbent that is not the default was not timed alone now: the default's seconds stand in for its own.
    origin = (Origin.DEFAULT if incumbent in (None, default) else Origin.VERDICT).value
    was = {"default": default, "schedule": incumbent or default, "seconds": task.default_seconds, "origin": origin}
    return replace(task, **was, verified=False, phase=REVERTED)


def _verdict(
    model: str,
    target: Target,
    tuned: TunedTask,
    incumbent: Schedule | None,
    weighed: Weighed,
    of_tasks: Sequence[Verdict],
    store: Store,
    rules: Sequence[Rule],
) -> Verdict:
    """Returns the model's verdict for a task. The proof and the code come from a verdict on the same schedule, the
    task's own or the model's.

    A default that was not timed has neither: it is compared with the reference when the model is compiled.
    """
    task = tuned.task
    default = tuned.default or default_schedule(task, target, rules)
    schedule = tuned.schedule or default
    stored = (store.verdict(task, target, rules=rules, model=of) for of in ("", model))
    known = (*(v for v in of_tasks if v.task.digest == task.digest), *stored)
    same = next((v for v in known if v is not None and v.schedule == schedule), None)
    if same is not None:
        proof, code = same.proof, same.code
    elif tuned.is_default_timed and schedule == default:
        proof, code = CHECKED, code_of(task, schedule, target, rules)
    else:
        proof, code = UNCHECKED, ""
    against = incumbent or default, weighed.incumbent_seconds
    decided = schedule, weighed.in_model.seconds, *against, "in the model", len(weighed.in_model.rounds), proof
    return Verdict(task, target, *decided, versions(target), code, model, created=time.time())


class _Bench:
    """The default model, the incumbent, and models in turns with both."""

    def __init__(
        self,
        parts: Partition,
        tuned: Tuned,
        running: Mapping[str, Verdict],
        seconds: float,
        listen: Listener,
        rules: Sequence[Rule],
    ) -> None:
        self._parts, self._tuned, self._seconds, self._listen, self._rules = parts, tuned, seconds, listen, rules
        self._incumbents: Mapping[str, Choice] = {}
        """The incumbent's choices by the digest of the task; a task without a choice has the default."""
        self._listen(StageStarted("compiling with defaults"))
        self._default = self._incumbent = build_model(parts, tuned.target, self._chosen, rules)
        self._arrays = list(random_inputs(self._default.inputs, ranges=index_ranges(parts.graph)).values())
        self._incumbent_profile: dict[str, float] = {}
        if any(verdict.schedule != tuned.defaults(verdict.task) for verdict in running.values()):
            self._enter(running)

    def _enter(self, running: Mapping[str, Verdict]) -> None:
        """Makes the model as compiled without this tuning the incumbent, unless default schedules are faster by now."""
        tuned, self._incumbents = self._tuned, {digest: choice_of(v) for digest, v in running.items()}
        self._listen(StageStarted("compiling with earlier decisions"))
        before = build_model(self._parts, tuned.target, self._chosen, self._rules)
        self._listen(StageStarted("timing both in turns"))
        if self._timed(before).is_slower:
            tasks = [verdict.task for verdict in running.values()]
            defaults = [tuned.defaults(t) or default_schedule(t, tuned.target, self._rules) for t in tasks]
            self._incumbents = {t.digest: choice_of(default) for t, default in zip(tasks, defaults)}
        else:
            self._incumbent = before

    def incumbent(self, digest: str) -> Schedule | None:
        """Returns the schedule that the incumbent has for a task; None: the default."""
        return self._incumbents.get(digest, Choice()).schedule

    def _chosen(self, task: Task) -> Choice:
        """Returns the incumbent's choice. A verdict with changed code is proved again, as in any compilation."""
        return self._incumbents.get(task.digest) or choice_of(self._tuned.defaults(task))

    def weigh(self, kept: AbstractSet[str]) -> Weighed:
        if not kept:
            self._listen(StageStarted("timing the model"))
            return self._timed(self._incumbent)

        def choose(task: Task) -> Choice:
            return choice_of(self._tuned.schedules(task)) if task.digest in kept else self._chosen(task)

        self._listen(StageStarted("compiling with the tuned schedules"))
        model = build_model(self._parts, self._tuned.target, choose, self._rules)
        self._listen(StageStarted("timing both in turns"))
        weighed = self._timed(model)
        if not weighed.is_slower:
            return weighed
        self._listen(StageStarted("looking for kernels that lose in the model"))
        before = self._incumbent_profile or self._profile(self._incumbent, weighed.incumbent_seconds)
        self._incumbent_profile = before
        profile = self._profile(model, weighed.in_model.seconds)
        return replace(weighed, losses={d: self._loss(d, s - before.get(d, s)) for d, s in profile.items()})

    def _loss(self, digest: str, slower: float) -> float:
        """Returns the seconds of the model by which a task that is slower than the incumbent's misses its gain alone.

            loss = (in the model: tuned - incumbent) - (alone: tuned - incumbent)

        The time alone of an incumbent that is not the default schedule is of another day: its gain alone counts as 0.
        """
        incumbent = self.incumbent(digest)
        promised = {t.task.digest: t.gain for t in self._tuned.tasks if incumbent in (None, t.default)}
        return slower + promised.get(digest, 0.0) if slower > 0 else slower

    def _timed(self, model: Model) -> Weighed:
        """Times a model in turns with the incumbent and the default model; equal models are timed once."""
        models = {id(m): m for m in (model, self._incumbent, self._default)}
        runs = race({str(key): partial(m, *self._arrays) for key, m in models.items()}, self._seconds)
        own, incumbent, default = (runs[str(id(m))] for m in (model, self._incumbent, self._default))
        beside = [InModel(own.seconds, other.seconds, _rounds(own, other)) for other in (default, incumbent)]
        return Weighed(beside[0], beside[1])

    def _profile(self, model: Model, seconds: float) -> dict[str, float]:
        repeats = max(5, min(100, int(PROFILED_SECONDS / seconds)))
        return {row.digest: row.seconds for row in model.profile(*self._arrays, repeats=repeats).by_task().rows}


def _rounds(tuned: Runs, other: Runs) -> tuple[tuple[float, float], ...]:
    """Returns the samples of each round of a race."""
    return tuple((float(a), float(b)) for a, b in zip(tuned.each, other.each, strict=True))
