"""The loop of tuning: every task is measured a little, then rounds go to the tasks with the most expected gain per
second. A single task has a policy of its own.

Subjects that are tuned together share the tasks they have in common, one cost model and one store. For models, a budget
of seconds covers everything, including the proofs of the winners: time for proofs is set aside as winners appear.
Everything measured is in the store at once, so that the next run continues an interrupted run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from stormdrop.base.errors import RunError, StormdropError
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch
from stormdrop.tuning.divide import Divide, Standing, expected_gains
from stormdrop.tuning.events import Listener, Measured, Moved, Proving, Started, Warned
from stormdrop.tuning.model_task import ModelTask, negligible
from stormdrop.tuning.objectives import LatencyTargets, Objective
from stormdrop.tuning.resources import Resources
from stormdrop.tuning.reuse import Source, related
from stormdrop.tuning.session import Session
from stormdrop.tuning.subject import Subject, SubjectTask
from stormdrop.tuning.tuned import Trial, Tuned

SMALLEST_BATCH = 4
"""The least number of candidates of a round of a single task when the seconds are nearly spent."""
TRIALS_PER_SECOND = 20.0
"""Approximate trials per second on two cores with kernels of a millisecond. The length of storms is planned with it."""
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


@dataclass(slots=True)
class SearchBudget:
    """Limits on trials and seconds (None: unlimited), and the trials and time spent so far."""

    trials: int | None
    seconds: float | None
    clock: Callable[[], float]
    began: float
    measured: int = 0

    @property
    def is_open(self) -> bool:
        """Neither trials nor seconds are limited."""
        return self.trials is None and self.seconds is None

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


class Stop:
    """The number of the user's requests to stop."""

    count = 0


