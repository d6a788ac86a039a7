"""`sd.tune`: one door to tuning, for a task and for a whole model.

    sd.tune(task, seconds=30)                        # -> Tuned, as `stormdrop.tuning.tune` describes
    sd.tune("resnet50.onnx", seconds=300)            # -> TunedModel; its verdicts are what `sd.compile` uses
    sd.tune(["a.onnx", "b.onnx"], goal=GeometricMean())    # -> a TunedModel of each; one search over all their tasks
    sd.tune("open.onnx", shapes=[{"x": (1, 64)}, {"x": (8, 64)}], weights=[1, 3])    # -> a TunedModel of each size

A model is whatever `sd.compile` takes, or a partition that was made before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

from numpy.typing import ArrayLike

from stormdrop.base.arguments import check_arguments
from stormdrop.base.errors import StormdropError, UserError, warn
from stormdrop.compiler.compile import Source, native_graph, size_key, tasks_of
from stormdrop.compiler.open_sizes import settled
from stormdrop.compiler.watcher import Progress, Watcher, told_by
from stormdrop.device.targets import target_for
from stormdrop.frontend.custom import CustomOperator
from stormdrop.graph.partition import Partition
from stormdrop.ir.memo import at_work
from stormdrop.ir.tensor import Task
from stormdrop.model.fallback import Fallback, fallback_of
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch
from stormdrop.store.store import Store
from stormdrop.store.verdict import Verdict
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target
from stormdrop.tuning.divide import Divide
from stormdrop.tuning.events import Listener, Tuned, Warned, ignore
from stormdrop.tuning.goal import Goal, WeightedLatency
from stormdrop.tuning.in_model import accept, kept_in, verdicts_of
from stormdrop.tuning.model_events import ModelListener, TunedModel
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.strategies import StrategyFactory
from stormdrop.tuning.tools import Measures, Objective
from stormdrop.tuning.tune import DEFAULT_SEARCH
from stormdrop.tuning.tune import tune as tune_task
from stormdrop.tuning.tune_model import tune_models


class TuneOptions(TypedDict, total=False):
    """What both kinds of tuning take; see `tune` in `stormdrop.tuning.tune`."""

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
    progress: Progress


class ReadingOptions(TuneOptions, total=False):
    threads: int | None
    precision: str | None
    store: Store | None
    constants: Mapping[str, ArrayLike] | None
    operators: Sequence[CustomOperator]
    example_inputs: Any
    winograd: bool
    divide: Divide | None
    goal: Goal | None
    weights: Sequence[float] | None
    fallback: str | Fallback | None
    listen: ModelListener
    progress: Progress


class ModelOptions(ReadingOptions, total=False):
    shapes: Mapping[str, Sequence[int]] | None


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
    what: Source,
    target: Target | str | None = None,
    *,
    shapes: Sequence[Mapping[str, Sequence[int]]],
    **options: Unpack[ReadingOptions],
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
    shapes: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] | None = None,
    example_inputs: Any = None,
    winograd: bool = True,
    divide: Divide | None = None,
    goal: Goal | None = None,
    weights: Sequence[float] | None = None,
    progress: Progress = None,
    fallback: str | Fallback | None = "auto",
) -> Tuned | TunedModel | tuple[TunedModel, ...]:
    """Searches for the fastest schedule of a task, of every task of a model, or of several models at once.

    The results of a task are kept in `store`, if one is given; the results of a model in the user's store by default.
    `sd.compile` reads the user's store. In the end the model itself is timed with the new schedules and with the
    defaults, and kernels that make the model slower get their defaults back. With an objective or a measurer of the
    caller, the model is not timed.

    Raises UserError for a model that cannot be read and for a wrong budget, RunError if no candidate could be timed.

    `search`, `objective` and `rules` may be the caller's own: a function from a `Context` to a `Strategy`, a function
    from a `Timing` to the number to minimise, and `(*sd.RULES, Mine())`. The store keeps times, and returns them to
    callers with the same rules. The result has the winner by the objective: `sd.build(task, schedule=tuned.best)`, and
    for a model `sd.compile(model, schedules=tuned.schedules)`, each with the same `rules`.

    `start` and `spaces` are for a task; `shapes`, `constants`, `operators` and `example_inputs` (how models are read),
    `winograd`, `divide`, `goal` and `weights` are for models. `fallback` is as for `sd.compile`: the native parts of a
    mixed model are tuned.

    `shapes` may list several sizes of one model with open dimensions: the result is a tuple, one for each size, and
    `sd.compile(model)` uses the results at these sizes. The sum of all latencies is minimised; with `weights`, one for
    each model or size, the weighted sum.

    `progress` shows a live view (True) or nothing (False); None: in a terminal and in a notebook. Without a view and
    `listen`, warnings are Python warnings (`sd.StormdropWarning`).
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
        "constants": constants,
        "operators": operators or None,
        "example_inputs": example_inputs,
    }
    check_arguments(target=target, threads=threads, store=store, listen=listen, start=start, spaces=spaces, **common)
    check_arguments(shapes=shapes, operators=operators, winograd=winograd, divide=divide, goal=goal, weights=weights)
    listen = heard_by(progress, listen)
    machine = target_for(target, threads, precision=precision)
    if isinstance(what, Task):
        of_models = {**reading, "shapes": shapes, "divide": divide, "goal": goal, "weights": weights}
        of_models["winograd"] = None if winograd else False
        _refuse(of_models, "models; this is a task")
        with at_work():
            return tune_task(what, machine, store=store, start=start, spaces=spaces, listen=listen, **common)
    _refuse({"start": start, "spaces": spaces}, "a task; this is a model")
    given = {name: value for name, value in reading.items() if value is not None}
    if weights is not None:
        _refuse({"goal": goal}, "tuning without weights=, which are a goal already")
        goal = WeightedLatency(tuple(map(float, weights)))
    models: Sequence[Any] = what if isinstance(what, (list, tuple)) else [what]
    sizes = [shapes] if shapes is None or isinstance(shapes, Mapping) else list(shapes)
    if not sizes or (len(sizes) > 1 and len(models) > 1):
        raise UserError(f"shapes= lists {len(sizes)} sizes of {len(models)} models: give at least one, of one model")
    with at_work():
        other = None if isinstance(machine, Gpu) else fallback_of(fallback)
        read = [_read(model, size, given, winograd, other) for model in models for size in sizes]
        parts, keys = [p for p, _ in read], [key for _, key in read]
        store = Store.open() if store is None else store
        is_timed = objective is None and measurer is None
        decided: list[Verdict] | None = [] if is_timed else None  # kept once the models were timed
        found = tune_models(
            parts, machine, store=store, divide=divide, goal=goal, listen=listen, decided=decided, **common
        )
        if decided is not None:
            found = tuple(
                _accepted(p, tuned, store, rules, listen, decided, key, told_by(progress))
                for p, tuned, key in zip(parts, found, keys)
            )
    is_one = models is not what and (shapes is None or isinstance(shapes, Mapping))
    return found[0] if is_one else found


