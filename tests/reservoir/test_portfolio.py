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
from stormdrop.reservoir.record import DEFAULT, Record
from stormdrop.reservoir.store import Store
from stormdrop.reservoir.verdict import NO_CHALLENGER
from stormdrop.search.covering import portfolio_of
from stormdrop.search.reuse import Reuse, stored_sources
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES
from stormdrop.space.schedule import Schedule
from stormdrop.target.cpu import ISAS, Caches, cpu_target
from tests.support.experiences import INDIFFERENT, experience, random_schedule
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


def confirmed(store: Store, task: Task, schedule: Schedule, method: str = "duel") -> None:
    """The verdict of a later tuning, whose incumbent stayed."""
    record = Record(task, schedule, HERE, timing(1e-3), VERSIONS)
    store.add_verdicts([replace(make_verdict(record), seconds=1e-3, against_seconds=1e-3, method=method)])


def test_a_winner_that_a_later_tuning_confirms_stays_in_the_portfolio() -> None:
    task = product(64)
    schedule = random_schedule(task, HERE, 1)
    with Store.in_memory() as store:
        decided(store, task, schedule, 1.3)
        confirmed(store, task, schedule)
        made, (told,) = portfolio_of(store, HERE)
    (donor,) = made.donors
    assert (donor.digest, donor.model) == (task.digest, "m")
    assert donor.gain == pytest.approx(1.3)  # over the default, not over itself
    assert (told.tasks, told.by_default, told.schedules, told.uncovered) == (1, 0, 1, 0)


def test_a_winner_that_beats_the_winner_before_by_little_still_beats_the_default() -> None:
    task = product(64)
    first, second = random_schedule(task, HERE, 1), random_schedule(task, HERE, 2)
    with Store.in_memory() as store:
        decided(store, task, first, 1.3, (second, 0.98e-3))
        records = [Record(task, s, HERE, timing(1e-3), VERSIONS) for s in (second, first)]
        store.add_verdicts([replace(make_verdict(*records), seconds=0.98e-3, against_seconds=1e-3)])
        made, _ = portfolio_of(store, HERE)
    (donor,) = made.donors
    assert donor.gain == pytest.approx(1.3 / 0.98)


def test_a_confirmed_winner_that_gains_little_is_served_by_the_default() -> None:
    task = product(64)
    schedule = random_schedule(task, HERE, 1)
    with Store.in_memory() as store:
        decided(store, task, schedule, 1.02)
        confirmed(store, task, schedule)
        made, (told,) = portfolio_of(store, HERE)
    assert not made.donors
    assert (told.by_default, told.uncovered) == (1, 0)


@pytest.mark.parametrize(("seconds", "is_kept"), [(1.3e-3, True), (1.03e-3, False)])
def test_where_the_default_was_never_tried_that_of_the_tuning_counts(seconds: float, is_kept: bool) -> None:
    """Another version's default is another schedule; its trial is marked."""
    task = product(64)
    schedule, before = random_schedule(task, HERE, 1), random_schedule(task, HERE, 2)
    with Store.in_memory() as store:
        timed = Record(task, schedule, HERE, timing(1e-3), VERSIONS)
        store.add([timed, replace(timed, schedule=before, result=timing(seconds), strategy=DEFAULT)])
        confirmed(store, task, schedule)
        made, (told,) = portfolio_of(store, HERE)
    assert len(made.donors) == told.schedules == int(is_kept)
    assert (told.by_default, told.uncovered) == (int(not is_kept), 0)


def test_an_incumbent_that_nothing_challenged_is_no_winner() -> None:
    """It was the default of its time, which nothing marks in older stores."""
    task = product(64)
    schedule = random_schedule(task, HERE, 1)
    with Store.in_memory() as store:
        store.add([Record(task, schedule, HERE, timing(1e-3), VERSIONS)])
        confirmed(store, task, schedule, NO_CHALLENGER)
        made, (told,) = portfolio_of(store, HERE)
    assert not made.donors
    assert told.by_default == 1


def test_a_task_without_a_verdict_is_not_covered() -> None:
    first, second = product(64), product(128)
    with Store.in_memory() as store:
        decided(store, first, default_schedule(first, HERE), 1.0)
        store.add([Record(second, default_schedule(second, HERE), HERE, timing(1e-3), VERSIONS)])
        _, (told,) = portfolio_of(store, HERE)
    assert (told.tasks, told.by_default, told.schedules, told.uncovered) == (2, 1, 0, 1)


def test_a_portfolio_has_trees_also_where_no_margin_was_reliable(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_margin(*_: object) -> Experience:
        return experience([], HERE, margin=None)

    monkeypatch.setattr("stormdrop.search.covering.learned", without_margin)
    with Store.in_memory() as store:
        made, _ = portfolio_of(store, HERE)
    assert (made.scorer, made.margin) == (INDIFFERENT, None)


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


def test_a_near_schedule_of_a_portfolio_for_other_threads_comes_before_a_distant_one(folder: Path) -> None:
    for target, n in ((HERE, 512), (HERE.with_threads(1), 64)):
        save(folder / file_name(target), experience([(product(n), random_schedule(product(n), target))], target))
    with Store.in_memory() as store:
        found = stored_sources(product(50), HERE, store, Reuse(), RULES)
    assert [task.name for task, _ in found] == [product(n).name for n in (64, 512)]


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
EPYC = replace(
    cpu_target("AMD EPYC (znver4)", "", "znver4", "", ISAS["avx512"], 2, Caches(l3_bytes=32 << 20)),
    cores=2,
    has_bf16_dot=True,
)
"""The target of the portfolio of two threads: the virtual machine of two cores that it is made on, with nominal rates.
"""


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


def test_the_shipped_portfolio_of_two_threads_has_trees_for_the_machine_it_was_made_on() -> None:
    tree = json.loads((ROOT / "stormdrop" / "portfolio" / file_name(EPYC)).read_text())
    found = Experience.from_json(tree, EPYC)
    assert found.is_current(EPYC), "make it anew: stormdrop store portfolio -o stormdrop/portfolio"
    assert found.scorer is not None
