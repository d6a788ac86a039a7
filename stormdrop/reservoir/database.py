"""The SQLite file under a store: who may open it, how it is written, and what its failures mean.

    write(work)   one transaction, taken at once (BEGIN IMMEDIATE), repeated while other processes write
    read(work)    one snapshot; with a write-ahead log no writer is waited for

Each thread of each process has a connection of its own: a forked child neither uses nor closes its parent's. A store in
memory has one connection, and its threads take turns.

Invariant: a file that is not a store of this or an earlier version is never written to, not a byte.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from stormdrop.errors import UserError
from stormdrop.reservoir import schema
from stormdrop.reservoir.rows import StoreError

_log = logging.getLogger("stormdrop.store")
T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]

BUSY_SECONDS = 5.0
"""How long SQLite itself waits for a lock, polling."""
PATIENCE_SECONDS = 60.0
"""How long a transaction is tried again before it is given up."""
LOG_BYTES = 32 << 20
"""What a write-ahead log is cut back to after a checkpoint."""
_MAGIC = b"SQLite format 3\0"
_abandoned: list[sqlite3.Connection] = []
"""Of parent processes: closing one here could release locks that are not ours."""


class StoreFull(StoreError):
    """The disk, a quota or a limit on file sizes leaves no room; nothing of what was to be written is in the file."""


class StoreBusy(StoreError):
    """Another process holds the store's lock for too long."""


class Unwritable(Exception):
    """The place cannot be written; the message says why."""