def _read(
    model: Any,
    shapes: Mapping[str, Sequence[int]] | None,
    given: Mapping[str, Any],
    winograd: bool,
    fallback: Fallback | None,
) -> tuple[Partition, str]:
    """Returns a model's tasks at one size, and the key of the size if the model itself leaves dimensions open."""
    if isinstance(model, Partition):
        return model, ""
    graph = native_graph(model, fallback, **settled(model, shapes, **given, fallback=fallback))
    key = size_key(model, graph, given.get("constants"), given.get("operators", ()))
    return tasks_of(graph, winograd), key


def heard_by(progress: Progress, listen: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns a listener to tuning for both. Without a view and a listener, warnings are Python warnings."""
    watcher = progress if isinstance(progress, Watcher) else None

    def hear(event: Any) -> None:
        is_shown = watcher is not None and watcher.is_shown
        if watcher is not None:
            watcher.hear(event)
        listen(event)
        if isinstance(event, Warned) and listen is ignore and not is_shown:
            warn(event.message)

    return hear


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
    key: str,
    tell: Callable[[str], None],
) -> TunedModel:
    """What the model itself accepts; all that was found, with a warning, where it cannot be timed."""
    try:
        return accept(parts, tuned, store, tell=tell, rules=rules, decided=decided, size=key)
    except StormdropError as error:
        listen(Warned(f"{tuned.name} itself could not be timed: {error}"))
        return kept_in(store, tuned, verdicts_of(tuned, decided))
