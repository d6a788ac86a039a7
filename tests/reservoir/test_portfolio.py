"""Portfolios: few schedules that cover all tasks of a class, and where their files are used."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from stormdrop.ir.tensor import Task
from stormdrop.ops.catalogue import build
from stormdrop.reservoir.experience import Experience, save
from stormdrop.reservoir.portfolio import MOST_SCHEDULES, SLACK, cover, file_name, portfolios
from stormdrop.reservoir.record import Record
from stormdrop.reservoir.store import Store
from stormdrop.search.covering import portfolio_of
from stormdrop.search.reuse import Reuse, stored_sources
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES
from stormdrop.space.schedule import Schedule
from tests.support.experiences import experience, random_schedule
from tests.support.records import HERE, VERSIONS, make_verdict, timing

ROOT = Path(__file__).parents[2]
TABLES = npst.arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 14)), elements=st.floats(1.0, 2.0))


@settings(deadline=None)
@given(TABLES)
def test_a_cover_begins_with_the_default_is_small_and_says_what_it_leaves(seconds: np.ndarray) -> None:
    found = cover(seconds)
    assert found.columns[0] == 0
    assert len(set(found.columns)) == len(found.columns) <= MOST_SCHEDULES
    chosen = seconds[:, list(found.columns)].min(axis=1) <= SLACK * seconds.min(axis=1)
    assert found.uncovered == int((~chosen).sum())
    assert sum(found.gained) == int(chosen.sum())
    assert not found.uncovered or len(found.columns) == MOST_SCHEDULES
    assert all(more > 0 for more in found.gained[1:])


def test_tile_lengths_cover_extents_within_their_reach() -> None:
    """A schedule of tile length b takes |log2(n / b)| percent longer at extent n: 5 % is a factor of 32 either way."""
    extents, tiles = 2.0 ** np.arange(0, 30), np.array([2.0**-40, *(2.0 ** np.arange(0, 30, 3))])
    table = 1.0 + np.abs(np.log2(extents[:, None] / tiles[None, :])) / 100.0
    found = cover(table)
    assert found.uncovered == 0
    assert len(found.columns) == 1 + 4  # a default that serves none; of tiles for eleven extents each, three would do


def test_a_schedule_that_fits_nowhere_else_covers_its_own_task() -> None:
    table = np.full((3, 4), np.inf)
    table[:, 0] = 1.2
    table[np.arange(3), np.arange(1, 4)] = 1.0
    assert cover(table).columns == (0, 1, 2, 3)
    assert cover(table, most=2).uncovered == 2


def product(n: int) -> Task:
    return build("GMM", (1, n, 96, 80))


def decided(store: Store, task: Task, schedule: Schedule, gain: float, *others: tuple[Schedule, float]) -> None:
    """A verdict for a schedule that is so many times faster than the default, and trials of others."""
    default = default_schedule(task, HERE)
    times = [(schedule, 1e-3), (default, gain * 1e-3), *others]
    trials = [Record(task, s, HERE, timing(t), VERSIONS, number=k + 1, model="m") for k, (s, t) in enumerate(times)]
    store.add(trials)
    winner, against = trials[:2]
    store.add_verdicts([replace(make_verdict(winner, against), seconds=1e-3, against_seconds=gain * 1e-3)])


def test_a_portfolio_keeps_the_winners_that_serve_the_others() -> None:
    first, second, third = product(64), product(128), product(96)
    schedule = random_schedule(first, HERE, 1)
    with Store.in_memory() as store:
        carried = refit(schedule, first, second, HERE)[0]
        decided(store, first, schedule, 1.3)
        decided(store, second, random_schedule(second, HERE, 2), 1.3, (carried, 1.01e-3))
        decided(store, third, default_schedule(third, HERE), 1.0)
        made, (told,) = portfolio_of(store, HERE)
        assert [d.digest for d in made.donors] == [first.digest]
        assert (told.tasks, told.by_default, told.schedules, told.uncovered, told.measured) == (3, 1, 1, 0, 1)
        less, (told,) = portfolio_of(store, HERE, without={first.digest})
        assert [d.digest for d in less.donors] == [second.digest]
        assert told.tasks == 2
    assert made.made is not None
    assert {"date", "stormdrop", "cpu"} <= set(made.made)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STORMDROP_PORTFOLIO", str(tmp_path))
    return tmp_path


def test_a_search_begins_from_a_portfolio_where_the_store_has_no_donor_of_the_class(folder: Path) -> None:
    task, donor, other = product(50), product(64), product(40)
    offered, own = random_schedule(donor, HERE, 1), random_schedule(other, HERE, 2)
    save(folder / file_name(HERE), experience([(donor, offered)], HERE, margin=None))
    with Store.in_memory() as store:
        ((origin, schedule),) = stored_sources(task, HERE, store, Reuse(), RULES)
        assert refit(schedule, origin, task, HERE) == refit(offered, donor, task, HERE)
        assert stored_sources(task, HERE, store, Reuse(models=("m",)), RULES) == []
        store.add([Record(other, own, HERE, timing(1e-3), VERSIONS, verified=True)])
        ((_, schedule),) = stored_sources(task, HERE, store, Reuse(), RULES)
        assert schedule == own


def test_portfolios_for_other_threads_come_last_and_those_of_other_machines_never(folder: Path) -> None:
    donor = product(64)
    for target, seed in ((HERE, 0), (HERE.with_threads(1), 1)):
        save(folder / file_name(target), experience([(donor, random_schedule(donor, target, seed))], target))
    (folder / "other-avx512-4.json").write_text("{}")
    found = portfolios(HERE)
    assert [p.key for p in found] == [HERE.key(), HERE.with_threads(1).key()]
    assert [p.margin is None for p in found] == [False, True]


# ---- what comes with the package -------------------------------------------------------------------------------------

SHIPPED = sorted((ROOT / "stormdrop" / "portfolio").glob("*.json"))


def test_the_wheel_has_the_portfolios_of_one_and_two_threads_of_a_zen_4_core() -> None:
    assert {"znver4-avx512-1.json", "znver4-avx512-2.json"} <= {path.name for path in SHIPPED}
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["stormdrop"]
    packed = {path for pattern in patterns for path in (ROOT / "stormdrop").glob(pattern)}
    assert set(SHIPPED) <= packed


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_portfolio_says_where_it_comes_from_and_every_schedule_of_it_can_be_used(path: Path) -> None:
    tree = json.loads(path.read_text())
    assert path.stem == tree["target"].replace("/", "-")
    assert {"date", "stormdrop", "cpu", "tasks", "trials"} <= set(tree["made"])
    found = Experience.from_json(tree, HERE)
    assert len(found.donors) == len(tree["donors"])
    assert max(Counter(d.class_key for d in found.donors).values()) < MOST_SCHEDULES
    for entry in found.donors:
        task, schedule = entry.offered.source()
        assert refit(schedule, task, task, HERE)
