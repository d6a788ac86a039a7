"""What tuning decided: the newest verdict of a task, machine and temperature, and how a store comes to have one."""

from __future__ import annotations

import io
import math
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from stormdrop.space.rules import RULES
from stormdrop.space.sketch import replay
from stormdrop.space.structure import DerivationStep
from stormdrop.store.claims import LEAST_SECONDS, floor_seconds
from stormdrop.store.record import Record
from stormdrop.store.store import Store, StoreError
from tests.replay.files import STORE
from tests.replay.test_files import recorded
from tests.support.own_rules import Reverse
from tests.support.records import ELSEWHERE, HERE, legal_records, make_records, make_verdict, small_task, timing
from tests.support.remarks import remarks
from tests.support.stores import verdict_rows


def test_a_verdict_comes_back_as_it_was(store: Store) -> None:
    first, second = make_records(2, cold=True)
    verdict = replace(make_verdict(first, second), model="ab12", is_timing_old=True)
    store.add_verdicts([verdict])
    assert store.verdict(small_task(), HERE, cold=True, model="ab12") == verdict
    assert store.integrity() == []


def test_trials_alone_are_no_verdict(store: Store) -> None:
    store.add(make_records(3, verified=True))
    assert store.verdict(small_task(), HERE) is None


def test_the_newest_verdict_holds_whatever_its_times_and_the_clock_say(store: Store) -> None:
    fast, slow = (make_verdict(r) for r in make_records(2))
    store.add_verdicts([replace(fast, seconds=1e-6, created=9e9)])
    store.add_verdicts([replace(slow, seconds=1e-3, created=1.0)])
    found = store.verdict(small_task(), HERE)
    assert found is not None
    assert found.schedule == slow.schedule


def test_tasks_machines_temperatures_and_models_have_verdicts_of_their_own(store: Store) -> None:
    (record,) = make_records(1)
    store.add_verdicts([make_verdict(record)])
    assert store.verdict(small_task(17), HERE) is None
    assert store.verdict(small_task(), ELSEWHERE) is None
    assert store.verdict(small_task(), HERE, cold=True) is None
    assert store.verdict(small_task(), HERE, model="ab12") is None
    assert store.verdict(small_task(), HERE) is not None


def test_a_verdict_whose_rules_are_unknown_here_gives_way_to_the_one_before(
    store: Store, recwarn: pytest.WarningsRecorder
) -> None:
    before, after = (make_verdict(r) for r in make_records(2))
    steps = (*after.schedule.steps, DerivationStep("reverse", 1, "s0"))
    after = replace(after, schedule=replace(after.schedule, steps=steps))
    store.add_verdicts([before, after])
    assert store.verdict(small_task(), HERE) == before
    assert store.verdict(small_task(), HERE, rules=(*RULES, Reverse())) == after
    assert "reverse 1" in " ".join(remarks(recwarn))


def test_times_that_are_no_numbers_are_refused(store: Store) -> None:
    (record,) = make_records(1)
    for bad in (math.nan, 0.0, -1.0, math.inf):
        with pytest.raises(StoreError, match="cannot be kept"):
            store.add_verdicts([make_verdict(record), replace(make_verdict(record), against_seconds=bad)])
    assert store.verdict(small_task(), HERE) is None


def test_superseded_verdicts_take_no_room_and_those_that_hold_outlive_all_trials(store: Store) -> None:
    records = make_records(5)
    store.add(records)
    for record in records:
        store.add_verdicts([make_verdict(record)])
    assert verdict_rows(store) == 1
    store.prune(max_bytes=0)
    assert store.known(small_task(), HERE) == 0
    assert store.verdict(small_task(), HERE) == make_verdict(records[-1])


# ---- imports


def imported(store: Store, *seconds: float) -> int:
    """Lines that say they were verified; how many of them were refused."""
    records = legal_records(len(seconds))
    with Store.in_memory() as other:
        other.add([replace(r, verified=True, result=timing(s)) for r, s in zip(records, seconds)])
        lines = io.StringIO()
        other.export(lines)
    return store.import_(io.BytesIO(lines.getvalue().encode()), HERE).refusals


def test_an_imported_winner_is_a_donor_and_no_verdict_of_this_machine(store: Store) -> None:
    (mine,) = make_records(1)
    assert imported(store, 1e-4) == 0
    assert store.verdict(small_task(), HERE) is None
    donor = store.verdict(small_task(), HERE, is_imported=True)
    assert donor is not None
    assert (donor.provenance, donor.schedule) == ("imported", legal_records(1)[0].schedule)
    store.add_verdicts([make_verdict(mine)])
    imported(store, 1e-4, 2e-4)
    assert store.verdict(small_task(), HERE) == make_verdict(mine)


