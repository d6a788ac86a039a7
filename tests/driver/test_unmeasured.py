"""What compiling takes unmeasured: re-fitted schedules of related tasks, where enough gain is predicted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.driver.compile import load, tasks_of
from stormdrop.driver.unmeasured import unmeasured
from stormdrop.errors import UserError
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.experience import Experience, path_beside, save
from stormdrop.reservoir.portfolio import file_name
from stormdrop.reservoir.store import Store, default_path
from stormdrop.runtime.host import detect
from stormdrop.space.default import default_schedule
from stormdrop.space.offer import pick
from stormdrop.space.refit import refit
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target
from tests.support.experiences import experience, random_schedule
from tests.support.records import legal_records, make_verdict
from tests.support.tiny_onnx import conv


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()


@pytest.fixture
def target() -> Target:
    return detect(1)


def convolution(path: Path) -> Task:
    return next(use.task for use in tasks_of(load(path)).tasks if use.task.name.startswith("Conv"))


def related(tmp_path: Path, channels: int) -> Task:
    folder = tmp_path / "donor"
    folder.mkdir(exist_ok=True)
    return convolution(conv(folder, channels))


def small(folder: Path) -> Path:
    return conv(folder, channels=8)


@pytest.fixture
def donor(tmp_path: Path) -> Task:
    """A convolution of the same class, with other channels."""
    return related(tmp_path, 12)


def keep(found: Experience, target: Target) -> None:
    save(path_beside(default_path(), target), found)


@pytest.mark.parametrize(("channels", "others", "seed"), [(8, 12, 0), (13, 8, 1), (9, 12, 2), (16, 24, 3)])
def test_whatever_is_taken_is_legal_and_computes_the_same(
    tmp_path: Path, target: Target, channels: int, others: int, seed: int
) -> None:
    path, donor = conv(tmp_path, channels), related(tmp_path, others)
    donors = [(donor, random_schedule(donor, target, 10 * seed + k)) for k in range(3)]
    keep(experience(donors, target), target)
    model, default = sd.compile(path, target=target), sd.compile(path, target=target, reuse="off")
    assert model.origins[convolution(path).digest] == "donor"
    assert set(default.origins.values()) == {"default"}
    x = np.random.default_rng(seed).standard_normal(model.inputs[0].shape).astype(np.float32)
    np.testing.assert_allclose(model(x), default(x), rtol=1e-3, atol=1e-3)
    assert "donor" in str(model.profile(x, repeats=3))


def test_a_refit_of_the_nearest_donor_is_what_is_built(tmp_path: Path, target: Target, donor: Task) -> None:
    task, schedule = convolution(small(tmp_path)), random_schedule(donor, target, 3)
    offer = experience([(donor, schedule)], target).offer(task, target, "donor")
    assert offer is not None
    _, _, taken = pick(task, offer, target)
    assert taken is not None
    assert taken.schedule in refit(schedule, donor, task, target)
    assert taken.donor == f"{donor.name} of other"


def test_a_margin_that_nothing_reaches_leaves_the_default(tmp_path: Path, target: Target, donor: Task) -> None:
    path = small(tmp_path)
    keep(experience([(donor, random_schedule(donor, target))], target, margin=1.5), target)
    model, default = sd.compile(path, target=target), sd.compile(path, target=target, schedules=lambda task: None)
    assert set(model.origins.values()) == {"default"}
    assert model.image.kernels == default.image.kernels


def test_without_a_margin_nothing_is_offered(tmp_path: Path, target: Target, donor: Task) -> None:
    keep(experience([(donor, random_schedule(donor, target))], target, margin=None), target)
    parts = tasks_of(load(small(tmp_path)))
    assert not any(unmeasured(parts, target)(use.task) for use in parts.tasks)


@pytest.mark.parametrize(
    "stale",
    [{"features": -1}, {"rules": "tile 0"}, {"judged_by": "0123456789abcdef"}, {"key": "other/avx512/1"}],
    ids=lambda stale: next(iter(stale)),
)
def test_trees_of_other_features_rules_coefficients_or_machines_are_ignored(
    tmp_path: Path, target: Target, donor: Task, stale: dict[str, object]
) -> None:
    found = experience([(donor, random_schedule(donor, target))], target)
    parts = tasks_of(load(small(tmp_path)))
    keep(found, target)
    assert any(unmeasured(parts, target)(use.task) for use in parts.tasks)
    keep(replace(found, **stale), target)
    assert not any(unmeasured(parts, target)(use.task) for use in parts.tasks)


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", '{"format": 1, "donors": [{}]}', '{"format": 9}'])
def test_a_damaged_file_is_as_good_as_none(
    tmp_path: Path, target: Target, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path_beside(default_path(), target).write_text(text)
    model = sd.compile(small(tmp_path), target=target)
    assert set(model.origins.values()) == {"default"}
    assert "is ignored" in caplog.text


def test_a_donor_that_this_version_cannot_read_is_left_out(tmp_path: Path, target: Target, donor: Task) -> None:
    task = convolution(small(tmp_path))
    found = experience([(donor, random_schedule(donor, target))], target)
    (entry,) = found.donors
    broken = replace(entry, schedule={**entry.schedule, "steps": [["tile", 1, "s9"]]})
    offer = replace(found, donors=(broken,)).offer(task, target, "donor")
    assert offer is not None
    assert pick(task, offer, target)[2] is None


def test_a_verdict_comes_before_any_offer(tmp_path: Path, target: Target, donor: Task) -> None:
    path = small(tmp_path)
    task = convolution(path)
    keep(experience([(donor, random_schedule(donor, target))], target), target)
    decided = replace(make_verdict(legal_records(1, task, target)[0]), schedule=default_schedule(task, target), code="")
    with Store.open() as store:
        store.add_verdicts([decided])
    assert sd.compile(path, target=target).origins[task.digest] == "verdict"


def test_an_imported_verdict_is_no_donor_for_compiling(target: Target, donor: Task) -> None:
    (record,) = legal_records(1, donor, target)
    other = replace(record, schedule=random_schedule(donor, target, 5))
    with Store.in_memory() as store:
        store.add_verdicts([replace(make_verdict(record, other), provenance="imported")])
        assert store.decided(target) == []
        store.add_verdicts([make_verdict(record, other)])
        assert [(v.schedule, v.provenance) for v, _ in store.decided(target)] == [(record.schedule, "measured")]


def test_a_default_that_nobody_challenged_is_no_donor(target: Target, donor: Task) -> None:
    (record,) = legal_records(1, donor, target)
    with Store.in_memory() as store:
        store.add_verdicts([replace(make_verdict(record), method="no challenger")])
        assert store.decided(target) == []


def test_small_tasks_are_offered_nothing(tmp_path: Path, target: Target, donor: Task) -> None:
    parts = tasks_of(load(small(tmp_path)))
    keep(experience([(donor, random_schedule(donor, target))], target), target)
    offers = replace(unmeasured(parts, target), worth=frozenset())
    assert not any(offers(use.task) for use in parts.tasks)


def test_a_portfolio_serves_classes_of_which_the_store_has_no_donor(
    tmp_path: Path, target: Target, donor: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "portfolios"
    folder.mkdir()
    monkeypatch.setenv("STORMDROP_PORTFOLIO", str(folder))
    save(folder / file_name(target), experience([(donor, random_schedule(donor, target))], target))
    path = small(tmp_path)
    task = convolution(path)
    assert sd.compile(path, target=target).origins[task.digest] == "portfolio"
    assert sd.compile(path, target=target, reuse="off").origins[task.digest] == "default"
    keep(experience([(donor, random_schedule(donor, target))], target), target)
    assert sd.compile(path, target=target).origins[task.digest] == "donor"
    keep(experience([], target, margin=None), target)  # what was measured here says: trust no prediction
    assert sd.compile(path, target=target).origins[task.digest] == "default"


def test_of_an_earlier_format_the_donors_are_read_and_a_portfolio_decides(
    tmp_path: Path, target: Target, donor: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trees of that format predicted something else."""
    path, found = small(tmp_path), experience([(donor, random_schedule(donor, target))], target)
    tree = found.to_json() | {"format": 1}
    earlier = Experience.from_json(json.loads(json.dumps(tree)), target)
    assert earlier.donors == found.donors
    assert (earlier.scorer, earlier.margin, earlier.is_current(target)) == (None, None, False)
    path_beside(default_path(), target).write_text(json.dumps(tree))
    assert sd.compile(path, target=target).origins[convolution(path).digest] == "default"
    monkeypatch.setenv("STORMDROP_PORTFOLIO", str(tmp_path))
    save(tmp_path / file_name(target), found)
    assert sd.compile(path, target=target).origins[convolution(path).digest] == "portfolio"


def test_an_experience_goes_through_json(target: Target, donor: Task) -> None:
    found = experience([(donor, random_schedule(donor, target))], target, margin=1.25)
    assert Experience.from_json(json.loads(json.dumps(found.to_json())), target) == replace(found, made={})


def test_a_way_of_reuse_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one of predicted, off"):
        sd.compile(small(tmp_path), reuse="always")


def test_schedules_given_by_the_caller_are_named_so(tmp_path: Path, target: Target) -> None:
    def given(task: Task) -> Schedule:
        return default_schedule(task, target)

    assert set(sd.compile(small(tmp_path), target=target, schedules=given).origins.values()) == {"given"}
