"""Which files are opened, which are refused and left alone, and what happens where nothing can be written."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stormdrop.base.errors import ScheduleError, UserError
from stormdrop.ir import build as sd
from stormdrop.ir.expr import binary
from stormdrop.ir.keys import former_class_key
from stormdrop.ir.tensor import Task, axis, compute, reduce_axis, tensor
from stormdrop.measure.result import Timing
from stormdrop.operators.broadcast import elementwise
from stormdrop.space.refit import refit
from stormdrop.space.sketch import replay
from stormdrop.store import sqlite
from stormdrop.store.rows import target_text
from stormdrop.store.sql import schema
from stormdrop.store.sqlite import SqliteDatabase
from stormdrop.store.store import Filters, Store, StoreError, default_path
from tests.support.records import HERE, VERSIONS, legal_records, make_records, make_verdict, small_task
from tests.support.remarks import remarks
from tests.support.stores import connection_of

KNOWN = small_task(), HERE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sqlite"


def filled(path: Path, count: int = 50) -> Path:
    with Store.open(path) as store:
        store.add(make_records(count))
    return path


# ---- places that cannot be written -----------------------------------------------------------------------------------


def test_the_default_place_is_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(tmp_path / "deep" / "cache"))
    with Store.open() as store:
        store.add(make_records(1))
        assert store.path == tmp_path / "deep" / "cache" / "reservoir.sqlite" == default_path()
        assert not store.is_memory
    monkeypatch.delenv("STORMDROP_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert tmp_path / "xdg" in default_path().parents


def test_without_a_home_one_warning_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STORMDROP_CACHE_DIR", raising=False)
    monkeypatch.setattr("platformdirs.user_cache_dir", "~/.cache/{}".format)
    monkeypatch.setattr("os.path.expanduser", str)
    with Store.open() as store:
        store.add(make_records(3))
        assert store.is_memory
        assert store.known(*KNOWN) == 3
    assert len(remarks(recwarn)) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_tilde_in_the_environment_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("STORMDROP_CACHE_DIR", "~/deep/cache")
    assert default_path() == tmp_path / "deep" / "cache" / "reservoir.sqlite"


def test_a_link_to_nothing_makes_no_file_elsewhere(
    path: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """In a directory that others may write to, they would choose where we make a file."""
    elsewhere = tmp_path / "elsewhere"
    path.symlink_to(elsewhere)
    with Store.open(path) as store:
        store.add(make_records(3))
        assert store.is_memory
    assert "is a link to" in " ".join(remarks(recwarn))
    assert not elsewhere.exists()
    database = SqliteDatabase(path)  # nor where the link is made after we looked
    with pytest.raises(StoreError, match="unable to open"):
        database.read(lambda c: None)
    assert not elsewhere.exists()
    elsewhere.touch()
    with Store.open(path) as store:  # a link to a file leads there
        assert not store.is_memory


def test_a_folder_that_cannot_be_made_is_one_warning_and_memory(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "file").write_text("in the way")
    with Store.open(tmp_path / "file" / "cache" / "s.sqlite") as store:
        for _ in range(3):
            store.add(make_records(3))
        assert store.is_memory
        assert store.path is None
        assert len(store.trials(*KNOWN)) == 9
    (warning,) = remarks(recwarn)
    assert "cannot be written" in warning
    assert str(tmp_path / "file") in warning


UNPRIVILEGED = """
import os, sys, warnings
from pathlib import Path
from tests.support.records import HERE, make_records, small_task
from stormdrop.store.rows import target_text
from stormdrop.store.store import Store
more = make_records(2)
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
warnings.simplefilter("always")
for opened in (Store.open, Store.view):
    store = opened(Path(sys.argv[1]))
    before = store.known(small_task(), HERE)
    store.add(more)
    print(store.is_memory, before, store.known(small_task(), HERE), store.integrity())
