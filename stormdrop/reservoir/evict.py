"""How a store stays within its size: the oldest trials go first, verified ones last."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from stormdrop.reservoir.database import Database

CHUNK = 2000
"""Trials removed in one transaction: other processes write in between."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many trials went, and the bytes in use before and after."""

    removed: int
    before_bytes: int
    after_bytes: int


def used_bytes(connection: sqlite3.Connection) -> int:
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return (pages - free) * size


def evict(database: Database, max_bytes: int) -> int:
    """Remove old trials until at most `max_bytes` are used or none is left; how many went."""
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
    """By row id: a clock that jumped may have made the newest trial the earliest."""
    gone = 0
    for verified in (0, 1):
        query = f"DELETE FROM trial WHERE id IN (SELECT id FROM trial WHERE verified = {verified} ORDER BY id LIMIT ?)"
        gone = connection.execute(query, (count,)).rowcount
        if gone:
            break
    remove_unused(connection)
    return gone


def remove_unused(connection: sqlite3.Connection) -> None:
    """Tasks without a trial. Targets and versions are few and small."""
    connection.execute("DELETE FROM task WHERE NOT EXISTS (SELECT 1 FROM trial WHERE trial.task_id = task.id)")


def shrink(database: Database) -> None:
    """Give free pages back to the file system."""
    database.write(remove_unused)
    if database.path is None:
        return
    # As a script: each step of this statement frees one page, and `execute` makes only the first.
    database.outside(lambda c: c.executescript("PRAGMA incremental_vacuum"))
    database.outside(lambda c: c.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
