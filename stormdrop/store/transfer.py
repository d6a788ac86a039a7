"""The import of lines: trials and verdicts of a file go into a store, in batches; refused lines are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from stormdrop.measure.result import Timing
from stormdrop.store.claims import Refused
from stormdrop.store.database import Connection, Database
from stormdrop.store.lines import Entry, LineReader, batched, read_lines
from stormdrop.store.record import Record
from stormdrop.store.rows import row_of, rules_of, unknown_rules
from stormdrop.store.sql.queries import BATCH
from stormdrop.store.sql.tables import insert, insert_verdicts, is_decided_by_import
from stormdrop.store.verdict import Verdict, imported_verdict, verdict_row

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
                schedules = [answer.schedule, answer.against] if isinstance(answer, Verdict) else [answer.schedule]
                absent |= {rule for schedule in schedules for rule in unknown_rules(rules_of(schedule.to_json()))}
                continue
            refusals += 1
            if len(refused) < MAX_REFUSALS:
                refused.append(Refusal(number, str(answer)))
        new_trials, new_verdicts = database.write(lambda c, entries=good: _insert(c, entries)) if good else (0, 0)
        new = new_trials + new_verdicts
        kept, verdicts, duplicates = kept + new, verdicts + new_verdicts, duplicates + len(good) - new
        kept_some()
    return Imported(kept, duplicates, refusals, tuple(refused), tuple(sorted(absent)), verdicts)


def _insert(c: Connection, entries: Sequence[Entry]) -> tuple[int, int]:
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
