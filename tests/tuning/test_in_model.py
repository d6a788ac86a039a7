"""A change enters a model only if the model is not slower with it than what it runs now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import stormdrop as sd
from stormdrop.base.errors import BuildError
from stormdrop.compiler.choose import Choose
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.compiler.stored import StoredSchedules
from stormdrop.device.host import detect
from stormdrop.graph.partition import Partition
from stormdrop.ir.tensor import Task
from stormdrop.measure.stopwatch import race
from stormdrop.model.image import Port
from stormdrop.model.profile import Profile, ProfileRow
from stormdrop.space.default import default_schedule
from stormdrop.space.rules import Rule
from stormdrop.space.schedule import Schedule
from stormdrop.store.store import Store
from stormdrop.target.machine import Target
from stormdrop.tuning import in_model
from stormdrop.tuning.in_model import MOST_REBUILDS, REVERTED, Weighed, accept, settle
from stormdrop.tuning.session import CHECKED, UNCHECKED
from stormdrop.tuning.tuned import InModel, Tuned, TunedTask
from tests.compiler.test_stored import other_schedules, verdict
from tests.support.tiny_onnx import dense
from tests.support.tuning import tune_models

KERNELS = "abcdefghij"


class Model:
    """Takes ten seconds as it runs now, twelve by default; each change adds to the ten, or saves."""

    def __init__(self, changes: Mapping[str, float]) -> None:
        self._changes = changes
        self.weighed: list[AbstractSet[str]] = []

    def weigh(self, kept: AbstractSet[str]) -> Weighed:
        self.weighed.append(set(kept))
        changes = {k: s for k, s in self._changes.items() if k in kept}
        seconds = 10.0 + sum(changes.values())
        return Weighed(InModel(seconds, 12.0), InModel(seconds, 10.0), changes)

    def settled(self, *changed: str) -> tuple[AbstractSet[str], InModel]:
        kept, weighed = settle(set(changed), self.weigh)
        assert weighed.incumbent_seconds == 10.0
        return kept, weighed.in_model


def test_a_model_that_is_not_slower_is_accepted_as_it_is() -> None:
    model = Model({"a": -1.0, "b": 0.5})
    assert model.settled("a", "b") == ({"a", "b"}, InModel(9.5, 12.0))
    assert len(model.weighed) == 1


def test_kernels_that_lose_most_go_first_until_the_model_is_not_slower() -> None:
    model = Model({"a": -1.0, "b": 3.0, "c": 0.5, "d": 1.0})
    assert model.settled(*"abcd") == ({"a"}, InModel(9.0, 12.0))
    assert model.weighed == [set("abcd"), set("acd"), {"a"}]


def test_differences_below_what_equal_models_show_are_no_loss() -> None:
    assert Model({"a": 0.01}).settled("a")[0] == {"a"}


def test_a_change_that_beats_the_default_and_not_the_incumbent_is_a_loss() -> None:
    assert Model({"a": 1.0}).settled("a") == (set(), InModel(10.0, 12.0))


def test_rebuilds_are_bounded_and_the_incumbent_is_what_is_left() -> None:
    model = Model(dict.fromkeys(map(str, range(100)), 1.0))
    assert model.settled(*map(str, range(100))) == (set(), InModel(10.0, 12.0))
    assert len(model.weighed) == 1 + MOST_REBUILDS


def test_without_changes_the_incumbent_is_timed() -> None:
    assert Model({}).settled() == (set(), InModel(10.0, 12.0))


# ---- with real models


@pytest.fixture
def target() -> Target:
    return detect(1)


@pytest.fixture
def parts(tmp_path: Path) -> Partition:
    return tasks_of(read_graph(dense(tmp_path)))


def tuned_to_another(parts: Partition, target: Target, store: Store) -> Tuned:
    """A model of which one task has a verdict for another schedule than its default."""
    task = parts.tasks[0].task
    (schedule,) = other_schedules(task, target, 1)
    store.add_verdicts([verdict(task, target, schedule)])
    return tune_models([parts], target, store=store, trials=len(parts.tasks), search="random")[0]


def accepted(parts: Partition, tuned: Tuned, store: Store) -> Tuned:
    return accept(parts, tuned, store, seconds=0.01)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(in_model, "PROFILED_SECONDS", 0.0)
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("is_slower", [False, True])
def test_what_the_model_accepts_is_what_it_is_compiled_with(
    parts: Partition, target: Target, monkeypatch: pytest.MonkeyPatch, is_slower: bool
) -> None:
    monkeypatch.setattr(InModel, "is_slower", is_slower)
    task = parts.tasks[0].task
    with Store.in_memory() as store:
        tuned = tuned_to_another(parts, target, store)
        found, default = tuned.schedules(task), default_schedule(task, target)
        assert found not in (None, default)
        ended = accepted(parts, tuned, store)
        wanted = default if is_slower else found
        assert ended.schedules(task) == wanted
        assert (ended.tasks[0].ended == REVERTED) == is_slower
        assert ended.tasks[0].origin == ("default" if is_slower else "verdict")
        assert ended.in_model is not None
        compiled = StoredSchedules(store, tuned.target, model=parts.digest)
        assert [compiled(t.task).schedule for t in ended.tasks] == [t.schedule for t in ended.tasks]
        elsewhere = StoredSchedules(store, tuned.target, model="another")
        assert elsewhere(task).schedule == found
        kept = store.verdict(task, tuned.target, model=parts.digest)
        assert kept is not None
        assert (kept.schedule, kept.method) == (wanted, "in the model")
        assert (kept.against, kept.against_seconds) == (wanted, kept.seconds)  # that of the task's verdict was known


def test_tuning_a_model_ends_with_what_it_was_worth(tmp_path: Path, target: Target) -> None:
    with Store.in_memory() as store:
        tuned = sd.tune(dense(tmp_path), target, trials=6, search="random", store=store)
        assert tuned.in_model is not None
        assert not tuned.in_model.is_slower
        parts = tasks_of(read_graph(dense(tmp_path)))
        assert all(store.verdict(t.task, tuned.target, model=parts.digest) for t in tuned.tasks)


def test_kernels_are_profiled_where_the_model_is_slower(
    parts: Partition, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InModel, "is_slower", True)
    weighed: list[Weighed] = []

    def looked(changed: AbstractSet[str], weigh: in_model.Weigh) -> tuple[AbstractSet[str], Weighed]:
        weighed.append(weigh(changed))
        return settle(changed, weigh)

    monkeypatch.setattr(in_model, "settle", looked)
    with Store.in_memory() as store:
        accepted(parts, tuned_to_another(parts, target, store), store)
    assert set(weighed[0].losses) == {use.task.digest for use in parts.tasks}


# ---- models that ran before: what they accepted is the incumbent

DEFAULT_SECONDS = 50


def lasting(task: Task, seconds: int) -> Schedule:
    """A schedule by which a `FakeModel` takes so many seconds for the task."""
    return Schedule(task.variants[0].class_key, 0, (), (("seconds", seconds),))


class FakeModel:
    """Takes the seconds that its schedules name, by a clock of its own."""

    clock = 0.0
    inputs: tuple[Port, ...] = ()

    def __init__(self, seconds_by_task: Mapping[str, int]) -> None:
        self._seconds_by_task = seconds_by_task

    def __call__(self, *arrays: object) -> None:
        FakeModel.clock += sum(self._seconds_by_task.values())

    def profile(self, *arrays: object, repeats: int) -> Profile:
        rows = tuple(ProfileRow("", digest, 1, seconds) for digest, seconds in self._seconds_by_task.items())
        return Profile("", 1, repeats, sum(self._seconds_by_task.values()), 1.0, rows)

    @staticmethod
    def build(parts: Partition, target: Target, choose: Choose, rules: Sequence[Rule]) -> FakeModel:
        seconds_by_task: dict[str, int] = {}
        for use in parts.tasks:
            schedule = choose(use.task).schedule
            assert schedule is not None
            seconds_by_task[use.task.digest] = schedule.by_name["seconds"]
        return FakeModel(seconds_by_task)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    def code(*_: object) -> str:
        return "0 1"

    monkeypatch.setattr(in_model, "build_model", FakeModel.build)
    monkeypatch.setattr(in_model, "race", partial(race, clock=lambda: FakeModel.clock))
    monkeypatch.setattr(in_model, "code_of", code)


def tuned_to(parts: Partition, target: Target, *seconds: int | None, default: int = DEFAULT_SECONDS) -> Tuned:
    """A model whose first tasks were tuned to so many seconds; None: nothing could be timed of this one."""
    tasks: list[TunedTask] = []
    for k, use in enumerate(parts.tasks):
        found = seconds[k] if k < len(seconds) else default
        schedule = None if found is None else lasting(use.task, found)
        about = use.id, use.calls[0].label, use.count, use.task.flops
        of_task = TunedTask(
            *about, task=use.task, schedule=schedule, default=lasting(use.task, default), verified=schedule is not None
        )
        tasks.append(of_task)
    return Tuned("tiny", target, "random", 0, tuple(tasks), 0.0, "trials")


def running(parts: Partition, target: Target, store: Store) -> list[int]:
    """The seconds of each task as the model is compiled now."""
    schedules = StoredSchedules(store, target, model=parts.digest)
    found = [schedules(use.task).schedule for use in parts.tasks]
    return [schedule.by_name["seconds"] for schedule in found if schedule is not None]


def by_default(parts: Partition, *seconds: int) -> list[int]:
    """These, and the default's for the other tasks."""
    return [*seconds, *[DEFAULT_SECONDS] * (len(parts.tasks) - len(seconds))]


