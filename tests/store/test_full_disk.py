"""Stores on a disk without room: read on, told as full, and pruned all the same."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stormdrop.base.errors import UserError
from stormdrop.cli.main import main
from stormdrop.store import sqlite
from stormdrop.store.database import StoreFull
from stormdrop.store.evict import prune_file
from stormdrop.store.store import Store
from tests.support.records import HERE, make_records, small_task
from tests.support.remarks import remarks

KNOWN = small_task(), HERE
SMALL = 100_000


@pytest.fixture(params=["injected", "tmpfs"])
def full(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of 200 trials on a disk on which nothing can grow: a real one where we may mount it, else pretended."""
    path = tmp_path / "disk" / "reservoir.sqlite"
    path.parent.mkdir()
    monkeypatch.setenv("STORMDROP_CACHE_DIR", str(path.parent))
    is_real = request.param == "tmpfs"
    if is_real:
        mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(path.parent)]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("a tmpfs cannot be mounted here")
    try:
        with Store.open(path) as store:
            for seed in range(10):
                store.add(make_records(20, seed=seed))
        if is_real:
            with pytest.raises(OSError, match="No space"):
                (path.parent / "filler").write_bytes(bytes(4 << 20))
        else:
            pretend(monkeypatch, _opened_on_a_full_disk)
        yield path
    finally:
        if is_real:
            subprocess.run(["umount", str(path.parent)], check=True)


class _NoRoom(sqlite3.Connection):
    """Answers as SQLite 3.40 did on a full tmpfs: the index of the log cannot be made, unless it is kept in memory."""

    is_alone = False

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        if "EXCLUSIVE" in sql:
            self.is_alone = True
        if not self.is_alone and "trusted_schema" not in sql:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
            raise error
        return super().execute(sql, *parameters)

    def backup(self, target: sqlite3.Connection, **options: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.execute("PRAGMA user_version")
        super().backup(target)


_connect = sqlite.connect


def pretend(monkeypatch: pytest.MonkeyPatch, connect: Callable[[str], sqlite3.Connection]) -> None:
    monkeypatch.setattr(sqlite, "connect", connect)


def _opened_on_a_full_disk(uri: str) -> sqlite3.Connection:
    if "memory" in uri or "immutable" in uri:
        return _connect(uri)
    connection = sqlite3.connect(uri, isolation_level=None, uri=True, factory=_NoRoom)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def test_a_store_on_a_full_disk_is_read_and_not_called_damaged(full: Path, recwarn: pytest.WarningsRecorder) -> None:
    with Store.view(full) as store:
        assert store.known(*KNOWN) == 200
        assert store.best(*KNOWN) is not None
    assert remarks(recwarn) == []
    with Store.open(full) as store:
        assert store.is_memory
        store.add(make_records(5))
        assert store.known(*KNOWN) == 205
    (warning,) = remarks(recwarn)
    assert "no room" in warning
    assert "damaged" not in warning


def test_a_store_on_a_full_disk_can_be_pruned(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = full.stat().st_size
    done = prune_file(full, SMALL)
    assert done.removed > 100
    assert done.after_bytes < done.before_bytes
    assert full.stat().st_size < size
    pretend(monkeypatch, _connect)  # there is room now
    with Store.open(full) as store:
        assert store.integrity() == []
        store.add(make_records(1))
        assert store.known(*KNOWN) == 201 - done.removed


def test_a_log_that_cannot_be_merged_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.sqlite"
    with Store.open(path) as store:
        store.add(make_records(20))

        def full(connection: sqlite3.Connection) -> None:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error

        pretend(monkeypatch, _opened_on_a_full_disk)
        monkeypatch.setattr(sqlite, "_lock_in_place", full)
        with pytest.raises(StoreFull, match=r"s\.sqlite-wal must be merged into it first") as told:
            prune_file(path, SMALL)
        assert "prune" not in str(told.value)


def test_an_error_of_the_disk_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.sqlite"
    with Store.open(path) as store:
        store.add(make_records(20))

    class Broken(_NoRoom):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            if "trusted_schema" in sql:
                return super().execute(sql, *parameters)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
            raise error

    pretend(monkeypatch, lambda uri: sqlite3.connect(uri, uri=True, factory=Broken))
    with pytest.raises(UserError, match="disk I/O error") as told:
        Store.view(path)
    assert "damaged" not in str(told.value)


def test_the_command_prunes_on_a_full_disk(full: Path) -> None:
    assert "200" in CliRunner().invoke(main, ["store", "ls"]).stdout
    assert "forgotten" in CliRunner().invoke(main, ["store", "prune", "--max-size", "100KB"]).stdout
