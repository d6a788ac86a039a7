"""The tables of a store, and the migration of a file from an earlier version.

Version n is reached from version n - 1 by `STEPS[n - 1]`, a new file from nothing by all of them. There is one way to
every version, executed in one transaction. A released step never changes.

    task ◀── trial, verdict ──▶ machine, target, version, rule_set

A trial is a row of its own, and so is a verdict. Shared data are rows of other tables: the task, the machine's key, its
full description, the versions, the rules a schedule needs. Rates are measured anew now and then, so one machine has
several descriptions. Order is the order of the row ids, never of a clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from stormdrop.base.errors import UserError
from stormdrop.store.claims import LEAST_SECONDS
from stormdrop.store.database import Connection
from stormdrop.store.rows import MARKED, column, compact, mark_of, rules_of, task_of
from stormdrop.store.sql.tables import TRIALS

APPLICATION_ID = int.from_bytes(b"StDr", "big")
Migration = Callable[[Connection], None]

_FIRST = (
    """CREATE TABLE task (
        id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, class_key TEXT NOT NULL, name TEXT NOT NULL,
        flops REAL NOT NULL,
        json TEXT NOT NULL)""",
    "CREATE TABLE machine (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE)",
    "CREATE TABLE target (id INTEGER PRIMARY KEY, machine_id INTEGER NOT NULL REFERENCES machine, json TEXT NOT NULL "
    "UNIQUE)",
    """CREATE TABLE version (
        id INTEGER PRIMARY KEY, stormdrop TEXT NOT NULL, llvm TEXT NOT NULL, features INTEGER NOT NULL,
        UNIQUE (stormdrop, llvm, features))""",
    # Numbers and features stand before the long columns: the cost model reads nothing behind them.
    """CREATE TABLE trial (
        id INTEGER PRIMARY KEY,
        task_id INTEGER NOT NULL REFERENCES task, machine_id INTEGER NOT NULL REFERENCES machine,
        target_id INTEGER NOT NULL REFERENCES target, version_id INTEGER NOT NULL REFERENCES version,
        cold INTEGER NOT NULL, verified INTEGER NOT NULL,
        strategy TEXT NOT NULL, seed TEXT NOT NULL, number INTEGER NOT NULL, elapsed REAL NOT NULL, model TEXT NOT NULL,
        created REAL NOT NULL,
        seconds REAL, spread REAL, runs INTEGER, build_seconds REAL NOT NULL, stopped_early INTEGER NOT NULL,
        failure TEXT, message TEXT,
        features BLOB, schedule TEXT NOT NULL, samples BLOB NOT NULL)""",
    "CREATE INDEX task_class ON task (class_key)",
    "CREATE INDEX trial_task ON trial (task_id, machine_id, cold)",
)


def _execute(connection: Connection, statements: Sequence[str]) -> None:
    for statement in statements:
        connection.execute(statement)


def _first(connection: Connection) -> None:
    _execute(connection, _FIRST)


_SECOND = (
    "CREATE TABLE rule_set (id INTEGER PRIMARY KEY, rules TEXT NOT NULL UNIQUE)",
    "ALTER TABLE trial ADD COLUMN rules_id INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE trial ADD COLUMN feature_version INTEGER",
    "ALTER TABLE trial ADD COLUMN mark INTEGER NOT NULL DEFAULT 0",
)
_SECOND_INDEXES = (
    "DROP INDEX trial_task",
    # Every column in the queries of `best` and `known`, in the order of the queries.
    """CREATE INDEX trial_best ON trial
        (task_id, machine_id, cold, verified, stopped_early, seconds, version_id, rules_id)""",
    "CREATE INDEX trial_recent ON trial (machine_id, feature_version)",
    "CREATE INDEX trial_age ON trial (verified)",
    "CREATE INDEX trial_mark ON trial (mark)",
)


def _second(connection: Connection) -> None:
    """Adds columns for the rules that a trial needs, the version of its features, and its distinguishing mark."""
    _execute(connection, _SECOND)
    listed = ", ".join(map(column, MARKED))
    query = f"""SELECT trial.id, trial.features IS NOT NULL, {listed} FROM trial JOIN task ON task.id = task_id
        JOIN machine ON machine.id = trial.machine_id JOIN target ON target.id = target_id
        JOIN version ON version.id = version_id
        WHERE trial.id > ? ORDER BY trial.id LIMIT 1000"""
    schedule, version = MARKED.index("schedule"), MARKED.index("feature_version")
    known: dict[str, int] = {}
    last = -(2**63)
    while rows := connection.execute(query, (last,)).fetchall():
        changes: list[tuple[int, int | None, int, int]] = []
        for id, has_features, *values in rows:
            rules = rules_of(json.loads(values[schedule]))
            if rules not in known:
                known[rules] = len(known) + 1
                connection.execute("INSERT INTO rule_set (id, rules) VALUES (?, ?)", (known[rules], rules))
            changes.append((known[rules], values[version] if has_features else None, mark_of(values), id))
        connection.executemany("UPDATE trial SET rules_id = ?, feature_version = ?, mark = ? WHERE id = ?", changes)
        last = rows[-1][0]
    _execute(connection, _SECOND_INDEXES)


_THIRD = (
    "ALTER TABLE task ADD COLUMN anchor_key TEXT NOT NULL DEFAULT ''",
    "CREATE INDEX task_anchor ON task (anchor_key)",
)


def _third(connection: Connection) -> None:
    """Replaces the classes of whole tasks by the classes of variants; adds anchor classes."""
    _execute(connection, _THIRD)
    for id, classes in _with_new_keys(connection):
        _rename_classes_of_trials(connection, id, classes)


def _with_new_keys(connection: Connection) -> Iterator[tuple[int, list[str]]]:
    """Writes the keys of every task anew; yields its id, and the classes of its variants.

    Tasks and schedules that this version cannot read stay unchanged.
    """
    for id, text in connection.execute("SELECT id, json FROM task").fetchall():
        try:
            task = task_of(text)
        except UserError:
            continue
        keys = task.class_key, task.anchor_key, id
        connection.execute("UPDATE task SET class_key = ?, anchor_key = ? WHERE id = ?", keys)
        yield id, [variant.class_key for variant in task.variants]


def _rename_classes_of_trials(connection: Connection, task: int, classes: Sequence[str]) -> None:
    listed = ", ".join(map(column, MARKED))
    query = f"SELECT trial.id, {listed} FROM {TRIALS.source} WHERE trial.task_id = ?"
    at = MARKED.index("schedule")
    changes: list[tuple[str, int, int]] = []
    for trial, *values in connection.execute(query, (task,)):
        renamed = _of_class(values[at], classes)
        if renamed != values[at]:
            values[at] = renamed
            changes.append((renamed, mark_of(values), trial))
    connection.executemany("UPDATE trial SET schedule = ?, mark = ? WHERE id = ?", changes)


def _of_class(text: str, classes: Sequence[str]) -> str:
    """Returns a schedule's JSON with the class of its variant."""
    schedule = json.loads(text)
    if not 0 <= schedule["variant"] < len(classes):
        return text
    return compact({**schedule, "class": classes[schedule["variant"]]})


