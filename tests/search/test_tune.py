"""The loop with a measurer that replays a formula: real sketches, no compiler, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from stormdrop.errors import RunError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.ops.catalogue import build
from stormdrop.search.tune import BATCH, Event, Measured, NewBest, Retiming, RoundEnded, TaskEnded, TaskFailed, TaskStarted, tune
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import cross

TARGET = cross("avx2").with_threads(2)
Rule = Callable[[Schedule], Result]


def timing(seconds: float) -> Timing:
    return Timing(seconds, 0.0, 10, 0.02)


def by_knobs(schedule: Schedule) -> Result:
    return timing(1e-3 * (1 + sum(value for _, value in schedule.values)))


@dataclass
class Replay:
    """Gives every schedule the result of a rule; interrupts the batch numbered `interrupt`."""

    rule: Rule = by_knobs
    retimed: Rule | None = None
    interrupt: int | None = None
    bests: list[float | None] = field(default_factory=list[float | None])

    def measure(self, task: Task, candidates: Sequence[Schedule], best: float | None = None) -> list[Result]:
        if len(self.bests) == self.interrupt:
            raise KeyboardInterrupt
        self.bests.append(best)
        return [self.rule(s) for s in candidates]

    def retime(self, task: Task, candidates: Sequence[Schedule], rounds: int) -> list[Result]:
        return [(self.retimed or self.rule)(s) for s in candidates]


def task() -> Task:
    return build("GMM", [1, 37, 41, 29])


def test_the_fastest_schedule_wins_and_every_trial_is_kept() -> None:
    measurer, events = Replay(), list[Event]()
    tuned = tune(task(), TARGET, measurer, 40, seed=1, listen=events.append)
    seconds = [t.result.seconds for t in tuned.history if isinstance(t.result, Timing)]
    assert len(seconds) == tuned.trials == 40
    assert tuned.seconds == min(seconds)
    assert by_knobs(tuned.best) == timing(tuned.seconds)
    assert tuned.failed == 0
    assert tuned.median_build_seconds == 0.02
    assert len({t.schedule for t in tuned.history}) == 40


def test_events_tell_the_whole_story() -> None:
    events = list[Event]()
    tuned = tune(task(), TARGET, Replay(), 40, listen=events.append)
    assert isinstance(events[0], TaskStarted)
    assert events[-1] == TaskEnded(tuned)
    assert [e.number for e in events if isinstance(e, Measured)] == list(range(1, 41))
    assert [e.measured for e in events if isinstance(e, RoundEnded)] == [BATCH, 2 * BATCH, 40]
    bests = [e.seconds for e in events if isinstance(e, NewBest)]
    assert bests == sorted(bests, reverse=True)
    assert sum(isinstance(e, Retiming) for e in events) == 1


def test_the_best_so_far_is_passed_on_for_early_stops() -> None:
    measurer = Replay()
    tune(task(), TARGET, measurer, 3 * BATCH)
    first, *rest = measurer.bests
    assert first is None
    assert all(best is not None for best in rest)


def test_the_second_timing_decides_among_the_finalists() -> None:
    def slower(schedule: Schedule) -> Result:
        result = by_knobs(schedule)
        assert isinstance(result, Timing)
        return timing(1.0 - result.seconds)

    tuned = tune(task(), TARGET, Replay(retimed=slower), 40)
    assert tuned.seconds > 0.5


def test_a_finalist_that_fails_in_the_end_does_not_win() -> None:
    tuned = tune(task(), TARGET, Replay(), 40)
    again = tune(task(), TARGET, Replay(retimed=lambda s: Failure("wrong", "x") if s == tuned.best else by_knobs(s)), 40)
    assert again.best != tuned.best


def test_failures_are_counted_and_cost_only_themselves() -> None:
    def rule(schedule: Schedule) -> Result:
        return Failure("crash", "signal 11") if sum(v for _, v in schedule.values) % 3 == 0 else by_knobs(schedule)

    tuned = tune(task(), TARGET, Replay(rule), 60)
    assert 0 < tuned.failed < 60
    assert isinstance(rule(tuned.best), Timing)


def test_if_everything_fails_the_first_failure_is_told() -> None:
    events = list[Event]()
    with pytest.raises(RunError, match=r"none of 20 candidates could be timed; the first: build: no such instruction"):
        tune(task(), TARGET, Replay(lambda _: Failure("build", "no such instruction")), 20, listen=events.append)
    assert events[-1] == TaskFailed(Failure("build", "no such instruction"))


def test_an_interrupt_keeps_what_is_known() -> None:
    tuned = tune(task(), TARGET, Replay(interrupt=2), 500)
    assert tuned.interrupted
    assert tuned.trials == 2 * BATCH


def test_an_interrupt_before_anything_is_known_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt):
        tune(task(), TARGET, Replay(interrupt=0), 500)
