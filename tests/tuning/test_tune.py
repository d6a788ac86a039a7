"""The loop with a measurer that replays a formula: real sketches, no compiler, no clock."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from typing import Any

import numpy as np
import pytest

from stormdrop.base.errors import RunError, StormdropError, UserError
from stormdrop.builder.building import code_of
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.store.record import DEFAULT, Record
from stormdrop.store.store import Store
from stormdrop.store.verdict import Verdict
from stormdrop.target.cpu import cross
from stormdrop.testing.tables import AnsweringMeasurer, Request
from stormdrop.tuning.api import ModelKeywords, TaskKeywords, tune
from stormdrop.tuning.events import Ended, Event, Measured, Moved, Proving, Started, Warned
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.strategies import STRATEGIES, Context, RandomSearch
from stormdrop.tuning.strategy import Outcome, Proposal, Strategy
from stormdrop.tuning.tune import TuneOptions
from stormdrop.tuning.tuned import Trial, Tuned
from tests.support.records import VERSIONS, make_verdict

TARGET = cross("avx2").with_threads(2)
BATCH = TuneSettings().batch
Rule = Callable[[Schedule], Result]


def timing(seconds: float) -> Timing:
    return Timing(seconds, 0.0, 10, 0.02, samples=(seconds,) * 9)


def by_knobs(schedule: Schedule) -> Result:
    return timing(1e-3 * (1 + sum(value for _, value in schedule.values)))


@dataclass
class Replay(AnsweringMeasurer):
    """Gives every schedule the result of a rule; a batch may run something of the test's first."""

    rule: Rule = by_knobs
    retimed: Rule | None = None
    proved: Rule | None = None
    before: Callable[[int], None] = lambda _: None
    bests: list[float | None] = field(default_factory=list[float | None])
    batches: list[list[Schedule]] = field(default_factory=list[list[Schedule]])

    def answers(self, asked: Request) -> list[Result]:
        if asked.kind == "measure":
            self.before(len(self.bests))
            self.bests.append(asked.best)
            self.batches.append(list(asked.candidates))
            return [self.rule(s) for s in asked.candidates]
        retimed = self.retimed or self.rule
        return [((asked.kind == "prove" and self.proved) or retimed)(s) for s in asked.candidates]


def task() -> Task:
    return build("GMM", [1, 37, 41, 29])


def interrupt(at: int, times: int = 1) -> Callable[[int], None]:
    def before(batch: int) -> None:
        if batch == at:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)

    return before


