"""A change enters a model only if the model is not slower with it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

import stormdrop as sd
from stormdrop.driver import in_model
from stormdrop.driver.compile import load, tasks_of
from stormdrop.driver.in_model import MOST_REBUILDS, REVERTED, Weighed, accept, settle
from stormdrop.driver.stored import StoredSchedules, scheduled
from stormdrop.graph.partition import Partition
from stormdrop.reservoir.store import Store
from stormdrop.runtime.host import detect
from stormdrop.search.model_events import InModel, TunedModel
from stormdrop.search.tune_model import tune_models
from stormdrop.space.default import default_schedule
from stormdrop.target.machine import Target
from tests.driver.test_stored import other_schedules, verdict
from tests.support.tiny_onnx import dense

KERNELS = "abcdefghij"


class Model:
    """Takes ten seconds by default; each change adds to that, or saves."""

    def __init__(self, changes: Mapping[str, float]) -> None:
        self._changes = changes
        self.weighed: list[AbstractSet[str]] = []

    def weigh(self, kept: AbstractSet[str]) -> Weighed:
        self.weighed.append(set(kept))
        changes = {k: s for k, s in self._changes.items() if k in kept}
        return Weighed(InModel(10.0 + sum(changes.values()), 10.0), changes)


def test_a_model_that_is_not_slower_is_accepted_as_it_is() -> None:
    model = Model({"a": -1.0, "b": 0.5})
    assert settle({"a", "b"}, model.weigh) == ({"a", "b"}, InModel(9.5, 10.0))
    assert len(model.weighed) == 1


def test_kernels_that_lose_most_go_first_until_the_model_is_not_slower() -> None:
    model = Model({"a": -1.0, "b": 3.0, "c": 0.5, "d": 1.0})
    assert settle(set("abcd"), model.weigh) == ({"a"}, InModel(9.0, 10.0))
    assert model.weighed == [set("abcd"), set("acd"), {"a"}]


def test_differences_below_what_equal_models_show_are_no_loss() -> None:
    assert settle({"a"}, Model({"a": 0.01}).weigh)[0] == {"a"}


def test_rebuilds_are_bounded_and_the_defaults_are_what_is_left() -> None:
    model = Model(dict.fromkeys(map(str, range(100)), 1.0))
    assert settle(set(map(str, range(100))), model.weigh) == (set(), InModel(10.0, 10.0))
    assert len(model.weighed) == 1 + MOST_REBUILDS


def test_without_changes_the_default_model_is_timed() -> None:
    assert settle(set(), Model({}).weigh) == (set(), InModel(10.0, 10.0))


# ---- with real models


@pytest.fixture
def target() -> Target:
    return detect(1)


@pytest.fixture
def parts(tmp_path: Path) -> Partition:
    return tasks_of(load(dense(tmp_path)))


def tuned_to_another(parts: Partition, target: Target, store: Store) -> TunedModel:
    """A model of which one task has a verdict for another schedule than its default."""
    task = parts.tasks[0].task
    (schedule,) = other_schedules(task, target, 1)
    store.add_verdicts([verdict(task, target, schedule)])
    return tune_models([parts], target, store=store, trials=len(parts.tasks), search="random")[0]


def accepted(parts: Partition, tuned: TunedModel, store: Store) -> TunedModel:
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
        assert ended.in_model is not None
        compiled = StoredSchedules(store, tuned.target, model=parts.digest)
        assert [scheduled(compiled(t.task)) for t in ended.tasks] == [t.schedule for t in ended.tasks]
        elsewhere = StoredSchedules(store, tuned.target, model="another")
        assert scheduled(elsewhere(task)) == found
        kept = store.verdict(task, tuned.target, model=parts.digest)
        assert kept is not None
        assert (kept.against, kept.method) == (default, "in the model")
        assert (kept.seconds, kept.against_seconds) == (ended.in_model.seconds, ended.in_model.default_seconds)


def test_tuning_a_model_ends_with_what_it_was_worth(tmp_path: Path, target: Target) -> None:
    with Store.in_memory() as store:
        tuned = sd.tune(dense(tmp_path), target, trials=6, search="random", store=store)
        assert tuned.in_model is not None
        assert not tuned.in_model.is_slower
        parts = tasks_of(load(dense(tmp_path)))
        assert all(store.verdict(t.task, tuned.target, model=parts.digest) for t in tuned.tasks)


def test_kernels_are_profiled_where_the_model_is_slower(
    parts: Partition, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InModel, "is_slower", True)
    weighed: list[Weighed] = []

    def looked(changed: AbstractSet[str], weigh: in_model.Weigh) -> tuple[AbstractSet[str], InModel]:
        weighed.append(weigh(changed))
        return settle(changed, weigh)

    monkeypatch.setattr(in_model, "settle", looked)
    with Store.in_memory() as store:
        accepted(parts, tuned_to_another(parts, target, store), store)
    assert set(weighed[0].losses) == {use.task.digest for use in parts.tasks}
