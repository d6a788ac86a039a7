"""Stores that come with the package: searches begin from their winners, and reading leaves the files as they are."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from stormdrop.base.environment import stores_dir
from stormdrop.ir.tensor import Task
from stormdrop.operators.catalogue import build
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES
from stormdrop.space.schedule import Schedule
from stormdrop.store import shipped
from stormdrop.store.shipped import shipped_donors, shipped_file
from stormdrop.store.sqlite import copy_of
from stormdrop.store.store import Store
from stormdrop.target.cpu import cross
from stormdrop.target.machine import Target
from stormdrop.tuning.reuse import Reuse, stored_sources
from tests.support.records import ELSEWHERE, HERE, legal_records, make_verdict

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(stores_dir().glob("*.sqlite"))
MOST_WINNERS = 9


def product(n: int) -> Task:
    return build("GMM", (1, n, 96, 80))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shipped, "stores_dir", lambda: tmp_path)
    return tmp_path


def ship(task: Task, target: Target = HERE) -> Schedule:
    """Adds a winner to the shipped store for a target, and returns the schedule."""
    winner, loser = legal_records(2, task, target)
    with Store.open(shipped_file(target)) as store:
        store.add_verdicts([make_verdict(winner, loser)])
    return winner.schedule


def sources(task: Task, store: Store, reuse: Reuse | None = None) -> list[tuple[str, Schedule]]:
    """Returns the digests and schedules of the donors from which a search begins."""
    return [(t.digest, s) for t, s in stored_sources(task, HERE, store, reuse or Reuse(), RULES)]


def test_a_search_begins_from_shipped_winners_if_the_store_has_no_donor_of_the_class(folder: Path) -> None:
    task, donor, other = product(50), product(64), product(40)
    won = ship(donor)
    with Store.in_memory() as store:
        assert sources(task, store) == [(donor.digest, won)]
        assert sources(task, store, Reuse(models=("m",))) == []
        own, loser = legal_records(2, other, HERE, seed=2)
        store.add_verdicts([make_verdict(own, loser)])
        assert sources(task, store) == [(other.digest, own.schedule)]


def test_the_nearest_shipped_winner_comes_first_also_from_other_threads(folder: Path) -> None:
    ship(product(512))
    ship(product(64), HERE.with_threads(1))
    assert [d.task.name for d in shipped_donors(product(50), HERE)] == [product(n).name for n in (64, 512)]
    assert [d.task.name for d in shipped_donors(product(50), HERE, 1)] == [product(64).name]


def test_an_unknown_kind_of_cpu_has_no_shipped_winners(folder: Path) -> None:
    ship(product(64))
    assert not shipped_donors(product(50), ELSEWHERE)
    assert not shipped_donors(build("SFM", (16, 32)), HERE)


def test_a_file_belongs_to_a_cpu_and_an_instruction_set() -> None:
    assert shipped_file(cross("avx2").with_threads(7)).name == f"{cross('avx2').cpu}-avx2.sqlite"


# ---- the files of the package ----------------------------------------------------------------------------------------


def test_the_wheel_has_the_stores_of_two_generations() -> None:
    assert {path.stem for path in SHIPPED} == {"znver4-avx512", "znver5-avx512"}
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["stormdrop"]
    assert set(SHIPPED) <= {path for pattern in patterns for path in (ROOT / "stormdrop").glob(pattern)}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_schedule_can_be_replayed(path: Path) -> None:
    before, files = path.read_bytes(), set(path.parent.iterdir())
    cpu, isa = path.stem.split("-")
    target = replace(cross(isa), cpu=cpu)
    with Store(copy_of(path)) as store:
        assert {key.rpartition("/")[0] for key in store.machines()} == {f"{cpu}/{isa}"}
        winners = [verdict for verdict, _ in store.decided(target)]
        assert len(winners) == len(store.summaries()) >= 15
    for verdict in winners:
        assert refit(verdict.schedule, verdict.task, verdict.task, verdict.target)
    assert max(Counter((v.task.class_key, v.target.threads) for v in winners).values()) <= MOST_WINNERS
    assert path.read_bytes() == before
    assert set(path.parent.iterdir()) == files
