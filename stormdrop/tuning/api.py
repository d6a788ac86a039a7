"""`sd.tune`: tuning of a task and of whole models.

    sd.tune(task, seconds=30)                        # -> Tuned
    sd.tune("resnet50.onnx", seconds=300)            # -> Tuned, with the verdicts that `sd.compile` uses
    sd.tune(["a.onnx", "b.onnx"], objective="speedup")    # -> a Tuned of each; one search over all their tasks
    sd.tune("open.onnx", shapes=[{"x": (1, 64)}, {"x": (8, 64)}], weights=[1, 3])    # -> a Tuned of each size

A model is any source that `sd.compile` takes, or a partition that was made before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack, overload

from numpy.typing import ArrayLike

from stormdrop.base.arguments import check_arguments
from stormdrop.base.errors import UserError, warn
from stormdrop.compiler.compile import Source, native_graph, size_key, tasks_of
from stormdrop.compiler.open_sizes import settled
from stormdrop.compiler.options import Progress, Watcher
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
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target
from stormdrop.tuning.divide import Divide
from stormdrop.tuning.events import Listener, Warned, ignore
from stormdrop.tuning.objectives import Objective, WeightedLatency
from stormdrop.tuning.resources import KernelValue, Measures
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.strategies import StrategyFactory
from stormdrop.tuning.subject import Subject
from stormdrop.tuning.tune import DEFAULT_SEARCH, TuneOptions
from stormdrop.tuning.tune import tune as tune_subjects
from stormdrop.tuning.tuned import Tuned


class SearchKeywords(TypedDict, total=False):
    """The keyword arguments for tasks and models alike."""

    search: str | StrategyFactory
    trials: int | None
    seconds: float | None
    seed: int
    kernel_value: KernelValue | None
    cold: bool | None
    settings: TuneSettings | None
    measurer: Measures | None
    rules: Sequence[Rule]
    reuse: str
    donors: Sequence[str] | None
    threads: int | None
    precision: str | None
    store: Store | None
    listen: Listener
    progress: Progress


class TaskKeywords(SearchKeywords, total=False):
    start: Schedule | None
    spaces: Sequence[Sketch] | None


class ReadingKeywords(SearchKeywords, total=False):
    constants: Mapping[str, ArrayLike] | None
    operators: Sequence[CustomOperator] | None
    example_inputs: Any
    winograd: bool
    divide: Divide | None
    objective: Objective | str | None
    weights: Sequence[float] | None
    fallback: str | Fallback | None


class ModelKeywords(ReadingKeywords, total=False):
    shapes: Mapping[str, Sequence[int]] | None


@overload
def tune(what: Task, target: Target | str | None = None, **options: Unpack[TaskKeywords]) -> Tuned: ...


@overload
def tune(  # pyright: ignore[reportOverlappingOverload]  # a `Source` may be anything, but it is no list
    what: list[Partition | Source] | tuple[Partition | Source, ...],
    target: Target | str | None = None,
    **options: Unpack[ModelKeywords],
) -> tuple[Tuned, ...]: ...


@overload
def tune(
    what: Source,
    target: Target | str | None = None,
    *,
    shapes: Sequence[Mapping[str, Sequence[int]]],
    **options: Unpack[ReadingKeywords],
) -> tuple[Tuned, ...]: ...


@overload
def tune(what: Partition | Source, target: Target | str | None = None, **options: Unpack[ModelKeywords]) -> Tuned: ...


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
    objective: Objective | str | None = None,
    kernel_value: KernelValue | None = None,
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
    weights: Sequence[float] | None = None,
    progress: Progress = None,
    fallback: str | Fallback | None = "auto",
) -> Tuned | tuple[Tuned, ...]:
    """Searches for the fastest schedule of a task, of every task of a model, or of several models at once.

    The results of a task are kept in `store`, if one is given; the results of a model in the user's store by default.
    `sd.compile` reads the user's store. In the end the model itself is timed with the new schedules and with the
    defaults, and kernels that make the model slower get their defaults back. With `kernel_value` or a measurer of the
    caller, the model is not timed.

    Raises UserError for a model that cannot be read and for a wrong budget, RunError if no candidate could be timed.

    Without `trials` or `seconds`, a search for a task lasts while it gains, and for models until another minute is
    expected to gain less than 0.5 %. `cold` sets whether constants are in the caches when a kernel begins.

    `objective` is the quantity to minimise, for one model or several: "latency" (the sum, the default), "speedup" (the
    geometric mean), or an object such as `LatencyTargets` (`stormdrop.tuning.objectives`). `kernel_value` replaces the
    time of single kernels: a function from a `Timing` to the number that the winner of each task minimises.

    `search` and `rules` may be the caller's own: a function from a `Context` to a `Strategy`, and a list such as
    `(*sd.RULES, Mine())`. The store keeps times, and returns them to callers with the same rules. `sd.build(task,
    schedule=tuned.best)` uses the winner of a task, `sd.compile(model, schedules=tuned.schedules)` the winners of a
    model, each with the same `rules`.

    `reuse` selects the use of other tasks' schedules (schedule transfer). With "seed" the search also begins from the
    store's schedules of related tasks. With "only" it is a short descent from the best of these. With "off" no other
    task is used. `donors` names the models whose schedules may be reused, by default all.

    `start`, a schedule to begin from, and `spaces`, the sketches to search, are for a task. `shapes`, `constants`,
    `operators` and `example_inputs` (how models are read), `winograd`, `divide`, `objective` and `weights` are for
    models. `fallback` is as for `sd.compile`: the native parts of a mixed model are tuned.

    `shapes` may list several sizes of one model with open dimensions: the result is a tuple, one for each size, and
    `sd.compile(model)` uses the results at these sizes. The sum of all latencies is minimised; with `weights`, one for
    each model or size, the weighted sum.

    `progress` shows a live view (True) or nothing (False); None: in a terminal and in a notebook. Without a view and
    `listen`, warnings are Python warnings (`sd.StormdropWarning`).
    """
    reading = {"constants": constants, "operators": operators or None, "example_inputs": example_inputs}
    for_models = {"divide": divide, "objective": objective, "weights": weights, "shapes": shapes}
    for_tasks = {"start": start, "spaces": spaces}
    check_arguments(target=target, threads=threads, store=store, listen=listen, operators=operators, winograd=winograd)
    check_arguments(search=search, trials=trials, seconds=seconds, seed=seed, kernel_value=kernel_value, cold=cold)
    check_arguments(settings=settings, measurer=measurer, rules=rules, donors=donors, **for_tasks, **for_models)
    is_task = isinstance(what, Task)
    if is_task:
        no_winograd = {} if winograd else {"winograd": False}
        _refuse({**reading, **for_models, **no_winograd}, "models; this is a task")
    else:
        _refuse(for_tasks, "a task; this is a model")
    if weights is not None:
        _refuse({"objective": objective}, "tuning without weights=, which are an objective already")
        objective = WeightedLatency(tuple(map(float, weights)))
    options = TuneOptions(
        trials=trials,
        seconds=seconds,
        search=search,
        seed=seed,
        objective=objective,
        kernel_value=kernel_value,
        cold=cold,
        settings=settings,
        measurer=measurer,
        rules=rules,
        reuse=reuse,
        donors=donors,
        divide=divide,
        start=start,
        spaces=spaces,
    )
    listen = heard_by(progress, listen)
    machine = target_for(target, threads, precision=precision)
    if is_task:
        with at_work():
            return tune_subjects([Subject.of_task(what)], machine, options, store=store, listen=listen)[0]
    models: Sequence[Any] = what if isinstance(what, (list, tuple)) else [what]
    sizes = [shapes] if shapes is None or isinstance(shapes, Mapping) else list(shapes)
    if not sizes or (len(sizes) > 1 and len(models) > 1):
        raise UserError(f"shapes= lists {len(sizes)} sizes of {len(models)} models: give at least one, of one model")
    given = {name: value for name, value in reading.items() if value is not None}
    is_timed = kernel_value is None and measurer is None
    with at_work():
        other = None if isinstance(machine, Gpu) else fallback_of(fallback)
        subjects = [
            Subject.of_model(*_read(model, size, given, winograd, other), is_timed)
            for model in models
            for size in sizes
        ]
        store = Store.open() if store is None else store
        results = tune_subjects(subjects, machine, options, store=store, listen=listen)
    is_one = models is not what and (shapes is None or isinstance(shapes, Mapping))
    return results[0] if is_one else results


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