"""


@pytest.mark.parametrize("mode", [0o555, 0o777])
def test_a_read_only_store_is_read_and_its_additions_stay_in_memory(mode: int) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to the unprivileged user that root becomes
        path = filled(Path(folder) / "s.sqlite", 50)
        os.chmod(path, 0o444)
        os.chmod(folder, mode)
        content = path.read_bytes()
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(path)], capture_output=True, text=True, timeout=60
        )
        os.chmod(folder, 0o755)
        assert done.stdout == "True 50 52 []\n" * 2, done.stderr
        assert done.stderr.count("StormdropWarning") == 1
        assert path.read_bytes() == content


# ---- files that are not stores ---------------------------------------------------------------------------------------


def refused(path: Path, match: str) -> None:
    content = path.read_bytes()
    for opened in (Store.open, Store.view):
        with pytest.raises(UserError, match=match) as error:
            opened(path)
        assert str(path) in str(error.value)
    assert path.read_bytes() == content


def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    for content in (b"x", b"precious notes\n" * 1000, b"SQLite format 3\0", bytes(8192)):
        path.write_bytes(content)
        refused(path, "no SQLite file")


def test_another_programs_database_is_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute("CREATE TABLE trial (id INTEGER PRIMARY KEY, precious TEXT)")
        raw.execute("PRAGMA user_version = 2")
        raw.commit()
    refused(path, "another program's")
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA application_id = 252006673")
    refused(path, "another program's")
    assert list(path.parent.iterdir()) == [path]


def test_a_newer_version_is_left_alone(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    refused(path, "newer Stormdrop")


def test_a_newer_version_that_stands_in_the_log_only_is_left_alone(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA wal_autocheckpoint = 0")
        raw.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
        refused(path, "newer Stormdrop")


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without_tables(content: bytes) -> bytes:
    return content[:100] + b"\xff" * 3996 + content[4096:]


def without_version(content: bytes) -> bytes:
    return content[:60] + bytes(4) + content[64:]


def without_last_page(content: bytes) -> bytes:
    return content[:-4096]


@pytest.mark.parametrize("damage", [cut, without_tables, without_version, without_last_page])
def test_a_damaged_store_is_left_alone(path: Path, damage: Callable[[bytes], bytes]) -> None:
    filled(path, 400)
    path.write_bytes(damage(path.read_bytes()))
    refused(path, "damaged")


def test_a_store_that_lacks_a_column_is_left_alone(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("ALTER TABLE task RENAME COLUMN digest TO fingerprint")
    refused(path, "damaged")


def test_damage_found_later_is_an_error_of_ours(path: Path) -> None:
    with Store.open(path) as store:
        store.add(make_records(400))
        connection = connection_of(store)
        (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'trial_best'").fetchone()
        store.close()
        content = bytearray(path.read_bytes())
        content[4096 * (root - 1) : 4096 * root] = b"\xff" * 4096
        path.write_bytes(content)
        with pytest.raises(StoreError, match="damaged"):
            store.best(*KNOWN)
        with pytest.raises(StoreError, match="damaged"):
            store.add(make_records(1))
        assert store.integrity() != []


def test_a_store_whose_making_was_killed_is_made_again(path: Path) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA auto_vacuum = INCREMENTAL")
    assert path.stat().st_size > 0
    filled(path, 3)
    with Store.view(path) as store:
        assert store.known(*KNOWN) == 3


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    for opened in (Store.open, Store.view):
        with pytest.raises(UserError, match="is a directory"):
            opened(tmp_path)


def test_a_view_makes_nothing(path: Path) -> None:
    with pytest.raises(UserError, match="there is no store"):
        Store.view(path)
    assert not path.exists()


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    assert filled(path, 4).stat().st_size > 0
    with Store.view(path) as store:
        assert store.known(*KNOWN) == 4


# ---- earlier versions ------------------------------------------------------------------------------------------------

FIRST_VERSION = """
CREATE TABLE task (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, class_key TEXT NOT NULL, name TEXT NOT NULL,
    flops REAL NOT NULL,
    json TEXT NOT NULL);
