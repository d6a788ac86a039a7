"""SQLite under a store: files that are opened or refused, transactions, and the meaning of SQLite's failures.

Each thread of each process has a connection of its own: a forked child neither uses nor closes its parent's. A store in
memory has one connection, and its threads take turns.

Invariant: a file that is not a store of this or an earlier version is never written to, not a byte.
"""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path
from typing import Literal, TypeVar

from stormdrop.base.errors import UserError, warn
from stormdrop.store.database import Connection, StoreBusy, StoreError, StoreFull, Work
from stormdrop.store.sql import schema

T = TypeVar("T")

BUSY_SECONDS = 5.0
"""The time that SQLite itself waits for a lock, polling."""
PATIENCE_SECONDS = 60.0
"""The time for which a transaction is retried."""
LOG_BYTES = 32 << 20
"""The size to which a write-ahead log is truncated after a checkpoint."""
_MAGIC = b"SQLite format 3\0"
Fault = Literal["busy", "full", "no locks", "damaged", "closed", "io", "bug"]
"""The kind of a failure of SQLite; `bug` for an error in the package's own SQL."""
_FAULTS: Mapping[int, Fault] = {
    sqlite3.SQLITE_BUSY: "busy",
    sqlite3.SQLITE_LOCKED: "busy",
    sqlite3.SQLITE_CORRUPT: "damaged",
    sqlite3.SQLITE_NOTADB: "damaged",
    sqlite3.SQLITE_READONLY: "closed",
    sqlite3.SQLITE_CANTOPEN: "closed",
    sqlite3.SQLITE_PERM: "closed",
    sqlite3.SQLITE_AUTH: "closed",
    sqlite3.SQLITE_IOERR: "io",
}
_NO_ROOM = (
    # SQLite's codes for ENOSPC, EDQUOT and EFBIG: in a page, in the log's index, in a late write.
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
    sqlite3.SQLITE_IOERR_FSYNC,
)
_NO_LOCKS = (
    sqlite3.SQLITE_IOERR_LOCK,
    sqlite3.SQLITE_IOERR_RDLOCK,
    sqlite3.SQLITE_IOERR_UNLOCK,
    sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
    sqlite3.SQLITE_IOERR_SHMLOCK,
)
_ELSEWHERE = "give another --store or STORMDROP_CACHE_DIR"
_abandoned: list[sqlite3.Connection] = []
"""Connections of parent processes: closing such a connection here could release locks of the parent."""


