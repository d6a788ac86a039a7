"""Databases under stores: a second implementation of the interface, and the SQLite connection of a store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from stormdrop.store.database import Connection, Cursor, Work
from stormdrop.store.sql import schema
from stormdrop.store.sqlite import SqliteDatabase
from stormdrop.store.store import Store

T = TypeVar("T")


class PlainDatabase:
    """A second `Database`: a single connection to memory, which hides every method that the interface lacks."""

    path = None
    name = "a plain database"

    def __init__(self) -> None:
        self._raw = sqlite3.connect(":memory:", isolation_level=None)
        schema.migrate(self._raw, self.name)

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> Cursor:
        return self._raw.execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Cursor:
        return self._raw.executemany(sql, parameters)

    def write(self, work: Work[T]) -> T:
        self._raw.execute("BEGIN")
        try:
            return work(self)
        except BaseException:
            self._raw.execute("ROLLBACK")
            raise
        finally:
            if self._raw.in_transaction:
                self._raw.execute("COMMIT")

    def read(self, work: Work[T]) -> T:
        return self.write(work)

    def used_bytes(self) -> int:
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size = (self._raw.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
        return (pages - free) * size

    def shrink(self) -> None:
        self._raw.execute("VACUUM")

    def faults(self) -> list[str]:
        return [str(row) for row in self._raw.execute("PRAGMA foreign_key_check")]

    def close(self) -> None:
        self._raw.close()


def connection_of(store: Store) -> sqlite3.Connection:
    """Returns this thread's connection to the file of a store."""
    assert isinstance(store._database, SqliteDatabase)
    return store._database.connection()


def verdict_rows(store: Store) -> int:
    """Returns the number of rows in the table of verdicts, of which some may not hold any more."""

    def count(c: Connection) -> int:
        return int(c.execute("SELECT count(*) FROM verdict").fetchone()[0])

    return store._database.read(count)