class TuningLoop:
    """The search over all tasks of some subjects; `resources` has an entry for each subject."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        resources: Sequence[Resources],
        budget: SearchBudget,
        divide: Divide,
        objective: Objective,
        listen: Listener,
        stop: Stop,
        *,
        start: Schedule | None = None,
        spaces: Sequence[Sketch] | None = None,
    ) -> None:
        """Creates the loop; `start` and `spaces` are for a single task."""
        self._subjects, self._resources, self._budget, self._divide = subjects, resources, budget, divide
        self._objective, self._listen, self._stop = objective, listen, stop
        self._start, self._spaces = start, spaces
        self._settings, self._origin = resources[0].settings, resources[0].origin
        uses: dict[tuple[str, bool], list[tuple[int, SubjectTask]]] = {}
        for k, subject in enumerate(subjects):
            for about in subject.tasks:
                uses.setdefault((about.task.digest, resources[k].target.is_cold), []).append((k, about))
        self._by_key = {
            key: ModelTask(
                replace(calls[0][1], id=f"t{number}"),
                [sum(about.count for j, about in calls if j == k) for k in range(len(subjects))],
                resources[calls[0][0]],
                self,
            )
            for number, (key, calls) in enumerate(uses.items())
        }
        self._all = list(self._by_key.values())
        self._small = negligible(self._all)
        self._passed: dict[tuple[ModelTask, ModelTask], float] = {}
        """The second task's value at the last use of its leader for the first task."""
        self._seconds, self._trials = 1.0, TRIALS_PER_SECOND  # the cost of trials so far, after a guess
        self._expected: float | None = None

    def run(self) -> tuple[Tuned, ...]:
        """Searches and proves. Raises RunError if no task could be timed."""
        is_alone = len(self._all) == 1 and not self._subjects[0].is_model
        stopped = self._run_alone(self._all[0]) if is_alone else self._run_together()
        return tuple(
            self._tuned(subject, resources, stopped) for subject, resources in zip(self._subjects, self._resources)
        )

    def _start_event(self) -> Started:
        names = ", ".join(subject.name for subject in self._subjects)
        rows = tuple(t.row for t in self._all)
        is_cold = any(r.target.is_cold for r in self._resources)
        is_model = self._subjects[0].is_model
        budget = self._budget
        return Started(names, rows, self._origin.strategy, budget.trials, budget.seconds, is_cold, is_model)

    def _tuned(self, subject: Subject, resources: Resources, stopped: str) -> Tuned:
        is_cold = resources.target.is_cold
        return Tuned(
            subject.name,
            resources.target,
            self._origin.strategy,
            self._origin.seed,
            tuple(self._by_key[about.task.digest, is_cold].finished(about) for about in subject.tasks),
            self._budget.elapsed,
            stopped,
            self._expected,
            not_kept=resources.keeper.failure,
            shapes=subject.shapes,
            is_model=subject.is_model,
        )

    # ---- the tasks' progress ---------------------------------------------------------------------------------------

    def measured(self, task: ModelTask, trial: Trial, is_best: bool) -> None:
        self._budget.measured += 1
        self._listen(Measured(task.row, trial, is_best, self._budget.elapsed, self._expected))

    def moved(self, task: ModelTask) -> None:
        self._listen(Moved(task.row, self._budget.elapsed, self._expected))

    def warned(self, task: ModelTask, message: str) -> None:
        self._listen(Warned(f"{task.name}: {message}"))

    # ---- a single task ---------------------------------------------------------------------------------------------

    def _run_alone(self, task: ModelTask) -> str:
        """Searches for a single task, then proves the winner; returns the reason for the end of the search.

        Rounds are as large as the settings permit. Without a budget, the strategy decides about the end. The final
        choice and the proof follow after the seconds.
        """
        session = self._session(task, self._budget.trials, self._budget.seconds)
        task.known = session.known  # candidates; the store's trials count a proved winner twice
        self._listen(self._start_event())
        stopped = self._search_alone(task, session)
        if stopped == "interrupted":
            self._listen(Warned("stopping: the best few are timed once more; Ctrl-C again aborts"))
        self._listen(Proving(1, self._budget.elapsed))
        task.finish()
        return stopped

    def _search_alone(self, task: ModelTask, session: Session) -> str:
        batch, patience, seconds = self._settings.batch, self._settings.patience, self._budget.seconds
        while True:
            if self._stop.count:
                return "interrupted"
            left = int(min(2 * batch, self._budget.trials_left))
            if left <= 0:
                session.settle()
                return "trials"
            if seconds is not None and session.measured and session.elapsed >= seconds:  # one round is always measured
                return "seconds"
            if patience is not None and session.idle_trials >= patience:
                return "no further gain"
            now = min(batch, left)
            if seconds is not None and (session.measured or session.elapsed >= seconds):
                rate = session.measured / session.elapsed
                now = min(now, max(SMALLEST_BATCH, ceil(rate * (seconds - session.elapsed))))
            started = self._budget.clock()
            went_on = session.round(now, min(batch, left - now))
            task.round_ended(self._budget.clock() - started)
            if not went_on:
                return "nothing left"

    # ---- many tasks ------------------------------------------------------------------------------------------------

    def _run_together(self) -> str:
        """Searches for all tasks and proves the winners; returns the reason for the end of the search."""
        self._listen(self._start_event())
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
            names = ", ".join(subject.name for subject in self._subjects)
            first = next((str(t.failure) for t in self._all if t.failure), "the budget was too small")
            raise RunError(f"{names}: none of its {len(self._all)} tasks could be timed; the first: {first}")
        return stopped

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
        return [sum(t.counts[k] * t.best.seconds for t in timed if t.best) for k in range(len(self._subjects))]

    def _standings(self) -> list[Standing]:
        slopes = self._objective.slopes(self._latencies())
        return [
            t.standing(
                sum(n * slope for n, slope in zip(t.counts, slopes)),
                0.0 if t.needs_proof(self._settings.gain) else self._final_seconds(t),
            )
            for t in self._all
        ]

    def _expect(self, standings: Sequence[Standing]) -> float:
        """Computes the expected gain of another minute; returns its share of the objective.

        If the objective is latency targets, tasks show shares of the latency: shares of a small excess are large.
        """
        latencies, gains = self._latencies(), expected_gains(standings, AHEAD_SECONDS)
        value = self._objective.value(latencies)
        whole = sum(latencies) if isinstance(self._objective, LatencyTargets) else value
        for task, gain in zip(self._all, gains):
            is_known = task.session is not None or task.phase in ("small", "failed")
            task.expected_gain = gain / whole if whole and is_known else None
        shares = [t.expected_gain for t in self._all if t.expected_gain is not None]
        self._expected = sum(shares) if shares and len(shares) == len(self._all) else None
        return sum(gains) / value if value else 0.0

    def _open(self, task: ModelTask, expected: int | None) -> bool:
        """Begins a task's session."""
        try:
            self._session(task, expected, is_planned=self._budget.trials is None)
        except StormdropError as error:
            task.failure = Failure("schedule", str(error))
            self._give_up(task)
            return False
        return True

    def _session(
        self, task: ModelTask, trials: int | None, seconds: float | None = None, is_planned: bool = False
    ) -> Session:
        """Opens the session of a task, and charges its duration to the task."""
        started = self._budget.clock()
        measurer = task.resources.measurer
        if isinstance(measurer, Measurer):
            measurer.warm_up(task.task)  # its data is made while its sketches are
        try:
            session = Session(
                task.task,
                task.resources,
                start=self._start,
                trials=trials,
                seconds=seconds,
                is_planned=is_planned,
                observer=task,
                spaces=self._spaces,
                siblings=self._siblings(task),
            )
            task.begin(session)
        finally:
            task.opening_seconds += self._budget.clock() - started
        return session

    def _siblings(self, task: ModelTask) -> list[Source]:
        """Returns the leaders of related tasks that have gained since this task last received them; the nearest few."""
        if task.resources.reuse.mode == "off":
            return []
        leaders = {
            other: other.leader
            for other in self._all
            if other is not task
            and other.leader is not None
            and other.best is not None
            and (other.session is None or other.leader != other.session.default)
            and other.best.value <= (1 - SIBLING_GAIN) * self._passed.get((task, other), inf)
        }
        siblings = related(task.task, ((o.task, leader) for o, leader in leaders.items()), MOST_SIBLINGS)
        for other in leaders:
            assert other.best is not None
            self._passed[task, other] = other.best.value
        return siblings

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
        return sorted((t for t in self._all if t.needs_proof(self._settings.gain)), key=lambda t: t.gain, reverse=True)

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
        try:
            task.finish()
        except RunError as error:
            task.best, task.failure = None, Failure("wrong", str(error))
            self._give_up(task)
