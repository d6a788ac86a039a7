"""Rows into the database and out of existence: trials and verdicts, and the ids of data that rows share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

from stormdrop.space.rules import Rule
from stormdrop.store.database import Connection
from stormdrop.store.rows import (
    ELSEWHERE,
    MARKED,
    SharedRow,
    TrialRow,
    VerdictRow,
    column,
    mark_of,
    rules_of,
    unknown_rules,
)
from stormdrop.store.verdict import VERIFIED_RECORD

ABSENT = -1
"""No row has this id."""
Row = TypeVar("Row", bound=SharedRow)
PlaceKey = tuple[str, str, bool]
"""A task's digest, a machine's key, and a temperature."""
Place = tuple[int, int, int]
"""The same, as rows hold them: ids of the task and of the machine, and the temperature."""


class RowTable(Generic[Row]):
    """A table with references to a task, a machine, a target, versions and rules; `kind` has a field for each column.

    `row` lists the columns to select for `kind(*columns)`, from `source`. `more` are columns that are no fields.
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


# ---- insertion -------------------------------------------------------------------------------------------------------


def insert(c: Connection, rows: Sequence[TrialRow], skip_known: bool = False) -> list[bool]:
    """Inserts rows, in order; with `skip_known` only new rows. Returns for each row whether it was added."""
    shared = SharedRows(c)
    added: list[bool] = []
    for row in rows:
        mark = mark_of(getattr(row, name) for name in MARKED)
        is_known = skip_known and c.execute("SELECT 1 FROM trial WHERE mark = ?", (mark,)).fetchone()
        added.append(not is_known)
        if not is_known:
            TRIALS.insert(shared, row, row.schedule, None if row.features is None else row.feature_version, mark)
    return added


def insert_verdicts(c: Connection, rows: Sequence[VerdictRow], skip_known: bool = False) -> list[bool]:
    """Inserts rows, in order; with `skip_known` only new rows. Returns for each row whether it was added.

    An older row of the same key, provenance and rules is deleted, unless the new row confirms it. A row confirms an
    older row if the older winner is the incumbent that stays now. Of imported rows, only rows made of a verified record
    are deleted: a line must be recognised when it comes a second time.
    """
    shared = SharedRows(c)
    added: list[bool] = []
    for row in rows:
        added.append(not (skip_known and _is_known(c, row)))
        if not added[-1]:
            continue
        task, machine, _, _, rules = VERDICTS.insert(shared, row, row.schedule)
        same = "task_id = ? AND machine_id = ? AND cold = ? AND model = ? AND provenance = ? AND rules_id = ?"
        key = task, machine, row.cold, row.model, row.provenance, rules
        is_replaced = f"(provenance <> 'imported' OR method = '{VERIFIED_RECORD}')"
        if row.schedule == row.against:
            is_replaced += " AND NOT (schedule = ? AND schedule <> against)"
            key = *key, row.schedule
        older = "id < (SELECT max(id) FROM verdict)"
        c.execute(f"DELETE FROM verdict WHERE {same} AND {is_replaced} AND {older}", key)
    return added


def is_decided_by_import(c: Connection, row: VerdictRow) -> bool:
    """Returns whether an imported line has a verdict for the row's key: it holds more than a verified record does."""
    place = place_of(c, row.task_digest, row.target_key, row.cold)
    query = "SELECT 1 FROM verdict WHERE task_id = ? AND machine_id = ? AND cold = ? AND model = ? AND method <> ?"
    values = *place, row.model, VERIFIED_RECORD
    return c.execute(f"{query} AND provenance = 'imported'", values).fetchone() is not None


def _is_known(c: Connection, row: VerdictRow) -> bool:
    """Returns whether there is an equal verdict, of any provenance."""
    ids = "task_id = ? AND machine_id = ? AND version_id = ?"
    place = (
        id_of(c, "task", digest=row.task_digest),
        id_of(c, "machine", key=row.target_key),
        id_of(c, "version", stormdrop=row.stormdrop, llvm=row.llvm, features=row.feature_version),
    )
    names = [f.name for f in fields(VerdictRow) if f.name not in {*ELSEWHERE, "provenance"}]
    same = " AND ".join(f"{name} = ?" for name in names)
    values = (*place, *(getattr(row, name) for name in names))
    return c.execute(f"SELECT 1 FROM verdict WHERE {ids} AND {same}", values).fetchone() is not None


