"""Tune a whole model: every task is measured a little, then rounds go to where the model spends its time.

    tuned = tune_model(tasks_of(load("resnet50.onnx")), seconds=300, store=Store.open())
    model = build_model(parts, target, tuned.schedules)

One measurer, one cost model and one store serve all sessions. A budget of seconds covers everything, the proofs of the
winners included: time for those is set aside as winners appear. Everything measured is in the store at once, so that a
broken-off run is continued by the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import ceil, inf

from stormdrop.errors import RunError, StormdropError
from stormdrop.graph.partition import Partition, TaskUse
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure
from stormdrop.measure.settings import MeasureSettings
from stormdrop.reservoir.store import Store
from stormdrop.runtime.host import detect
from stormdrop.search.divide import ByShare, Divide
from stormdrop.search.events import Event, Measured, Warned, ignore
from stormdrop.search.model_events import (
    ModelEnded,
    ModelListener,
    ModelStarted,
    Proving,
    TaskMoved,
    TunedModel,
)
from stormdrop.search.model_task import ModelTask, Score, negligible
from stormdrop.search.reuse import Source, related, reuse_of
from stormdrop.search.session import Measures, Objective, Origin, Session, Tools
from stormdrop.search.settings import TuneSettings
from stormdrop.search.strategies import StrategyFactory, named
from stormdrop.search.tune import DEFAULT_SEARCH, Stop, check_budget, cost_model, interruptible, versions
from stormdrop.space.rule_names import checked
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.machine import Target

MODEL_SETTINGS = TuneSettings(batch=16, finalists=3, rounds=6, known=3, against_default=True, gain=0.01)
"""Smaller rounds and shorter finals than for one operator: there are many tasks."""
TRIALS_PER_TASK = 64
"""Where no budget is given."""
FIRST = 6
"""Candidates of every task before any gets more: the default and the prior's favourites of other sketches."""
FIRST_SHARE = 0.4
"""Of a budget of seconds, after which those that are left are measured with their default only."""
TRIALS_PER_SECOND = 20.0
"""About; two cores, kernels of a millisecond. How long storms last is planned with it."""
LEAST_TRIALS = 24
"""What a task's storm and droplets can count on."""
FINAL_TRIALS = 9
FINAL_RUNS = 80
"""To time a task's finalists in turns and to prove the winner takes as long as so many trials and runs, about."""
FINAL_SHARE = 0.4
"""Of a budget of seconds, at most, is set aside for that."""
PATIENCE_SECONDS = 10.0
"""What proofs may take after Ctrl-C."""
SIBLING_GAIN = 0.02
"""A leader is suggested to related tasks once it is so much better than when it was suggested before."""
MOST_SIBLINGS = 3
OVERTIME = 1.05
"""Proofs begin until so much of the seconds is spent."""