_FOURTH = (
    """CREATE TABLE verdict (
        id INTEGER PRIMARY KEY,
        task_id INTEGER NOT NULL REFERENCES task, machine_id INTEGER NOT NULL REFERENCES machine,
        target_id INTEGER NOT NULL REFERENCES target, version_id INTEGER NOT NULL REFERENCES version,
        rules_id INTEGER NOT NULL REFERENCES rule_set,
        cold INTEGER NOT NULL, model TEXT NOT NULL, provenance TEXT NOT NULL,
        seconds REAL NOT NULL, against_seconds REAL NOT NULL, method TEXT NOT NULL, rounds INTEGER NOT NULL,
        proof TEXT NOT NULL, code TEXT NOT NULL, is_timing_old INTEGER NOT NULL, created REAL NOT NULL,
        schedule TEXT NOT NULL, against TEXT NOT NULL)""",
    "CREATE INDEX verdict_key ON verdict (task_id, machine_id, cold, model)",
    # Of each set of rules the fastest that a machine can reach; the fastest of all last, so that it is the newest.
    f"""INSERT INTO verdict (task_id, machine_id, target_id, version_id, rules_id, cold, model, provenance, seconds,
            against_seconds, method, rounds, proof, code, is_timing_old, created, schedule, against)
        SELECT task_id, machine_id, target_id, version_id, rules_id, cold, '', 'migrated', min(seconds),
            seconds, 'verified record', 0, 'reference values, in a fresh process', '', 0, created, schedule, schedule
        FROM trial WHERE verified = 1 AND stopped_early = 0 AND seconds >= {LEAST_SECONDS}
        GROUP BY task_id, machine_id, cold, rules_id ORDER BY min(seconds) DESC""",
)


def _fourth(connection: Connection) -> None:
    """Adds verdicts: one for the fastest believable verified record of each task, machine and temperature."""
    _execute(connection, _FOURTH)


def _fifth(connection: Connection) -> None:
    """Renews keys of tasks, and of schedules in trials and verdicts: a division by a number is now a multiplication."""
    for id, classes in _with_new_keys(connection):
        _rename_classes_of_trials(connection, id, classes)
        verdicts = connection.execute("SELECT schedule, against, id FROM verdict WHERE task_id = ?", (id,)).fetchall()
        changes = [(_of_class(won, classes), _of_class(lost, classes), verdict) for won, lost, verdict in verdicts]
        connection.executemany("UPDATE verdict SET schedule = ?, against = ? WHERE id = ?", changes)


STEPS: tuple[Migration, ...] = (_first, _second, _third, _fourth, _fifth)
VERSION = len(STEPS)
_PROBES = (
    "SELECT id, digest, class_key, name, flops, json FROM task LIMIT 1",
    "SELECT id, key FROM machine LIMIT 1",
    "SELECT id, machine_id, json FROM target LIMIT 1",
    "SELECT id, stormdrop, llvm, features FROM version LIMIT 1",
    "SELECT * FROM trial WHERE id = (SELECT max(id) FROM trial)",
)


def version_of(connection: Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def foreign_text(name: str) -> str:
    return f"{name} is another program's SQLite file, not a store; give another --store or STORMDROP_CACHE_DIR"


def check(connection: Connection, name: str) -> None:
    """Raises UserError for another program's file or a newer version's, the database's own error for damaged tables."""
    version = version_of(connection)
    if not version and not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        return
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise UserError(foreign_text(name))
    if version > VERSION:
        versions = f"store version {version}; this one reads up to {VERSION}"
        raise UserError(f"{name} was written by a newer Stormdrop ({versions}): upgrade")
    if version < 1:
        raise UserError(f"{name} is damaged: it has no version")
    for probe in _PROBES:
        connection.execute(probe).fetchall()


def migrate(connection: Connection, name: str) -> None:
    """Migrates a store to this version, unless another process has; the caller holds the only write transaction."""
    check(connection, name)
    try:
        for step in STEPS[version_of(connection) :]:
            step(connection)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"{name} is damaged, it cannot be brought to this version: {error!r}") from error
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
