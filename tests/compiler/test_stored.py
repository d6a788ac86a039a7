"""What compiling takes from the store: verdicts that hold, and nothing else unless it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.builder.building import code_of
from stormdrop.compiler import model_build
from stormdrop.compiler.choose import Choice, Choose, Origin, choice_of
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.compiler.stored import Proof, StoredSchedules, stored_schedules
from stormdrop.device.host import detect
from stormdrop.graph.partition import Partition
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure, Result
from stormdrop.space.default import default_schedule, resolve
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.store.record import Versions, versions
from stormdrop.store.store import Store, default_path
from stormdrop.store.verdict import Verdict
from stormdrop.target.machine import Target
from tests.support.records import make_records
from tests.support.remarks import remarks
from tests.support.tiny_onnx import dense


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def target() -> Target:
    return detect(1)


@pytest.fixture
def parts(tmp_path: Path) -> Partition:
    return tasks_of(read_graph(dense(tmp_path)))


def other_schedules(task: Task, target: Target, count: int) -> list[Schedule]:
    """Legal schedules that are not the default."""
    sketch = sketches(task, target)[0]
    points = sketch.sample_legal(50, np.random.default_rng(0))
    found = dict.fromkeys(sketch.schedule(point) for point in points)
    return [s for s in found if s != default_schedule(task, target)][:count]


def verdict(task: Task, target: Target, schedule: Schedule, code: str | None = None) -> Verdict:
    code = code_of(task, schedule, target) if code is None else code
    decided = schedule, 1e-3, schedule, 1e-3, "duel", 12, "reference values"
    return Verdict(task, target, *decided, Versions("0", "0", 0), code)


def keep(*verdicts: Verdict) -> None:
    with Store.open() as store:
        store.add_verdicts(verdicts)


def known(task: Task, target: Target) -> Verdict:
    with Store.open() as store:
        found = store.verdict(task, target)
    assert found is not None
    return found


def test_a_lone_trial_is_taken_only_where_it_is_asked_for(parts: Partition, target: Target) -> None:
    task = parts.tasks[0].task
    records = make_records(3, task, target)
    with Store.open() as store:
        store.add([replace(records[0], verified=True), *records])
    assert stored_schedules(target)(task) == Choice()
    assert stored_schedules(target, unproved=True)(task) == Choice(records[0].schedule, Origin.GIVEN)


def test_a_verdict_is_taken_before_faster_trials(parts: Partition, target: Target) -> None:
    task = parts.tasks[0].task
    with Store.open() as store:
        store.add(make_records(3, task, target))
    decided = verdict(task, target, default_schedule(task, target))
    keep(decided)
    for unproved in (False, True):
        assert stored_schedules(target, unproved=unproved)(task) == choice_of(decided)


def test_what_the_model_accepted_comes_first_and_only_in_that_model(parts: Partition, target: Target) -> None:
    task = parts.tasks[0].task
    alone, accepted = (verdict(task, target, s) for s in other_schedules(task, target, 2))
    accepted = replace(accepted, model=parts.digest)
    keep(accepted, alone)
    assert stored_schedules(target, model=parts.digest)(task) == choice_of(accepted)
    assert stored_schedules(target, model="another")(task) == choice_of(alone)
    assert stored_schedules(target)(task) == choice_of(alone)


def test_a_verdict_of_the_other_temperature_is_better_than_none(parts: Partition, target: Target) -> None:
    task = parts.tasks[0].task
    (schedule,) = other_schedules(task, target, 1)
    decided = verdict(task, target.with_cold_weights(True), schedule)
    keep(decided)
    assert stored_schedules(target)(task) == choice_of(decided)


def test_an_imported_verdict_is_not_compiled(parts: Partition, target: Target) -> None:
    task = parts.tasks[0].task
    keep(replace(verdict(task, target, default_schedule(task, target)), provenance="imported"))
    assert stored_schedules(target)(task) == Choice()


def test_a_digest_tells_models_apart_whose_calls_read_other_values() -> None:
    from stormdrop.graph.builder import GraphBuilder
    from stormdrop.graph.partition import partition
    from tests.support.graphs import graph_of

    def model(swapped: bool) -> Partition:
        b = GraphBuilder()
        x, y = b.input("x", (4, 4), "f32"), b.input("y", (4, 4), "f32")
        left, right = (y, x) if swapped else (x, y)
        return partition(graph_of(b, b.emit("MatMul", left, right, transpose_a=False, transpose_b=False)))

    plain, again, swapped = model(False), model(False), model(True)
    assert plain.digest == again.digest != swapped.digest
    assert plain.tasks[0].task.digest == swapped.tasks[0].task.digest


# ---- code that has changed since it was measured


def never(chosen: Sequence[tuple[Task, Choice]], *_: object) -> list[Proof]:
    raise AssertionError(f"proved again: {chosen}")


def test_code_that_has_not_changed_is_not_proved_again(
    parts: Partition, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    for use in parts.tasks:
        for schedule in other_schedules(use.task, target, 1):
            keep(verdict(use.task, target, schedule))
    monkeypatch.setattr(model_build, "proved_again", never)
    model_build.build_model(parts, target, stored_schedules(target, model=parts.digest))


@pytest.mark.parametrize("code", ["", "0123456789abcdef fedcba9876543210"])
def test_code_that_has_changed_is_proved_once_and_its_timing_is_old(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    path = dense(tmp_path)
    parts = tasks_of(read_graph(path))
    task = parts.tasks[0].task
    (schedule,) = other_schedules(task, target, 1)
    keep(verdict(task, target, schedule, code))
    model = sd.compile(path, target=target)
    renewed = known(task, target)
    assert renewed == replace(
        verdict(task, target, schedule), is_timing_old=True, proof=renewed.proof, versions=versions(target)
    )
    x = np.random.default_rng(0).standard_normal(model.inputs[0].shape).astype(np.float32)
    default = sd.compile(path, target=target, schedules=lambda task: None)
    for y, expected in zip(model(x), default(x), strict=True):
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(model_build, "proved_again", never)
    sd.compile(path, target=target)


def test_a_verdict_whose_values_are_no_legal_point_any_more_is_renewed_with_what_runs(
    parts: Partition, target: Target
) -> None:
    task = parts.tasks[0].task
    default = default_schedule(task, target)
    keep(verdict(task, target, replace(default, values=tuple((name, 10**6) for name, _ in default.values)), "0 1"))
    model_build.build_model(parts, target, stored_schedules(target, model=parts.digest))
    renewed = known(task, target)
    sketch, point = resolve(task, renewed.schedule, target)
    assert sketch.schedule(point) == renewed.schedule == renewed.against
    assert renewed.code == code_of(task, renewed.schedule, target)


def test_a_verdict_that_was_decided_meanwhile_is_not_replaced_by_a_renewed_one(
    parts: Partition, target: Target
) -> None:
    task = parts.tasks[0].task
    old, new = (verdict(task, target, s, "0 1") for s in other_schedules(task, target, 2))
    with Store.in_memory() as store:
        schedules = StoredSchedules(store, target)
        store.add_verdicts([old])
        assert schedules(task).code == "0 1"
        schedules.renew([(task, old.schedule, "2 3")])
        assert schedules(task) == Choice(old.schedule, Origin.VERDICT, "2 3")
        store.add_verdicts([new])
        schedules.renew([(task, old.schedule, "4 5")])
        assert schedules(task) == choice_of(new)


def test_changed_code_that_computes_wrongly_gives_way_to_the_default_with_a_remark(
    parts: Partition, target: Target, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    task = parts.tasks[0].task
    (schedule,) = other_schedules(task, target, 1)
    stale = verdict(task, target, schedule, "0 1")
    keep(stale)

    def prove(self: Measurer, task: Task, candidate: Schedule) -> Result:
        return Failure("wrong", "one element differs")

    monkeypatch.setattr(Measurer, "prove", prove)
    model = model_build.build_model(parts, target, stored_schedules(target, model=parts.digest))
    assert f"{task.name} is computed by default" in " ".join(remarks(recwarn))
    assert "one element differs" in " ".join(remarks(recwarn))
    default = model_build.build_model(parts, target, lambda task: Choice())
    assert model.image.kernels == default.image.kernels
    assert known(task, target) == stale


# ---- schedules that do not fit their task


def given(task: Task, schedule: Schedule) -> Choose:
    """Returns a schedule for a task, and defaults for the others."""
    return lambda other: choice_of({task: schedule}.get(other))


def test_a_schedule_that_cannot_be_replayed_is_the_default_in_what_the_model_says(
    parts: Partition, target: Target
) -> None:
    task = parts.tasks[0].task
    (schedule,) = other_schedules(task, target, 1)
    elsewhere = replace(schedule, class_key="another")
    for one, origin in ((schedule, "given"), (elsewhere, "default")):
        model = model_build.build_model(parts, target, given(task, one))
        assert model.origins[task.digest] == origin


def test_values_that_are_no_legal_point_are_fitted_with_one_warning(
    parts: Partition, target: Target, recwarn: pytest.WarningsRecorder
) -> None:
    task = parts.tasks[0].task
    (schedule,) = other_schedules(task, target, 1)
    illegal = replace(schedule, values=tuple((name, 10**6) for name, _ in schedule.values))
    model_build.build_model(parts, target, given(task, schedule))
    assert remarks(recwarn) == []
    model_build.build_model(parts, target, given(task, illegal))
    (message,) = remarks(recwarn)
    assert message.startswith(f"{task.name} is computed by another schedule")


def test_without_a_store_everything_is_computed_by_default(parts: Partition, target: Target) -> None:
    assert stored_schedules(target)(parts.tasks[0].task) == Choice()
    assert not default_path().exists()