# ---- shared data -----------------------------------------------------------------------------------------------------


class SharedRows:
    """Ids of rows that many trials refer to, for one transaction: another process may remove them behind it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._ids: dict[object, int] = {}

    def id(self, table: str, more: Mapping[str, Any] | None = None, **keys: Any) -> int:
        """Returns the id of a row. `keys` identify the row in the table; `more` are the other columns of a new row."""
        key = table, *keys.values()
        if key not in self._ids:
            id = id_of(self.connection, table, **keys)
            if id == ABSENT:
                columns = keys | dict(more or {})
                places = ", ".join("?" * len(columns))
                query = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places}) RETURNING id"
                (id,) = self.connection.execute(query, (*columns.values(),)).fetchone()
            self._ids[key] = int(id)
        return self._ids[key]


def id_of(c: Connection, table: str, **keys: Any) -> int:
    """Returns the id of a row, `ABSENT` if there is none. `keys` identify the row in the table."""
    where = " AND ".join(f"{name} = ?" for name in keys)
    row = c.execute(f"SELECT id FROM {table} WHERE {where}", (*keys.values(),)).fetchone()
    return int(row[0]) if row else ABSENT


def place_of(c: Connection, digest: str, key: str, cold: bool | int) -> Place:
    return id_of(c, "task", digest=digest), id_of(c, "machine", key=key), int(cold)


def allowed_rules(c: Connection, known: Sequence[Rule]) -> str:
    """Returns the ids of all sets of rules that the known rules can replay, as an SQL list."""
    sets = c.execute("SELECT id, rules FROM rule_set")
    return ", ".join(str(int(id)) for id, rules in sets if not unknown_rules(rules, known))


def absent_rules(c: Connection, known: Sequence[Rule], place: Place, table: str = "trial") -> set[str]:
    """Returns the unknown rules in the trials of a task on a machine at a temperature."""
    has_row = f"SELECT 1 FROM {table} WHERE task_id = ? AND machine_id = ? AND cold = ? AND rules_id = ?"
    absent: set[str] = set()
    for id, rules in c.execute("SELECT id, rules FROM rule_set").fetchall():
        unknown = unknown_rules(rules, known)
        if unknown and c.execute(has_row, (*place, id)).fetchone():
            absent |= unknown
    return absent


# ---- removal ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The number of removed rows."""

    verdicts: int
    trials: int


def forget(c: Connection, places: Iterable[PlaceKey], with_trials: bool) -> Forgotten:
    """Removes the verdicts of tasks on machines at temperatures; with `with_trials`, their trials.

    These are the tasks' own verdicts, imported verdicts, and the tasks' part in verdicts of models.
    """
    where = """task_id = (SELECT id FROM task WHERE digest = ?)
        AND machine_id = (SELECT id FROM machine WHERE key = ?) AND cold = ?"""
    removed = {"verdict": 0, "trial": 0}
    for place in places:
        for table in ("verdict", "trial") if with_trials else ("verdict",):
            removed[table] += c.execute(f"DELETE FROM {table} WHERE {where}", place).rowcount
    remove_unused(c)
    return Forgotten(removed["verdict"], removed["trial"])


def remove_before(c: Connection, created: float, winners: bool) -> int:
    """Removes trials made before a Unix time, verified trials only with `winners`; returns their number."""
    spared = "" if winners else " AND verified = 0"
    return c.execute(f"DELETE FROM trial WHERE created < ?{spared}", (created,)).rowcount


def remove_oldest(c: Connection, count: int) -> int:
    """Removes the oldest trials by row id, verified trials last; returns their number.

    Clocks decide nothing: a clock that jumped may have made the newest trial the earliest.
    """
    removed = 0
    for verified in (0, 1):
        oldest = f"SELECT id FROM trial WHERE verified = {verified} ORDER BY id LIMIT ?"
        removed = c.execute(f"DELETE FROM trial WHERE id IN ({oldest})", (count,)).rowcount
        if removed:
            break
    remove_unused(c)
    return removed


def remove_unused(c: Connection) -> None:
    """Removes tasks without a trial or a verdict. Targets and versions are few and small, so they stay."""
    unused = " AND ".join(f"NOT EXISTS (SELECT 1 FROM {t} WHERE task_id = task.id)" for t in ("trial", "verdict"))
    c.execute(f"DELETE FROM task WHERE {unused}")
