"""The SQLite file under a store: transactions, and the meaning of its failures. `opening` decides which files are
opened.

    write(work)   one transaction, taken at once (BEGIN IMMEDIATE), repeated while other processes write
    read(work)    one snapshot; with a write-ahead log no writer is waited for

Each thread of each process has a connection of its own: a forked child neither uses nor closes its parent's. A store in
memory has one connection, and its threads take turns.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from stormdrop.base.errors import warn
from stormdrop.store import schema
from stormdrop.store.rows import StoreError

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_SECONDS = 5.0
"""The time that SQLite itself waits for a lock, polling."""
PATIENCE_SECONDS = 60.0
"""The time for which a transaction is retried."""
LOG_BYTES = 32 << 20
"""The size to which a write-ahead log is truncated after a checkpoint."""
_abandoned: list[sqlite3.Connection] = []
"""Connections of parent processes: closing such a connection here could release locks of the parent."""


class StoreFull(StoreError):
    """The error for no room, by the disk, a quota or a limit on file sizes; nothing of the transaction is in
    the file.
    """


_FREE_SPACE = "free some space, or remove old trials with `stormdrop store prune`"


class StoreBusy(StoreError):
    """Another process holds the store's lock for too long."""


def result_code(error: sqlite3.Error) -> int:
    """Returns SQLite's primary result code; 0 for an error of the module itself."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
CLOSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
_NO_ROOM = (
    # What SQLite makes of ENOSPC, EDQUOT and EFBIG, wherever they strike: a page, the log's index, a late write.
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
    sqlite3.SQLITE_IOERR_FSYNC,
)


def is_no_room(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) in _NO_ROOM


class Database:
    """A store's file, or (`path` None) memory.

    `vfs` names one of SQLite's ways to lock files, for unusual file systems. With `in_place` the file is locked for
    this process alone, and transactions keep their rollback data in memory. They need no room on the disk, but a
    process killed during a transaction leaves a damaged file.
    """

    def __init__(self, path: Path | None, vfs: str = "", in_place: bool = False) -> None:
        self.path, self._vfs, self._in_place = path, vfs, in_place
        self._pid = os.getpid()
        self._connections: dict[int, sqlite3.Connection] = {}
        self._inodes: dict[int, tuple[int, int]] = {}
        self._opening = threading.Lock()
        self._turn: AbstractContextManager[object] = nullcontext() if path else threading.RLock()
        self._has_told = False

    @property
    def name(self) -> str:
        return str(self.path) if self.path else "the store in memory"

    # ---- connections -------------------------------------------------------------------------------------------------

    def connection(self) -> sqlite3.Connection:
        """Returns the connection of this thread in this process."""
        if self._pid != os.getpid():
            self._leave_parent()
        key = threading.get_ident() if self.path else 0
        with self._opening:
            found = self._connections.get(key)
            if found is None:
                self._close_those_of_dead_threads()
                found = self._connect()
                if self.path is not None:
                    self._inodes[key] = _inode(self.path)
                self._connections[key] = found
        return found

    def adopt(self, connection: sqlite3.Connection) -> None:
        """Makes a connection to memory, with tables of any version, the connection of this store in memory."""
        self._prepare(connection)
        self._connections[0] = connection

    def _leave_parent(self) -> None:
        self._pid, self._opening = os.getpid(), threading.Lock()
        if self.path is None:
            self._turn = threading.RLock()  # a thread of the parent may have held it; the data is a copy, and ours
        else:
            _abandoned.extend(self._connections.values())
            self._connections = {}

    def _close_those_of_dead_threads(self) -> None:
        alive = sys._current_frames()
        for key in [k for k in self._connections if k and k not in alive]:
            self._connections.pop(key).close()

    def _connect(self) -> sqlite3.Connection:
        if self.path is None:
            connection = connect(":memory:")
        else:
            vfs = f"&vfs={self._vfs}" if self._vfs else ""
            _make(self.path)
            connection = connect(f"{self.path.as_uri()}?mode=rw{vfs}")
        try:
            if self._in_place:
                _lock_in_place(connection)
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if schema.version_of(connection) != schema.VERSION:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # heeded only while there is no table yet
            patiently(lambda: _transaction(connection, "BEGIN IMMEDIATE", lambda c: schema.migrate(c, self.name)))
        if self.path is None or self._in_place:
            return
        mode = _journal(connection)
        if mode not in ("wal", "") and not self._has_told:
            self._has_told = True
            told = "no write-ahead log on this file system, using a rollback journal: readers wait for writers"
            warn(f"{self.path}: {told}")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")

    def close(self) -> None:
        """Closes this process's connections; further use opens the file again. A store in memory is lost."""
        if self._pid != os.getpid():
            self._leave_parent()
        with self._opening:
            for connection in self._connections.values():
                connection.close()
            self._connections = {}

    def _drop(self) -> None:
        """Closes this thread's connection: after an error its state is not trusted."""
        if self.path is None:
            return
        with self._opening:
            found = self._connections.pop(threading.get_ident(), None)
        if found is not None:
            with suppress(sqlite3.Error):
                found.close()

    def _is_gone(self) -> bool:
        """Returns whether the file was removed or replaced: later writes would be lost with the last connection."""
        key = threading.get_ident()
        if self.path is None or self._pid != os.getpid() or key not in self._connections:
            return False
        try:
            return _inode(self.path) != self._inodes[key]
        except OSError:
            return True

    # ---- transactions ------------------------------------------------------------------------------------------------

    def write(self, work: Work[T]) -> T:
        """Runs all of `work` or nothing. A collision repeats `work`, so it must not change anything else.

        Raises StoreFull, StoreBusy or, for a damaged or removed file, StoreError.
        """
        if self._is_gone():
            warn(f"{self.name} was removed while it was open; it begins anew")
            self._drop()
        return self._guarded(lambda c: _transaction(c, "BEGIN IMMEDIATE", lambda c: self._current(c, work)))

    def read(self, work: Work[T]) -> T:
        """Raises StoreError for a file that was damaged or taken away."""
        return self._guarded(lambda c: _transaction(c, "BEGIN", lambda c: self._current(c, work)))

    def _current(self, connection: sqlite3.Connection, work: Work[T]) -> T:
        if schema.version_of(connection) != schema.VERSION:
            raise StoreError(f"{self.name} was migrated by another version of Stormdrop while it was open here")
        return work(connection)

    def outside(self, work: Work[T]) -> T:
        """Runs statements that SQLite does not accept within a transaction."""
        return self._guarded(work)

    def _guarded(self, work: Work[T]) -> T:
        with self._turn:
            try:
                return patiently(lambda: work(self.connection()))
            except (sqlite3.Error, OSError) as error:
                self._drop()
                raise _ours(error, self.name, "free some space" if self._in_place else _FREE_SPACE) from error


