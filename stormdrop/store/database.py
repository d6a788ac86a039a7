"""The database under a store: the interface that a store needs, and the errors of a store.

    database.write(work)   one transaction: all of `work` or nothing; repeated while other processes write
    database.read(work)    one snapshot

`work` receives a connection and runs queries of `stormdrop.store.sql` on the connection. `stormdrop.store.sqlite`
implements the interface; every implementation passes the store's contract test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from stormdrop.base.errors import StormdropError

T = TypeVar("T")


class StoreError(StormdropError):
    """The error for an operation that the store cannot perform; the caller can continue without the store."""


class StoreFull(StoreError):
    """The error for no room, by the disk, a quota or a limit on file sizes; the transaction is undone."""


class StoreBusy(StoreError):
    """The error for a lock of the store that another process holds for too long."""


class Cursor(Protocol):
    """The rows of a query; `rowcount` is the number of rows that a statement changed."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection within a transaction; `?` in a statement stands for a value."""

    def execute(self, sql: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any]], /) -> Cursor: ...


Work = Callable[[Connection], T]


class Database(Protocol):
    """A database with the tables of `stormdrop.store.sql.schema`."""

    @property
    def path(self) -> Path | None:
        """The file; None for a database in memory."""

    @property
    def name(self) -> str:
        """The name for messages."""
        ...

    def write(self, work: Work[T]) -> T:
        """Runs all of `work` or nothing. A collision repeats `work`, so `work` must not change anything else.

        Raises StoreFull, StoreBusy or another StoreError.
        """
        ...

    def read(self, work: Work[T]) -> T:
        """Runs `work` on one snapshot. Raises StoreError for a database that was damaged or removed."""
        ...

    def used_bytes(self) -> int:
        """Returns the bytes in use, without free pages and logs."""
        ...

    def shrink(self) -> None:
        """Returns free pages to the file system."""

    def faults(self) -> list[str]:
        """Returns the faults of the tables; an empty list if there are none."""
        ...

    def close(self) -> None:
        """Closes the connections; further use opens the database again."""
