"""Tune one task: spend a budget on its session, then declare a winner.

    tuned = tune(task, trials=300)

Stops on trials, on seconds, when the strategy has nothing left to propose, when a further gain is unlikely, or on
Ctrl-C: the first ends the search with what is known, a second one aborts. Everything measured is in the store by then.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import ceil, inf
from types import FrameType

from stormdrop.codegen.llvm import llvm_version
from stormdrop.cost.model import CostModel
from stormdrop.errors import UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.settings import MeasureSettings
from stormdrop.reservoir.record import Versions
from stormdrop.reservoir.store import Store
from stormdrop.runtime.host import detect
from stormdrop.search.events import Listener, TaskStarted, Tuned, Warned, ignore
from stormdrop.search.keeping import Keeper
from stormdrop.search.reuse import absent_donors, reuse_of
from stormdrop.search.session import Session
from stormdrop.search.settings import TuneSettings
from stormdrop.search.strategies import REUSE_ONLY, StrategyFactory, named
from stormdrop.search.tools import Measures, Objective, Origin, Tools
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch
from stormdrop.target.machine import Target
from stormdrop.version import __version__

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
    """Search for the fastest schedule of a task, or for that of the smallest `objective`.

    `cold` says whether constants are in the caches when a kernel begins, by default as the target has it. Without
    `trials` or `seconds` a storm that lasts while it gains, for 300 trials at most, is followed by droplets until they
    find no more. `start` is a
    schedule to begin from, `spaces` are the sketches to search, by default all that `rules` derive; whoever gives a
    measurer gives one that knows these rules.

    `reuse`: with "seed" the search begins from what the store has for related tasks too, with "only" a short descent
    from the best of that is all, with "off" it knows of no other task; `donors` names the models whose schedules may be
    reused, by default all.

    The store keeps what was timed, never the value of an objective, and nothing of an objective's winner but its time:
    `build(task, schedule=tuned.best)` computes with the winner.

    Raises UserError for a wrong budget, strategy, rule or start, and for donors the store has none of; RunError if
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
    origin = Origin(name, seed, versions(target))
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
    """Advance a session until something ends it; says what."""
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
    """A cost model that knows what the store knows of this target."""
    cost = CostModel(judge_of(target).features, settings.cost)
    if store is not None:
        rows = store.training(target, settings.training_rows)
        cost.add_rows(rows.features, rows.seconds, rows.group, rows.names)
        cost.refresh()  # donors are ranked before anything is asked of a strategy
    return cost


def versions(target: Target) -> Versions:
    return Versions(__version__, llvm_version(), judge_of(target).features.version)


class Stop:
    """How often the user asked to stop."""

    count = 0


@contextmanager
def interruptible() -> Generator[Stop]:
    """The first Ctrl-C asks the loop to stop after its batch, the second raises KeyboardInterrupt as usual.

    Only the main thread may do so; elsewhere nothing changes. The handler tells nothing: a listener may be at work.
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
