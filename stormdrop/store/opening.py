"""The choice of files that are opened as a store, and the substitute for a store that cannot be written.

Invariant: a file that is not a store of this or an earlier version is never written to, not a byte.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

from stormdrop.base.errors import UserError
from stormdrop.store import schema
from stormdrop.store.database import (
    BUSY,
    CLOSED,
    DAMAGED,
    Database,
    connect,
    damaged,
    is_no_room,
    patiently,
    result_code,
)

_MAGIC = b"SQLite format 3\0"


class Unwritable(Exception):
    """The error for a place that cannot be written; the message has the reason. `is_full`: there is no room on its
    disk.
    """

    def __init__(self, message: str, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


def open_file(path: Path, vfs: str = "", in_place: bool = False) -> Database:
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
    database = Database(path, vfs, in_place)
    try:
        patiently(database.connection)
    except OSError as error:  # the file could not be made
        raise Unwritable(f"{path}: {error.strerror or error}", error.errno == errno.ENOSPC) from error
    except sqlite3.Error as error:
        if result_code(error) in DAMAGED:
            raise UserError(damaged(str(path), error)) from error
        if is_no_room(error):
            raise Unwritable(f"{path}: there is no room on its disk, {error}", is_full=True) from error
        if result_code(error) in (*CLOSED, *BUSY, sqlite3.SQLITE_IOERR):
            raise Unwritable(f"{path}: {error}") from error
        raise
    return database


def examine(path: Path) -> None:
    """Checks a file without changing it.

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
        with closing(connect(f"{path.as_uri()}?mode=ro")) as connection:
            patiently(lambda: schema.check(connection, str(path)))
    except sqlite3.Error as error:
        # A reader may not finish what a killed writer began, nor read a log in a read-only folder or on a full disk:
        # opening decides.
        if result_code(error) not in (*CLOSED, *BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise UserError(damaged(str(path), error)) from error


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0


def copy_of(path: Path) -> Database:
    """Returns a copy in memory of a file that cannot be written; an empty store if there is no file.

    Raises OSError if it cannot be read either, UserError if it is no store of a known version.
    """
    examine(path)
    memory = Database(None)
    if not path.exists() or not path.stat().st_size:
        return memory
    failed = ""
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
            if result_code(error) in DAMAGED and not ("immutable" in mode and _has_log(path)):
                raise UserError(damaged(str(path), error)) from error
            failed = str(error)
            continue
        return memory
    raise OSError(failed)
