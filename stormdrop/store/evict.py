"""Eviction, which limits the size of a store: the oldest trials are removed first, verified trials last.

Verdicts stay, because they are few.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stormdrop.base.errors import UserError
from stormdrop.store.database import Database, StoreFull
from stormdrop.store.opening import Unwritable, open_file

_log = logging.getLogger("stormdrop.store")

CHUNK = 2000
"""Trials removed in one transaction: other processes write in between."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The number of removed trials, and the bytes in use before and after."""

    removed: int
    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class Pruning:
    """The limits of a store. The oldest trials are removed until at most `max_bytes` are used, verified trials last.

    Trials made before `older_than` (Unix time) are removed too, verified trials only with `winners`.
    """

    max_bytes: int | None = None
    older_than: float | None = None
    winners: bool = False


def prune(database: Database, wanted: Pruning) -> Pruned:
    """Removes trials; the file shrinks. Verdicts stay. Raises StoreFull if there is no room for a journal."""
    before, removed = database.read(used_bytes), 0
    if wanted.older_than is not None:
        which = "created < ?" if wanted.winners else "created < ? AND verified = 0"
        query = f"DELETE FROM trial WHERE {which}"
        removed += database.write(lambda c: c.execute(query, (wanted.older_than,)).rowcount)
    if wanted.max_bytes is not None:
        removed += evict(database, wanted.max_bytes)
    shrink(database)
    return Pruned(removed, before, database.read(used_bytes))


def prune_file(path: Path, wanted: Pruning, vfs: str = "") -> Pruned:
    """Prunes a file as `prune` does, also on a full disk: without room for a journal, the file is changed in place.

    Raises UserError if there is no store, or if it cannot be written. Raises StoreFull if its log is longer than the
    room left on the disk, since the log is merged into the file before anything is removed.
    """
    if not path.exists():
        raise UserError(f"there is no store at {path}")
    try:
        with closing(open_file(path, vfs)) as database:
            return prune(database, wanted)
    except Unwritable as error:
        if not error.is_full:
            raise UserError(f"the store cannot be written ({error})") from error
    except StoreFull:
        pass
    _log.info("there is no room for a journal: %s is changed in place", path)
    try:
        with closing(open_file(path, vfs, in_place=True)) as database:
            return prune(database, wanted)
    except Unwritable as error:
        log = path.with_name(f"{path.name}-wal")
        told = f"{log.name} must be merged into it first: free up to {log.stat().st_size} bytes" if log.exists() else ""
        raise StoreFull(f"{error}; {told or 'free some space'}") from error


def used_bytes(connection: sqlite3.Connection) -> int:
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return (pages - free) * size


def evict(database: Database, max_bytes: int) -> int:
    """Removes old trials until at most `max_bytes` are used or none is left; returns the number of removed trials."""
    count = database.read(lambda c: int(c.execute("SELECT count(*) FROM trial").fetchone()[0]))
    row_bytes = max(1, database.read(used_bytes) // max(1, count))
    removed = 0
    while (excess := database.read(used_bytes) - max_bytes) > 0:
        chunk = max(1, min(CHUNK, excess // row_bytes + 1))
        gone = database.write(lambda c, n=chunk: _remove_oldest(c, n))
        if not gone:
            break
        removed += gone
    return removed


def _remove_oldest(connection: sqlite3.Connection, count: int) -> int:
    """Removes the oldest trials by row id: a clock that jumped may have made the newest trial the earliest."""
    gone = 0
    for verified in (0, 1):
        query = f"DELETE FROM trial WHERE id IN (SELECT id FROM trial WHERE verified = {verified} ORDER BY id LIMIT ?)"
        gone = connection.execute(query, (count,)).rowcount
        if gone:
            break
    remove_unused(connection)
    return gone


def remove_unused(connection: sqlite3.Connection) -> None:
    """Removes tasks without a trial or a verdict. Targets and versions are few and small, so they stay."""
    unused = " AND ".join(f"NOT EXISTS (SELECT 1 FROM {t} WHERE task_id = task.id)" for t in ("trial", "verdict"))
    connection.execute(f"DELETE FROM task WHERE {unused}")


def shrink(database: Database) -> None:
    """Returns free pages to the file system."""
    database.write(remove_unused)
    if database.path is None:
        return
    # As a script: each step of this statement frees one page, and `execute` runs only the first step.
    database.outside(lambda c: c.executescript("PRAGMA incremental_vacuum"))
    database.outside(lambda c: c.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