@pytest.mark.usefixtures("fakes")
def test_a_model_does_not_change_for_less_than_it_accepted_before(parts: Partition, target: Target) -> None:
    slower, default = tuned_to(parts, target, 40), sum(by_default(parts))
    with Store.in_memory() as store:
        first = accepted(parts, tuned_to(parts, target, 30), store)
        second = accepted(parts, slower, store)
        assert first.in_model == second.in_model == InModel(default - 20, default)
        assert [t.schedule for t in second.tasks] == [t.schedule for t in first.tasks]
        assert (first.tasks[0].ended, second.tasks[0].ended) == ("", REVERTED)
        assert second.tasks[0].origin == "verdict"
        assert running(parts, target, store) == by_default(parts, 30)
    alone = accept(parts, slower, seconds=0.01)
    assert (alone.tasks, alone.in_model) == (slower.tasks, InModel(default - 10, default))


@pytest.mark.usefixtures("fakes")
def test_tasks_that_lose_against_what_the_model_accepted_go_back_to_that(parts: Partition, target: Target) -> None:
    with Store.in_memory() as store:
        accepted(parts, tuned_to(parts, target, 30), store)
        ended = accepted(parts, tuned_to(parts, target, 45, 40), store)
        assert [t.ended for t in ended.tasks[:2]] == [REVERTED, ""]
        assert running(parts, target, store) == by_default(parts, 30, 40)
        default = sum(by_default(parts))
        assert ended.in_model == InModel(default - 30, default)