def test_a_line_that_is_faster_than_the_machine_can_be_is_refused(store: Store) -> None:
    faster_than_a_call, faster_than_its_sums = 1e-9, 0.25 * small_task().flops / (1e9 * HERE.peak_gflops * HERE.threads)
    assert faster_than_its_sums > LEAST_SECONDS
    assert imported(store, faster_than_a_call, faster_than_its_sums, 1e-4) == 2
    best = store.best(small_task(), HERE)
    assert best is not None
    assert best.result == timing(1e-4)


def test_a_line_that_boasts_of_its_machine_is_judged_by_this_one(store: Store) -> None:
    (record,) = legal_records(1)
    boasting = replace(HERE, peak_gflops=1e9)
    with Store.in_memory() as other:
        other.add([replace(record, target=boasting, verified=True, result=timing(2e-8))])
        lines = io.StringIO()
        other.export(lines)
    assert store.import_(io.BytesIO(lines.getvalue().encode()), HERE).refusals == 1


# ---- stores that had no verdicts


def test_the_verified_records_of_an_earlier_store_become_verdicts(tmp_path: Path) -> None:
    path = Path(shutil.copy(STORE, tmp_path))
    target, tasks = recorded()
    migrated = 0
    with Store.open(path) as store:
        for task, _, schedule in tasks:
            best, verdict = store.best(task, target), store.verdict(task, target)
            assert best is not None
            assert (verdict is not None) == best.verified
            if verdict is not None:
                migrated += 1
                assert verdict.schedule == verdict.against == schedule
                assert (verdict.provenance, verdict.code) == ("migrated", "")
        assert store.integrity() == []
    assert migrated > 0


def without_verdicts(path: Path, records: Sequence[Record]) -> Path:
    """A store of these records, as the version before verdicts wrote it."""
    with Store.open(path) as store:
        store.add(records)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("DROP TABLE verdict")
        raw.execute("PRAGMA user_version = 3")
    return path


def test_of_several_rules_the_fastest_verified_record_that_can_be_replayed_is_migrated(tmp_path: Path) -> None:
    known = make_records(3, verified=True)
    steps = (*known[0].schedule.steps, DerivationStep("reverse", 1, "s0"))
    other = replace(known[0], schedule=replace(known[0].schedule, steps=steps), result=timing(1e-6))
    path = without_verdicts(tmp_path / "s.sqlite", [other, *known])
    with Store.open(path) as store:
        mine, theirs = (store.verdict(small_task(), HERE, rules=r) for r in (RULES, (*RULES, Reverse())))
    assert mine is not None
    assert mine.schedule == known[-1].schedule
    assert theirs is not None
    assert theirs.schedule == other.schedule


def test_a_record_that_is_faster_than_any_call_is_not_migrated_and_the_next_one_is(tmp_path: Path) -> None:
    impossible, possible, slower = (
        replace(record, result=timing(seconds))
        for record, seconds in zip(make_records(3, verified=True), (0.9 * LEAST_SECONDS, 1e-4, 1e-3))
    )
    with Store.open(without_verdicts(tmp_path / "s.sqlite", [impossible, possible, slower])) as store:
        found = store.verdict(small_task(), HERE)
    assert found is not None
    assert (found.schedule, found.seconds, found.provenance) == (possible.schedule, 1e-4, "migrated")
    with Store.open(without_verdicts(tmp_path / "none.sqlite", [impossible])) as store:
        assert store.verdict(small_task(), HERE) is None


def test_a_migrated_verdict_is_none_where_this_machine_cannot_be_so_fast(tmp_path: Path) -> None:
    (record,) = legal_records(1)
    floor = floor_seconds(replay(record.task, record.schedule, HERE)[0], HERE)
    assert floor > LEAST_SECONDS
    for seconds in (0.9 * floor, 1.1 * floor):
        path = tmp_path / f"{seconds}.sqlite"
        with Store.open(without_verdicts(path, [replace(record, verified=True, result=timing(seconds))])) as store:
            found, decided = store.verdict(record.task, HERE), store.decided(HERE)
            assert (found is not None) == bool(decided) == (seconds > floor)
            assert found is None or found.is_timing_old
            (summary,) = store.summaries()
            assert summary.verdict is not None
            assert summary.verdict.is_timing_old
