"""Taking back what was decided for a task, and with that, if wanted, what was measured of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from stormdrop.reservoir.evict import remove_unused
from stormdrop.reservoir.summary import Summary


@dataclass(frozen=True, slots=True)
class Forgotten:
    """How many rows went."""

    verdicts: int
    trials: int


def forget(connection: sqlite3.Connection, summaries: Iterable[Summary], with_trials: bool) -> Forgotten:
    """Remove the verdicts of tasks, each on a machine at a temperature: the tasks' own, imported ones, and their part
    in what models accepted.
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
