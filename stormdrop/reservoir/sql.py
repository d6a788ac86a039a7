"""Rows in and out of the database: the columns of a `TrialRow`, and the ids of what rows share."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from stormdrop.reservoir.rows import ELSEWHERE, MARKED, TrialRow, column, mark_of, rules_of, unknown_rules
from stormdrop.space.rules import Rule

_OWN = tuple(f.name for f in fields(TrialRow) if f.name not in ELSEWHERE)
ROW = ", ".join(column(f.name) for f in fields(TrialRow))
"""What to select for `TrialRow(*found)`, from `FROM`."""
FROM = """trial JOIN task ON task.id = trial.task_id JOIN machine ON machine.id = trial.machine_id
    JOIN target ON target.id = trial.target_id JOIN version ON version.id = trial.version_id"""
_COLUMNS = (*_OWN, "task_id", "machine_id", "target_id", "version_id", "rules_id", "feature_version", "mark")
_INSERT = f"INSERT INTO trial ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


def insert(connection: sqlite3.Connection, rows: Sequence[TrialRow], skip_known: bool = False) -> int:
    """Add rows, in order; with `skip_known` those that are not there yet. How many were added."""
    shared = _SharedRows(connection)
    added = 0
    for row in rows:
        mark = mark_of(getattr(row, name) for name in MARKED)
        if skip_known and connection.execute("SELECT 1 FROM trial WHERE mark = ?", (mark,)).fetchone():
            continue
        machine = shared.id("machine", key=row.target_key)
        task = {"class_key": row.class_key, "anchor_key": row.anchor_key, "name": row.task_name}
        task |= {"flops": row.flops, "json": row.task_json}
        ids = (
            shared.id("task", task, digest=row.task_digest),
            machine,
            shared.id("target", {"machine_id": machine}, json=row.target_json),
            shared.id("version", stormdrop=row.stormdrop, llvm=row.llvm, features=row.feature_version),
            shared.id("rule_set", rules=rules_of(json.loads(row.schedule))),
        )
        version = None if row.features is None else row.feature_version
        connection.execute(_INSERT, (*(getattr(row, name) for name in _OWN), *ids, version, mark))
        added += 1
    return added


class _SharedRows:
    """Ids of rows that many trials refer to, for one transaction: another process may remove them behind it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ids: dict[object, int] = {}

    def id(self, table: str, more: Mapping[str, Any] | None = None, **keys: Any) -> int:
        """`keys` tell the rows of the table apart; `more` are the other columns of a new one."""
        key = table, *keys.values()
        if key not in self._ids:
            where = " AND ".join(f"{name} = ?" for name in keys)
            found = self._connection.execute(f"SELECT id FROM {table} WHERE {where}", (*keys.values(),)).fetchone()
            if found is None:
                columns = keys | dict(more or {})
                places = ", ".join("?" * len(columns))
                query = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) RETURNING id"
                found = self._connection.execute(query, (*columns.values(),)).fetchone()
            self._ids[key] = int(found[0])
        return self._ids[key]


def id_of(connection: sqlite3.Connection, table: str, column: str, value: str) -> int:
    """-1, which no row has, for what is not there."""
    found = connection.execute(f"SELECT id FROM {table} WHERE {column} = ?", (value,)).fetchone()
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
