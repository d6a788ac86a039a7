"""Rows in and out of the database: the columns of trials and verdicts, and the ids of data that rows share."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

from stormdrop.space.rules import Rule
from stormdrop.store.rows import ELSEWHERE, MARKED, SharedRow, TrialRow, column, mark_of, rules_of, unknown_rules
from stormdrop.store.verdict import VERIFIED_RECORD, VerdictRow

ABSENT = -1
"""No row has this id."""
Row = TypeVar("Row", bound=SharedRow)


class RowTable(Generic[Row]):
    """A table with references to a task, a machine, a target, versions and rules; `kind` has a field for each column.

    `row` lists the columns to select for `kind(*found)`, from `source`. `more` are columns that are no fields.
    """

    def __init__(self, name: str, kind: type[Row], more: tuple[str, ...] = ()) -> None:
        self.name, self.kind = name, kind
        self._own = tuple(f.name for f in fields(kind) if f.name not in ELSEWHERE)
        self.row = ", ".join(column(f.name, name) for f in fields(kind))
        keys = ("task", "machine", "target", "version")
        self.source = " ".join([name, *(f"JOIN {key} ON {key}.id = {name}.{key}_id" for key in keys)])
        columns = (*self._own, "task_id", "machine_id", "target_id", "version_id", "rules_id", *more)
        self._insert = f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"

    def insert(self, shared: SharedRows, row: Row, schedule: str, *more: object) -> tuple[int, ...]:
        """Inserts a row; returns the ids of its task, machine, target, version and rules."""
        machine = shared.id("machine", key=row.target_key)
        task = {"class_key": row.class_key, "anchor_key": row.anchor_key, "name": row.task_name}
        task |= {"flops": row.flops, "json": row.task_json}
        ids = (
            shared.id("task", task, digest=row.task_digest),
            machine,
            shared.id("target", {"machine_id": machine}, json=row.target_json),
            shared.id("version", stormdrop=row.stormdrop, llvm=row.llvm, features=row.feature_version),
            shared.id("rule_set", rules=rules_of(json.loads(schedule))),
        )
        shared.connection.execute(self._insert, (*(getattr(row, name) for name in self._own), *ids, *more))
        return ids


TRIALS = RowTable("trial", TrialRow, ("feature_version", "mark"))
VERDICTS = RowTable("verdict", VerdictRow)


def insert(connection: sqlite3.Connection, rows: Sequence[TrialRow], skip_known: bool = False) -> list[bool]:
    """Inserts rows, in order; with `skip_known` only new rows. Returns for each row whether it was added."""
    shared = SharedRows(connection)
    added: list[bool] = []
    for row in rows:
        mark = mark_of(getattr(row, name) for name in MARKED)
        is_known = skip_known and connection.execute("SELECT 1 FROM trial WHERE mark = ?", (mark,)).fetchone()
        added.append(not is_known)
        if not is_known:
            TRIALS.insert(shared, row, row.schedule, None if row.features is None else row.feature_version, mark)
    return added


def insert_verdicts(connection: sqlite3.Connection, rows: Sequence[VerdictRow], skip_known: bool = False) -> list[bool]:
    """Inserts rows, in order; with `skip_known` only new rows. Returns for each row whether it was added.

    An older row of the same key, provenance and rules is deleted, unless the new row confirms it. A row confirms an
    older row if the older winner is the incumbent that stays now. Of imported rows, only rows made of a verified record
    are deleted: a line must be recognised when it comes a second time.
    """
    shared = SharedRows(connection)
    added: list[bool] = []
    for row in rows:
        added.append(not (skip_known and _is_known(connection, row)))
        if not added[-1]:
            continue
        task, machine, _, _, rules = VERDICTS.insert(shared, row, row.schedule)
        same = "task_id = ? AND machine_id = ? AND cold = ? AND model = ? AND provenance = ? AND rules_id = ?"
        key = task, machine, row.cold, row.model, row.provenance, rules
        is_replaced = f"(provenance <> 'imported' OR method = '{VERIFIED_RECORD}')"
        if row.schedule == row.against:
            is_replaced += " AND NOT (schedule = ? AND schedule <> against)"
            key = *key, row.schedule
        connection.execute(f"DELETE FROM verdict WHERE {same} AND {is_replaced} AND id < last_insert_rowid()", key)
    return added


def is_decided_by_import(connection: sqlite3.Connection, row: VerdictRow) -> bool:
    """Returns whether an imported line has a verdict for the row's key: it holds more than a verified record does."""
    task, machine = id_of(connection, "task", digest=row.task_digest), id_of(connection, "machine", key=row.target_key)
    query = "SELECT 1 FROM verdict WHERE task_id = ? AND machine_id = ? AND cold = ? AND model = ? AND method <> ?"
    place = task, machine, row.cold, row.model, VERIFIED_RECORD
    return connection.execute(f"{query} AND provenance = 'imported'", place).fetchone() is not None


