"""Tune whole models: every task is measured a little, then rounds go where a second of search is expected to gain most.

    (tuned,) = tune_models([tasks_of(load("resnet50.onnx"))], seconds=300, store=Store.open())
    model = build_model(parts, target, tuned.schedules)

Models that are tuned together share the tasks they have in common, one cost model and one store. A budget of seconds
covers everything, the proofs of the winners included: time for those is set aside as winners appear. Everything
measured is in the store at once, so that a broken-off run is continued by the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import ceil, inf

import numpy as np

from stormdrop.errors import RunError, StormdropError, UserError
from stormdrop.graph.partition import Partition, TaskUse
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure
from stormdrop.measure.settings import MeasureSettings
from stormdrop.reservoir.store import Store
from stormdrop.reservoir.verdict import Verdict
from stormdrop.runtime.host import detect
from stormdrop.search.budget import TRIALS_PER_SECOND, SearchBudget
from stormdrop.search.divide import Divide, Gradient, Standing
from stormdrop.search.events import Event, Measured, Warned, ignore
from stormdrop.search.expect import expected_gains
from stormdrop.search.goal import Goal, LatencyTargets, TotalLatency
from stormdrop.search.keeping import Keeper
from stormdrop.search.model_events import (
    ModelEnded,
    ModelListener,
    ModelStarted,
    Proving,
    TaskMoved,
    TunedModel,
)
from stormdrop.search.model_task import ModelTask, Score, negligible
from stormdrop.search.reuse import Source, absent_donors, related, reuse_of
from stormdrop.search.session import Session
from stormdrop.search.settings import TuneSettings
from stormdrop.search.strategies import StrategyFactory, named
from stormdrop.search.tools import Measures, Objective, Origin, Tools
from stormdrop.search.tune import DEFAULT_SEARCH, Stop, check_budget, cost_model, interruptible, versions
from stormdrop.space.rule_names import checked
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.machine import Target

MODEL_SETTINGS = TuneSettings(batch=16, finalists=3, known=3, patience=256, gain=0.01)
"""Smaller rounds and shorter finals than for one operator: there are many tasks. A task ends after 16 idle rounds."""
AHEAD_SECONDS = 60.0
"""How far ahead gains are expected."""
ENOUGH = 0.005
"""Without a budget, search ends when that time is expected to gain less than this share of the goal."""
FIRST = 6
"""Candidates of every task before any gets more: the default and the prior's favourites of other sketches."""
FIRST_SHARE = 0.4
"""Of a budget of seconds, after which those that are left are measured with their default only."""
LEAST_TRIALS = 24
"""What a task's storm and droplets can count on."""
FINAL_TRIALS = 9
FINAL_ROUNDS = 10
"""To time a task's finalists in turns and to prove the winner takes as long as so many trials, and so many turns of
each finalist, about."""
TURN_OVERHEAD = 2.0
"""A turn lasts so much longer than its runs: between two of them the caches are brought into the model's state."""
FINAL_SHARE = 0.4
"""Of a budget of seconds, at most, is set aside for that."""
PATIENCE_SECONDS = 10.0
"""What proofs may take after Ctrl-C."""
SIBLING_GAIN = 0.02
"""A leader is suggested to related tasks once it is so much better than when it was suggested before."""
MOST_SIBLINGS = 3
OVERTIME = 1.05
"""Proofs begin until so much of the seconds is spent."""


