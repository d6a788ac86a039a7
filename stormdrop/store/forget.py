"""The removal of a task's verdicts and, if wanted, of its measurements."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from stormdrop.store.content import Summary
from stormdrop.store.evict import remove_unused


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The number of removed rows."""

    verdicts: int
    trials: int


def forget(connection: sqlite3.Connection, summaries: Iterable[Summary], with_trials: bool) -> Forgotten:
    """Removes the verdicts of tasks, each on a machine at a temperature.

    These are the tasks' own verdicts, imported verdicts, and the tasks' part in verdicts of models.
    """
    removed = {"verdict": 0, "trial": 0}
    where = """task_id = (SELECT id FROM task WHERE digest = ?)
        AND machine_id = (SELECT id FROM machine WHERE key = ?) AND cold = ?"""
    for s in summaries:
        for table in ("verdict", "trial") if with_trials else ("verdict",):
            removed[table] += connection.execute(
                f"DELETE FROM {table} WHERE {where}", (s.digest, s.target, s.cold)
            ).rowcount
    remove_unused(connection)
    return Forgotten(removed["verdict"], removed["trial"])