@pytest.mark.usefixtures("fakes")
def test_what_is_faster_than_what_the_model_accepted_replaces_it(parts: Partition, target: Target) -> None:
    with Store.in_memory() as store:
        accepted(parts, tuned_to(parts, target, 30), store)
        ended = accepted(parts, tuned_to(parts, target, 20), store)
        assert running(parts, target, store) == by_default(parts, 20)
        default = sum(by_default(parts))
        assert ended.in_model == InModel(default - 30, default)


@pytest.mark.usefixtures("fakes")
def test_a_task_of_which_nothing_was_timed_stays_as_the_model_accepted_it(parts: Partition, target: Target) -> None:
    with Store.in_memory() as store:
        accepted(parts, tuned_to(parts, target, 30, 40), store)
        ended = accepted(parts, tuned_to(parts, target, 20, None), store)
        assert running(parts, target, store) == by_default(parts, 20, 40)
        task = parts.tasks[1].task
        assert ended.schedules(task) == lasting(task, 40)
        default = sum(by_default(parts))
        assert ended.in_model == InModel(default - 40, default)


@pytest.mark.usefixtures("fakes")
def test_what_the_model_accepted_gives_way_to_defaults_that_are_faster_by_now(parts: Partition, target: Target) -> None:
    with Store.in_memory() as store:
        accepted(parts, tuned_to(parts, target, 30, 40), store)
        ended = accepted(parts, tuned_to(parts, target, 28, None, default=25), store)
        default = 25 * len(parts.tasks)
        assert ended.in_model == InModel(default, default)
        assert running(parts, target, store) == [25] * len(parts.tasks)


