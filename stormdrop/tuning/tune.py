"""Tune one task: spend a budget on its session, then declare a winner.

    tuned = tune(task, trials=300)

Tuning stops on trials, on seconds, when the strategy has nothing left to propose, or when a further gain is unlikely.
The first Ctrl-C ends the search with its results so far, a second one aborts. Everything measured is in the store by
then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import ceil, inf
from types import FrameType

from stormdrop.base.errors import UserError
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch
from stormdrop.store.record import versions
from stormdrop.store.store import Store
from stormdrop.target.machine import Target
from stormdrop.tuning.cost_model import CostModel
from stormdrop.tuning.events import Listener, TaskStarted, Tuned, Warned, ignore
from stormdrop.tuning.keeping import Keeper
from stormdrop.tuning.reuse import absent_donors, reuse_of
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.session import Session
from stormdrop.tuning.strategies import REUSE_ONLY, StrategyFactory, named
from stormdrop.tuning.tools import Measures, Objective, RecordOrigin, Tools

DEFAULT_SEARCH = "storm+droplet"
SMALLEST_BATCH = 4
ENDING = ("droplet", "storm+droplet", REUSE_ONLY)  # strategies that stop by themselves


def tune(
    task: Task,
    target: Target | None = None,
    *,
    search: str | StrategyFactory = DEFAULT_SEARCH,
    trials: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    store: Store | None = None,
    start: Schedule | None = None,
    objective: Objective | None = None,
    cold: bool | None = None,
    listen: Listener = ignore,
    settings: TuneSettings | None = None,
    measurer: Measures | None = None,
    spaces: Sequence[Sketch] | None = None,
    rules: Sequence[Rule] = RULES,
    reuse: str = "seed",
    donors: Sequence[str] | None = None,
) -> Tuned:
    """Searches for the fastest schedule of a task, or for the schedule with the smallest `objective`.

    `cold` sets whether constants are in the caches when a kernel begins, by default the target's setting. Without
    `trials` or `seconds`, a storm lasts while it gains, for 300 trials at most; droplets follow until they gain no
    more. `start` is a schedule to begin from. `spaces` are the sketches to search, by default all sketches that `rules`
    derive. A given `measurer` must use the same rules.

    `reuse` selects the use of other tasks' schedules (schedule transfer). With "seed" the search also begins from the
    store's schedules of related tasks. With "only" it is a short descent from the best of these. With "off" no other
    task is used. `donors` names the models whose schedules may be reused, by default all.

    The store keeps times, never the value of an objective, and for an objective's winner only its time: `build(task,
    schedule=tuned.best)` computes with the winner.

    Raises UserError for a wrong budget, strategy, rule or start, and for donors absent from the store; RunError if
    nothing could be timed.
    """
    check_budget(trials, seconds)
    reused = reuse_of(reuse, donors)
    warning = absent_donors(reused.wanted, store)
    name, factory = named(search, reused)
    target = (target or detect()).with_cold_weights(cold)
    settings = settings or TuneSettings().on(target)
    if trials is None and seconds is None and name not in ENDING:
        trials = settings.storm_trials
        settings = replace(settings, patience=settings.patience or settings.storm_patience)
    origin = RecordOrigin(name, seed, versions(target))
    own = Measurer(target, MeasureSettings(seed=seed), rules=rules) if measurer is None else nullcontext(measurer)
    with own as measurer:
        if isinstance(measurer, Measurer):
            measurer.warm_up(task)
        cost = cost_model(target, store if objective is None else None, settings)
        keeper = Keeper(store, listen)
        tools = Tools(target, measurer, factory, origin, cost, keeper, objective, settings, tuple(rules), reused)
        session = Session(task, tools, start=start, trials=trials, seconds=seconds, listen=listen, spaces=spaces)
        listen(TaskStarted(task, len(session.spaces), name, trials, seconds, session.known))
        if warning:
            listen(Warned(warning))
        with interruptible() as stop:
            ended = _spend(session, trials, seconds, settings, stop)
            if ended == "interrupted":
                listen(Warned("stopping: the best few are timed once more; Ctrl-C again aborts"))
            return session.finish(ended)


def check_budget(trials: int | None, seconds: float | None) -> None:
    """Raises UserError for a budget that measures nothing."""
    if trials is not None and trials < 1:
        raise UserError(f"{trials} trials measure nothing; give 1 or more")
    if seconds is not None and not 0 < seconds < inf:
        raise UserError(f"a search cannot last {seconds} seconds")


def _spend(session: Session, trials: int | None, seconds: float | None, settings: TuneSettings, stop: Stop) -> str:
    """Advances a session until the search ends; returns the reason."""
    while True:
        if stop.count:
            return "interrupted"
        left = 2 * settings.batch if trials is None else trials - session.measured
        if left <= 0:
            session.settle()
            return "trials"
        if seconds is not None and session.measured and session.elapsed >= seconds:  # one round is always measured
            return "seconds"
        if settings.patience is not None and session.idle_trials >= settings.patience:
            return "no further gain"
        now = min(settings.batch, left)
        if seconds is not None and (session.measured or session.elapsed >= seconds):
            rate = session.measured / session.elapsed
            now = min(now, max(SMALLEST_BATCH, ceil(rate * (seconds - session.elapsed))))
        if not session.round(now, min(settings.batch, left - now)):
            return "nothing left"


def cost_model(target: Target, store: Store | None, settings: TuneSettings) -> CostModel:
    """Returns a cost model trained with the store's rows of this target."""
    cost = CostModel(judge_of(target).features, settings.cost)
    if store is not None:
        rows = store.training(target, settings.training_rows)
        cost.add_rows(rows.features, rows.seconds, rows.group, rows.names)
        cost.refresh()  # donors are ranked before a strategy proposes candidates
    return cost


class Stop:
    """The number of the user's requests to stop."""

    count = 0


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
