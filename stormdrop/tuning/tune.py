"""Tune tasks and models: one search over the tasks of all subjects, then the models accept the winners.

    (tuned,) = tune([Subject.of_task(task)], target, TuneOptions(trials=300))
    (tuned,) = tune([Subject.of_model(parts)], target, TuneOptions(seconds=300), store=Store.open())

A search ends on trials, on seconds, when the strategies have nothing left to propose, or when a further gain is
unlikely. The first Ctrl-C ends the search with its results so far, a second one aborts. Everything measured is in the
store by then.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import inf
from types import FrameType

import numpy as np

from stormdrop.base.errors import StormdropError, UserError
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.derive import checked
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch
from stormdrop.store.record import versions
from stormdrop.store.store import Store
from stormdrop.store.verdict import Verdict
from stormdrop.target import Surroundings
from stormdrop.target.machine import Target
from stormdrop.tuning.cost_model import CostModel
from stormdrop.tuning.divide import Divide, Gradient
from stormdrop.tuning.events import Ended, Listener, Warned, ignore
from stormdrop.tuning.loop import SearchBudget, Stop, TuningLoop
from stormdrop.tuning.objectives import Objective, objective_for
from stormdrop.tuning.resources import Keeper, KernelValue, Measures, RecordOrigin, Resources
from stormdrop.tuning.reuse import absent_donors, reuse_of
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.strategies import REUSE_ONLY, StrategyFactory, named
from stormdrop.tuning.subject import Subject
from stormdrop.tuning.tuned import Tuned

DEFAULT_SEARCH = "storm+droplet"
ENDING = ("droplet", "storm+droplet", REUSE_ONLY)  # strategies that stop by themselves
MODEL_SETTINGS = TuneSettings(batch=16, finalists=3, known=3, patience=256, gain=0.01)
"""Smaller rounds and shorter finals than for one operator: there are many tasks. A task ends after 16 idle rounds."""
MODEL_FINAL_SECONDS = 0.05
"""The seconds of the final measurement of each of a model's kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """The options of a search; `sd.tune` takes the same options as keyword arguments.

    Raises UserError for a budget that measures nothing.
    """

    trials: int | None = None
    """The most candidates to measure, of all tasks together."""
    seconds: float | None = None
    """The longest duration; for models, the proofs are included."""
    search: str | StrategyFactory = DEFAULT_SEARCH
    """The strategy, by name or as a function from a `Context` to a `Strategy`."""
    seed: int = 0
    """The seed of the search and of the data."""
    objective: Objective | str | None = None
    """The quantity to minimise, as a function of the models' latencies: by default their sum."""
    kernel_value: KernelValue | None = None
    """The value of a candidate's timing that is minimised: by default its seconds."""
    cold: bool | None = None
    """Constants are out of cache when a kernel begins; None: as the target and the size of a model's weights imply."""
    settings: TuneSettings | None = None
    """All other parameters of the search."""
    measurer: Measures | None = None
    """A measurer of the caller's, which uses the same rules."""
    rules: Sequence[Rule] = RULES
    """The rules that derive the sketches."""
    reuse: str = "seed"
    """The use of other tasks' schedules: "seed", "only" or "off"."""
    donors: Sequence[str] | None = None
    """The models to reuse schedules of; None: all."""
    divide: Divide | None = None
    """The division of rounds among the tasks."""
    start: Schedule | None = None
    """A schedule to begin from, for a single task."""
    spaces: Sequence[Sketch] | None = None
    """The sketches to search, for a single task: by default all that `rules` derive."""

    def __post_init__(self) -> None:
        if self.trials is not None and self.trials < 1:
            raise UserError(f"{self.trials} trials measure nothing; give 1 or more")
        if self.seconds is not None and not 0 < self.seconds < inf:
            raise UserError(f"a search cannot last {self.seconds} seconds")


def tune(
    subjects: Sequence[Subject],
    target: Target,
    options: TuneOptions,
    *,
    store: Store | None = None,
    listen: Listener = ignore,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Tuned, ...]:
    """Searches for the fastest schedules of the subjects' tasks; returns one result for each subject.

    Without limits, models are searched until another minute is expected to gain less than 0.5 % of the objective, and a
    single task until its strategy ends. The verdicts of a subject with a `model` are kept
    once the model was timed with them. The store keeps times, never other values of kernels.

    Raises UserError for a wrong objective, strategy, rule or start, and for donors absent from the store; RunError if
    nothing could be timed.
    """
    if not subjects:
        raise UserError("there is no model to tune")
    objective, began = objective_for(options.objective, len(subjects)), clock()
    decided: list[Verdict] | None = [] if any(s.model is not None for s in subjects) else None
    with ExitStack() as stack:
        resources = _resources(subjects, target, options, store, listen, decided, stack)
        budget = SearchBudget(options.trials, options.seconds, clock, began)
        is_endless = budget.is_open and resources[0].origin.strategy not in ENDING
        if is_endless and not subjects[0].is_model:
            budget.trials = resources[0].settings.storm_trials
        divide = options.divide or Gradient(np.random.default_rng(options.seed))
        stop = stack.enter_context(interruptible())
        loop = TuningLoop(
            subjects, resources, budget, divide, objective, listen, stop, start=options.start, spaces=options.spaces
        )
        results = loop.run()
    if decided is not None:
        results = tuple(_accepted(s, t, options, store, listen, decided) for s, t in zip(subjects, results))
    for tuned in results:
        listen(Ended(tuned))
    return results


