"""Eviction, which limits the size of a store: the oldest trials are removed first, verified trials last.

Verdicts stay, because they are few.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stormdrop.base.errors import UserError
from stormdrop.store.database import Database, StoreFull
from stormdrop.store.sql.queries import count_trials
from stormdrop.store.sql.tables import remove_before, remove_oldest, remove_unused
from stormdrop.store.sqlite import Unwritable, open_file

_log = logging.getLogger("stormdrop.store")

CHUNK = 2000
"""Trials removed in one transaction: other processes write in between."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """The number of removed trials, and the bytes in use before and after."""

    removed: int
    before_bytes: int
    after_bytes: int


def prune(database: Database, max_bytes: int | None, older_than: float | None, winners: bool) -> Pruned:
    """Removes the oldest trials until at most `max_bytes` are used, verified trials last; the file shrinks.

    Trials made before `older_than` (Unix time) are removed too, verified trials only with `winners`. Raises StoreFull
    if there is no room for a journal.
    """
    before, removed = database.used_bytes(), 0
    if older_than is not None:
        removed += database.write(lambda c: remove_before(c, older_than, winners))
    if max_bytes is not None:
        removed += evict(database, max_bytes)
    database.write(remove_unused)
    database.shrink()
    return Pruned(removed, before, database.used_bytes())


def prune_file(
    path: Path, max_bytes: int | None = None, older_than: float | None = None, winners: bool = False
) -> Pruned:
    """Prunes a file as `prune` does, also on a full disk: without room for a journal, the file is changed in place.

    Raises UserError if there is no store, or if it cannot be written. Raises StoreFull if its log is longer than the
    room left on the disk, since the log is merged into the file before anything is removed.
    """
    if not path.exists():
        raise UserError(f"there is no store at {path}")
    try:
        with closing(open_file(path)) as database:
            return prune(database, max_bytes, older_than, winners)
    except Unwritable as error:
        if not error.is_full:
            raise UserError(f"the store cannot be written ({error})") from error
    except StoreFull:
        pass
    _log.info("there is no room for a journal: %s is changed in place", path)
    try:
        with closing(open_file(path, in_place=True)) as database:
            return prune(database, max_bytes, older_than, winners)
    except Unwritable as error:
        log = path.with_name(f"{path.name}-wal")
        remedy = "free some space"
        if log.exists():
            remedy = f"{log.name} must be merged into it first: free up to {log.stat().st_size} bytes"
        raise StoreFull(f"{error}; {remedy}") from error


def evict(database: Database, max_bytes: int) -> int:
    """Removes old trials until at most `max_bytes` are used or none is left; returns the number of removed trials."""
    row_bytes = max(1, database.used_bytes() // max(1, database.read(count_trials)))
    removed = 0
    while (excess := database.used_bytes() - max_bytes) > 0:
        chunk = max(1, min(CHUNK, excess // row_bytes + 1))
        removed_now = database.write(lambda c, n=chunk: remove_oldest(c, n))
        if not removed_now:
            break
        removed += removed_now
    return removed