def tune_model(
    parts: Partition,
    target: Target | None = None,
    *,
    trials: int | None = None,
    seconds: float | None = None,
    search: str | StrategyFactory = DEFAULT_SEARCH,
    seed: int = 0,
    store: Store | None = None,
    listen: ModelListener = ignore,
    settings: TuneSettings | None = None,
    measurer: Measures | None = None,
    cold: bool | None = None,
    divide: Divide | None = None,
    objective: Objective | None = None,
    rules: Sequence[Rule] = RULES,
    reuse: str = "seed",
    donors: Sequence[str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> TunedModel:
    """Search for the fastest schedules of a model's tasks, until so many trials or seconds in all are spent.

    Without either, 64 trials for each task that matters. `cold` None: kernels are timed with weights out of cache where
    the model's do not fit the L3. The first Ctrl-C ends the search and proves what has gained, a second one aborts.

    With an `objective` the winner of a task is what makes that smallest. Tasks are still given trials by their share of
    the model's time, and the store keeps times only: `compile(model, schedules=tuned.schedules)` takes the winners.
    `rules` are those that derive sketches; whoever gives a measurer gives one that knows them. `reuse` and `donors` are
    those of `tune`; unless reuse is off, tasks of the model also begin from each other's leaders.

    Raises UserError for a wrong budget, strategy or rule, RunError if no task could be timed.
    """
    check_budget(trials, seconds)
    began = clock()
    reused = reuse_of(reuse, donors)
    name, factory = named(search, reused)
    target = target or detect()
    settings = settings or MODEL_SETTINGS
    # Whoever compiles the model estimates at the same temperature: both choose the same defaults.
    target = target.with_cold_weights(parts.constant_bytes > target.l3_bytes if cold is None else cold)
    origin = Origin(name, seed, versions(target), parts.graph.name)
    how = MeasureSettings(seed=seed, final_seconds=0.05)
    own = Measurer(target, how, shared_proofs=True, rules=rules) if measurer is None else nullcontext(measurer)
    with own as measurer:
        cost = cost_model(target, store if objective is None else None, settings)
        tools = Tools(target, measurer, factory, origin, cost, store, objective, settings, checked(rules), reused)
        budget = _Budget(trials, seconds, began, clock)
        with interruptible() as stop:
            return _Search(parts.tasks, tools, budget, divide or ByShare(), listen, stop).run()


@dataclass(slots=True)
class _Budget:
    """What may be spent, and what is."""

    trials: int | None
    seconds: float | None
    began: float
    clock: Callable[[], float]
    measured: int = 0

    @property
    def elapsed(self) -> float:
        return self.clock() - self.began

    @property
    def trials_left(self) -> float:
        return inf if self.trials is None else self.trials - self.measured

    @property
    def seconds_left(self) -> float:
        return inf if self.seconds is None else self.seconds - self.elapsed

    @property
    def expected_trials(self) -> float:
        by_time = inf if self.seconds is None else self.seconds * TRIALS_PER_SECOND
        return min(by_time, inf if self.trials is None else self.trials)


class _Search:
    """The loop over all tasks of one model."""

    def __init__(
        self, uses: Sequence[TaskUse], tools: Tools, budget: _Budget, divide: Divide, listen: ModelListener, stop: Stop
    ) -> None:
        self._tools, self._budget, self._divide, self._listen, self._stop = tools, budget, divide, listen, stop
        self._all = [ModelTask(use, tools, self._moved) for use in uses]
        self._small = negligible(self._all)
        if budget.trials is None and budget.seconds is None:
            budget.trials = sum(1 if t in self._small else TRIALS_PER_TASK for t in self._all) or 1
        self._told: dict[tuple[ModelTask, ModelTask], float] = {}  # the second's value when the first was told of it
        self._seconds, self._trials = 1.0, TRIALS_PER_SECOND  # what trials took so far, after a guess

    def run(self) -> TunedModel:
        origin, budget = self._tools.origin, self._budget
        rows = tuple(t.row for t in self._all)
        is_cold = self._tools.target.is_cold
        self._listen(ModelStarted(origin.model, rows, origin.strategy, budget.trials, budget.seconds, is_cold))
        stopped = self._begin() or self._go_on()
        self._fill_in()
        if stopped == "interrupted":
            self._listen(Warned("stopping: what has gained is timed once more and proved; Ctrl-C again aborts"))
        self._prove(stopped == "interrupted")
        tasks = tuple(t.finished() for t in self._all)
        if tasks and all(t.seconds is None for t in tasks):
            first = next((t.failure for t in tasks if t.failure), "the budget was too small")
            raise RunError(f"{origin.model}: none of its {len(tasks)} tasks could be timed; the first: {first}")
        found = (tasks, budget.elapsed, stopped)
        tuned = TunedModel(origin.model, self._tools.target, origin.strategy, origin.seed, *found)
        self._listen(ModelEnded(tuned))
        return tuned

    def _moved(self, task: ModelTask, event: Event | None) -> None:
        if isinstance(event, Measured):
            self._budget.measured += 1
        if isinstance(event, Warned):
            self._listen(Warned(f"{task.name}: {event.message}"))
        self._listen(TaskMoved(task.row, self._budget.elapsed, event))

    # ---- searching -------------------------------------------------------------------------------------------------

    def _over(self) -> str:
        """Why the search must end now, if it must."""
        if self._stop.count:
            return "interrupted"
        if self._budget.trials_left < 1:
            return "trials"
        return "seconds" if self._time_left <= 0 else ""

    @property
    def _time_left(self) -> float:
        """Seconds until the proofs of what leads now must begin."""
        total = self._budget.seconds
        if total is None:
            return inf
        aside = sum(self._final_seconds(t) for t in self._winners())
        return self._budget.seconds_left - min(aside, FINAL_SHARE * total)

    def _begin(self) -> str:
        """Measure a few candidates of every task, those first that seem to take longest; says why if it must end."""
        expected = self._budget.expected_trials
        most = int(min(FIRST, max(1, expected // (3 * max(1, len(self._all))))))
        whole = sum(t.total for t in self._all) or 1.0
        for done, task in enumerate(sorted(self._all, key=lambda t: t.total, reverse=True)):
            if over := self._over():
                return over
            is_small = task in self._small
            if is_small and task.take_stored():
                task.move("small")
                continue
            share = task.use.count * task.estimate / whole
            if not self._open(task, max(LEAST_TRIALS, ceil(share * expected)) if expected < inf else None):
                continue
            self._round(task, 1 if is_small or self._is_late(done) else most)
            if task.best is None and not self._over():
                self._round(task, self._tools.settings.batch)
            if task.best is None:
                self._give_up(task)
            elif is_small:
                task.move("small")
        return ""

    def _is_late(self, done: int) -> bool:
        """With so many tasks done, the first round of all of them would take too much of the seconds."""
        seconds = self._budget.seconds
        return seconds is not None and self._budget.elapsed > FIRST_SHARE * seconds * (done + 1) / len(self._all)

    def _go_on(self) -> str:
        """Rounds for whom the division chooses, until something ends it; says what."""
        while True:
            if over := self._over():
                return over
            chosen = self._divide.next([t.standing for t in self._all])
            if chosen is None:
                return "nothing left"
            task = self._all[chosen]
            if not self._round(task, self._tools.settings.batch, is_ahead=True):
                task.is_over = True
                task.move("ended")

    def _open(self, task: ModelTask, expected: int | None) -> bool:
        """Begin a task's session."""
        tools = self._tools
        if isinstance(tools.measurer, Measurer):
            tools.measurer.warm_up(task.use.task)  # its data is made while its sketches are
        try:
            siblings = self._siblings(task)
            task.session = Session(task.use.task, tools, trials=expected, listen=task.listen, siblings=siblings)
        except StormdropError as error:
            task.failure = Failure("schedule", str(error))
            self._give_up(task)
            return False
        if (seconds := task.session.default_known) is not None:
            task.default = Score(seconds, seconds)
        return True

    def _siblings(self, task: ModelTask) -> list[Source]:
        """The leaders of related tasks that have gained since this task was last told of them; the nearest few."""
        if self._tools.reuse.mode == "off":
            return []
        leaders = {
            other: other.leader
            for other in self._all
            if other is not task
            and other.leader is not None
            and other.best is not None
            and (other.session is None or other.leader != other.session.default)
            and other.best.value <= (1 - SIBLING_GAIN) * self._told.get((task, other), inf)
        }
        found = related(task.use.task, ((o.use.task, leader) for o, leader in leaders.items()), MOST_SIBLINGS)
        for other in leaders:
            assert other.best is not None
            self._told[task, other] = other.best.value
        return found

    def _round(self, task: ModelTask, most: int, is_ahead: bool = False) -> bool:
        """One round of at most `most` candidates, as the budget permits; False where the strategy has nothing left."""
        assert task.session is not None
        n = int(min(most, max(1, self._budget.trials_left)))
        if task.trials and self._time_left < inf:
            n = min(n, max(2, int(self._time_left * task.trials / max(task.spent, 1e-9))))
        started, before = self._budget.clock(), task.trials
        if siblings := self._siblings(task):
            task.session.suggest(siblings)
        ahead = int(min(most, max(0, self._budget.trials_left - n))) if is_ahead else 0
        went_on = task.session.round(n, ahead)
        lasted = self._budget.clock() - started
        task.spent += lasted
        if task.trials > before:
            self._seconds += lasted
            self._trials += task.trials - before
        return went_on

    def _final_seconds(self, task: ModelTask) -> float:
        """About what the proof of a task's winner takes, as busy as the machine is."""
        run_seconds = task.best.seconds if task.best else 0.0
        return FINAL_TRIALS * self._seconds / self._trials + FINAL_RUNS * run_seconds

    def _give_up(self, task: ModelTask) -> None:
        task.is_over = True
        tried = f"none of {task.trials} candidates could be timed; the first: " if task.trials else ""
        self._listen(Warned(f"{task.name} is left as it is: {tried}{task.failure or 'the budget is spent'}"))
        task.move("failed")

    def _fill_in(self) -> None:
        """Tasks whose turn never came are as the store knows them."""
        left = [t for t in self._all if t.best is None and t.phase != "failed"]
        unknown = [t for t in left if not t.take_stored()]
        for task in left:
            task.move("" if task in unknown else "known")
        if unknown:
            share = f"{len(unknown)} of {len(self._all)} tasks"
            self._listen(Warned(f"the search ended before {share} were measured; estimates leave them out"))

    # ---- proving ---------------------------------------------------------------------------------------------------

    def _winners(self) -> list[ModelTask]:
        """Those whose leaders are to be proved, the greatest gain first."""
        found = [t for t in self._all if t.needs_proof(self._tools.settings.gain)]
        return sorted(found, key=lambda t: t.gain, reverse=True)

    def _prove(self, is_interrupted: bool) -> None:
        """As far as time permits: time the best few of every task that gained beside its default; prove the fastest."""
        winners = self._winners()
        if winners:
            self._listen(Proving(len(winners), self._budget.elapsed))
        latest = inf if self._budget.seconds is None else OVERTIME * self._budget.seconds
        latest = min(latest, self._budget.elapsed + PATIENCE_SECONDS) if is_interrupted else latest
        for task in winners:
            if self._budget.elapsed + self._final_seconds(task) <= latest:
                self._prove_one(task)
            elif task.stored is not None and task.stored.verified and task.take_stored():
                task.move("proved")  # before, that is
            else:
                task.move("not proved")
        for task in self._all:
            if task in winners or task.session is None or task.phase in ("failed", "small"):
                continue
            if task.was_proved:
                task.move("proved")
            else:
                task.leader, task.best = task.session.default, task.default or task.best
                task.move("default")

    def _prove_one(self, task: ModelTask) -> None:
        assert task.session is not None
        try:
            tuned = task.session.finish("model")
        except RunError as error:
            task.best, task.failure = None, Failure("wrong", str(error))
            self._give_up(task)
            return
        values, is_time = task.session.final_values, self._tools.objective is None
        value = values[tuned.best]
        task.leader, task.is_verified = tuned.best, True
        task.best = Score(value, value if is_time else tuned.seconds)
        if (value := values.get(task.session.default)) is not None:
            task.default = Score(value, value if is_time or task.default is None else task.default.seconds)
        task.move("proved")
