"""`sd.tune`: one door to tuning, for a task and for a whole model.

    sd.tune(task, seconds=30)                        # -> Tuned, as `stormdrop.search.tune` describes
    sd.tune("resnet50.onnx", seconds=300)            # -> TunedModel; its verdicts are what `sd.compile` uses
    sd.tune(["a.onnx", "b.onnx"], goal=GeometricMean())    # -> a TunedModel of each; one search over all their tasks

A model is whatever `sd.compile` takes, or a partition that was made before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

from numpy.typing import ArrayLike

from stormdrop.arguments import check_arguments
from stormdrop.driver.compile import Source, load, tasks_of
from stormdrop.driver.in_model import accept, kept_in, verdicts_of
from stormdrop.errors import StormdropError, UserError
from stormdrop.frontend.custom import CustomOperator
from stormdrop.graph.partition import Partition
from stormdrop.ir.memo import at_work
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.learning import keep_learned
from stormdrop.reservoir.store import Store
from stormdrop.reservoir.verdict import Verdict
from stormdrop.runtime.targets import target_for
from stormdrop.search.divide import Divide
from stormdrop.search.events import Listener, Tuned, Warned, ignore
from stormdrop.search.goal import Goal
from stormdrop.search.model_events import ModelListener, TunedModel
from stormdrop.search.settings import TuneSettings
from stormdrop.search.strategies import StrategyFactory
from stormdrop.search.tools import Measures, Objective
from stormdrop.search.tune import DEFAULT_SEARCH
from stormdrop.search.tune import tune as tune_task
from stormdrop.search.tune_model import tune_models
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch
from stormdrop.target.machine import Target


class TuneOptions(TypedDict, total=False):
    """What both kinds of tuning take; see `tune` in `stormdrop.search.tune`."""

    search: str | StrategyFactory
    trials: int | None
    seconds: float | None
    seed: int
    objective: Objective | None
    cold: bool | None
    settings: TuneSettings | None
    measurer: Measures | None
    rules: Sequence[Rule]
    reuse: str
    donors: Sequence[str] | None


class TaskOptions(TuneOptions, total=False):
    threads: int | None
    precision: str | None
    store: Store | None
    start: Schedule | None
    spaces: Sequence[Sketch] | None
    listen: Listener


class ModelOptions(TuneOptions, total=False):
    threads: int | None
    precision: str | None
    store: Store | None
    shapes: Mapping[str, Sequence[int]] | None
    constants: Mapping[str, ArrayLike] | None
    operators: Sequence[CustomOperator]
    example_inputs: Any
    winograd: bool
    divide: Divide | None
    goal: Goal | None
    listen: ModelListener


@overload
def tune(what: Task, target: Target | str | None = None, **options: Unpack[TaskOptions]) -> Tuned: ...


@overload
def tune(  # pyright: ignore[reportOverlappingOverload]  # a `Source` may be anything, but it is no list
    what: list[Partition | Source] | tuple[Partition | Source, ...],
    target: Target | str | None = None,
    **options: Unpack[ModelOptions],
) -> tuple[TunedModel, ...]: ...


@overload
def tune(
    what: Partition | Source, target: Target | str | None = None, **options: Unpack[ModelOptions]
) -> TunedModel: ...


def tune(
    what: Task | Partition | Source | Sequence[Any],
    target: Target | str | None = None,
    *,
    threads: int | None = None,
    precision: str | None = None,
    trials: int | None = None,
    seconds: float | None = None,
    search: str | StrategyFactory = DEFAULT_SEARCH,
    seed: int = 0,
    store: Store | None = None,
    objective: Objective | None = None,
    cold: bool | None = None,
    settings: TuneSettings | None = None,
    measurer: Measures | None = None,
    rules: Sequence[Rule] = RULES,
    reuse: str = "seed",
    donors: Sequence[str] | None = None,
    listen: Callable[[Any], None] = ignore,
    start: Schedule | None = None,
    spaces: Sequence[Sketch] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] | None = None,
    example_inputs: Any = None,
    winograd: bool = True,
    divide: Divide | None = None,
    goal: Goal | None = None,
) -> Tuned | TunedModel | tuple[TunedModel, ...]:
    """Search for the fastest schedule of a task, of every task of a model, or of several models at once.

    A task is kept in `store`, if one is given. A model is kept in the user's store unless another is given:
    `sd.compile` reads it. In the end the model itself is timed, with what was found and by default, and kernels that
    make it slower go back to their defaults; not so with an objective or a measurer of the caller's.

    Raises UserError for a model that cannot be read and for a wrong budget, RunError if nothing could be timed.

    `search`, `objective` and `rules` may be the caller's own: a function from a `Context` to a `Strategy`; one from a
    `Timing` to what is minimised; `(*sd.RULES, Mine())`. The store keeps times and finds them again for whoever passes
    the rules. The winner by an objective is in what is returned: `sd.build(task, schedule=tuned.best)`, and for a model
    `sd.compile(model, schedules=tuned.schedules)`, each with the same `rules`.

    `start` and `spaces` are for a task; `shapes`, `constants`, `operators` and `example_inputs` (how models are read),
    `winograd`, `divide` and `goal` are for models.
    """
    common: TuneOptions = {
        "trials": trials,
        "seconds": seconds,
        "search": search,
        "seed": seed,
        "objective": objective,
        "cold": cold,
        "settings": settings,
        "measurer": measurer,
        "rules": rules,
        "reuse": reuse,
        "donors": donors,
    }
    reading: dict[str, Any] = {
        "shapes": shapes,
        "constants": constants,
        "operators": operators or None,
        "example_inputs": example_inputs,
    }
    check_arguments(target=target, threads=threads, store=store, listen=listen, start=start, spaces=spaces, **common)
    check_arguments(shapes=shapes, operators=operators, winograd=winograd, divide=divide, goal=goal)
    machine = target_for(target, threads, precision=precision)
    if isinstance(what, Task):
        of_models = {**reading, "divide": divide, "goal": goal, "winograd": None if winograd else False}
        _refuse(of_models, "models; this is a task")
        with at_work():
            return tune_task(what, machine, store=store, start=start, spaces=spaces, listen=listen, **common)
    _refuse({"start": start, "spaces": spaces}, "a task; this is a model")
    given = {name: value for name, value in reading.items() if value is not None}
    models: Sequence[Any] = what if isinstance(what, (list, tuple)) else [what]
    with at_work():
        parts = [m if isinstance(m, Partition) else tasks_of(load(m, **given), winograd) for m in models]
        store = Store.open() if store is None else store
        is_timed = objective is None and measurer is None
        decided: list[Verdict] | None = [] if is_timed else None  # kept once the models were timed
        found = tune_models(
            parts, machine, store=store, divide=divide, goal=goal, listen=listen, decided=decided, **common
        )
        if decided is not None:
            found = tuple(_accepted(p, tuned, store, rules, listen, decided) for p, tuned in zip(parts, found))
            learn(store, machine, lambda told: listen(Warned(told)))
    return found if models is what else found[0]


def learn(store: Store, target: Target, warn: Callable[[str], None]) -> None:
    """Keep what the store teaches for tasks that will never be measured; `warn` hears why that is not possible."""
    try:
        keep_learned(store, target)
    except StormdropError as error:
        warn(f"nothing is learned for models to come: {error}")


def _refuse(options: Mapping[str, object], whose: str) -> None:
    """Raises UserError for options that were given."""
    if given := [f"{name}=" for name, value in options.items() if value is not None]:
        raise UserError(f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} for {whose}")


def _accepted(
    parts: Partition,
    tuned: TunedModel,
    store: Store,
    rules: Sequence[Rule],
    listen: Callable[[Any], None],
    decided: Sequence[Verdict],
) -> TunedModel:
    """What the model itself accepts; all that was found, with a warning, where it cannot be timed."""
    try:
        return accept(parts, tuned, store, rules=rules, decided=decided)
    except StormdropError as error:
        listen(Warned(f"{tuned.name} itself could not be timed: {error}"))
        return kept_in(store, tuned, verdicts_of(tuned, decided))