def _make(path: Path) -> None:
    """Creates an empty file if there is none. A dangling link stays: the creator of the link must not choose
    our file.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _lock_in_place(connection: sqlite3.Connection) -> None:
    """Locks the file for a single connection, which needs no index of the log on the disk.

    The log is merged first, which may need room.
    """
    for pragma in ("locking_mode = EXCLUSIVE", "temp_store = MEMORY", "journal_mode = MEMORY"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def connect(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _journal(connection: sqlite3.Connection) -> str:
    """Returns the current journal of the file: `wal` unless its file system cannot; empty if that is not settled yet.

    A change of the journal needs the file alone for a moment. If the file is locked, the next connection makes the
    change.
    """
    try:
        mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
        return mode if mode == "wal" else str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    except sqlite3.OperationalError as error:
        if result_code(error) not in BUSY:
            raise
        return ""


def _transaction(connection: sqlite3.Connection, begin: str, work: Work[T]) -> T:
    connection.execute(begin)
    try:
        found = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise
    return found


def patiently(attempt: Callable[[], T]) -> T:
    """Retries while the file is locked: SQLite waits by itself, but not if waiting could be a deadlock."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if result_code(error) not in BUSY or time.monotonic() > end:
                raise
        time.sleep(random.uniform(0.001, 0.02))


def _ours(error: sqlite3.Error | OSError, name: str, advice: str) -> Exception:
    """Returns the error of this package for a failure of SQLite; an error in our own SQL is a bug, and stays unchanged.

    `advice` is for a disk without room.
    """
    if isinstance(error, OSError):
        return StoreError(f"{name} cannot be used: {error.strerror or error}")
    kind = result_code(error)
    if kind in BUSY:
        return StoreBusy(f"{name} is locked by another process for more than {PATIENCE_SECONDS:.0f} s")
    if is_no_room(error):
        return StoreFull(f"{name} cannot grow, there is no room on its disk ({error}); {advice}")
    if kind == sqlite3.SQLITE_IOERR:
        return StoreError(f"{name} cannot be used: {error}")
    if kind in DAMAGED:
        return StoreError(damaged(name, error))
    if kind in CLOSED:
        return StoreError(f"{name} cannot be written: {error}")
    return error


def damaged(name: str, error: sqlite3.Error) -> str:
    told = "move it away, and a new store begins (`sqlite3 FILE .recover` may save some of it)"
    return f"{name} is damaged ({error}); {told}"
