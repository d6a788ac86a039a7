"""Trials and verdicts from a store to a file of lines, and back: into this store or another."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from stormdrop.measure.result import Timing
from stormdrop.store.claims import Refused
from stormdrop.store.content import Filters
from stormdrop.store.database import Database
from stormdrop.store.lines import Entry, LineReader, batched, read_lines
from stormdrop.store.record import Record
from stormdrop.store.rows import TrialRow, row_of, rules_of, unknown_rules
from stormdrop.store.sql import TRIALS, VERDICTS, Row, RowTable, insert, insert_verdicts, is_decided_by_import
from stormdrop.store.verdict import VERIFIED_RECORD, Verdict, VerdictRow, imported_verdict, verdict_row

BATCH = 500
MAX_REFUSALS = 1000


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line that was not kept."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    `kept` and `duplicates` count lines of both kinds, `verdicts` the kept verdicts. `refusals` counts refused lines,
    `refused` lists the first of them. `absent`: rules that kept lines use and this version lacks.
    """

    kept: int
    duplicates: int
    refusals: int
    refused: tuple[Refusal, ...]
    absent: tuple[str, ...] = ()
    verdicts: int = 0


def trial_rows(database: Database, wanted: Filters) -> Iterator[TrialRow]:
    """Yields trials in the order of their ids."""
    conditions = _conditions("trial", wanted)
    if wanted.verified is not None:
        conditions["trial.verified = ?"] = [wanted.verified]
    return _rows(database, TRIALS, conditions)


def verdict_rows(database: Database, wanted: Filters) -> Iterator[VerdictRow]:
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
    found: dict[str, list[Any]] = {}
    if (task := wanted.task) is not None:
        found["(task.name = ? OR (length(?) >= 4 AND substr(task.digest, 1, length(?)) = ?))"] = [task] * 4
    if wanted.target is not None:
        found["machine.key = ?"] = [wanted.target]
    if wanted.cold is not None:
        found[f"{table}.cold = ?"] = [wanted.cold]
    return found


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


def import_lines(database: Database, file: IO[bytes], reader: LineReader, kept_some: Callable[[], None]) -> Imported:
    """Stores the records and the verdicts that a reader accepts, in batches; `kept_some` is called after each."""
    kept = verdicts = duplicates = refusals = 0
    refused: list[Refusal] = []
    absent: set[str] = set()
    for batch in batched(read_lines(file), BATCH):
        good: list[Entry] = []
        for number, answer in reader.entries(batch):
            if not isinstance(answer, Refused):
                good.append(answer)
                told = [answer.schedule, answer.against] if isinstance(answer, Verdict) else [answer.schedule]
                absent |= {rule for schedule in told for rule in unknown_rules(rules_of(schedule.to_json()))}
                continue
            refusals += 1
            if len(refused) < MAX_REFUSALS:
                refused.append(Refusal(number, str(answer)))
        new_trials, new_verdicts = database.write(lambda c, entries=good: _insert(c, entries)) if good else (0, 0)
        new = new_trials + new_verdicts
        kept, verdicts, duplicates = kept + new, verdicts + new_verdicts, duplicates + len(good) - new
        kept_some()
    return Imported(kept, duplicates, refusals, tuple(refused), tuple(sorted(absent)), verdicts)


def _insert(c: sqlite3.Connection, entries: Sequence[Entry]) -> tuple[int, int]:
    """Inserts new entries; returns the number of new records and of new verdicts.

    Each new verified record also adds a verdict, unless its task has a better imported verdict.
    """
    records = [entry for entry in entries if isinstance(entry, Record)]
    added = insert(c, [row_of(record) for record in records], skip_known=True)
    new = [record for record, is_new in zip(records, added) if is_new]
    verified = [imported_verdict(r, r.result.seconds) for r in new if r.verified and isinstance(r.result, Timing)]
    rows = [verdict_row(verdict) for verdict in verified]
    insert_verdicts(c, [row for row in rows if not is_decided_by_import(c, row)])
    decided = [verdict_row(entry) for entry in entries if isinstance(entry, Verdict)]
    return len(new), sum(insert_verdicts(c, decided, skip_known=True))