@pytest.mark.usefixtures("fakes")
def test_a_change_that_loses_against_the_tasks_earlier_verdict_is_reverted(parts: Partition, target: Target) -> None:
    task = parts.tasks[0].task
    before = verdict(task, target, lasting(task, 30), "0 1")
    with Store.in_memory() as store:
        store.add_verdicts([before])
        tuned = tuned_to(parts, target, 45)
        tuned = replace(tuned, tasks=(replace(tuned.tasks[0], before=before), *tuned.tasks[1:]))
        ended = accepted(parts, tuned, store)
        assert ended.tasks[0].ended == REVERTED
        assert running(parts, target, store) == by_default(parts, 30)


@pytest.mark.usefixtures("fakes")
def test_the_models_verdict_names_the_incumbent_that_it_was_timed_with(parts: Partition, target: Target) -> None:
    task, default = parts.tasks[0].task, sum(by_default(parts))
    with Store.in_memory() as store:
        accepted(parts, tuned_to(parts, target, 30), store)
        accepted(parts, tuned_to(parts, target, 20), store)
        kept = store.verdict(task, target, model=parts.digest)
        assert kept is not None
        assert (kept.schedule, kept.seconds) == (lasting(task, 20), default - 30)
        assert (kept.against, kept.against_seconds) == (lasting(task, 30), default - 20)


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize("is_timed", [False, True])
def test_a_default_that_was_not_timed_is_accepted_without_a_proof(
    parts: Partition, target: Target, is_timed: bool
) -> None:
    tuned = tuned_to(parts, target, 20, None)
    tuned = replace(tuned, tasks=tuple(replace(t, is_default_timed=is_timed) for t in tuned.tasks))
    with Store.in_memory() as store:
        accepted(parts, tuned, store)
        assert running(parts, target, store) == by_default(parts, 20)  # also the one that nothing was found for
        for use in parts.tasks[1:]:
            kept = store.verdict(use.task, target, model=parts.digest)
            assert kept is not None
            assert (kept.code, kept.proof) == (("0 1", CHECKED) if is_timed else ("", UNCHECKED))


@pytest.mark.usefixtures("fakes")
def test_a_kernel_that_misses_what_it_promised_alone_goes_before_one_that_loses_more(
    parts: Partition, target: Target
) -> None:
    tuned = tuned_to(parts, target, 60, 70, 30)
    disappoints = replace(tuned.tasks[0], seconds=10.0, default_seconds=50.0, count=1)
    tuned = replace(tuned, tasks=(disappoints, *tuned.tasks[1:]))
    with Store.in_memory() as store:
        ended = accepted(parts, tuned, store)
        assert running(parts, target, store) == by_default(parts, 50, 70, 30)
        assert [t.ended for t in ended.tasks[:3]] == [REVERTED, "", ""]


@pytest.mark.parametrize("error", [KeyboardInterrupt, BuildError])
def test_tasks_have_verdicts_only_once_the_model_was_timed_or_cannot_be(
    parts: Partition, target: Target, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def broken_off(*_: object, **__: object) -> Tuned:
        raise error("no more")

    monkeypatch.setattr(in_model, "accept", broken_off)
    with Store.in_memory() as store:
        with suppress(KeyboardInterrupt):
            sd.tune(parts, target, trials=len(parts.tasks), search="random", store=store)
        assert store.models()
        decided = [store.verdict(use.task, target.with_weights(parts.constant_bytes)) for use in parts.tasks]
        assert [v is not None for v in decided] == [error is BuildError] * len(decided)


@pytest.mark.usefixtures("fakes")
def test_what_the_model_accepted_stays_with_its_proof_and_its_code(parts: Partition, target: Target) -> None:
    task = parts.tasks[0].task
    with Store.in_memory() as store:
        accepted(parts, tuned_to(parts, target, 30), store)
        before = store.verdict(task, target, model=parts.digest)
        assert before is not None
        store.add_verdicts([replace(before, proof="every element", code="2 3")])
        accepted(parts, tuned_to(parts, target, 40), store)
        after = store.verdict(task, target, model=parts.digest)
        assert after is not None
        assert (after.schedule, after.proof, after.code) == (before.schedule, "every element", "2 3")