@pytest.fixture(autouse=True)
def _default_interrupts():  # pyright: ignore[reportUnusedFunction]
    """Shells' background jobs ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("search", STRATEGIES)
def test_every_strategy_keeps_to_its_trials_and_measures_nothing_twice(search: str) -> None:
    tuned = tune(task(), TARGET, measurer=Replay(), trials=70, search=search, seed=1)
    seconds = [t.result.seconds for t in tuned.history if isinstance(t.result, Timing)]
    assert len(seconds) == tuned.trials <= 70
    assert tuned.seconds == min(seconds)
    assert by_knobs(tuned.best) == timing(tuned.seconds)
    assert len({t.schedule for t in tuned.history}) == tuned.trials
    assert tuned.failed == 0
    assert tuned.median_build_seconds == 0.02


@pytest.mark.parametrize("search", ["random", "storm", "storm+droplet"])
def test_equal_seeds_give_equal_searches(search: str) -> None:
    first, again, other = (tune(task(), TARGET, measurer=Replay(), trials=50, search=search, seed=s) for s in (3, 3, 4))
    assert [t.schedule for t in first.history] == [t.schedule for t in again.history]
    assert [t.schedule for t in first.history] != [t.schedule for t in other.history]


def test_the_default_schedule_is_among_the_first_candidates() -> None:
    measurer = Replay()
    tune(task(), TARGET, measurer=measurer, trials=BATCH)
    assert default_schedule(task(), TARGET) in measurer.batches[0]


def test_a_storm_ends_in_droplets_and_then_by_itself() -> None:
    settings = TuneSettings(storm_trials=40)
    tuned = tune(task(), TARGET, measurer=Replay(), settings=settings)
    phases = [t.phase for t in tuned.history]
    assert phases[:40] == ["storm"] * 40
    assert set(phases[40:]) == {"droplet"}
    assert tuned.stopped == "nothing left"


def test_a_storm_that_stops_gaining_gives_way_to_droplets() -> None:
    """Everything takes as long as everything else: the first batch gains, nothing after it does."""
    settings = TuneSettings(batch=8, storm_trials=200, storm_patience=32)
    replay = Replay(lambda _: timing(1e-3))
    tuned = tune(task(), TARGET, measurer=replay, settings=settings)
    storm = [t for t in tuned.history if t.phase == "storm"]
    assert 32 + 8 <= len(storm) <= 32 + 3 * 8  # one batch was asked for ahead
    assert {t.phase for t in tuned.history} == {"storm", "droplet"}


@pytest.mark.parametrize("search", ["random", "storm"])
def test_a_storm_without_a_budget_ends_when_it_stops_gaining(search: str) -> None:
    settings = TuneSettings(batch=8, storm_trials=200, storm_patience=32)
    tuned = tune(task(), TARGET, measurer=Replay(lambda _: timing(1e-3)), settings=settings, search=search)
    assert (tuned.stopped, tuned.trials) == ("no further gain", 40)
    capped = tune(task(), TARGET, measurer=Replay(), settings=TuneSettings(batch=8, storm_trials=24), search=search)
    assert (capped.stopped, capped.trials) == ("trials", 24)


class Hesitant:
    """Has nothing to say while a proposal of its own is not told, and something afterwards."""

    phase = "hesitant"
    eager = True

    def __init__(self, context: Context) -> None:
        self._inner = RandomSearch(context.spaces, context.rng)
        self._waiting, self._told = False, 0

    def ask(self, n: int) -> Proposal:
        if self._waiting or self._told == 3:
            return Proposal(())
        self._waiting = True
        return self._inner.ask(2)

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        self._waiting, self._told = False, self._told + 1


def test_who_has_nothing_to_say_ahead_is_asked_again_when_told() -> None:
    assert tune(task(), TARGET, measurer=Replay(), trials=100, search=Hesitant).trials == 6


def test_events_tell_the_whole_story() -> None:
    events = list[Event]()
    tuned = tune(task(), TARGET, measurer=Replay(), trials=2 * BATCH + 6, search="random", listen=events.append)
    assert isinstance(events[0], Started)
    assert not events[0].is_model
    assert events[-1] == Ended(tuned)
    measured = [e for e in events if isinstance(e, Measured)]
    assert [e.trial.number for e in measured] == list(range(1, 2 * BATCH + 7))
    rounds = [e.row.trials for e in events if isinstance(e, Moved) and e.row.phase == "random"]
    assert rounds == [BATCH, 2 * BATCH, 2 * BATCH + 6]
    bests = [e.row.seconds for e in measured if e.is_best]
    assert bests == sorted((seconds for seconds in bests if seconds), reverse=True)
    assert [e.tasks for e in events if isinstance(e, Proving)] == [1]
    assert [e.row.phase for e in events if isinstance(e, Moved)][-2:] == ["final", "proved"]


def test_the_best_so_far_is_passed_on_for_early_stops() -> None:
    measurer = Replay()
    tune(task(), TARGET, measurer=measurer, trials=3 * BATCH, search="random")
    first, *rest = measurer.bests
    assert first is None
    assert all(best is not None for best in rest)


def test_the_second_timing_decides_among_the_finalists() -> None:
    def slower(schedule: Schedule) -> Result:
        result = by_knobs(schedule)
        assert isinstance(result, Timing)
        return timing(1.0 - result.seconds)

    tuned = tune(task(), TARGET, measurer=Replay(retimed=slower), trials=40, search="random")
    assert tuned.seconds > 0.5


def test_a_search_at_a_temperature_estimates_and_keeps_at_it() -> None:
    for target, cold in ((TARGET, True), (TARGET.with_cold_weights(True), None)):
        with Store.in_memory() as store:
            tuned = tune(task(), target, measurer=Replay(), trials=5, cold=cold, store=store)
            assert tuned.target == TARGET.with_cold_weights(True)
            assert store.known(task(), tuned.target) > 0
            assert store.known(task(), TARGET) == 0


def test_a_winner_that_fails_its_proof_is_never_recorded() -> None:
    honest = tune(task(), TARGET, measurer=Replay(), trials=40, search="random")

    def proof(schedule: Schedule) -> Result:
        return Failure("wrong", "one element differs") if schedule == honest.best else by_knobs(schedule)

    events = list[Event]()
    with Store.in_memory() as store:
        again = tune(
            task(), TARGET, measurer=Replay(proved=proof), trials=40, search="random", listen=events.append, store=store
        )
        kept = store.best(task(), TARGET)
        assert verdict(store).schedule == again.best
    assert again.best != honest.best
    assert any(isinstance(e, Warned) and "one element differs" in e.message for e in events)
    assert kept is not None
    assert kept.verified
    assert kept.schedule == again.best


# ---- verdicts


def verdict(store: Store) -> Verdict:
    found = store.verdict(task(), TARGET)
    assert found is not None
    return found


def test_a_verdict_names_what_was_decided_against_what_and_the_code() -> None:
    with Store.in_memory() as store:
        tuned = tune(task(), TARGET, measurer=Replay(), trials=40, search="random", store=store)
        found = verdict(store)
    default = default_schedule(task(), TARGET)
    assert (found.schedule, found.against) == (tuned.best, default)
    assert timing(found.seconds) == by_knobs(tuned.best)
    assert timing(found.against_seconds) == by_knobs(default)
    assert found.seconds == tuned.seconds
    assert (found.method, found.provenance, found.is_timing_old) == ("duel", "measured", False)
    assert found.rounds > 0
    assert "reference" in found.proof
    assert found.code == code_of(task(), tuned.best, TARGET)


def test_where_nothing_is_faster_the_verdict_is_the_default_schedule_itself() -> None:
    with Store.in_memory() as store:
        tuned = tune(task(), TARGET, measurer=Replay(lambda _: timing(1e-3)), trials=40, search="random", store=store)
        found = verdict(store)
    assert found.schedule == found.against == tuned.best == default_schedule(task(), TARGET)


def test_an_earlier_verdict_has_precedence_over_what_is_not_faster() -> None:
    with Store.in_memory() as store:
        first = tune(task(), TARGET, measurer=Replay(), trials=40, search="random", store=store)
        assert first.best != default_schedule(task(), TARGET)
        flat = Replay(lambda _: timing(1e-6))
        second = tune(task(), TARGET, measurer=flat, trials=40, search="random", store=store, seed=1)
        assert second.best == first.best
        assert verdict(store).against == first.best


def test_a_later_verdict_holds_though_its_time_is_worse_than_an_earlier_one() -> None:
    with Store.in_memory() as store:
        first = tune(task(), TARGET, measurer=Replay(), trials=40, search="random", store=store)

        def slower_now(schedule: Schedule) -> Result:
            return timing(2.0) if schedule == first.best else timing(1.0)

        second = tune(task(), TARGET, measurer=Replay(slower_now), trials=40, search="random", store=store, seed=1)
        found = verdict(store)
        fastest = store.best(task(), TARGET)
    assert fastest is not None
    assert fastest.schedule == first.best
    assert second.best != first.best
    assert (found.schedule, found.seconds) == (second.best, 1.0)
    assert (found.against, found.against_seconds) == (first.best, 2.0)


def test_an_imported_verdict_is_measured_at_once_and_decides_nothing() -> None:
    honest = tune(task(), TARGET, measurer=Replay(), trials=200, search="random", seed=3)
    with Store.in_memory() as store:
        imported = make_verdict(Record(task(), honest.best, TARGET, timing(1e-9), VERSIONS))
        store.add_verdicts([replace(imported, provenance="imported")])
        measurer, flat = Replay(), Replay(lambda _: timing(1e-3))
        tuned = tune(task(), TARGET, measurer=flat, trials=20, search="droplet", store=store)
        assert tuned.best == default_schedule(task(), TARGET)
        tune(task(), TARGET, measurer=measurer, trials=20, search="droplet", store=store)
    assert honest.best in flat.batches[0] + measurer.batches[0]


def test_a_value_of_the_users_makes_no_verdict() -> None:
    with Store.in_memory() as store:
        tune(
            task(), TARGET, measurer=Replay(), trials=20, search="random", store=store, kernel_value=lambda r: -slow(r)
        )
        assert store.verdict(task(), TARGET) is None


def test_failures_are_counted_and_cost_only_themselves() -> None:
    def rule(schedule: Schedule) -> Result:
        return Failure("crash", "signal 11") if sum(v for _, v in schedule.values) % 3 == 0 else by_knobs(schedule)

    tuned = tune(task(), TARGET, measurer=Replay(rule), trials=60)
    assert 0 < tuned.failed < 60
    assert isinstance(rule(tuned.best), Timing)


@pytest.mark.parametrize("search", STRATEGIES)
def test_if_everything_fails_the_first_failure_is_told(search: str) -> None:
    broken = Replay(lambda _: Failure("build", "no such instruction"))
    with pytest.raises(RunError, match=r"none of \d+ candidates could be timed; the first: build: no such instruction"):
        tune(task(), TARGET, measurer=broken, trials=20, search=search)


def test_an_interrupt_ends_the_search_after_its_batch() -> None:
    events = list[Event]()
    tuned = tune(
        task(), TARGET, measurer=Replay(before=interrupt(1)), trials=500, search="random", listen=events.append
    )
    assert tuned.stopped == "interrupted"
    assert tuned.verified
    assert tuned.trials == 2 * BATCH
    assert any(isinstance(e, Warned) and "Ctrl-C again" in e.message for e in events)


def test_a_second_interrupt_aborts_but_what_was_measured_is_kept() -> None:
    with Store.in_memory() as store:
        with pytest.raises(KeyboardInterrupt):
            tune(
                task(), TARGET, measurer=Replay(before=interrupt(2, times=2)), trials=500, search="random", store=store
            )
        assert store.known(task(), TARGET) == 2 * BATCH


def test_interrupts_are_the_programs_own_again_afterwards() -> None:
    tune(task(), TARGET, measurer=Replay(), trials=4, search="random")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_seconds_that_are_over_before_the_first_round_still_measure_the_default() -> None:
    measurer = Replay()
    tuned = tune(task(), TARGET, measurer=measurer, seconds=1e-9)
    assert tuned.stopped == "seconds"
    assert 1 <= tuned.trials <= 4
    assert measurer.batches[0][0] == default_schedule(task(), TARGET)


def test_a_storm_with_seconds_ends_when_it_stops_gaining_and_one_with_trials_does_not() -> None:
    settings = TuneSettings(batch=8, storm_trials=200, storm_patience=32)
    flat = Replay(lambda _: timing(1e-3))
    timed = tune(task(), TARGET, measurer=flat, settings=settings, search="storm", seconds=600.0)
    assert timed.stopped == "nothing left"
    assert 32 + 8 <= timed.trials <= 32 + 3 * 8
    forced = tune(task(), TARGET, measurer=flat, settings=settings, search="storm", trials=120)
    assert (forced.stopped, forced.trials) == ("trials", 120)


def test_seconds_end_a_search() -> None:
    tuned = tune(task(), TARGET, measurer=Replay(), seconds=0.3, search="random")
    assert tuned.stopped == "seconds"


def test_a_search_without_gain_ends_by_its_patience() -> None:
    flat = Replay(lambda _: timing(1e-3))
    tuned = tune(task(), TARGET, measurer=flat, trials=2000, search="random", settings=TuneSettings(patience=100))
    assert tuned.stopped == "no further gain"
    assert 100 <= tuned.trials < 100 + 2 * BATCH


def test_many_small_gains_are_one_worth_its_name() -> None:
    """Every trial is 0.4 % faster than the one before, and a gain is 1 %."""
    measured = list[Schedule]()

    def falling(schedule: Schedule) -> Result:
        if schedule not in measured:
            measured.append(schedule)
        return timing(1e-3 * 0.996 ** measured.index(schedule))

    settings = TuneSettings(batch=8, patience=20, gain=0.01)
    tuned = tune(task(), TARGET, measurer=Replay(falling), trials=80, search="random", settings=settings)
    assert (tuned.stopped, tuned.trials) == ("trials", 80)
    negative = tune(
        task(),
        TARGET,
        measurer=Replay(lambda _: timing(1e-3)),
        trials=80,
        search="random",
        settings=settings,
        kernel_value=lambda _: -1.0,
    )
    assert negative.stopped == "no further gain"


def test_a_users_value_of_a_kernel_is_minimised() -> None:
    def negative(result: Timing) -> float:
        return -result.seconds

    tuned = tune(task(), TARGET, measurer=Replay(), trials=60, search="random", kernel_value=negative)
    slowest = max(t.result.seconds for t in tuned.history if isinstance(t.result, Timing))
    assert tuned.seconds == slowest


def test_the_store_keeps_times_whatever_is_minimised() -> None:
    with Store.in_memory() as store:
        tuned = tune(
            task(), TARGET, measurer=Replay(), trials=60, search="random", store=store, kernel_value=lambda r: -slow(r)
        )
        times = [slow(r.result) for r in store.trials(task(), TARGET)]
        kept = store.best(task(), TARGET)
    assert kept is not None
    assert slow(kept.result) == min(times) < tuned.seconds == max(times)


def slow(result: Result) -> float:
    assert isinstance(result, Timing)
    return result.seconds


def test_a_value_that_is_not_a_number_counts_as_a_failure() -> None:
    with pytest.raises(RunError, match="could be timed"):
        tune(task(), TARGET, measurer=Replay(), trials=8, search="random", kernel_value=lambda _: float("nan"))


def test_a_user_brings_a_strategy() -> None:
    made: list[Context] = []

    def mine(context: Context) -> Strategy:
        made.append(context)
        return RandomSearch(context.spaces, np.random.default_rng(0))

    tuned = tune(task(), TARGET, measurer=Replay(), trials=10, search=mine)
    assert tuned.strategy == "mine"
    assert made[0].trials == 10


def test_a_users_strategy_without_a_budget_ends_after_as_many_trials_as_a_storm() -> None:
    tuned = tune(
        task(),
        TARGET,
        measurer=Replay(),
        search=lambda c: RandomSearch(c.spaces, c.rng),
        settings=TuneSettings(storm_trials=50),
    )
    assert tuned.trials == 50


def test_a_search_may_be_confined_to_some_sketches() -> None:
    some = sketches(task(), TARGET)[:1]
    tuned = tune(task(), TARGET, measurer=Replay(), trials=20, search="random", spaces=some)
    assert {(t.schedule.variant, t.schedule.steps) for t in tuned.history} == {
        (some[0].variant, some[0].structure.steps)
    }


def test_what_is_stored_is_where_the_next_search_begins() -> None:
    with Store.in_memory() as store:
        first = tune(task(), TARGET, measurer=Replay(), trials=40, search="random", store=store)
        events, measurer = list[Event](), Replay()
        second = tune(
            task(), TARGET, measurer=measurer, trials=40, search="random", store=store, listen=events.append, seed=9
        )
        started = events[0]
        assert isinstance(started, Started)
        assert started.known >= 40
        assert first.best in measurer.batches[0]
        again = {t.schedule for t in first.history} & {t.schedule for t in second.history}
        assert len(again) <= TuneSettings().known
        assert second.seconds <= first.seconds


def test_every_trial_is_stored_with_where_it_came_from() -> None:
    with Store.in_memory() as store:
        tuned = tune(task(), TARGET, measurer=Replay(), trials=20, search="random", store=store, seed=7)
        kept = store.trials(task(), TARGET)
    assert {r.schedule for r in kept} == {t.schedule for t in tuned.history}
    assert {(r.strategy, r.seed) for r in kept if r.schedule != default_schedule(task(), TARGET)} == {("random", 7)}
    assert {r.strategy for r in kept if r.schedule == default_schedule(task(), TARGET)} == {DEFAULT}
    assert sorted(r.number for r in kept if not r.verified) == list(range(1, 21))
    assert all(r.features is not None and len(r.features) == 64 for r in kept)


def test_a_store_that_is_full_costs_a_warning_and_not_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(_: Sequence[Record]) -> None:
        raise StormdropError("no space left")

    events = list[Event]()
    with Store.in_memory() as store:
        monkeypatch.setattr(store, "add", add)
        tuned = tune(
            task(), TARGET, measurer=Replay(), trials=3 * BATCH, search="random", store=store, listen=events.append
        )
    assert tuned.trials == 3 * BATCH
    assert sum(isinstance(e, Warned) for e in events) == 1


def test_a_given_schedule_is_where_a_droplet_starts() -> None:
    other = tune(task(), TARGET, measurer=Replay(), trials=20, search="random", seed=5).best
    measurer = Replay()
    tune(task(), TARGET, measurer=measurer, search="droplet", start=other, trials=30)
    assert measurer.batches[0][0] == other


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"trials": 0}, "0 trials"),
        ({"seconds": -1.0}, "-1.0 seconds"),
        ({"seconds": float("nan")}, "nan seconds"),
        ({"search": "gradient"}, "unknown search strategy 'gradient'; there are random, storm"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        tune(task(), TARGET, measurer=Replay(), **wrong)


def test_a_schedule_of_another_class_is_refused() -> None:
    foreign = default_schedule(build("C2D", [1, 7, 7, 8, 16, 3, 1, 1]), TARGET)
    with pytest.raises(UserError, match="of class"):
        tune(task(), TARGET, measurer=Replay(), trials=4, start=foreign)


def test_a_trial_knows_its_number_time_and_phase() -> None:
    tuned: Tuned = tune(task(), TARGET, measurer=Replay(), trials=40, search="random")
    numbers = [t.number for t in tuned.history]
    times = [t.elapsed for t in tuned.history]
    assert numbers == list(range(1, 41))
    assert times == sorted(times)
    assert all(isinstance(t, Trial) and t.phase == "random" for t in tuned.history)


def test_the_keywords_are_the_options() -> None:
    options = {field.name for field in fields(TuneOptions)}
    keywords = TaskKeywords.__annotations__.keys() | ModelKeywords.__annotations__.keys()
    assert options <= keywords
    assert keywords <= signature(tune).parameters.keys()
    beside = {"threads", "precision", "store", "listen", "progress", "shapes", "constants", "operators"}
    assert keywords - options == beside | {"example_inputs", "winograd", "weights", "fallback"}
    defaults = {field.name: field.default for field in fields(TuneOptions)}
    assert {name: signature(tune).parameters[name].default for name in defaults} == defaults
