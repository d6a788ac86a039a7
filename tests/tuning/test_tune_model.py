"""Tuning a whole model with a measurer that replays a formula and moves a clock: real sketches, no compiler."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from stormdrop.base.errors import RunError, UserError
from stormdrop.device.host import detect
from stormdrop.graph.builder import GraphBuilder
from stormdrop.graph.partition import Partition, partition
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.store.store import Store, StoreFull
from stormdrop.target import Surroundings
from stormdrop.target.cpu import cross
from stormdrop.target.machine import Target
from stormdrop.testing.tables import AnsweringMeasurer, Request
from stormdrop.tuning.divide import Standing
from stormdrop.tuning.events import Ended, Event, Measured, Moved, Proving, Started, Warned, ignore
from stormdrop.tuning.loop import ENOUGH, FIRST, PATIENCE_SECONDS
from stormdrop.tuning.model_task import estimated_seconds
from stormdrop.tuning.objectives import LatencyTargets, TotalLatency
from stormdrop.tuning.strategies import Context, RandomSearch
from stormdrop.tuning.strategy import Strategy
from stormdrop.tuning.tune import MODEL_SETTINGS
from stormdrop.tuning.tuned import Tuned
from tests.support.graphs import floats, graph_of
from tests.support.own_rules import Reverse
from tests.support.tuning import tune_models

TARGET = cross("avx2").with_threads(2)
Rule = Callable[[Task, Schedule], Result]


def model(*widths: int, rows: int = 24) -> Partition:
    """relu(x @ w) again and again, from the first width to the last: equal layers are one task."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    x = b.input("x", (rows, widths[0]), "f32")
    for k, n in pairwise(widths):
        x = b.emit("Relu", b.emit("MatMul", x, b.constant(floats(rng, k, n)), transpose_a=False, transpose_b=False))
    return partition(graph_of(b, x))


def convolutions() -> Partition:
    b, ones = GraphBuilder(), (1, 1)
    x = b.input("x", (1, 6, 7, 5), "f32")
    w = b.constant(floats(np.random.default_rng(0), 3, 3, 5, 9))
    y = b.emit(
        "Conv", x, w, kernel=(3, 3), strides=ones, dilations=ones, before=ones, after=ones, groups=1, layout="NHWC"
    )
    return partition(graph_of(b, y), ())


def with_a_tiny_one() -> Partition:
    """A product that takes milliseconds, and one of microseconds."""
    b, rng = GraphBuilder(), np.random.default_rng(0)
    large, small = b.input("x", (512, 2048), "f32"), b.input("y", (3, 5), "f32")
    products = [
        b.emit("MatMul", x, b.constant(floats(rng, x.shape[1], n)), transpose_a=False, transpose_b=False)
        for x, n in ((large, 1024), (small, 7))
    ]
    return partition(graph_of(b, *products))


def timing(seconds: float) -> Timing:
    return Timing(seconds, 0.0, 10, 0.02, samples=(seconds,) * 9)


def by_knobs(task: Task, schedule: Schedule) -> Result:
    """More work takes longer, and so do larger knobs."""
    return timing(task.flops * 1e-9 * (1 + 0.1 * sum(value for _, value in schedule.values)))


@dataclass
class Fake(AnsweringMeasurer):
    """Gives every schedule the result of a rule; every candidate takes some seconds of a clock of its own."""

    rule: Rule = by_knobs
    proved: Rule | None = None
    before: Callable[[int], None] = lambda _: None
    candidate_seconds: float = 0.05
    now: float = 0.0
    batches: list[tuple[Task, list[Schedule]]] = field(default_factory=list[tuple[Task, list[Schedule]]])
    proofs: list[tuple[Task, Schedule]] = field(default_factory=list[tuple[Task, Schedule]])

    def clock(self) -> float:
        return self.now

    def answers(self, asked: Request) -> list[Result]:
        task, candidates = asked.task, asked.candidates
        match asked.kind:
            case "measure":
                self.before(len(self.batches))
                self.batches.append((task, list(candidates)))
                self.now += self.candidate_seconds * len(candidates)
            case "retime":
                self.now += 0.01 * asked.rounds * len(candidates)
            case "prove":
                self.proofs += [(task, s) for s in candidates]
                self.now += 0.3
                return [(self.proved or self.rule)(task, s) for s in candidates]
        return [self.rule(task, s) for s in candidates]


class AlikeInTurns(Fake):
    """What was faster alone was so by luck."""

    def answers(self, asked: Request) -> list[Result]:
        return [timing(1e-4) for _ in asked.candidates] if asked.kind == "retime" else super().answers(asked)