def _resources(
    subjects: Sequence[Subject],
    target: Target,
    options: TuneOptions,
    store: Store | None,
    listen: Listener,
    decided: list[Verdict] | None,
    stack: ExitStack,
) -> list[Resources]:
    """Returns the resources of each subject's sessions. The cost model and the store serve all subjects."""
    reuse = reuse_of(options.reuse, options.donors)
    if warning := absent_donors(reuse.wanted, store):
        listen(Warned(warning))
    name, factory = named(options.search, reuse)
    is_model = subjects[0].is_model
    settings = options.settings or (MODEL_SETTINGS if is_model else TuneSettings()).on(target)
    if not is_model and options.trials is None and options.seconds is None and name not in ENDING:
        settings = replace(settings, patience=settings.patience or settings.storm_patience)
    targets = [subject.target(target, options.cold) for subject in subjects]
    measurers = _measurers(subjects, targets, options, stack)
    cost = cost_model(targets[0], store if options.kernel_value is None else None, settings)
    keeper = Keeper(store, listen, decided=decided)
    return [
        Resources(
            own,
            measurers[own],
            factory,
            RecordOrigin(name, options.seed, versions(own), subject.name if subject.is_model else ""),
            cost,
            keeper,
            options.kernel_value,
            settings,
            checked(options.rules),
            reuse,
        )
        for subject, own in zip(subjects, targets)
    ]


def _measurers(
    subjects: Sequence[Subject], targets: Sequence[Target], options: TuneOptions, stack: ExitStack
) -> dict[Target, Measures]:
    """Returns the measurer of each temperature: the caller's, else one in the largest model's surroundings."""
    if options.measurer is not None:
        return dict.fromkeys(targets, options.measurer)
    largest: dict[Target, Surroundings | None] = {}
    for subject, own in zip(subjects, targets):
        around = [s for s in (subject.surroundings, largest.get(own)) if s is not None]
        largest[own] = max(around, key=lambda model: model.touched_bytes, default=None)
    measurers: dict[Target, Measures] = {}
    for own, surroundings in largest.items():
        how = MeasureSettings(seed=options.seed)
        if surroundings is not None:
            how = replace(how, final_seconds=MODEL_FINAL_SECONDS, surroundings=surroundings)
        measurer = Measurer(own, how, shared_proofs=surroundings is not None, rules=options.rules)
        measurers[own] = stack.enter_context(measurer)
    return measurers


def _accepted(
    subject: Subject,
    tuned: Tuned,
    options: TuneOptions,
    store: Store | None,
    listen: Listener,
    decided: Sequence[Verdict],
) -> Tuned:
    """Returns the winners that the model itself accepts; all winners, with a warning, if it cannot be timed."""
    from stormdrop.tuning.in_model import accept, kept_in, verdicts_of  # compiles models; a single task is not timed so

    if subject.model is None:
        return tuned
    try:
        return accept(
            subject.model, tuned, store, listen=listen, rules=options.rules, decided=decided, size=subject.size
        )
    except StormdropError as error:
        listen(Warned(f"{tuned.name} itself could not be timed: {error}"))
        return tuned if store is None else kept_in(store, tuned, verdicts_of(tuned, decided))


def cost_model(target: Target, store: Store | None, settings: TuneSettings) -> CostModel:
    """Returns a cost model trained with the store's rows of this target."""
    cost = CostModel(judge_of(target).features, settings.cost)
    if store is not None:
        rows = store.training(target, settings.training_rows)
        cost.add_rows(rows.features, rows.seconds, rows.group, rows.names)
        cost.refresh()  # donors are ranked before a strategy proposes candidates
    return cost


@contextmanager
def interruptible() -> Generator[Stop]:
    """Makes the first Ctrl-C stop the loop after its batch; the second raises KeyboardInterrupt as usual.

    This holds in the main thread only; in other threads nothing changes. The handler emits no event, because a listener
    may be at work.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        stop.count += 1
        if stop.count > 1:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
