"""Rows in and out of the database: the columns of a `TrialRow`, and the ids of what rows share."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from stormdrop.reservoir.rows import MARKED, TrialRow, mark_of, rules_of, unknown_rules
from stormdrop.space.rules import Rule

_ELSEWHERE = {
    "task_digest": "task.digest",
    "class_key": "task.class_key",
    "task_name": "task.name",
    "flops": "task.flops",
    "task_json": "task.json",
    "target_key": "machine.key",
    "target_json": "target.json",
    "stormdrop": "version.stormdrop",
    "llvm": "version.llvm",
    "feature_version": "version.features",
}
_OWN = tuple(f.name for f in fields(TrialRow) if f.name not in _ELSEWHERE)
ROW = ", ".join(_ELSEWHERE.get(f.name, f"trial.{f.name}") for f in fields(TrialRow))
"""What to select for `TrialRow(*found)`, from `FROM`."""
FROM = """trial JOIN task ON task.id = trial.task_id JOIN machine ON machine.id = trial.machine_id
    JOIN target ON target.id = trial.target_id JOIN version ON version.id = trial.version_id"""
_COLUMNS = (*_OWN, "task_id", "machine_id", "target_id", "version_id", "rules_id", "feature_version", "mark")
_INSERT = f"INSERT INTO trial ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


def insert(connection: sqlite3.Connection, rows: Sequence[TrialRow], skip_known: bool = False) -> int:
    """Add rows, in order; with `skip_known` those that are not there yet. How many were added."""
    shared = _Shared(connection)
    added = 0
    for row in rows:
        mark = mark_of(getattr(row, name) for name in MARKED)
        if skip_known and connection.execute("SELECT 1 FROM trial WHERE mark = ?", (mark,)).fetchone():
            continue
        machine = shared.id("machine", key=row.target_key)
        ids = (
            shared.id(
                "task",
                digest=row.task_digest,
                class_key=row.class_key,
                name=row.task_name,
                flops=row.flops,
                json=row.task_json,
            ),
            machine,
            shared.id("target", json=row.target_json, machine_id=machine),
            shared.version(row),
            shared.id("rule_set", rules=rules_of(json.loads(row.schedule))),
        )
        version = None if row.features is None else row.feature_version
        connection.execute(_INSERT, (*(getattr(row, name) for name in _OWN), *ids, version, mark))
        added += 1
    return added


class _Shared:
    """The ids of rows that many trials refer to, within one transaction: another process may remove them between
    two.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[object, int] = {}

    def id(self, table: str, **columns: Any) -> int:
        """The first of the columns tells the rows of the table apart."""
        name, value = next(iter(columns.items()))
        return self._id(table, f"{name} = ?", (value,), columns)

    def version(self, row: TrialRow) -> int:
        columns = {"stormdrop": row.stormdrop, "llvm": row.llvm, "features": row.feature_version}
        return self._id("version", "stormdrop = ? AND llvm = ? AND features = ?", tuple(columns.values()), columns)

    def _id(self, table: str, where: str, values: tuple[Any, ...], columns: dict[str, Any]) -> int:
        key = table, *values
        if key not in self._ids:
            found = self._connection.execute(f"SELECT id FROM {table} WHERE {where}", values).fetchone()
            if found is None:
                insert = (
                    f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))}) RETURNING id"
                )
                found = self._connection.execute(insert, tuple(columns.values())).fetchone()
            self._ids[key] = int(found[0])
        return self._ids[key]


def task_id(connection: sqlite3.Connection, digest: str) -> int:
    """-1, which no row has, for what is not there."""
    found = connection.execute("SELECT id FROM task WHERE digest = ?", (digest,)).fetchone()
    return int(found[0]) if found else -1


def machine_id(connection: sqlite3.Connection, key: str) -> int:
    found = connection.execute("SELECT id FROM machine WHERE key = ?", (key,)).fetchone()
    return int(found[0]) if found else -1


def allowed_rules(connection: sqlite3.Connection, known: Sequence[Rule]) -> str:
    """The ids of all sets of rules that the known ones can replay, as SQL lists them."""
    sets = connection.execute("SELECT id, rules FROM rule_set")
    return ", ".join(str(int(id)) for id, rules in sets if not unknown_rules(rules, known))


def absent_rules(connection: sqlite3.Connection, known: Sequence[Rule], task: int, machine: int, cold: int) -> set[str]:
    """The rules that trials of a task on a machine at a temperature follow, and that are not known."""
    has_trial = "SELECT 1 FROM trial WHERE task_id = ? AND machine_id = ? AND cold = ? AND rules_id = ?"
    absent: set[str] = set()
    for id, rules in connection.execute("SELECT id, rules FROM rule_set").fetchall():
        unknown = unknown_rules(rules, known)
        if unknown and connection.execute(has_trial, (task, machine, cold, id)).fetchone():
            absent |= unknown
    return absent
