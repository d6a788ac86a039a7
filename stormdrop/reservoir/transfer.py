"""Trials from a store to a file of lines, and back: into this store or another."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from stormdrop.measure.result import Timing
from stormdrop.reservoir.database import Database
from stormdrop.reservoir.lines import LineReader, batched, read_lines
from stormdrop.reservoir.record import Record
from stormdrop.reservoir.rows import TrialRow, row_of, rules_of, unknown_rules
from stormdrop.reservoir.sql import TRIALS, insert, insert_verdicts
from stormdrop.reservoir.summary import Filters, summaries
from stormdrop.reservoir.verdict import imported_verdict, verdict_row

BATCH = 500
MAX_REFUSALS = 1000


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line that was not kept."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Imported:
    """`refusals` counts refused lines, `refused` has the first of them. `absent`: rules that kept records use and this
    version lacks.
    """

    kept: int
    duplicates: int
    refusals: int
    refused: tuple[Refusal, ...]
    absent: tuple[str, ...] = ()


def rows_of(database: Database, wanted: Filters) -> Iterator[TrialRow]:
    """Trials in the order of their ids, read in batches: one read transaction over minutes would stop checkpoints of
    the write-ahead log.
    """
    where, values = ["trial.id > ?"], list[Any]()
    if wanted.task is not None:
        listed = database.read(lambda c: summaries(c, Filters(task=wanted.task)))
        digests = sorted({s.digest for s in listed})
        where.append(f"task.digest IN ({', '.join('?' * len(digests))})")
        values += digests
    columns = {"machine.key": wanted.target, "trial.cold": wanted.cold, "trial.verified": wanted.verified}
    for column, value in columns.items():
        if value is not None:
            where.append(f"{column} = ?")
            values.append(value)
    which = f"{' AND '.join(where)} ORDER BY trial.id LIMIT {BATCH}"
    query = f"SELECT trial.id, {TRIALS.row} FROM {TRIALS.source} WHERE {which}"
    last = -(2**63)
    while rows := database.read(lambda c, at=last: c.execute(query, (at, *values)).fetchall()):
        for _, *columns in rows:
            yield TrialRow(*columns)
        last = rows[-1][0]


def import_lines(database: Database, file: IO[bytes], reader: LineReader, kept_some: Callable[[], None]) -> Imported:
    """Keep the records that a reader takes, in batches; `kept_some` is called after each."""
    kept = duplicates = refusals = 0
    refused: list[Refusal] = []
    absent: set[str] = set()
    for batch in batched(read_lines(file), BATCH):
        good: list[Record] = []
        for number, answer in reader.records(batch):
            if isinstance(answer, Record):
                good.append(answer)
                absent |= unknown_rules(rules_of(answer.schedule.to_json()))
                continue
            refusals += 1
            if len(refused) < MAX_REFUSALS:
                refused.append(Refusal(number, str(answer)))
        added = database.write(lambda c, records=good: _insert(c, records)) if good else 0
        kept, duplicates = kept + added, duplicates + len(good) - added
        kept_some()
    return Imported(kept, duplicates, refusals, tuple(refused), tuple(sorted(absent)))


def _insert(c: sqlite3.Connection, records: Sequence[Record]) -> int:
    """Add the records that are new, and a verdict for each verified one of them; return how many are new."""
    added = insert(c, [row_of(record) for record in records], skip_known=True)
    new = [record for record, is_new in zip(records, added) if is_new]
    verified = [imported_verdict(r, r.result.seconds) for r in new if r.verified and isinstance(r.result, Timing)]
    insert_verdicts(c, [verdict_row(verdict) for verdict in verified])
    return len(new)
