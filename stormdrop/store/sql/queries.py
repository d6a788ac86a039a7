"""Queries of the store: verdicts, trials, winners, and the trials that a cost model learns from."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stormdrop.ir.tensor import Task
from stormdrop.space.rules import Rule
from stormdrop.store.database import Connection, Database
from stormdrop.store.record import Versions
from stormdrop.store.rows import TrialRow, VerdictRow
from stormdrop.store.sql.summaries import Filters
from stormdrop.store.sql.tables import TRIALS, VERDICTS, Place, Row, RowTable, allowed_rules, id_of
from stormdrop.store.verdict import NO_CHALLENGER, VERIFIED_RECORD

BATCH = 500
MODEL_OF_VERDICT = """coalesce((SELECT trial.model FROM trial WHERE trial.task_id = verdict.task_id
    AND trial.model <> '' ORDER BY trial.id DESC LIMIT 1), '')"""
CONFIRMED = """EXISTS (SELECT 1 FROM verdict AS earlier WHERE earlier.id < verdict.id
    AND earlier.task_id = verdict.task_id AND earlier.machine_id = verdict.machine_id AND earlier.cold = verdict.cold
    AND earlier.model = verdict.model AND (earlier.provenance = 'imported') = (verdict.provenance = 'imported')
    AND earlier.schedule = verdict.schedule AND earlier.schedule <> earlier.against)"""
"""The SQL condition that an earlier verdict decided for the same schedule, against another schedule."""
UNCHALLENGED = f"(verdict.method = '{NO_CHALLENGER}' AND verdict.schedule = verdict.against AND NOT {CONFIRMED})"
"""The SQL condition of a default schedule that nothing seemed faster than: it has not won anything."""


# ---- a task ----------------------------------------------------------------------------------------------------------


def newest_verdict(
    c: Connection, place: Place, rules: Sequence[Rule], model: str, is_imported: bool = False
) -> VerdictRow | None:
    query = f"""SELECT {VERDICTS.row} FROM {VERDICTS.source} WHERE verdict.id = (SELECT max(id) FROM verdict
        WHERE task_id = ? AND machine_id = ? AND cold = ? AND model = ? AND (provenance = 'imported') = ?
        AND rules_id IN ({allowed_rules(c, rules)}))"""
    columns = c.execute(query, (*place, model, int(is_imported))).fetchone()
    return None if columns is None else VerdictRow(*columns)


def best_trial(c: Connection, place: Place, rules: Sequence[Rule], versions: Versions | None = None) -> TrialRow | None:
    """Returns the fastest verified trial, else the fastest trial that was not stopped early; of `versions` if given."""
    allowed, of_versions, values = allowed_rules(c, rules), "", list[Any](place)
    if versions is not None:
        of_versions = "AND version_id IN (SELECT id FROM version WHERE stormdrop = ? AND llvm = ?)"
        values += [versions.stormdrop, versions.llvm]
    for verified in (1, 0):
        query = f"""SELECT {TRIALS.row} FROM {TRIALS.source} WHERE trial.id = (SELECT id FROM trial
            WHERE task_id = ? AND machine_id = ? AND cold = ? AND verified = {verified}
            AND stopped_early = 0 AND seconds > 0
            {of_versions} AND rules_id IN ({allowed}) ORDER BY seconds LIMIT 1)"""
        if columns := c.execute(query, values).fetchone():
            return TrialRow(*columns)
    return None


def trials(c: Connection, place: Place, rules: Sequence[Rule]) -> list[TrialRow]:
    where = f"task_id = ? AND trial.machine_id = ? AND cold = ? AND rules_id IN ({allowed_rules(c, rules)})"
    query = f"SELECT {TRIALS.row} FROM {TRIALS.source} WHERE {where} ORDER BY trial.id"
    return [TrialRow(*columns) for columns in c.execute(query, place)]


def count_trials(c: Connection, place: Place | None = None) -> int:
    where = "" if place is None else " WHERE task_id = ? AND machine_id = ? AND cold = ?"
    return int(c.execute(f"SELECT count(*) FROM trial{where}", place or ()).fetchone()[0])


# ---- models and machines ---------------------------------------------------------------------------------------------


def is_decided(c: Connection, model: str, machine: str) -> bool:
    query = """SELECT 1 FROM verdict WHERE model = ? AND provenance <> 'imported'
        AND machine_id = (SELECT id FROM machine WHERE key = ?) LIMIT 1"""
    return c.execute(query, (model, machine)).fetchone() is not None


def models(c: Connection) -> set[str]:
    return {row[0] for row in c.execute("SELECT DISTINCT model FROM trial WHERE model <> ''")}


def machines(c: Connection) -> set[str]:
    used = "SELECT machine_id FROM trial UNION SELECT machine_id FROM verdict"
    return {row[0] for row in c.execute(f"SELECT key FROM machine WHERE id IN ({used})")}


def digests(c: Connection, models: Collection[str]) -> set[str]:
    """Returns the digests of the tasks that were measured while models were tuned."""
    query = f"SELECT DISTINCT digest FROM task JOIN trial ON task_id = task.id WHERE model IN ({_places(models)})"
    return {row[0] for row in c.execute(query, list(models))}


# ---- winners ---------------------------------------------------------------------------------------------------------


def winners(
    c: Connection, task: Task, models: Collection[str] | None, rules: Sequence[Rule]
) -> list[tuple[VerdictRow | TrialRow, str]]:
    """Returns the winner of every task that shares a key with `task`, for each machine and temperature.

    Each winner comes with the model in which its task was measured last; empty for a single operator. `models` are
    names of models or keys of machines. They limit the winners to measurements made while tuning such a model, or on
    such a machine. A default schedule without challengers has not won anything.
    """
    kin = "task_id IN (SELECT id FROM task WHERE class_key = ? OR (anchor_key = ? AND anchor_key <> ''))"
    readable = f"rules_id IN ({allowed_rules(c, rules)})"
    values: tuple[str, ...] = (task.class_key, task.anchor_key)
    of_trials = of_verdicts = ""
    if models is not None:
        places = _places(models)
        on_machine = f"machine_id IN (SELECT id FROM machine WHERE key IN ({places}))"
        in_model = f"SELECT 1 FROM trial WHERE trial.task_id = verdict.task_id AND trial.model IN ({places})"
        of_trials = f"AND (model IN ({places}) OR {on_machine})"
        of_verdicts = f"AND (EXISTS ({in_model}) OR {on_machine})"
        values += (*models, *models)
    query = f"""SELECT {TRIALS.row} FROM {TRIALS.source}
        WHERE trial.id IN (SELECT id FROM (SELECT id, min(seconds) FROM trial
        WHERE {kin} {of_trials} AND verified = 1 AND stopped_early = 0 AND seconds > 0 AND {readable}
        AND NOT EXISTS (SELECT 1 FROM verdict WHERE verdict.task_id = trial.task_id AND model = ''
            AND verdict.machine_id = trial.machine_id AND verdict.cold = trial.cold)
        GROUP BY task_id, machine_id, cold))"""
    timed = [TrialRow(*columns) for columns in c.execute(query, values)]
    return [*_newest(c, rules, f"{kin} {of_verdicts}", values), *((row, row.model) for row in timed)]


def decided(c: Connection, rules: Sequence[Rule]) -> list[tuple[VerdictRow, str]]:
    """Returns the newest verdict for each task, machine and temperature, with the model as in `winners`.

    Imported verdicts and default schedules without challengers are left out.
    """
    return _newest(c, rules, "provenance <> 'imported'")


def _newest(
    c: Connection, rules: Sequence[Rule], condition: str, values: Sequence[str] = ()
) -> list[tuple[VerdictRow, str]]:
    """Returns, for each task, machine and temperature, the newest verdict that fulfils a condition.

    Verdicts made here come before imported verdicts. Default schedules without challengers are left out.
    """
    query = f"""SELECT {VERDICTS.row}, {MODEL_OF_VERDICT} FROM {VERDICTS.source}
        WHERE verdict.id IN (SELECT id FROM (SELECT id, max(((provenance <> 'imported') << 60) + id) FROM verdict
            WHERE {condition} AND model = '' AND rules_id IN ({allowed_rules(c, rules)})
            GROUP BY task_id, machine_id, cold))
        AND NOT {UNCHALLENGED} ORDER BY verdict.id"""
    return [(VerdictRow(*row), model) for *row, model in c.execute(query, values)]


# ---- training --------------------------------------------------------------------------------------------------------


def groups_of_trials(c: Connection, machine: str) -> list[tuple[int, int, float | None]]:
    """Returns id, group and seconds of every trial on a machine; a group is a task at a temperature."""
    # The index covers sampling, so only the sampled trials are read from the table.
    query = "SELECT id, 2 * task_id + cold, seconds FROM trial INDEXED BY trial_best WHERE machine_id = ?"
    return sorted(c.execute(query, (id_of(c, "machine", key=machine),)).fetchall())


def groups_of_timed_trials(c: Connection, machine: str, rules: Sequence[Rule]) -> list[tuple[int, int, float]]:
    """Returns the same of the trials that were timed and not stopped early."""
    which = f"machine_id = ? AND seconds > 0 AND stopped_early = 0 AND rules_id IN ({allowed_rules(c, rules)})"
    query = f"SELECT id, 2 * task_id + cold, seconds FROM trial WHERE {which} ORDER BY id"
    return c.execute(query, (id_of(c, "machine", key=machine),)).fetchall()


def features_of(
    c: Connection, ids: Iterable[int], version: int, count: int, targets: Sequence[int]
) -> list[tuple[bytes | None, float | None, int, int]]:
    """Returns features, seconds, group and id of trials, in the order of the ids.

    The features are None unless they are `count` features of a version, measured with one of the targets.
    """
    query = """SELECT CASE WHEN feature_version = ? AND length(features) = ?
                AND trial.target_id IN (SELECT value FROM json_each(?)) THEN features END,
            seconds, 2 * task_id + cold, trial.id
        FROM trial WHERE trial.id IN (SELECT value FROM json_each(?)) ORDER BY trial.id"""
    values = version, 4 * count, json.dumps(targets), json.dumps(sorted(ids))
    return c.execute(query, values).fetchall()


def schedules_of(c: Connection, ids: Sequence[int]) -> list[tuple[int, str, str, int, float | None]]:
    """Returns id, task, schedule, temperature and seconds of trials, in the order of the ids."""
    query = """SELECT trial.id, task.json, schedule, cold, seconds FROM trial JOIN task ON task.id = task_id
        WHERE trial.id IN (SELECT value FROM json_each(?)) ORDER BY trial.id"""
    return c.execute(query, (json.dumps(ids),)).fetchall()


def texts_by_id(c: Connection, table: str, column: str) -> dict[int, str]:
    return dict(c.execute(f"SELECT id, {column} FROM {table}").fetchall())


# ---- everything, in order --------------------------------------------------------------------------------------------


def all_trials(database: Database, wanted: Filters) -> Iterator[TrialRow]:
    """Yields trials in the order of their ids."""
    conditions = _conditions("trial", wanted)
    if wanted.verified is not None:
        conditions["trial.verified = ?"] = [wanted.verified]
    return _rows(database, TRIALS, conditions)


def all_verdicts(database: Database, wanted: Filters) -> Iterator[VerdictRow]:
    """Yields imported verdicts, then verdicts decided here, so that the latter are the newest after an import.

    Both are in the order of their ids. A verdict made of a verified record is left out: the record's line is
    equivalent. Every verdict was compared with the reference, so there are none if only unverified entries are wanted.
    """
    if wanted.verified is False:
        return
    conditions = _conditions("verdict", wanted) | {"verdict.method <> ?": [VERIFIED_RECORD]}
    for comparison in ("=", "<>"):
        yield from _rows(database, VERDICTS, {**conditions, f"verdict.provenance {comparison} ?": ["imported"]})


def _conditions(table: str, wanted: Filters) -> dict[str, list[Any]]:
    """Returns SQL for the wanted task, target and temperature, each condition with its values."""
    conditions: dict[str, list[Any]] = {}
    if (task := wanted.task) is not None:
        by_name = "(task.name = ? OR (length(?) >= 4 AND substr(task.digest, 1, length(?)) = ?))"
        conditions[by_name] = [task] * 4
    if wanted.target is not None:
        conditions["machine.key = ?"] = [wanted.target]
    if wanted.cold is not None:
        conditions[f"{table}.cold = ?"] = [wanted.cold]
    return conditions


def _rows(database: Database, table: RowTable[Row], conditions: Mapping[str, Sequence[Any]]) -> Iterator[Row]:
    """Yields rows in the order of their ids, read in batches.

    One read transaction over minutes would stop checkpoints of the write-ahead log.
    """
    id, values = f"{table.name}.id", [value for some in conditions.values() for value in some]
    which = f"{' AND '.join([f'{id} > ?', *conditions])} ORDER BY {id} LIMIT {BATCH}"
    query = f"SELECT {id}, {table.row} FROM {table.source} WHERE {which}"
    last = -(2**63)
    while rows := database.read(lambda c, at=last: c.execute(query, (at, *values)).fetchall()):
        for _, *columns in rows:
            yield table.kind(*columns)
        last = rows[-1][0]


def _places(values: Collection[str]) -> str:
    return ", ".join("?" * len(values))