def tuned_with(fake: Fake, parts: Partition, events: list[Event] | None = None, **more: object) -> Tuned:
    given: Any = more
    (tuned,) = tune_models(
        [parts],
        TARGET,
        measurer=fake,
        clock=fake.clock,
        listen=ignore if events is None else events.append,
        **given,
    )
    return tuned


@pytest.fixture(autouse=True)
def _default_interrupts():  # pyright: ignore[reportUnusedFunction]
    """Shells' background jobs ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_all_tasks_get_the_best_that_was_measured_and_the_estimates_are_their_sums() -> None:
    parts, fake = model(32, 48, 40), Fake()
    tuned = tuned_with(fake, parts, trials=60)
    assert [t.id for t in tuned.tasks] == ["t0", "t1"]
    assert (tuned.trials, tuned.stopped, tuned.failed) == (60, "trials", 0)
    for use, t in zip(parts.tasks, tuned.tasks):
        results = [by_knobs(task, s) for task, batch in fake.batches if task is use.task for s in batch]
        assert t.schedule is not None
        assert t.seconds is not None
        assert t.seconds == min(r.seconds for r in results if isinstance(r, Timing))
        assert by_knobs(use.task, t.schedule) == timing(t.seconds)
        assert by_knobs(use.task, default_schedule(use.task, TARGET)) == timing(t.default_seconds or 0)
        assert tuned.schedules(use.task) == t.schedule
        assert tuned.defaults(use.task) == default_schedule(use.task, TARGET)
        assert (t.verified, t.ended) == (True, "proved")
    assert tuned.seconds == pytest.approx(sum(t.count * (t.seconds or 0) for t in tuned.tasks))
    assert tuned.default_seconds == pytest.approx(sum(t.count * (t.default_seconds or 0) for t in tuned.tasks))
    assert tuned.seconds < tuned.default_seconds
    assert tuned.schedules(model(8, 8).tasks[0].task) is None


def test_the_winners_by_a_users_value_are_what_compiling_takes() -> None:
    def slowest(result: Timing) -> float:
        return -1e3 * result.seconds

    parts, fake = model(32, 48, 40), Fake()
    with Store.in_memory() as store:
        tuned_with(Fake(), parts, trials=40, store=store, search="random")
        fastest = {use.id: store.best(use.task, TARGET) for use in parts.tasks}
        tuned = tuned_with(fake, parts, trials=60, store=store, search="random", kernel_value=slowest)
        for use, t in zip(parts.tasks, tuned.tasks):
            times = [by_knobs(task, s) for task, batch in fake.batches if task is use.task for s in batch]
            slow, schedule = max(r.seconds for r in times if isinstance(r, Timing)), tuned.schedules(use.task)
            assert schedule is not None
            assert by_knobs(use.task, schedule) == timing(slow)
            assert (t.seconds, t.known) == (slow, 0)
            assert by_knobs(use.task, default_schedule(use.task, TARGET)) == timing(t.default_seconds or 0)
            before, kept = fastest[use.id], store.best(use.task, TARGET)
            assert before is not None
            assert kept is not None
            assert kept.schedule == before.schedule
    assert any(t.verified and t.ended == "proved" for t in tuned.tasks)


def test_a_user_brings_a_strategy_and_rules() -> None:
    made: list[Context] = []

    def mine(context: Context) -> Strategy:
        made.append(context)
        return RandomSearch(context.spaces, context.rng)

    parts, rules = convolutions(), (*RULES, Reverse())
    tuned = tuned_with(Fake(), parts, trials=20, search=mine, rules=rules)
    assert tuned.strategy == "mine"
    (use,) = parts.tasks
    assert len(made[0].spaces) == len(sketches(use.task, TARGET, rules)) == 2 * len(sketches(use.task, TARGET))


def test_every_task_is_measured_with_its_default_before_any_gets_more() -> None:
    parts, fake = model(32, 48, 40, 24), Fake()
    tuned_with(fake, parts, trials=90)
    first = fake.batches[: len(parts.tasks)]
    assert {task.digest for task, _ in first} == {use.task.digest for use in parts.tasks}
    assert all(default_schedule(task, TARGET) in batch and len(batch) <= FIRST for task, batch in first)
    estimates = [estimated_seconds(task, TARGET) for task, _ in first]
    assert estimates == sorted(estimates, reverse=True)


def test_trials_go_where_the_time_is() -> None:
    parts = model(64, 64, 64, 64, 16)  # three equal layers, and one of a quarter
    tuned = tuned_with(Fake(), parts, trials=400, search="random")
    large, small = tuned.tasks
    assert (large.count, small.count) == (3, 1)
    assert large.trials > 2.5 * small.trials


def test_without_a_budget_search_ends_when_little_more_is_expected_and_says_how_much() -> None:
    settings = replace(MODEL_SETTINGS, patience=None)
    tuned = tuned_with(Fake(), model(32, 48, 40), search="random", settings=settings)
    assert tuned.stopped == "no further gain"
    assert 0 < (tuned.expected_gain or 0.0) < ENOUGH
    assert tuned.expected_gain == pytest.approx(sum(t.expected_gain or 0.0 for t in tuned.tasks))
    slow = tuned_with(Fake(candidate_seconds=0.5), model(32, 48, 40), search="random", settings=settings)
    assert slow.stopped == "no further gain"
    assert slow.trials < tuned.trials  # a minute is fewer candidates


def test_what_more_search_may_gain_is_unknown_while_tasks_are_unmeasured() -> None:
    parts = model(32, 48, 40, 24)
    few = tuned_with(Fake(), parts, trials=2)
    assert few.expected_gain is None
    assert [t.expected_gain is None for t in few.tasks] == [t.trials == 0 for t in few.tasks]
    short = tuned_with(Fake(), parts, trials=3 * FIRST)  # ends with the first round of the last task
    assert short.expected_gain is not None
    assert short.expected_gain > 0


def test_expected_gains_are_those_after_the_proofs() -> None:
    """Kernels that were lucky once, and lose in turns, leave their tasks where they began."""
    parts, goals = model(32, 48, 40), list[float]()

    class Noting(TotalLatency):
        def value(self, latencies: Sequence[float]) -> float:
            goals.append(sum(latencies))
            return goals[-1]

    tuned = tuned_with(Fake(), parts, trials=60, search="random", objective=Noting())
    assert goals[-1] == pytest.approx(tuned.seconds)
    assert tuned.expected_gain == pytest.approx(sum(t.expected_gain or 0.0 for t in tuned.tasks))
    unlucky = tuned_with(AlikeInTurns(), parts, trials=60, search="random", objective=Noting())
    assert goals[-1] == pytest.approx(unlucky.seconds) == pytest.approx(unlucky.default_seconds)


def test_the_total_that_is_told_is_of_one_moment() -> None:
    events = list[Event]()
    tuned_with(Fake(), model(32, 48, 40), events, trials=60)
    moved = [e for e in events if isinstance(e, (Measured, Moved))]
    assert moved[0].expected_gain is None
    totals = [e.expected_gain for e in moved if e.expected_gain is not None]
    assert len(set(totals)) > 1


def test_a_gain_towards_latency_targets_is_told_as_a_share_of_the_latency() -> None:
    parts = model(32, 48, 40)
    plain = tuned_with(Fake(), parts, trials=40, search="random")
    nearly = LatencyTargets((0.99 * plain.seconds,))
    assert tuned_with(Fake(), parts, trials=40, search="random", objective=nearly).expected_gain == plain.expected_gain


def test_storms_of_a_model_end_when_they_stop_gaining_unless_trials_were_asked_for() -> None:
    flat = Fake(lambda task, s: timing(1e-4))
    timed = tuned_with(flat, model(32, 48), seconds=600.0, search="storm")
    assert timed.stopped == "nothing left"
    assert timed.trials <= MODEL_SETTINGS.storm_patience + 3 * MODEL_SETTINGS.batch
    forced = tuned_with(Fake(lambda task, s: timing(1e-4)), model(32, 48), trials=2000, search="storm")
    assert forced.trials >= (MODEL_SETTINGS.patience or 0)


def test_a_task_that_gains_nothing_for_many_rounds_ends() -> None:
    tuned = tuned_with(Fake(lambda task, s: timing(1e-4)), model(32, 48), trials=2000, search="random")
    patience = MODEL_SETTINGS.patience or 0
    assert patience <= tuned.trials <= patience + 2 * MODEL_SETTINGS.batch
    assert tuned.stopped == "nothing left"


def test_a_task_that_nobody_would_notice_is_measured_once() -> None:
    parts, fake = with_a_tiny_one(), Fake()
    tuned = tuned_with(fake, parts, trials=30)
    large, small = tuned.tasks
    assert (small.trials, small.ended) == (1, "small")
    assert small.schedule == default_schedule(small.task, TARGET)
    assert not small.verified
    assert large.trials == 29
    assert all(task is not small.task for task, _ in fake.proofs)


def test_a_small_task_that_turns_out_slow_is_searched_after_all() -> None:
    tuned = tuned_with(Fake(lambda task, s: timing(1e-2)), with_a_tiny_one(), trials=60)
    assert min(t.trials for t in tuned.tasks) > 10


def test_a_budget_of_seconds_covers_the_proofs() -> None:
    parts = model(32, 48, 40, 24, 20)
    fake = Fake()
    events = list[Event]()
    tuned = tuned_with(fake, parts, events, seconds=30.0)
    assert tuned.stopped == "seconds"
    assert 25.0 < fake.now <= 33.0
    assert all(t.verified for t in tuned.tasks)
    (proving,) = [e for e in events if isinstance(e, Proving)]
    assert proving.tasks == 4
    assert proving.elapsed < 30.0 - 4 * 0.3


def test_the_seconds_are_kept_even_where_they_are_far_too_few() -> None:
    parts = model(32, 48, 40, 24, 20, 28)
    fake = Fake(candidate_seconds=1.0)
    events = list[Event]()
    tuned = tuned_with(fake, parts, events, seconds=3.0)
    assert fake.now <= 5.0
    assert [t.id for t in tuned.tasks if t.seconds is not None] == ["t1"]  # the heaviest comes first
    assert any(isinstance(e, Warned) and "before 4 of 5 tasks were measured" in e.message for e in events)
    assert tuned.schedules(parts.tasks[-1].task) is None


def test_where_nothing_is_faster_the_default_stays_and_nothing_is_proved() -> None:
    fake = Fake(lambda task, s: timing(1e-4))
    tuned = tuned_with(fake, model(32, 48), trials=40)
    assert tuned.tasks[0].schedule == default_schedule(tuned.tasks[0].task, TARGET)
    assert (tuned.tasks[0].ended, tuned.tasks[0].verified, fake.proofs) == ("default", False, [])
    assert tuned.seconds == tuned.default_seconds


def test_every_task_that_was_measured_has_a_verdict_also_where_its_default_stays() -> None:
    store = Store.in_memory()
    for parts, fake in ((model(32, 48), Fake(lambda task, s: timing(1e-4))), (with_a_tiny_one(), Fake())):
        tuned = tuned_with(fake, parts, trials=40, store=store)
        for t in tuned.tasks:
            verdict = store.verdict(t.task, TARGET)
            assert verdict is not None
            assert verdict.schedule == t.schedule
            assert verdict.against == t.default
            assert (verdict.method == "duel") == t.verified


def test_a_default_that_was_not_timed_in_this_run_has_no_verdict() -> None:
    def without_seeds(context: Context) -> Strategy:
        return RandomSearch(context.spaces, context.rng)

    parts, store = model(32, 48), Store.in_memory()
    task = parts.tasks[0].task
    default = default_schedule(task, TARGET)
    known = Store.in_memory()
    tuned_with(Fake(lambda task, s: timing(1e-9)), parts, trials=1, store=known)
    store.add(known.trials(task, TARGET))  # as if a file of lines had said so

    class Losing(Fake):
        def answers(self, asked: Request) -> list[Result]:
            return [timing(1e-5 if s == default else 1e-4) for s in asked.candidates]

    tuned = tuned_with(Losing(), parts, trials=8, store=store, search=without_seeds)
    assert tuned.tasks[0].schedule == default
    verdict = store.verdict(task, TARGET)
    assert verdict is None or (verdict.method, verdict.seconds) == ("duel", 1e-5)  # a duel times and proves it


def test_what_was_not_proved_in_time_is_not_used() -> None:
    parts, store = model(32, 48, 40), Store.in_memory()

    class Slow(Fake):
        def answers(self, asked: Request) -> list[Result]:
            self.now += 100.0 if asked.kind == "retime" else 0.0
            return super().answers(asked)

    tuned = tuned_with(Slow(), parts, seconds=20.0, search="random", store=store)
    proved, late = sorted(tuned.tasks, key=lambda t: t.ended == "not proved")
    assert (proved.ended, late.ended) == ("proved", "not proved")
    assert not late.verified
    assert late.schedule == late.default
    assert late.seconds == late.default_seconds
    assert store.verdict(late.task, TARGET) is None


def test_an_earlier_verdict_stays_where_nothing_is_faster() -> None:
    parts, store = model(32, 48), Store.in_memory()
    before = tuned_with(Fake(), parts, trials=60, store=store)
    flat = Fake(lambda task, s: timing(1e-9))
    after = tuned_with(flat, parts, trials=20, store=store)
    assert before.tasks[0].schedule != before.tasks[0].default
    assert after.tasks[0].schedule == before.tasks[0].schedule
    assert flat.proofs == []
    assert after.tasks[0].verified


def test_a_verdict_that_stays_keeps_the_seconds_that_decided_it() -> None:
    """On a busier day, a proved kernel is not slower than a default schedule that was timed on a better one."""
    parts, store = model(32, 48, 40), Store.in_memory()
    before = tuned_with(Fake(), parts, trials=60, store=store)

    def on_a_busy_day(task: Task, schedule: Schedule) -> Result:
        quiet = by_knobs(task, schedule)
        assert isinstance(quiet, Timing)
        return timing(3 * quiet.seconds)

    after = tuned_with(Fake(on_a_busy_day), parts, trials=6, store=store)
    times = [[(t.ended, t.seconds, t.default_seconds) for t in tuned.tasks] for tuned in (before, after)]
    assert times[0] == times[1]
    assert after.seconds < after.default_seconds


def test_a_winner_that_was_lucky_once_loses_against_the_default_in_turns() -> None:
    parts = model(32, 48)
    default = default_schedule(parts.tasks[0].task, TARGET)

    tuned = tuned_with(AlikeInTurns(), parts, trials=40)
    assert tuned.tasks[0].schedule == default
    assert (tuned.tasks[0].origin, tuned.tasks[0].ended) == ("default", "confirmed")
    assert tuned.tasks[0].gain == 0


def test_a_wrong_winner_is_never_recorded_as_verified() -> None:
    parts, store = model(32, 48), Store.in_memory()
    task = parts.tasks[0].task
    default = default_schedule(task, TARGET)
    fake = Fake(proved=lambda task, s: by_knobs(task, s) if s == default else Failure("wrong", "one element differs"))
    events = list[Event]()
    tuned = tuned_with(fake, parts, events, trials=40, store=store)
    assert tuned.tasks[0].schedule == default
    proved = [r.schedule for r in store.trials(task, TARGET) if r.verified]
    assert proved == [default]
    assert sum(isinstance(e, Warned) and "one element differs" in e.message for e in events) >= 1


def test_a_second_run_continues_from_the_store() -> None:
    parts, store = model(32, 48, 40), Store.in_memory()
    first = Fake()
    before = tuned_with(first, parts, trials=50, store=store)
    again = Fake()
    events = list[Event]()
    after = tuned_with(again, parts, events, trials=50, store=store)
    assert isinstance(events[0], Started)
    assert (events[0].known, events[0].known_tasks) == (52, 2)  # the winners were recorded once more
    assert after.seconds <= before.seconds
    known = {(task.digest, s) for task, batch in first.batches for s in batch}
    repeated = [(task.digest, s) for task, batch in again.batches for s in batch if (task.digest, s) in known]
    assert 0 < len(repeated) <= 2 * MODEL_SETTINGS.known
    assert [t.default_seconds for t in after.tasks] == [t.default_seconds for t in before.tasks]


def test_what_was_proved_before_is_not_proved_again() -> None:
    parts, store = model(32, 48), Store.in_memory()
    tuned_with(Fake(), parts, trials=400, store=store)
    again = Fake()
    tuned = tuned_with(again, parts, trials=8, store=store)
    assert again.proofs == []
    assert (tuned.tasks[0].verified, tuned.tasks[0].ended) == (True, "proved")


def test_what_there_is_no_time_for_is_taken_from_the_store() -> None:
    parts, store = model(32, 48, 40, 24, 20, 28), Store.in_memory()
    before = tuned_with(Fake(), parts, trials=300, store=store)
    events = list[Event]()
    after = tuned_with(Fake(candidate_seconds=1.0), parts, events, seconds=2.0, store=store)
    assert [t.schedule for t in after.tasks] == [t.schedule for t in before.tasks]
    assert all(t.verified for t in after.tasks)
    assert [t.ended for t in after.tasks].count("known") == 4
    assert not any(isinstance(e, Warned) for e in events)


def test_records_name_the_model_and_its_temperature() -> None:
    parts, store = model(32, 48), Store.in_memory()
    small = replace(TARGET, l3_bytes=parts.constant_bytes - 1)
    (tuned,) = tune_models([parts], small, measurer=Fake(), trials=8, store=store)
    assert tuned.cold
    assert tuned.defaults(parts.tasks[0].task) == default_schedule(
        parts.tasks[0].task, small.with_cold_weights(True)
    )  # as compiling chooses
    assert {r.model for r in store.trials(parts.tasks[0].task, small, cold=True)} == {"g"}
    assert store.trials(parts.tasks[0].task, small, cold=False) == []
    assert not tuned_with(Fake(), parts, trials=8).cold
    assert tuned_with(Fake(), parts, trials=8, cold=True).cold


def test_ctrl_c_stops_after_the_batch_and_proves_what_has_gained() -> None:
    parts, store = model(32, 48, 40), Store.in_memory()
    fake = Fake(before=lambda n: os.kill(os.getpid(), signal.SIGINT) if n == 4 else None)
    events = list[Event]()
    tuned = tuned_with(fake, parts, events, trials=500, store=store)
    assert tuned.interrupted
    assert len(fake.batches) == 5
    assert all(t.verified for t in tuned.tasks)
    assert any(isinstance(e, Warned) and "Ctrl-C again aborts" in e.message for e in events)
    assert sum(store.known(use.task, TARGET) for use in parts.tasks) == tuned.trials + len(fake.proofs)


def test_ctrl_c_says_how_long_proofs_may_take_and_what_was_dropped() -> None:
    class Slow(Fake):
        def answers(self, asked: Request) -> list[Result]:
            self.now += 100.0 if asked.kind == "retime" else 0.0
            return super().answers(asked)

    fake = Slow(before=lambda n: os.kill(os.getpid(), signal.SIGINT) if n == 4 else None)
    events = list[Event]()
    tuned = tuned_with(fake, model(32, 48, 40), events, trials=500, search="random")
    assert sorted(t.ended for t in tuned.tasks) == ["not proved", "proved"]
    first, last = (e.message for e in events if isinstance(e, Warned))
    assert f"for about {PATIENCE_SECONDS:.0f} s at most" in first
    assert last.endswith(": 1 of the winners")


def test_a_second_ctrl_c_aborts_and_everything_measured_is_kept() -> None:
    def interrupt(n: int) -> None:
        for _ in range(2 if n == 3 else 0):
            os.kill(os.getpid(), signal.SIGINT)

    parts, store = model(32, 48, 40), Store.in_memory()
    fake = Fake(before=interrupt)
    with pytest.raises(KeyboardInterrupt):
        tuned_with(fake, parts, trials=500, store=store)
    assert sum(store.known(use.task, TARGET) for use in parts.tasks) == sum(len(batch) for _, batch in fake.batches)


def test_a_task_that_cannot_be_timed_is_told_of_and_the_others_go_on() -> None:
    parts = model(32, 48, 40)
    broken = parts.tasks[0].task
    fake = Fake(lambda task, s: Failure("crash", "killed by SIGSEGV") if task is broken else by_knobs(task, s))
    events = list[Event]()
    tuned = tuned_with(fake, parts, events, trials=80)
    bad, good = tuned.tasks
    assert (bad.schedule, bad.seconds, bad.ended, bad.verified) == (None, None, "failed", False)
    assert bad.failed == bad.trials > FIRST
    assert "SIGSEGV" in bad.failure
    assert good.verified
    assert tuned.schedules(broken) is None
    (warning,) = [e.message for e in events if isinstance(e, Warned)]
    assert warning.startswith(f"t0 MatMul+Relu is left as it is: none of {bad.trials} candidates could be timed")


def test_nothing_timed_at_all_is_an_error_with_the_first_failure() -> None:
    with pytest.raises(RunError, match="none of its 2 tasks could be timed; the first: build: LLVM refuses"):
        tuned_with(Fake(lambda task, s: Failure("build", "LLVM refuses")), model(32, 48, 40), trials=80)


def test_wrong_budgets_and_strategies_are_refused() -> None:
    parts = model(32, 48)
    for name, wrong in (("trials", 0), ("seconds", -1.0), ("seconds", float("inf")), ("search", "drizzle")):
        with pytest.raises(UserError):
            tuned_with(Fake(), parts, None, **{name: wrong})


def test_a_model_without_kernels_is_tuned_at_once() -> None:
    b = GraphBuilder()
    tuned = tuned_with(Fake(), partition(graph_of(b, b.input("x", (3,), "f32"))))
    assert (tuned.tasks, tuned.seconds, tuned.stopped) == ((), 0.0, "nothing left")


def test_a_division_of_ones_own_decides() -> None:
    class Never:
        def next(self, standings: Sequence[object]) -> int | None:
            return None

    fake = Fake()
    tuned = tuned_with(fake, model(32, 48, 40), trials=500, divide=Never(), reuse="off")
    assert tuned.stopped == "nothing left"
    assert len(fake.batches) == 2


def test_events_tell_the_whole_story() -> None:
    events = list[Event]()
    tuned = tuned_with(Fake(), model(32, 48, 40), events, trials=60)
    assert isinstance(events[0], Started)
    assert [(r.id, r.label, r.count, r.seconds, r.known) for r in events[0].rows] == [
        ("t0", "MatMul+Relu", 1, None, 0),
        ("t1", "MatMul+Relu", 1, None, 0),
    ]
    assert events[-1] == Ended(tuned)
    moved = [e for e in events if isinstance(e, (Measured, Moved))]
    last = {e.row.id: e.row for e in moved}
    assert {k: (r.seconds, r.default_seconds, r.trials, r.phase) for k, r in last.items()} == {
        t.id: (t.seconds, t.default_seconds, t.trials, "proved") for t in tuned.tasks
    }
    assert Counter(e.row.phase for e in moved)["storm"] > 0


def test_the_report_for_scripts_holds_everything() -> None:
    import json

    tuned = tuned_with(Fake(), model(32, 48, 40), trials=20)
    report = json.loads(json.dumps(tuned.to_json(), allow_nan=False))
    assert (report["model"], report["trials"], report["stopped"], report["cold"]) == ("g", 20, "trials", False)
    assert report["estimated_seconds"] == pytest.approx(tuned.seconds)
    assert [Schedule.from_json(t["schedule"]) for t in report["tasks"]] == [t.schedule for t in tuned.tasks]


def test_a_small_model_is_tuned_for_real() -> None:
    parts, store = model(32, 48, 40), Store.in_memory()
    target = detect(2)
    (tuned,) = tune_models([parts], target, trials=12, store=store)
    assert tuned.trials == 12
    for t in tuned.tasks:
        assert t.seconds is not None
        assert 0 < t.seconds <= (t.default_seconds or 0)
        assert t.failed == 0
        assert t.verified or t.schedule == t.default
        verified = [r.schedule for r in store.trials(t.task, target) if r.verified]
        assert verified == ([t.schedule] if t.verified else [])


# ---- several models ------------------------------------------------------------------------------------------------


def tuned_together(fake: Fake, *models: Partition, **more: object) -> tuple[Tuned, ...]:
    given: Any = more
    return tune_models(models, TARGET, measurer=fake, clock=fake.clock, **given)


def test_models_share_the_tasks_they_have_in_common() -> None:
    one, two, fake = model(32, 48, 40), model(64, 32, 48, 48), Fake()
    first, second = tuned_together(fake, one, two, trials=120)
    assert [t.id for t in first.tasks] == ["t0", "t1"]
    assert [t.id for t in second.tasks] == ["t0", "t1", "t2"]
    assert first.tasks[0].task.digest == second.tasks[1].task.digest
    assert first.tasks[0].schedule == second.tasks[1].schedule
    assert first.tasks[0].trials == second.tasks[1].trials
    assert first.trials + second.trials - first.tasks[0].trials == 120
    for use, t in zip((*one.tasks, *two.tasks), (*first.tasks, *second.tasks)):
        assert t.task is use.task
        assert t.count == use.count
        assert t.ended == "proved"


def test_every_model_ends_with_its_own_result() -> None:
    events = list[Event]()
    found = tuned_together(Fake(), model(32, 48), model(64, 32, 48), trials=40, listen=events.append)
    assert [e.tuned for e in events if isinstance(e, Ended)] == list(found)
    started = events[0]
    assert isinstance(started, Started)
    assert started.name == "g, g"
    assert [(r.id, r.count) for r in started.rows] == [("t0", 2), ("t1", 1)]


def test_a_model_that_meets_its_target_gets_no_more_rounds() -> None:
    easy, hard = model(256, 300, rows=64), model(64, 80, rows=64)
    objective = LatencyTargets((1e6, 1e-9))
    first, second = tuned_together(Fake(), easy, hard, trials=200, search="random", objective=objective)
    assert first.trials <= FIRST
    assert second.trials > 100
    both = tuned_together(Fake(), easy, hard, trials=200, search="random", objective=LatencyTargets((1e6, 1e6)))
    assert {t.stopped for t in both} == {"target met"}


def test_models_of_two_temperatures_are_timed_apart() -> None:
    small, large = model(32, 48), model(32, 48, 400)
    between = replace(TARGET, l3_bytes=(small.constant_bytes + large.constant_bytes) // 2)
    fake, store = Fake(), Store.in_memory()
    found = tune_models([small, large], between, measurer=fake, clock=fake.clock, trials=30, store=store)
    assert [t.cold for t in found] == [False, True]
    shared = small.tasks[0].task
    assert [len(store.trials(shared, between, cold=cold)) > 0 for cold in (False, True)] == [True, True]


def test_candidates_are_timed_in_the_surroundings_of_the_largest_model_of_their_temperature(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny, small, large = model(32, 48), model(32, 48, 48), model(32, 48, 400)
    between = replace(TARGET, l3_bytes=(small.constant_bytes + large.constant_bytes) // 2)
    around: dict[bool, Surroundings | None] = {}

    class Noting(Fake):
        """Notes how it is asked to measure."""

        def __init__(self, target: Target, settings: MeasureSettings, **_: object) -> None:
            super().__init__()
            around[target.is_cold] = settings.surroundings

        def __enter__(self) -> Noting:
            return self

        def __exit__(self, *_: object) -> None: ...

        def warm_up(self, task: Task) -> None: ...

    monkeypatch.setattr("stormdrop.tuning.tune.Measurer", Noting)
    tune_models([tiny, small, large], between, trials=8)
    assert around == {False: small.surroundings, True: large.surroundings}


def test_a_models_arena_holds_the_operands_of_its_largest_kernel() -> None:
    parts = model(32, 48, 400, 8, rows=10)
    around = parts.surroundings
    assert around.constant_bytes == parts.constant_bytes == 4 * (32 * 48 + 48 * 400 + 400 * 8)
    assert around.arena_bytes == 4 * 10 * (48 + 400)
    assert around.touched_bytes == around.constant_bytes + around.arena_bytes


# ---- where schedules come from, and what they cost -----------------------------------------------------------------


def test_a_schedule_says_where_it_came_from() -> None:
    parts, store = model(32, 48), Store.in_memory()
    assert tuned_with(Fake(lambda task, s: timing(1e-4)), parts, trials=10).tasks[0].origin == "default"
    first = tuned_with(Fake(), parts, trials=20, search="storm", store=store).tasks[0]
    assert first.origin == "storm"
    droplets = tuned_with(Fake(), parts, trials=300, search="droplet").tasks[0]
    assert droplets.origin == "droplet"
    again = tuned_with(Fake(), parts, trials=1, store=store).tasks[0]
    assert (again.schedule, again.origin) == (first.schedule, "verdict")
    undecided = Store.in_memory()
    undecided.add(store.trials(first.task, TARGET))
    assert tuned_with(Fake(), parts, trials=2, search="random", store=undecided).tasks[0].origin == "stored"
    wider = model(32, 64)
    assert first.schedule is not None
    donated = refit(first.schedule, first.task, wider.tasks[0].task, TARGET)
    prefers_the_donor = Fake(lambda task, s: timing(1e-4 if s in donated else 1e-3))
    reused = tuned_with(prefers_the_donor, wider, trials=4, store=store, reuse="only").tasks[0]
    assert reused.schedule in donated
    assert reused.origin == "donor"


def test_duels_and_proofs_are_charged_to_their_task() -> None:
    fake = Fake()
    tuned = tuned_with(fake, model(32, 48, 40), trials=300)
    assert fake.proofs
    assert sum(t.spent for t in tuned.tasks) == pytest.approx(fake.now)


def test_sketches_and_donors_are_charged_to_their_task() -> None:
    fake = Fake()

    def slow_to_begin(context: Context) -> Strategy:
        fake.now += 2.0
        return RandomSearch(context.spaces, context.rng)

    tuned = tuned_with(fake, model(32, 48, 40), trials=60, search=slow_to_begin)
    assert sum(t.spent for t in tuned.tasks) == pytest.approx(fake.now)
    assert all(t.spent > 2.0 for t in tuned.tasks)


def test_tasks_of_two_temperatures_are_not_compared_in_their_rates() -> None:
    small, large = model(32, 48), model(32, 48, 400)
    between = replace(TARGET, l3_bytes=(small.constant_bytes + large.constant_bytes) // 2)
    fake, groups = Fake(), list[set[str]]()

    class Noting:
        def next(self, standings: Sequence[Standing]) -> int | None:
            groups.append({s.group for s in standings})
            return None

    tune_models([small, large], between, measurer=fake, clock=fake.clock, trials=60, divide=Noting())
    kinds = {key.split("/")[1] for key in groups[0]}
    assert kinds == {"warm", "cold"}


# ---- a store that takes no more ------------------------------------------------------------------------------------


def test_a_store_that_takes_no_more_is_given_up_once_for_all_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, store, attempts = model(32, 48, 40), Store.in_memory(), 0

    def full(self: Store, records: object) -> None:
        nonlocal attempts
        attempts += 1
        raise StoreFull("s.sqlite cannot grow")

    monkeypatch.setattr(Store, "add", full)
    events = list[Event]()
    tuned = tuned_with(Fake(), parts, events, trials=60, store=store)
    assert len(parts.tasks) > 1
    assert attempts == 1
    warnings = [e.message for e in events if isinstance(e, Warned)]
    assert warnings == ["what is measured from here on is not kept: s.sqlite cannot grow"]
    assert tuned.not_kept == "s.sqlite cannot grow"
    assert tuned_with(Fake(), parts, trials=60).not_kept == ""