def tune_models(
    models: Sequence[Partition],
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
    goal: Goal | None = None,
    objective: Objective | None = None,
    rules: Sequence[Rule] = RULES,
    reuse: str = "seed",
    donors: Sequence[str] | None = None,
    decided: list[Verdict] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[TunedModel, ...]:
    """Search for the fastest schedules of the models' tasks, until so many trials or seconds in all are spent.

    Without either, until another minute is expected to gain less than 0.5 % of the `goal`, which is the total latency
    unless another is given. `cold` None: kernels are timed with weights out of cache where the model's do not fit the
    L3. The first Ctrl-C ends the search and proves what has gained, a second one aborts.

    With an `objective` the winner of a task is what makes that smallest. Tasks are still given trials by their seconds,
    and the store keeps times only: `compile(model, schedules=tuned.schedules)` takes the winners. `rules` are those
    that derive sketches; whoever gives a measurer gives one that knows them. `reuse` and `donors` are those of `tune`;
    unless reuse is off, tasks of the models also begin from each other's leaders. With `decided` verdicts go there and
    not into the store: `accept` in `stormdrop.driver.in_model` keeps them once the model was timed.

    Raises UserError for a wrong budget, goal, strategy or rule, and for donors of which the store has none; RunError if
    no task could be timed.
    """
    check_budget(trials, seconds)
    if not models:
        raise UserError("there is no model to tune")
    if isinstance(goal, LatencyTargets) and len(goal.targets) != len(models):
        raise UserError(f"latency targets given: {len(goal.targets)}, models: {len(models)}; give one for each")
    began = clock()
    reused = reuse_of(reuse, donors)
    if warning := absent_donors(reused.wanted, store):
        listen(Warned(warning))
    name, factory = named(search, reused)
    target = target or detect()
    settings = settings or MODEL_SETTINGS.on(target)
    goal = goal or TotalLatency()
    divide = divide or Gradient(np.random.default_rng(seed))
    with ExitStack() as stack:
        # Whoever compiles a model estimates at the same temperature: both choose the same defaults.
        targets = [
            target.with_cold_weights(m.constant_bytes > target.l3_bytes if cold is None else cold) for m in models
        ]
        measurers: dict[Target, Measures] = dict.fromkeys(targets, measurer) if measurer is not None else {}
        for own in dict.fromkeys(targets if measurer is None else ()):
            around = [m.surroundings for m, t in zip(models, targets) if t == own]
            largest = max(around, key=lambda model: model.touched_bytes)
            how = MeasureSettings(seed=seed, final_seconds=0.05, surroundings=largest)
            measurers[own] = stack.enter_context(Measurer(own, how, shared_proofs=True, rules=rules))
        cost = cost_model(target, store if objective is None else None, settings)
        keeper = Keeper(store, listen, decided=decided)
        tools = [
            Tools(
                own,
                measurers[own],
                factory,
                Origin(name, seed, versions(own), model.graph.name),
                cost,
                keeper,
                objective,
                settings,
                checked(rules),
                reused,
            )
            for model, own in zip(models, targets)
        ]
        budget = SearchBudget(trials, seconds, began, clock)
        with interruptible() as stop:
            return _Search(models, tools, budget, divide, goal, listen, stop).run()


class _Search:
    """The loop over all tasks of some models; `tools` are those of each model."""

    def __init__(
        self,
        models: Sequence[Partition],
        tools: Sequence[Tools],
        budget: SearchBudget,
        divide: Divide,
        goal: Goal,
        listen: ModelListener,
        stop: Stop,
    ) -> None:
        self._models, self._tools, self._budget, self._divide = models, tools, budget, divide
        self._goal, self._listen, self._stop = goal, listen, stop
        self._settings, self._origin = tools[0].settings, tools[0].origin
        uses: dict[tuple[str, bool], list[tuple[int, TaskUse]]] = {}
        for k, model in enumerate(models):
            for use in model.tasks:
                uses.setdefault((use.task.digest, tools[k].target.is_cold), []).append((k, use))
        self._by_key = {
            key: ModelTask(
                replace(found[0][1], id=f"t{number}"),
                [sum(use.count for j, use in found if j == k) for k in range(len(models))],
                tools[found[0][0]],
                self._moved,
            )
            for number, (key, found) in enumerate(uses.items())
        }
        self._all = list(self._by_key.values())
        self._small = negligible(self._all)
        self._told: dict[tuple[ModelTask, ModelTask], float] = {}  # the second's value when the first was told of it
        self._seconds, self._trials = 1.0, TRIALS_PER_SECOND  # what trials took so far, after a guess
        self._expected: float | None = None

    def run(self) -> tuple[TunedModel, ...]:
        origin, budget = self._origin, self._budget
        names = ", ".join(t.origin.model for t in self._tools)
        rows = tuple(t.row for t in self._all)
        is_cold = any(t.target.is_cold for t in self._tools)
        self._listen(ModelStarted(names, rows, origin.strategy, budget.trials, budget.seconds, is_cold))
        stopped = self._begin() or self._go_on()
        self._fill_in()
        if stopped == "interrupted":
            limit = f"for about {PATIENCE_SECONDS:.0f} s at most"
            self._listen(Warned(f"stopping: what has gained is timed again and proved, {limit}; Ctrl-C again aborts"))
        self._prove(stopped == "interrupted")
        self._expect(self._standings())
        dropped = sum(t.phase == "not proved" for t in self._all)
        if stopped == "interrupted" and dropped:
            self._listen(Warned(f"not proved in time, so that what was used before stays: {dropped} of the winners"))
        if self._all and all(t.best is None for t in self._all):
            first = next((str(t.failure) for t in self._all if t.failure), "the budget was too small")
            raise RunError(f"{names}: none of its {len(self._all)} tasks could be timed; the first: {first}")
        found = tuple(self._tuned(model, tools, stopped) for model, tools in zip(self._models, self._tools))
        for tuned in found:
            self._listen(ModelEnded(tuned))
        return found

    def _tuned(self, model: Partition, tools: Tools, stopped: str) -> TunedModel:
        is_cold = tools.target.is_cold
        tasks = tuple(self._by_key[use.task.digest, is_cold].finished(use) for use in model.tasks)
        found = tasks, self._budget.elapsed, stopped, self._expected
        origin, not_kept = tools.origin, tools.keeper.failure
        return TunedModel(origin.model, tools.target, origin.strategy, origin.seed, *found, not_kept=not_kept)

    def _moved(self, task: ModelTask, event: Event | None) -> None:
        if isinstance(event, Measured):
            self._budget.measured += 1
        if isinstance(event, Warned):
            self._listen(Warned(f"{task.name}: {event.message}"))
        self._listen(TaskMoved(task.row, self._budget.elapsed, event, self._expected))

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
        most = int(min(FIRST, max(1, expected / (3 * max(1, len(self._all))))))
        whole = sum(t.total for t in self._all) or 1.0
        for done, task in enumerate(sorted(self._all, key=lambda t: t.total, reverse=True)):
            if over := self._over():
                return over
            is_small = task in self._small
            if is_small and task.take_stored():
                task.move("small")
                continue
            share = task.count * task.estimate / whole
            if not self._open(task, max(LEAST_TRIALS, ceil(share * expected)) if expected < inf else None):
                continue
            self._round(task, 1 if is_small or self._is_late(done) else most)
            if task.best is None and not self._over():
                self._round(task, self._settings.batch)
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
            standings = self._standings()
            left = self._expect(standings)
            if over := self._over():
                return over
            if self._all and not any(s.slope for s in standings):
                return "target met"
            chosen = self._divide.next(standings)
            if chosen is None or (self._budget.is_open and left < ENOUGH):
                if self._pass_on([t for t in self._all if t not in self._small]):
                    continue
                return "nothing left" if chosen is None else "no further gain"
            task = self._all[chosen]
            before = task.leader
            if not self._round(task, self._settings.batch, is_ahead=True) or self._is_stuck(task):
                task.is_over = True
                task.move("ended")
            if task.leader != before:
                self._pass_on([t for t in self._all if t.is_over])

    def _pass_on(self, tasks: Sequence[ModelTask]) -> bool:
        """A round of one candidate, what the leaders of related tasks suggest, for each of some tasks that the division
        would give no other round. A task whose search has ended is open again if that is its leader now. Returns
        whether there was such a round; every leader is suggested once.
        """
        was_any = False
        for task in tasks:
            if task.session is None or task.best is None or self._over():
                continue
            if (siblings := self._siblings(task)) and task.session.suggest(siblings):
                was_any, before = True, task.leader
                self._round(task, 1)
                task.is_over = task.is_over and task.leader == before
                if task.is_over:
                    task.move("ended")
        return was_any

    def _is_stuck(self, task: ModelTask) -> bool:
        patience = self._settings.patience
        return patience is not None and task.session is not None and task.session.idle_trials >= patience

    def _latencies(self) -> list[float]:
        """Of every model, as far as its tasks could be timed."""
        timed = [t for t in self._all if t.best is not None]
        return [sum(t.counts[k] * t.best.seconds for t in timed if t.best) for k in range(len(self._models))]

    def _standings(self) -> list[Standing]:
        slopes = self._goal.slopes(self._latencies())
        return [
            t.standing(
                sum(n * slope for n, slope in zip(t.counts, slopes)),
                0.0 if t.needs_proof(self._settings.gain) else self._final_seconds(t),
            )
            for t in self._all
        ]

    def _expect(self, standings: Sequence[Standing]) -> float:
        """Work out what another minute is expected to gain; returns its share of the goal.

        What is told where the goal is latency targets are shares of the latency: shares of a small excess are large.
        """
        latencies, gains = self._latencies(), expected_gains(standings, AHEAD_SECONDS)
        value = self._goal.value(latencies)
        told_of = sum(latencies) if isinstance(self._goal, LatencyTargets) else value
        for task, gain in zip(self._all, gains):
            is_known = task.session is not None or task.phase in ("small", "failed")
            task.expected_gain = gain / told_of if told_of and is_known else None
        shares = [t.expected_gain for t in self._all if t.expected_gain is not None]
        self._expected = sum(shares) if shares and len(shares) == len(self._all) else None
        return sum(gains) / value if value else 0.0

    def _open(self, task: ModelTask, expected: int | None) -> bool:
        """Begin a task's session."""
        started = self._budget.clock()
        if isinstance(task.tools.measurer, Measurer):
            task.tools.measurer.warm_up(task.use.task)  # its data is made while its sketches are
        try:
            siblings = self._siblings(task)
            is_planned = self._budget.trials is None
            session = Session(
                task.use.task,
                task.tools,
                trials=expected,
                is_planned=is_planned,
                listen=task.listen,
                siblings=siblings,
            )
            task.begin(session)
        except StormdropError as error:
            task.failure = Failure("schedule", str(error))
            self._give_up(task)
            return False
        finally:
            task.opening_seconds += self._budget.clock() - started
        return True

    def _siblings(self, task: ModelTask) -> list[Source]:
        """The leaders of related tasks that have gained since this task was last told of them; the nearest few."""
        if task.tools.reuse.mode == "off":
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
        task.round_ended(lasted)
        if task.trials > before:
            self._seconds += lasted
            self._trials += task.trials - before
        return went_on

    def _final_seconds(self, task: ModelTask) -> float:
        """About what the proof of a task's winner takes, as busy as the machine is."""
        how = MeasureSettings()
        runs_seconds = min(how.turn_runs * (task.best.seconds if task.best else 0.0), how.longest_turn_seconds)
        turn_seconds = TURN_OVERHEAD * max(how.turn_seconds, runs_seconds)
        turns = FINAL_ROUNDS * (self._settings.finalists + 1)
        return FINAL_TRIALS * self._seconds / self._trials + turns * turn_seconds

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
        found = [t for t in self._all if t.needs_proof(self._settings.gain)]
        return sorted(found, key=lambda t: t.gain, reverse=True)

    def _prove(self, is_interrupted: bool) -> None:
        """As far as time permits: the best few of every task that gained challenge its incumbent; who wins is proved.

        Where nothing seems faster, the incumbent stays.
        """
        winners = self._winners()
        if winners:
            self._listen(Proving(len(winners), self._budget.elapsed))
        latest = inf if self._budget.seconds is None else OVERTIME * self._budget.seconds
        latest = min(latest, self._budget.elapsed + PATIENCE_SECONDS) if is_interrupted else latest
        for task in winners:
            if self._budget.elapsed + self._final_seconds(task) <= latest:
                started = self._budget.clock()
                self._prove_one(task)
                task.spent += self._budget.clock() - started
            else:
                task.stay()
                task.move("proved" if task.was_proved else "not proved")  # before, that is
        for task in self._all:
            if task in winners or task.session is None or task.phase == "failed":
                continue
            task.stay()
            if task.phase != "small":
                task.move("proved" if task.was_proved else "default")
            task.decide_for_default()

    def _prove_one(self, task: ModelTask) -> None:
        assert task.session is not None
        try:
            tuned = task.session.finish("model")
        except RunError as error:
            task.best, task.failure = None, Failure("wrong", str(error))
            self._give_up(task)
            return
        values, is_time = task.session.final_values, self._tools[0].objective is None
        value = values[tuned.best]
        task.leader, task.is_verified = tuned.best, True
        task.best = Score(value, value if is_time else tuned.seconds)
        if (value := values.get(task.session.default)) is not None:
            task.default = Score(value, value if is_time or task.default is None else task.default.seconds)
        task.move("proved")
