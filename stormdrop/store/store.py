"""The store (tuning database): every trial ever measured, in one SQLite file that all processes of a user share.

    store = Store.open()                        the file in the cache directory; memory if that cannot be written
    store.add(records)                          one transaction: all of them or none
    store.verdict(task, target)                 tuning's decision for a task on a machine: the schedule of compiling
    store.best(task, target), .trials(…)        measurements of the task
    store.donors(task, target)                  winners of other tasks whose schedules fit this task
    store.training(target)                      matrices for the cost model
    store.export(file), .import_(file)          lines of JSON

Invariants: after `add` returns, its records are in the file, even if the process is killed. Trials are ordered by row
id, in their order of arrival; clocks decide nothing. Warm and cold trials never mix. Tasks with equal digests are
equal, whatever their names.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Literal, TypeVar

from stormdrop.base.arguments import path_of
from stormdrop.base.environment import cache_dir
from stormdrop.base.errors import UserError, warn
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.space.rules import RULES, Rule
from stormdrop.store.claims import Claim, is_believable
from stormdrop.store.database import Connection, Database, StoreBusy, StoreError, StoreFull
from stormdrop.store.donors import Donor, donors_of
from stormdrop.store.evict import Pruned, evict, prune
from stormdrop.store.lines import Imported, LineReader, Refusal, import_lines, line_of, verdict_line
from stormdrop.store.record import Record, Versions
from stormdrop.store.rows import TrialRow, VerdictRow, record_of, row_of, task_of
from stormdrop.store.sql import queries, tables
from stormdrop.store.sql.summaries import Filters, Summary, summaries
from stormdrop.store.sql.tables import Forgotten, Place, PlaceKey, place_of
from stormdrop.store.sqlite import SqliteDatabase, Unwritable, copy_of, open_file
from stormdrop.store.training import TimedTrial, TrainingRows, timed_trials, training
from stormdrop.store.verdict import Verdict, verdict_of, verdict_row
from stormdrop.target.machine import Target

__all__ = ["Filters", "Imported", "Refusal", "Store", "StoreBusy", "StoreError", "StoreFull", "Summary", "TrainingRows"]

_log = logging.getLogger("stormdrop.store")

LineKind = Literal["trial", "verdict"]
FILE = "reservoir.sqlite"
CAP_BYTES = 1 << 30
SLACK = 0.97
"""The share of the cap that an eviction leaves filled, so that not every batch evicts."""
TRAINING_ROWS = 20_000
T = TypeVar("T")


class Store:
    """Open it with `Store.open`; any thread may use it, and so may a forked child."""

    def __init__(self, database: Database, cap_bytes: int | None = CAP_BYTES) -> None:
        self._database, self._cap_bytes = database, cap_bytes
        self._warned_rules: set[str] = set()

    def __repr__(self) -> str:
        return f"<store {self.path or 'in memory'}>"

    @staticmethod
    def open(path: Path | None = None, cap_bytes: int | None = CAP_BYTES) -> Store:
        """Opens the store in a file, by default `default_path()`; creates or migrates the file as needed.

        If the file cannot be written, one warning states the reason, and the store lives in memory, with the content of
        the file. A file system without locks is such a reason.

        Raises UserError if the file is damaged, another program's or a newer version's; the file stays unchanged.
        """
        path = default_path() if path is None else path_of(path).absolute()
        try:
            return Store(open_file(path), cap_bytes)
        except Unwritable as error:
            warn(f"what is measured is not kept: the store cannot be written ({error})")
            try:
                return Store(copy_of(path), cap_bytes)
            except OSError:
                return Store.in_memory(cap_bytes)

    @staticmethod
    def view(path: Path) -> Store:
        """Opens an existing store for reading: nothing is created, and a store that cannot be written causes no
        warning.

        Raises UserError if there is none.
        """
        path = path_of(path).absolute()
        try:
            if not path.exists():
                raise UserError(f"there is no store at {path}")
            try:
                return Store(open_file(path))
            except Unwritable:
                return Store(copy_of(path))
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror or error}") from error

    @staticmethod
    def in_memory(cap_bytes: int | None = CAP_BYTES) -> Store:
        """Returns an empty store without a file."""
        return Store(SqliteDatabase(None), cap_bytes)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; further use of the store opens it again."""
        self._database.close()

    @property
    def path(self) -> Path | None:
        """The file of the store; None for a store in memory."""
        return self._database.path

    @property
    def is_memory(self) -> bool:
        """True for a store in memory, without a file."""
        return self._database.path is None

    @property
    def used_bytes(self) -> int:
        """The bytes in use, without free pages and the log; the cap limits them."""
        return self._database.used_bytes()

    # ---- writing -----------------------------------------------------------------------------------------------------

    def add(self, records: Sequence[Record]) -> None:
        """Stores all records, or none. Beyond the cap the oldest trials are removed.

        Raises StoreFull, StoreBusy or another StoreError; earlier content of the store is unaffected.
        """
        rows = [row_of(record) for record in records]
        if rows:
            self._database.write(lambda c: tables.insert(c, rows))
            self._keep_to_cap()

    def add_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Stores all verdicts, or none. Each replaces the one before, but no win that it confirms. Raises as `add`."""
        rows = [verdict_row(verdict) for verdict in verdicts]
        if rows:
            self._database.write(lambda c: tables.insert_verdicts(c, rows))

    def renew_verdicts(self, verdicts: Sequence[tuple[Verdict, Verdict]], rules: Sequence[Rule] = RULES) -> None:
        """Replaces each first verdict, which this store returned, by the second, unless it has been replaced meanwhile.

        Raises as `add`.
        """

        def renew(c: Connection) -> None:
            for old, new in verdicts:
                row = queries.newest_verdict(c, place_of(c, *_key(old.task, old.target)), rules, old.model)
                if row is not None and verdict_of(row, old.task, old.target) == old:
                    tables.insert_verdicts(c, [verdict_row(new)])

        self._database.write(renew)

    def _keep_to_cap(self) -> None:
        if self._cap_bytes is not None and self.used_bytes > self._cap_bytes:
            removed = evict(self._database, int(self._cap_bytes * SLACK))
            _log.info("%s exceeded %d bytes: %d old trials were removed", self._database.name, self._cap_bytes, removed)

    def prune(self, max_bytes: int | None = None, older_than: float | None = None, winners: bool = False) -> Pruned:
        """Removes the oldest trials until at most `max_bytes` are used, verified trials last.

        Trials made before `older_than` (Unix time) are removed too, verified trials only with `winners`. The file
        shrinks. Verdicts stay.
        """
        return prune(self._database, max_bytes, older_than, winners)

    def forget(self, tasks: Sequence[Summary], with_trials: bool = False) -> Forgotten:
        """Removes the verdicts of the tasks of these `summaries`: compiling treats the tasks as never tuned.

        With `with_trials`, their measurements are removed too. Raises as `add`.
        """
        places = [(summary.digest, summary.target, summary.cold) for summary in tasks]
        return self._database.write(lambda c: tables.forget(c, places, with_trials))

    # ---- reading -----------------------------------------------------------------------------------------------------

    def verdict(
        self,
        task: Task,
        target: Target,
        cold: bool | None = None,
        rules: Sequence[Rule] = RULES,
        model: str = "",
        is_imported: bool = False,
    ) -> Verdict | None:
        """Returns the newest verdict at the target's temperature, unless `cold` is set; with `model` that model's.

        Imported verdicts are returned only with `is_imported`. A migrated verdict whose time is less than the target
        needs is ignored: its record may have been imported. Verdicts with schedules of unknown rules (not among
        `rules`) are skipped, with a warning.
        """
        at = target.with_cold_weights(cold)

        def newest(c: Connection, place: Place) -> VerdictRow | None:
            return queries.newest_verdict(c, place, rules, model, is_imported)

        row = self._select(newest, _key(task, at), rules, "verdict")
        verdict = None if row is None else verdict_of(row, task, target)
        return verdict if verdict is None or _is_believable(verdict, at, rules) else None

    def is_decided(self, model: str, target: Target) -> bool:
        """Returns whether a model has verdicts of its own on this machine, at any temperature."""
        return self._database.read(lambda c: queries.is_decided(c, model, target.key()))

    def best(
        self,
        task: Task,
        target: Target,
        cold: bool | None = None,
        versions: Versions | None = None,
        rules: Sequence[Rule] = RULES,
    ) -> Record | None:
        """Returns the fastest verified record at the target's temperature, unless `cold` is set.

        Without a verified record it is the fastest trial that was not stopped early. Records of any version count, or
        with `versions` only records measured by the same Stormdrop and LLVM. Records of unknown rules (not among
        `rules`) are skipped, with a warning.
        """
        at = target.with_cold_weights(cold)
        row = self._best(_key(task, at), rules, versions)
        return None if row is None else record_of(row, task, target)

    def best_of(self, summary: Summary) -> Record | None:
        """Returns the record of a line of `summaries`. Raises UserError if this version cannot read its task."""
        row = self._best((summary.digest, summary.target, summary.cold), RULES)
        return None if row is None else record_of(row, task_of(row.task_json))

    def verdict_of(self, summary: Summary) -> Verdict | None:
        """Returns the verdict of a line of `summaries`; its task holds the verdict in any model."""
        record = self.best_of(summary)
        return None if record is None else self.verdict(record.task, record.target, summary.cold)

    def _best(self, key: PlaceKey, rules: Sequence[Rule], versions: Versions | None = None) -> TrialRow | None:
        def fastest(c: Connection, place: Place) -> TrialRow | None:
            return queries.best_trial(c, place, rules, versions)

        return self._select(fastest, key, rules)

    def trials(
        self, task: Task, target: Target, cold: bool | None = None, rules: Sequence[Rule] = RULES
    ) -> list[Record]:
        """Returns all trials of a task at the target's temperature, unless `cold` is set, in order.

        Trials of unknown rules (not among `rules`) are skipped, with a warning.
        """
        key = _key(task, target.with_cold_weights(cold))
        records: list[Record] = []
        for row in self._select(lambda c, place: queries.trials(c, place, rules), key, rules):
            try:
                records.append(record_of(row, task, target))
            except UserError as error:
                _log.debug("%s: a trial of %s is skipped: %s", self._database.name, task.name, error)
        return records

    def _select(
        self, query: Callable[[Connection, Place], T], key: PlaceKey, rules: Sequence[Rule], table: str = "trial"
    ) -> T:
        """Returns the result of a query about a task, a machine and a temperature; warns of unknown rules there."""

        def work(c: Connection) -> tuple[T, set[str]]:
            place = place_of(c, *key)
            return query(c, place), tables.absent_rules(c, rules, place, table)

        result, absent = self._database.read(work)
        self._warn_of_rules(absent)
        return result

    def _warn_of_rules(self, absent: set[str]) -> None:
        """Warns, once for every rule, that trials with this rule are not used."""
        if new := absent - self._warned_rules:
            self._warned_rules |= new
            names = ", ".join(sorted(new))
            warn(f"{self._database.name}: trials that follow rules which are not known here are skipped: {names}")

    def donors(
        self,
        task: Task,
        target: Target,
        limit: int | None = None,
        models: Collection[str] | None = None,
        rules: Sequence[Rule] = RULES,
    ) -> list[Donor]:
        """Returns winners of other tasks that can be re-fitted to this task, the best first, at most `limit`.

        With `models`, only measurements made while tuning these models, or on machines of these keys, count.
        """
        rows = self._database.read(lambda c: queries.winners(c, task, models, rules))
        return donors_of(rows, task, target, models)[:limit]

    def decided(self, target: Target, rules: Sequence[Rule] = RULES) -> list[tuple[Verdict, str]]:
        """Returns tuning's decisions on this kind of machine, for any number of threads, each with the name of the
        tuned model.

        Default schedules without challengers and imported verdicts are left out.
        """
        decisions: list[tuple[Verdict, str]] = []
        for row, model in self._database.read(lambda c: queries.decided(c, rules)):
            try:
                verdict = verdict_of(row, task_of(row.task_json), target)
            except UserError:
                continue
            is_here = verdict.target.with_threads(target.threads).key() == target.key()
            if is_here and _is_believable(verdict, target.with_threads(verdict.target.threads), rules):
                decisions.append((verdict, model))
        return decisions

    def models(self) -> set[str]:
        """Returns the names of all models that were tuned."""
        return self._database.read(queries.models)

    def machines(self) -> set[str]:
        """Returns the keys of all machines with measurements or decisions."""
        return self._database.read(queries.machines)

    def digests(self, models: Collection[str]) -> set[str]:
        """Returns the digests of the tasks that were measured while these models were tuned."""
        return self._database.read(lambda c: queries.digests(c, models))

    def known(self, task: Task, target: Target, cold: bool | None = None) -> int:
        """Returns the number of trials of a task, with known and unknown rules."""
        key = _key(task, target.with_cold_weights(cold))
        return self._database.read(lambda c: queries.count_trials(c, place_of(c, *key)))

    def training(self, target: Target, limit: int = TRAINING_ROWS) -> TrainingRows:
        """Returns trials on a machine with features for its judge of today; beyond `limit`, a sample of all tasks."""
        return self._database.read(lambda c: training(c, target, limit))

    def measured(self, target: Target, limit: int, rules: Sequence[Rule] = RULES) -> list[TimedTrial]:
        """Returns trials of a machine that were not stopped early; beyond `limit`, a sample over all tasks."""
        return self._database.read(lambda c: timed_trials(c, target, limit, rules))

    def summaries(self, wanted: Filters | None = None) -> list[Summary]:
        """Returns a summary for each task, machine and temperature, in the order of their last measurements."""
        return self._database.read(lambda c: summaries(c, wanted or Filters()))

    def integrity(self) -> list[str]:
        """Returns the faults of the file; an empty list if there are none."""
        return self._database.faults()

    # ---- files of lines ----------------------------------------------------------------------------------------------

    def export(
        self, file: IO[str], wanted: Filters | None = None, kinds: Collection[LineKind] = ("trial", "verdict")
    ) -> int:
        """Writes trials, then verdicts, as lines of JSON, in order; returns the number of lines."""
        wanted, count = wanted or Filters(), 0
        trials = map(line_of, queries.all_trials(self._database, wanted)) if "trial" in kinds else ()
        verdicts = map(verdict_line, queries.all_verdicts(self._database, wanted)) if "verdict" in kinds else ()
        for line in chain(trials, verdicts):
            file.write(line + "\n")
            count += 1
        return count

    def import_(self, file: IO[bytes], here: Target | None = None, foreign: bool = False) -> Imported:
        """Reads lines that `export` wrote on any machine.

        A line is refused if it is neither a record nor a verdict of this version. So is a line measured on another CPU
        than `here` (by default this machine), unless `foreign`. Entries already in the store are skipped. A verdict is
        stored as imported: a schedule to begin a search from, unused by compiling. A line with an unknown rule is kept,
        with a warning: an installation with this rule can use it.

        Raises StoreError if the store accepts no more; the batches before are kept.
        """
        done = import_lines(self._database, file, LineReader(here or detect(), foreign), self._keep_to_cap)
        self._warn_of_rules(set(done.absent))
        return done


def default_path() -> Path:
    return cache_dir() / FILE


def _is_believable(verdict: Verdict, here: Target, rules: Sequence[Rule]) -> bool:
    """Stores without verdicts did not distinguish imported records from their own."""
    if verdict.provenance != "migrated":
        return True
    return is_believable(Claim(verdict.task, here, verdict.schedule, verdict.seconds), rules)


def _key(task: Task, target: Target) -> PlaceKey:
    return task.digest, target.key(), target.is_cold
