"""The choice of winners for a shipped store: few schedules that cover all tasks of a class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from benchmarks import shipped as benchmark
from benchmarks.shipped import MOST_SCHEDULES, SLACK, Winner, chosen_winners, cover, write
from stormdrop.ir.tensor import Task
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import refit
from stormdrop.space.schedule import Schedule
from stormdrop.store import shipped
from stormdrop.store.record import DEFAULT, Record
from stormdrop.store.shipped import shipped_donors, shipped_file
from stormdrop.store.store import Store
from tests.support.records import HERE, VERSIONS, legal_records, make_verdict, timing

TABLES = npst.arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 14)), elements=st.floats(1.0, 2.0))


@settings(deadline=None)
@given(TABLES)
def test_a_cover_begins_with_the_default_and_leaves_tasks_only_at_its_full_size(seconds: np.ndarray) -> None:
    columns = cover(seconds)
    assert columns[0] == 0
    assert len(set(columns)) == len(columns) <= MOST_SCHEDULES
    is_covered = seconds[:, list(columns)].min(axis=1) <= SLACK * seconds.min(axis=1)
    assert is_covered.all() or len(columns) == MOST_SCHEDULES


def test_tile_lengths_cover_extents_within_their_reach() -> None:
    """A schedule of tile length b takes |log2(n / b)| percent longer at extent n: 5 % is a factor of 32 either way."""
    extents, tiles = 2.0 ** np.arange(0, 30), np.array([2.0**-40, *(2.0 ** np.arange(0, 30, 3))])
    table = 1.0 + np.abs(np.log2(extents[:, None] / tiles[None, :])) / 100.0
    assert len(cover(table)) == 1 + 4  # a default that serves none; of tiles for eleven extents each, three would do


def test_a_schedule_that_fits_nowhere_else_covers_its_own_task() -> None:
    table = np.full((3, 4), np.inf)
    table[:, 0] = 1.2
    table[np.arange(3), np.arange(1, 4)] = 1.0
    assert cover(table) == (0, 1, 2, 3)
    assert cover(table, most=2) == (0, 1)


def product(n: int) -> Task:
    return build("GMM", (1, n, 96, 80))


def some_schedule(task: Task, seed: int) -> Schedule:
    return legal_records(1, task, HERE, seed)[0].schedule


def decided(store: Store, task: Task, schedule: Schedule, gain: float, *others: tuple[Schedule, float]) -> None:
    """Adds a verdict for a schedule that is so many times faster than the default, and trials of other schedules."""
    default = default_schedule(task, HERE)
    times = [(schedule, 1e-3), (default, gain * 1e-3), *others]
    trials = [Record(task, s, HERE, timing(t), VERSIONS, number=k + 1, model="m") for k, (s, t) in enumerate(times)]
    store.add(trials)
    winner, against = trials[:2]
    store.add_verdicts([replace(make_verdict(winner, against), seconds=1e-3, against_seconds=gain * 1e-3)])


def confirmed(store: Store, task: Task, schedule: Schedule) -> None:
    """Adds the verdict of a later tuning, whose incumbent stayed."""
    record = Record(task, schedule, HERE, timing(1e-3), VERSIONS)
    store.add_verdicts([replace(make_verdict(record), seconds=1e-3, against_seconds=1e-3)])


def digests_of(winners: list[Winner]) -> list[str]:
    return [winner.verdict.task.digest for winner in winners]


def test_winners_that_serve_other_tasks_are_kept() -> None:
    first, second, third = product(64), product(128), product(96)
    schedule = some_schedule(first, 1)
    with Store.in_memory() as store:
        carried = refit(schedule, first, second, HERE)[0]
        decided(store, first, schedule, 1.3)
        decided(store, second, some_schedule(second, 2), 1.3, (carried, 1.01e-3))
        decided(store, third, default_schedule(third, HERE), 1.0)
        assert digests_of(chosen_winners(store, HERE)) == [first.digest]
        assert chosen_winners(store, HERE, without=["m"]) == []


def test_a_winner_that_a_later_tuning_confirms_keeps_its_gain_over_the_default() -> None:
    task = product(64)
    schedule = some_schedule(task, 1)
    with Store.in_memory() as store:
        decided(store, task, schedule, 1.3)
        confirmed(store, task, schedule)
        (winner,) = chosen_winners(store, HERE)
    assert winner.gain == pytest.approx(1.3)


def test_a_winner_that_gains_little_is_served_by_the_default() -> None:
    with Store.in_memory() as store:
        decided(store, product(64), some_schedule(product(64), 1), 1.02)
        assert chosen_winners(store, HERE) == []


@pytest.mark.parametrize(("seconds", "is_kept"), [(1.3e-3, True), (1.03e-3, False)])
def test_the_default_of_an_earlier_version_stands_for_a_default_without_trials(seconds: float, is_kept: bool) -> None:
    task = product(64)
    schedule, before = some_schedule(task, 1), some_schedule(task, 2)
    with Store.in_memory() as store:
        timed = Record(task, schedule, HERE, timing(1e-3), VERSIONS)
        store.add([timed, replace(timed, schedule=before, result=timing(seconds), strategy=DEFAULT)])
        confirmed(store, task, schedule)
        assert len(chosen_winners(store, HERE)) == int(is_kept)


def test_a_written_store_gives_its_winners_to_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, folder = tmp_path / "made.sqlite", tmp_path / "stores"
    folder.mkdir()
    with Store.open(made) as store:
        decided(store, product(64), some_schedule(product(64), 1), 1.3)
    monkeypatch.setattr(benchmark, "nominal", lambda: HERE)
    monkeypatch.setattr(shipped, "stores_dir", lambda: folder)
    benchmark.main([str(made), "-o", str(folder)])
    assert [path.name for path in folder.iterdir()] == [shipped_file(HERE).name]
    (donor,) = shipped_donors(product(50), HERE)
    assert (donor.task.digest, donor.schedule) == (product(64).digest, some_schedule(product(64), 1))


def test_a_winner_whose_default_was_never_timed_stays_a_winner(tmp_path: Path) -> None:
    task = product(64)
    record = Record(task, some_schedule(task, 1), HERE, timing(1e-3), VERSIONS)
    write(tmp_path / "s.sqlite", [Winner(make_verdict(record), float("inf"), {})])
    with Store.view(tmp_path / "s.sqlite") as store:
        assert [verdict.schedule for verdict, _ in store.decided(HERE)] == [record.schedule]