def _is_known(connection: sqlite3.Connection, row: VerdictRow) -> bool:
    """Returns whether there is an equal verdict, of any provenance."""
    ids = "task_id = ? AND machine_id = ? AND version_id = ?"
    place = (
        id_of(connection, "task", digest=row.task_digest),
        id_of(connection, "machine", key=row.target_key),
        id_of(connection, "version", stormdrop=row.stormdrop, llvm=row.llvm, features=row.feature_version),
    )
    names = [f.name for f in fields(VerdictRow) if f.name not in {*ELSEWHERE, "provenance"}]
    same = " AND ".join(f"{name} = ?" for name in names)
    values = (*place, *(getattr(row, name) for name in names))
    return connection.execute(f"SELECT 1 FROM verdict WHERE {ids} AND {same}", values).fetchone() is not None


class SharedRows:
    """Ids of rows that many trials refer to, for one transaction: another process may remove them behind it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._ids: dict[object, int] = {}

    def id(self, table: str, more: Mapping[str, Any] | None = None, **keys: Any) -> int:
        """Returns the id of a row. `keys` identify the row in the table; `more` are the other columns of a new row."""
        key = table, *keys.values()
        if key not in self._ids:
            found = id_of(self.connection, table, **keys)
            if found == ABSENT:
                columns = keys | dict(more or {})
                places = ", ".join("?" * len(columns))
                query = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) RETURNING id"
                (found,) = self.connection.execute(query, (*columns.values(),)).fetchone()
            self._ids[key] = int(found)
        return self._ids[key]


def id_of(connection: sqlite3.Connection, table: str, **keys: Any) -> int:
    """Returns the id of a row, `ABSENT` if there is none. `keys` identify the row in the table."""
    where = " AND ".join(f"{name} = ?" for name in keys)
    found = connection.execute(f"SELECT id FROM {table} WHERE {where}", (*keys.values(),)).fetchone()
    return int(found[0]) if found else ABSENT


def allowed_rules(connection: sqlite3.Connection, known: Sequence[Rule]) -> str:
    """Returns the ids of all sets of rules that the known rules can replay, as an SQL list."""
    sets = connection.execute("SELECT id, rules FROM rule_set")
    return ", ".join(str(int(id)) for id, rules in sets if not unknown_rules(rules, known))


def absent_rules(
    connection: sqlite3.Connection, known: Sequence[Rule], task: int, machine: int, cold: int, table: str = "trial"
) -> set[str]:
    """Returns the unknown rules in the trials of a task on a machine at a temperature."""
    has_row = f"SELECT 1 FROM {table} WHERE task_id = ? AND machine_id = ? AND cold = ? AND rules_id = ?"
    absent: set[str] = set()
    for id, rules in connection.execute("SELECT id, rules FROM rule_set").fetchall():
        unknown = unknown_rules(rules, known)
        if unknown and connection.execute(has_row, (task, machine, cold, id)).fetchone():
            absent |= unknown
    return absent