def _kind(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 where the module itself complains."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_CLOSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class Database:
    """A store's file, or (`path` None) memory.

    `vfs` names one of SQLite's own ways to lock files, for odd file systems.
    """

    def __init__(self, path: Path | None, vfs: str = "") -> None:
        self.path, self._vfs = path, vfs
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
        """This thread's, in this process."""
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
            connection = _opened(":memory:")
        else:
            vfs = f"&vfs={self._vfs}" if self._vfs else ""
            connection = _opened(f"{self.path.as_uri()}?mode=rwc{vfs}")
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if schema.version_of(connection) != schema.VERSION:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # heeded only while there is no table yet
            _patiently(lambda: _transaction(connection, "BEGIN IMMEDIATE", lambda c: schema.migrate(c, self.name)))
        if self.path is None:
            return
        mode = _journal(connection)
        if mode not in ("wal", "") and not self._has_told:
            self._has_told = True
            told = "%s: no write-ahead log on this file system, using a rollback journal: readers wait for writers"
            _log.warning(told, self.path)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")

    def close(self) -> None:
        """Close this process's connections; using it again opens it again. A store in memory is gone."""
        if self._pid != os.getpid():
            self._leave_parent()
        with self._opening:
            for connection in self._connections.values():
                connection.close()
            self._connections = {}

    def _drop(self) -> None:
        """Forget this thread's connection: after an error its state is not trusted."""
        if self.path is None:
            return
        with self._opening:
            found = self._connections.pop(threading.get_ident(), None)
        if found is not None:
            with suppress(sqlite3.Error):
                found.close()

    def _is_gone(self) -> bool:
        """Whether somebody removed or replaced the file: what we then write would be lost with the last connection."""
        key = threading.get_ident()
        if self.path is None or self._pid != os.getpid() or key not in self._connections:
            return False
        try:
            return _inode(self.path) != self._inodes[key]
        except OSError:
            return True

    # ---- transactions ------------------------------------------------------------------------------------------------

    def write(self, work: Work[T]) -> T:
        """All of `work` or nothing. It may be called again after a collision, so it must not change anything else.

        Raises StoreFull, StoreBusy or, for a file that was damaged or taken away, StoreError.
        """
        if self._is_gone():
            _log.warning("%s was removed while it was open; it begins anew", self.name)
            self._drop()
        return self._guarded(lambda c: _transaction(c, "BEGIN IMMEDIATE", lambda c: self._current(c, work)))

    def read(self, work: Work[T]) -> T:
        """Raises StoreError for a file that was damaged or taken away."""
        return self._guarded(lambda c: _transaction(c, "BEGIN", lambda c: self._current(c, work)))

    def _current(self, connection: sqlite3.Connection, work: Work[T]) -> T:
        if schema.version_of(connection) != schema.VERSION:
            raise StoreError(f"{self.name} was brought to another version by another Stormdrop while this one used it")
        return work(connection)

    def outside(self, work: Work[T]) -> T:
        """What SQLite does not do within a transaction."""
        return self._guarded(work)

    def _guarded(self, work: Work[T]) -> T:
        with self._turn:
            try:
                return _patiently(lambda: work(self.connection()))
            except (sqlite3.Error, OSError) as error:
                self._drop()
                raise _ours(error, self.name) from error


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _opened(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _journal(connection: sqlite3.Connection) -> str:
    """The journal that the file now has: `wal` unless its file system cannot; empty where that is not settled yet.

    Changing it needs the file alone for a moment; whoever finds it taken leaves the change to the next.
    """
    try:
        mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
        return mode if mode == "wal" else str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    except sqlite3.OperationalError as error:
        if _kind(error) not in _BUSY:
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


def _patiently(attempt: Callable[[], T]) -> T:
    """Again while the file is locked: SQLite waits by itself, but not wherever waiting could be a deadlock."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if _kind(error) not in _BUSY or time.monotonic() > end:
                raise
        time.sleep(random.uniform(0.001, 0.02))


def _ours(error: sqlite3.Error | OSError, name: str) -> Exception:
    """What a failure means for whoever uses the store; a complaint about our own SQL is a bug, and stays what it is."""
    if isinstance(error, OSError):
        return StoreError(f"{name} cannot be used: {error.strerror or error}")
    kind = _kind(error)
    if kind in _BUSY:
        return StoreBusy(f"{name} is locked by another process for more than {PATIENCE_SECONDS:.0f} s")
    if kind in _NO_ROOM:
        return StoreFull(f"{name} cannot grow: {error}; free some space, or lower it with `stormdrop store prune`")
    if kind in _DAMAGED:
        return StoreError(damaged(name, error))
    if kind in _CLOSED:
        return StoreError(f"{name} cannot be written: {error}")
    return error


def damaged(name: str, error: sqlite3.Error) -> str:
    told = "move it away, and a new store begins (`sqlite3 FILE .recover` may save some of it)"
    return f"{name} is damaged ({error}); {told}"


# ---- opening ---------------------------------------------------------------------------------------------------------


def open_file(path: Path, vfs: str = "") -> Database:
    """The store in a file, made if there is none and brought to this version if it is of an earlier one.

    Raises Unwritable where that cannot be, UserError if the file is damaged, another program's or of a newer version.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        examine(path)
        for needed in (path.parent, path):
            if needed.exists() and not os.access(needed, os.W_OK):
                raise Unwritable(f"{needed} is read-only")
    except OSError as error:
        raise Unwritable(f"{error.filename or path}: {error.strerror or error}") from error
    database = Database(path, vfs)
    try:
        _patiently(database.connection)
    except sqlite3.Error as error:
        if _kind(error) in _DAMAGED:
            raise UserError(damaged(str(path), error)) from error
        if _kind(error) in (*_CLOSED, *_NO_ROOM, *_BUSY):
            raise Unwritable(f"{path}: {error}") from error
        raise
    return database


def examine(path: Path) -> None:
    """Look at a file without changing it.

    Raises UserError if it is no store that this version reads, OSError if it is unreadable.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode):
        kind = "directory" if stat.S_ISDIR(found.st_mode) else "device"
        raise UserError(f"{path} is a {kind}, not a store; give the name of a file")
    if not found.st_size:
        return
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100 or not head.startswith(_MAGIC):
        raise UserError(f"{path} is not a store: it is no SQLite file; give another --store or STORMDROP_CACHE_DIR")
    # 0 may be a store that a killed process had just begun to make: the check below sees whether anything is in it.
    if int.from_bytes(head[68:72], "big") not in (0, schema.APPLICATION_ID):
        raise UserError(schema.foreign_text(str(path)))
    try:
        with closing(_opened(f"{path.as_uri()}?mode=ro")) as connection:
            _patiently(lambda: schema.check(connection, str(path)))
    except sqlite3.Error as error:
        # A reader may not finish what a killed writer began, nor read a log in a read-only folder: opening decides.
        if _kind(error) not in (*_CLOSED, *_BUSY):
            raise UserError(damaged(str(path), error)) from error


def copy_of(path: Path) -> Database:
    """What a file that cannot be written holds, in memory; empty if there is none.

    Raises OSError if it cannot be read either, UserError if it is no store of a known version.
    """
    examine(path)
    memory = Database(None)
    if not path.exists() or not path.stat().st_size:
        return memory
    failed = ""
    for mode in ("mode=ro", "mode=ro&immutable=1"):  # the latter where no index of the log can be made beside the file
        copy = _opened(":memory:")
        try:
            with closing(_opened(f"{path.as_uri()}?{mode}")) as source:
                source.backup(copy)
            memory._prepare(copy)
        except sqlite3.Error as error:
            copy.close()
            if _kind(error) in _DAMAGED:
                raise UserError(damaged(str(path), error)) from error
            failed = str(error)
            continue
        memory._connections[0] = copy
        return memory
    raise OSError(failed)