class Unwritable(Exception):
    """The error for a place that cannot be written; the message has the reason. `is_full`: the disk has no room."""

    def __init__(self, message: str, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


class SqliteDatabase:
    """A `Database` in a file, or (`path` None) in memory.

    With `in_place` the file is locked for this process alone, and transactions keep their rollback data in memory. They
    need no room on the disk, but a process killed during a transaction leaves a damaged file.
    """

    def __init__(self, path: Path | None, in_place: bool = False) -> None:
        self.path, self._in_place = path, in_place
        self._pid = os.getpid()
        self._connections: dict[int, sqlite3.Connection] = {}
        self._inodes: dict[int, tuple[int, int]] = {}
        self._opening = threading.Lock()
        self._turn: AbstractContextManager[object] = nullcontext() if path else threading.RLock()
        self._has_warned = False

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
            connection = self._connections.get(key)
            if connection is None:
                self._close_those_of_dead_threads()
                connection = self._connect()
                if self.path is not None:
                    self._inodes[key] = _inode(self.path)
                self._connections[key] = connection
        return connection

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
            _make(self.path)
            connection = connect(f"{self.path.as_uri()}?mode=rw")
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
        if mode not in ("wal", "") and not self._has_warned:
            self._has_warned = True
            reason = "no write-ahead log on this file system, using a rollback journal: readers wait for writers"
            warn(f"{self.path}: {reason}")
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
            connection = self._connections.pop(threading.get_ident(), None)
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

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
        if self._is_gone():
            warn(f"{self.name} was removed while it was open; it begins anew")
            self._drop()
        return self._guarded(lambda c: _transaction(c, "BEGIN IMMEDIATE", lambda c: self._current(c, work)))

    def read(self, work: Work[T]) -> T:
        return self._guarded(lambda c: _transaction(c, "BEGIN", lambda c: self._current(c, work)))

    def _current(self, connection: sqlite3.Connection, work: Work[T]) -> T:
        if schema.version_of(connection) != schema.VERSION:
            raise StoreError(f"{self.name} was migrated by another version of Stormdrop while it was open here")
        return work(connection)

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._turn:
            try:
                return patiently(lambda: work(self.connection()))
            except (sqlite3.Error, OSError) as error:
                self._drop()
                raise self._ours(error) from error

    def _ours(self, error: sqlite3.Error | OSError) -> Exception:
        """Returns the error of this package for a failure of SQLite. An error in the package's SQL stays unchanged."""
        if isinstance(error, OSError):
            return StoreError(f"{self.name} cannot be used: {error.strerror or error}")
        fault, text = _fault(error), _text(self.name, error)
        match fault:
            case "bug":
                return error
            case "busy":
                return StoreBusy(text)
            case "full":
                other = "" if self._in_place else ", or remove old trials with `stormdrop store prune`"
                return StoreFull(f"{text}; free some space{other}")
            case _:
                return StoreError(text)

    # ---- the file ----------------------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        def count(connection: Connection) -> int:
            names = ("page_count", "freelist_count", "page_size")
            pages, free, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
            return (pages - free) * size

        return self.read(count)

    def shrink(self) -> None:
        if self.path is not None:
            # As a script: each step of this statement frees one page, and `execute` runs only the first step.
            self._guarded(lambda c: c.executescript("PRAGMA incremental_vacuum"))
            self._guarded(lambda c: c.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())

    def faults(self) -> list[str]:
        def check(connection: Connection) -> list[str]:
            damage = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
            dangling = connection.execute("PRAGMA foreign_key_check").fetchall()
            faults = [line for line in damage if line != "ok"]
            return faults + [f"row {row[1]} of {row[0]} refers to nothing in {row[2]}" for row in dangling]

        try:
            return self.read(check)
        except StoreError as error:
            return [str(error)]


def connect(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _make(path: Path) -> None:
    """Creates an empty file if there is none. A dangling link stays: its creator must not choose the store's file."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _lock_in_place(connection: sqlite3.Connection) -> None:
    """Locks the file for a single connection, which needs no index of the log on the disk.

    The log is merged first, which may need room.
    """
    for pragma in ("locking_mode = EXCLUSIVE", "temp_store = MEMORY", "journal_mode = MEMORY"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _journal(connection: sqlite3.Connection) -> str:
    """Returns the current journal of the file: `wal` unless its file system cannot; empty if that is not settled yet.

    A change of the journal needs the file alone for a moment. If the file is locked, the next connection makes the
    change.
    """
    try:
        mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
        return mode if mode == "wal" else str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    except sqlite3.OperationalError as error:
        if _fault(error) != "busy":
            raise
        return ""


def _transaction(connection: sqlite3.Connection, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute(begin)
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise
    return result


def patiently(attempt: Callable[[], T]) -> T:
    """Retries while the file is locked: SQLite waits by itself, but not if waiting could be a deadlock."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if _fault(error) != "busy" or time.monotonic() > end:
                raise
        time.sleep(random.uniform(0.001, 0.02))


# ---- opening a file --------------------------------------------------------------------------------------------------


def open_file(path: Path, in_place: bool = False) -> SqliteDatabase:
    """Opens the store in a file; creates it if there is none, and migrates it from an earlier version.

    Raises Unwritable if that is impossible, UserError if the file is damaged, another program's or of a newer version.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() and not path.exists():
            raise Unwritable(f"{path} is a link to {os.readlink(path)}, where there is no file")
        examine(path)
        for needed in (path.parent, path):
            if needed.exists() and not os.access(needed, os.W_OK):
                raise Unwritable(f"{needed} is read-only")
    except OSError as error:
        raise Unwritable(f"{error.filename or path}: {error.strerror or error}") from error
    database = SqliteDatabase(path, in_place)
    try:
        patiently(database.connection)
    except OSError as error:  # the file could not be made
        raise Unwritable(f"{path}: {error.strerror or error}", error.errno == errno.ENOSPC) from error
    except sqlite3.Error as error:
        fault, text = _fault(error), _text(str(path), error)
        if fault == "bug":
            raise
        raise UserError(text) if fault == "damaged" else Unwritable(text, is_full=fault == "full") from error
    return database


def examine(path: Path) -> None:
    """Checks a file without changing it.

    Raises UserError if it is no store that this version reads, OSError if it is unreadable.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "device"
        raise UserError(f"{path} is a {kind}, not a store; give the name of a file")
    if not status.st_size:
        return
    with path.open("rb") as file:
        head = file.read(100)
    if len(head) < 100 or not head.startswith(_MAGIC):
        raise UserError(f"{path} is not a store: it is no SQLite file; {_ELSEWHERE}")
    # 0 may be a store that a killed process had just begun to make: the check below sees whether anything is in it.
    if int.from_bytes(head[68:72], "big") not in (0, schema.APPLICATION_ID):
        raise UserError(schema.foreign_text(str(path)))
    try:
        with closing(connect(f"{path.as_uri()}?mode=ro")) as connection:
            patiently(lambda: schema.check(connection, str(path)))
    except sqlite3.Error as error:
        # A reader may not finish what a killed writer began, nor read a log in a read-only folder or on a full disk:
        # opening decides.
        if _fault(error) in ("damaged", "bug"):
            raise UserError(_text(str(path), error)) from error


def copy_of(path: Path) -> SqliteDatabase:
    """Returns a copy in memory of a file that cannot be written; an empty store if there is no file.

    Raises OSError if it cannot be read either, UserError if it is no store of a known version.
    """
    examine(path)
    memory = SqliteDatabase(None)
    if not path.exists() or not path.stat().st_size:
        return memory
    reason = ""
    # If no index of the log can be made beside the file: alone, a connection has it in memory (on a full disk); in a
    # folder that is read-only, the file is read without its log.
    modes = ["mode=ro", *(["mode=rw"] if os.access(path, os.W_OK) else []), "mode=ro&immutable=1"]
    for mode in modes:
        copy = connect(":memory:")
        try:
            with closing(connect(f"{path.as_uri()}?{mode}")) as source:
                if mode == "mode=rw":
                    source.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
                source.backup(copy)
            memory.adopt(copy)
        except sqlite3.Error as error:
            copy.close()
            if _fault(error) == "damaged" and not ("immutable" in mode and _has_log(path)):
                raise UserError(_text(str(path), error)) from error
            reason = str(error)
            continue
        return memory
    raise OSError(reason)


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


# ---- failures --------------------------------------------------------------------------------------------------------


def _fault(error: sqlite3.Error) -> Fault:
    code: int = getattr(error, "sqlite_errorcode", 0)  # 0: an error of Python's module
    if code in _NO_ROOM:
        return "full"
    return "no locks" if code in _NO_LOCKS else _FAULTS.get(code & 0xFF, "bug")


def _text(name: str, error: sqlite3.Error) -> str:
    match _fault(error):
        case "busy":
            reason = f"is locked by another process for more than {PATIENCE_SECONDS:.0f} s"
            return f"{name} {reason}; if there is none, its file system has no locks: {_ELSEWHERE} on a local disk"
        case "no locks":
            return f"{name} is on a file system without locks ({error}); {_ELSEWHERE} on a local disk"
        case "full":
            return f"{name} cannot grow, there is no room on its disk ({error})"
        case "closed":
            return f"{name} cannot be written: {error}"
        case "damaged" | "bug":
            remedy = "move it away, and a new store begins (`sqlite3 FILE .recover` may save some of it)"
            return f"{name} is damaged ({error}); {remedy}"
        case "io":
            return f"{name} cannot be used: {error}"
