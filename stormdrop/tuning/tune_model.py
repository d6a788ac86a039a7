"""Tune whole models: every task is measured a little, then rounds go to the tasks with the most expected gain per
second.

    (tuned,) = tune_models([tasks_of(load("resnet50.onnx"))], seconds=300, store=Store.open())
    model = compile(graph, target=target, schedules=tuned.schedules)

Models that are tuned together share the tasks they have in common, one cost model and one store. A budget of seconds
covers everything, including the proofs of the winners: time for proofs is set aside as winners appear. Everything
measured is in the store at once, so that the next run continues an interrupted run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import ceil, inf

import numpy as np

from stormdrop.base.errors import RunError, StormdropError, UserError
from stormdrop.device.host import detect
from stormdrop.graph.partition import Partition, TaskUse
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.rule_names import checked
from stormdrop.space.rules import RULES, Rule
from stormdrop.store.record import versions
from stormdrop.store.store import Store
from stormdrop.store.verdict import Verdict
from stormdrop.target.machine import Target
from stormdrop.tuning.budget import TRIALS_PER_SECOND, SearchBudget
from stormdrop.tuning.divide import Divide, Gradient, Standing
from stormdrop.tuning.events import Event, Measured, Warned, ignore
from stormdrop.tuning.expect import expected_gains
from stormdrop.tuning.goal import Goal, LatencyTargets, TotalLatency, check_goal
from stormdrop.tuning.keeping import Keeper
from stormdrop.tuning.model_events import (
    ModelEnded,
    ModelListener,
    ModelStarted,
    Proving,
    TaskMoved,
    TunedModel,
)
from stormdrop.tuning.model_task import ModelTask, Score, negligible
from stormdrop.tuning.reuse import Source, absent_donors, related, reuse_of
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.session import Session
from stormdrop.tuning.strategies import StrategyFactory, named
from stormdrop.tuning.tools import Measures, Objective, RecordOrigin, Tools
from stormdrop.tuning.tune import DEFAULT_SEARCH, Stop, check_budget, cost_model, interruptible

MODEL_SETTINGS = TuneSettings(batch=16, finalists=3, known=3, patience=256, gain=0.01)
"""Smaller rounds and shorter finals than for one operator: there are many tasks. A task ends after 16 idle rounds."""
AHEAD_SECONDS = 60.0
"""The horizon of expected gains."""
ENOUGH = 0.005
"""Without a budget, search ends when that time is expected to gain less than this share of the goal."""
FIRST = 6
"""Candidates of every task before any gets more: the default and the prior's favourites of other sketches."""
FIRST_SHARE = 0.4
"""The share of a budget of seconds after which the remaining tasks are measured with their default only."""
LEAST_TRIALS = 24
"""The least number of trials that a task's storm and droplets plan with."""
FINAL_TRIALS = 9
FINAL_ROUNDS = 10
"""The approximate cost of timing a task's finalists in turns and proving the winner: so many trials, and so many turns
of each finalist.
"""
TURN_OVERHEAD = 2.0
"""A turn lasts so much longer than its runs: between two of them the caches are brought into the model's state."""
FINAL_SHARE = 0.4
"""The largest share of a budget of seconds that is set aside for proofs."""
PATIENCE_SECONDS = 10.0
"""The longest time of proofs after Ctrl-C."""
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
    """Searches for the fastest schedules of the models' tasks, until a total of `trials` or `seconds` is spent.

    Without either limit, the search ends when another minute is expected to gain less than 0.5 % of the `goal`. The
    default goal is the total latency. With `cold` None, kernels are timed with weights out of cache if the model's
    weights do not fit the L3. The first Ctrl-C ends the search and proves the schedules that gained, a second one
    aborts.

    With an `objective`, the winner of a task has the smallest value of it. Tasks are still given trials by their
    seconds, and the store keeps times only: `compile(model, schedules=tuned.schedules)` uses the winners. `rules`
    derive the sketches; a given `measurer` must use the same rules. `reuse` and `donors` mean the same as in `tune`;
    unless reuse is off, tasks of the models also begin from each other's leaders. With `decided`, verdicts go to this
    list and not into the store: `accept` in `stormdrop.tuning.in_model` keeps them once the model was timed.

    Raises UserError for a wrong budget, goal, strategy or rule, and for donors absent from the store; RunError if no
    task could be timed.
    """
    check_budget(trials, seconds)
    if not models:
        raise UserError("there is no model to tune")
    check_goal(goal, len(models))
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
        targets = [target.with_weights(m.constant_bytes).with_cold_weights(cold) for m in models]
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
                RecordOrigin(name, seed, versions(own), model.graph.name),
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
    """The loop over all tasks of some models; `tools` has an entry for each model."""

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
        self._told: dict[tuple[ModelTask, ModelTask], float] = {}  # the second's value at its last use for the first
        self._seconds, self._trials = 1.0, TRIALS_PER_SECOND  # the cost of trials so far, after a guess
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
        shapes = {v.name: v.shape for v in model.graph.inputs}
        about = origin.model, tools.target, origin.strategy, origin.seed
        return TunedModel(*about, *found, not_kept=not_kept, shapes=shapes)

    def _moved(self, task: ModelTask, event: Event | None) -> None:
        if isinstance(event, Measured):
            self._budget.measured += 1
        if isinstance(event, Warned):
            self._listen(Warned(f"{task.name}: {event.message}"))
        self._listen(TaskMoved(task.row, self._budget.elapsed, event, self._expected))

    # ---- searching -------------------------------------------------------------------------------------------------

    def _over(self) -> str:
        """Returns the reason to end the search now; empty if there is none."""
        if self._stop.count:
            return "interrupted"
        if self._budget.trials_left < 1:
            return "trials"
        return "seconds" if self._time_left <= 0 else ""

    @property
    def _time_left(self) -> float:
        """The seconds until the proofs of the current leaders must begin."""
        total = self._budget.seconds
        if total is None:
            return inf
        aside = sum(self._final_seconds(t) for t in self._winners())
        return self._budget.seconds_left - min(aside, FINAL_SHARE * total)

    def _begin(self) -> str:
        """Measures a few candidates of every task, the longest estimated total first; returns the reason if the search
        must end.
        """
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
        """Returns whether, with `done` tasks done, the first round of all tasks would take too much of the seconds."""
        seconds = self._budget.seconds
        return seconds is not None and self._budget.elapsed > FIRST_SHARE * seconds * (done + 1) / len(self._all)

    def _go_on(self) -> str:
        """Runs rounds for the tasks that the division chooses, until the search must end; returns the reason."""
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
        """Measures the leaders of related tasks in a round of one candidate, for tasks without further rounds by the
        division.

        A task with an ended search is open again if the new candidate becomes its leader. Every leader is suggested
        once. Returns whether there was such a round.
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
        """Returns the latency of every model, summed over the tasks that could be timed."""
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
        """Computes the expected gain of another minute; returns its share of the goal.

        If the goal is latency targets, the published shares are shares of the latency: shares of a small excess are
        large.
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
        """Begins a task's session."""
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
        """Returns the leaders of related tasks that have gained since this task last received them; the nearest few."""
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
        """Runs one round of at most `most` candidates, as the budget permits; returns False if the strategy has nothing
        left.
        """
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
        """Returns an estimate of the seconds for the proof of a task's winner, with the machine as busy as now."""
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
        """Fills in tasks that were never measured from the store."""
        left = [t for t in self._all if t.best is None and t.phase != "failed"]
        unknown = [t for t in left if not t.take_stored()]
        for task in left:
            task.move("" if task in unknown else "known")
        if unknown:
            share = f"{len(unknown)} of {len(self._all)} tasks"
            self._listen(Warned(f"the search ended before {share} were measured; estimates leave them out"))

    # ---- proving ---------------------------------------------------------------------------------------------------

    def _winners(self) -> list[ModelTask]:
        """Returns the tasks with leaders that need a proof, the greatest gain first."""
        found = [t for t in self._all if t.needs_proof(self._settings.gain)]
        return sorted(found, key=lambda t: t.gain, reverse=True)

    def _prove(self, is_interrupted: bool) -> None:
        """Proves the leaders of the tasks that gained, as far as time permits.

        For every such task, the best few candidates challenge the incumbent, and the winner is proved. If nothing seems
        faster, the incumbent stays.
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