CREATE TABLE machine (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
CREATE TABLE target (id INTEGER PRIMARY KEY, machine_id INTEGER NOT NULL REFERENCES machine, json TEXT NOT NULL UNIQUE);
CREATE TABLE version (
    id INTEGER PRIMARY KEY, stormdrop TEXT NOT NULL, llvm TEXT NOT NULL, features INTEGER NOT NULL,
    UNIQUE (stormdrop, llvm, features));
CREATE TABLE trial (
    id INTEGER PRIMARY KEY,
    task_id INTEGER NOT NULL REFERENCES task, machine_id INTEGER NOT NULL REFERENCES machine,
    target_id INTEGER NOT NULL REFERENCES target, version_id INTEGER NOT NULL REFERENCES version,
    cold INTEGER NOT NULL, verified INTEGER NOT NULL,
    strategy TEXT NOT NULL, seed TEXT NOT NULL, number INTEGER NOT NULL, elapsed REAL NOT NULL, model TEXT NOT NULL,
    created REAL NOT NULL,
    seconds REAL, spread REAL, runs INTEGER, build_seconds REAL NOT NULL, stopped_early INTEGER NOT NULL,
    failure TEXT, message TEXT,
    features BLOB, schedule TEXT NOT NULL, samples BLOB NOT NULL);
CREATE INDEX task_class ON task (class_key);
CREATE INDEX trial_task ON trial (task_id, machine_id, cold);
PRAGMA application_id = 1400128626;
PRAGMA user_version = 1;
"""


OLD_CLASS = "0123456789abcdef"
"""Of a whole task: schedules belonged to those."""


def first_version(path: Path, count: int = 30) -> None:
    """A file as the first version wrote it: `count` trials, one failure and one that follows unknown rules."""
    task = small_task()
    records = make_records(count)
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript(FIRST_VERSION)
        raw.execute(
            "INSERT INTO task VALUES (1, ?, ?, ?, ?, ?)",
            (task.digest, OLD_CLASS, task.name, task.flops, json.dumps(task.to_json(), separators=(",", ":"))),
        )
        raw.execute("INSERT INTO machine VALUES (1, ?)", (HERE.key(),))
        raw.execute("INSERT INTO target VALUES (1, 1, ?)", (target_text(HERE),))
        raw.execute("INSERT INTO version VALUES (1, ?, ?, ?)", (VERSIONS.stormdrop, VERSIONS.llvm, VERSIONS.features))
        insert = f"INSERT INTO trial VALUES ({', '.join('?' * 23)})"
        for k, r in enumerate(records, 1):
            assert isinstance(r.result, Timing)
            assert r.features is not None
            schedule = json.dumps({**r.schedule.to_json(), "class": OLD_CLASS}, separators=(",", ":"))
            origin = r.strategy, str(r.seed), r.number, r.elapsed, r.model, r.created
            timed = r.result.seconds, r.result.spread, r.result.runs, r.result.build_seconds, 0, None, None
            samples = np.array(r.result.samples).tobytes()
            row = k, 1, 1, 1, 1, 0, 0, *origin, *timed, r.features.tobytes(), schedule, samples
            raw.execute(insert, row)
        failed = (
            "UPDATE trial SET seconds = NULL, spread = NULL, runs = NULL, failure = 'crash', "
            "message = 'm', samples = x'' WHERE id = 2"
        )
        raw.execute(failed)
        raw.execute(
            """UPDATE trial SET features = NULL, schedule = replace(schedule, '"tile",1', '"tile",9') WHERE id = 3"""
        )
        raw.commit()


def test_a_file_of_the_first_version_is_brought_to_this_one(path: Path, tmp_path: Path) -> None:
    first_version(path, 1500)
    with Store.open(path) as store:
        assert store.integrity() == []
        assert store.known(*KNOWN) == 1500
        found = store.trials(*KNOWN)
        expected = make_records(1500)
        del expected[2]
        assert [r.schedule for r in found] == [r.schedule for r in expected]
        assert [r.result for r in found[2:]] == [r.result for r in expected[2:]]
        rows = store.training(HERE)
        assert len(rows.seconds) == 1499
        assert np.isnan(rows.seconds[1])
        best = store.best(*KNOWN)
        assert best is not None
        assert best.number == 1500
        # What was there is known as a duplicate, and it can be added to.
        lines = tmp_path / "lines"
        with lines.open("w") as file:
            store.export(file, Filters(task=small_task().name))
        with lines.open("rb") as file:
            done = store.import_(file, HERE)
        assert done.kept == 0
        assert done.duplicates > 100
        # So are lines that an early version exported.
        lines.write_text(lines.read_text().replace(small_task().class_key, OLD_CLASS))
        with lines.open("rb") as file:
            assert store.import_(file, HERE) == done
        (summary,) = store.summaries()
        assert summary.class_key == small_task().class_key
        store.add([replace(make_records(1, small_task(48), seed=5)[0], verified=True)])
        assert [d.kinship.key for d in store.donors(*KNOWN)] == ["class"]
    with closing(sqlite3.connect(path)) as raw, Store.open(tmp_path / "new.sqlite") as new:
        assert raw.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
        fresh = connection_of(new)
        tables = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"
        shapes = [[(name, " ".join(sql.split())) for name, sql in c.execute(tables)] for c in (raw, fresh)]
        assert shapes[0] == shapes[1]


def scores(width: int, op: str) -> Task:
    """Of an attention, scaled by a division or by a multiplication."""
    i, j, c = axis(24), axis(32), reduce_axis(width)
    summed = compute("S", (i, j), sd.sum(tensor("Q", (24, width))[i, c] * tensor("K", (32, width))[j, c], c))
    scale = width**0.5 if op == "div" else width**-0.5
    return Task([elementwise(lambda e: binary(op, e[0], scale), [summed])])


def with_former_class(path: Path, task: Task) -> str:
    """Make a store one of version 4, in which a division by a number was seen by the class. The former class."""
    former = former_class_key(task.variants[0])
    assert former != task.class_key
    own = "task_id = (SELECT id FROM task WHERE digest = ?)"
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE task SET class_key = ?, anchor_key = 'a0' WHERE digest = ?", (former, task.digest))
        for table, name in (("trial", "schedule"), ("verdict", "schedule"), ("verdict", "against")):
            change = f"UPDATE {table} SET {name} = replace({name}, ?, ?) WHERE {own}"
            raw.execute(change, (task.class_key, former, task.digest))
        raw.execute(f"UPDATE trial SET mark = id WHERE {own}", (task.digest,))
        raw.execute("PRAGMA user_version = 4")
        raw.commit()
    return former


def test_classes_that_saw_a_division_are_renamed_in_trials_and_verdicts(path: Path, tmp_path: Path) -> None:
    divided, multiplied = scores(80, "div"), scores(64, "mul")
    slower, faster = legal_records(2, divided)
    with Store.open(path) as store:
        store.add([slower, faster, *legal_records(1, multiplied)])
        store.add_verdicts([make_verdict(faster, slower), make_verdict(legal_records(1, multiplied)[0])])
        lines = tmp_path / "lines"
        with lines.open("w") as file:
            store.export(file, Filters(task=divided.name))
    former = with_former_class(path, divided)
    with Store.open(path) as store:
        assert store.integrity() == []
        for task, other in ((divided, multiplied), (multiplied, divided)):
            (donor,) = store.donors(task, HERE)
            assert (donor.task.digest, donor.kinship.key) == (other.digest, "class")
            assert refit(donor.schedule, donor.task, task, HERE)
        verdict = store.verdict(divided, HERE)
        assert verdict is not None
        assert (verdict.schedule, verdict.against) == (faster.schedule, slower.schedule)
        replay(divided, verdict.schedule, HERE)
        assert [r.schedule for r in store.trials(divided, HERE)] == [slower.schedule, faster.schedule]
        # Lines of then and of now say the same.
        now = "".join(line for line in lines.open() if '"div"' in line)
        for text in (now, now.replace(divided.class_key, former)):
            lines.write_text(text)
            with lines.open("rb") as file:
                done = store.import_(file, HERE)
            assert (done.kept, len(done.refused)) == (0, 0), done
            assert done.duplicates == 3


def test_a_schedule_of_a_former_class_replays_for_its_task_and_for_no_other() -> None:
    divided, multiplied = scores(80, "div"), scores(64, "mul")
    schedule = legal_records(1, divided)[0].schedule
    old = replace(schedule, class_key=former_class_key(divided.variants[0]))
    assert old.of(divided) == schedule
    sketch, point = replay(divided, old, HERE)
    assert sketch.schedule(point) == schedule
    assert old.of(multiplied) == old
    with pytest.raises(ScheduleError, match=old.class_key):
        replay(multiplied, old, HERE)


def test_a_migration_that_fails_changes_nothing(path: Path) -> None:
    first_version(path)
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("UPDATE trial SET schedule = '{}' WHERE id = 20")
        raw.commit()
    refused(path, "damaged, it cannot be brought")


def test_an_old_read_only_file_is_migrated_in_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_version(path)
    content = path.read_bytes()
    monkeypatch.setattr(os, "access", lambda path, mode: not path)  # pyright: ignore[reportUnknownLambdaType]
    with Store.open(path) as store:
        assert store.is_memory
        assert store.known(*KNOWN) == 30
    assert path.read_bytes() == content


def test_a_store_upgraded_by_somebody_else_is_not_written_any_more(path: Path) -> None:
    with Store.open(path) as store:
        store.add(make_records(2))
        with closing(sqlite3.connect(path)) as raw:
            raw.execute("PRAGMA user_version = 99")
        with pytest.raises(Exception, match="another version"):
            store.add(make_records(2))
        with closing(sqlite3.connect(path)) as raw:
            assert raw.execute("SELECT count(*) FROM trial").fetchone() == (2,)


# ---- journals --------------------------------------------------------------------------------------------------------


def test_the_log_is_written_ahead(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def without_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes SQLite open files as on a file system without shared memory, and so without a write-ahead log."""
    connect = sqlite.connect

    def connect_without(uri: str) -> sqlite3.Connection:
        return connect(f"{uri}&vfs=unix-dotfile" if "?" in uri else uri)

    monkeypatch.setattr(sqlite, "connect", connect_without)


def test_a_file_system_without_a_write_ahead_log_has_a_rollback_journal(
    path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    without_log(monkeypatch)
    with Store.open(path) as store:
        store.add(make_records(5))
        store.close()
        store.add(make_records(5))
        assert store.known(*KNOWN) == 10
        assert connection_of(store).execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert store.integrity() == []
    (warning,) = remarks(recwarn)
    assert "rollback journal" in warning


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_LOCK, sqlite3.SQLITE_BUSY])
def test_a_file_system_without_locks_is_named_and_the_store_lives_in_memory(
    path: Path, code: int, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Some file systems refuse locks with an error of their own, others as if a process held the lock."""
    filled(path, 5)

    class NoLocks(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = code
            raise error

        def backup(self, target: sqlite3.Connection, **options: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            self.execute("PRAGMA user_version")

    def refuse(uri: str) -> sqlite3.Connection:
        is_locked = "memory" not in uri and "immutable" not in uri
        return sqlite3.connect(uri, uri=True, factory=NoLocks) if is_locked else connect(uri)

    connect = sqlite.connect
    monkeypatch.setattr(sqlite, "connect", refuse)
    monkeypatch.setattr(sqlite, "PATIENCE_SECONDS", 0.0)
    with Store.open(path) as store:
        assert store.is_memory
        assert store.known(*KNOWN) == 5
    (warning,) = remarks(recwarn)
    assert "file system without locks" in warning or "file system has no locks" in warning
    assert "STORMDROP_CACHE_DIR on a local disk" in warning


def test_a_transaction_that_was_killed_in_a_rollback_journal_is_undone(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        without_log(patch)
        with Store.open(path) as store:
            store.add(make_records(20))
    left = tmp_path / "left" / "s.sqlite"
    left.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as raw:
        raw.execute("PRAGMA cache_size = 1")
        raw.execute("BEGIN")
        raw.execute("UPDATE trial SET seconds = 1, schedule = schedule || hex(zeroblob(3000))")
        for file in tmp_path.glob("s.sqlite*"):
            shutil.copy(file, left.parent / file.name)
        raw.execute("ROLLBACK")
    assert (left.parent / "s.sqlite-journal").stat().st_size > 0
    with Store.open(left) as store:
        assert store.integrity() == []
        assert [r.result for r in store.trials(*KNOWN)] == [r.result for r in make_records(20)]


def test_a_log_that_was_left_without_its_file_is_not_applied(path: Path) -> None:
    with Store(SqliteDatabase(path)) as store:
        store.add(make_records(30))
        log = path.with_name("s.sqlite-wal").read_bytes()
    path.unlink()
    path.with_name("s.sqlite-wal").write_bytes(log)
    with Store.open(path) as store:
        assert store.known(*KNOWN) == 0
        store.add(make_records(3))
        assert store.integrity() == []


def test_a_file_removed_while_it_is_open_begins_anew(path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with Store.open(path) as store:
        store.add(make_records(5))
        for file in path.parent.glob("s.sqlite*"):
            file.unlink()
        store.add(make_records(3))
        assert "removed while it was open" in " ".join(remarks(recwarn))
        with Store.view(path) as other:
            assert other.known(*KNOWN) == 3
