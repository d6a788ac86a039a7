"""The store: every trial ever measured, in one SQLite file that all processes of a user share.

    store = Store.open()                        the file in the cache directory; memory where that cannot be written
    store.add(records)                          one transaction: all of them or none
    store.verdict(task, target)                 what tuning decided for a task on a machine: what compiling uses
    store.best(task, target), .trials(…)        what was measured of it
    store.donors(task, target)                  winners of other tasks whose schedules fit this one
    store.training(target)                      matrices for the cost model
    store.export(file), .import_(file)          lines of JSON

Invariants: what `add` returned from is in the file, whoever is killed afterwards. Trials are ordered by row id, in
which order they came; clocks decide nothing. Warm and cold trials never meet. Tasks are the same if their digests are,
whatever their names.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal

from stormdrop.arguments import path_of
from stormdrop.errors import UserError
from stormdrop.ir.tensor import Task
from stormdrop.paths import cache_dir
from stormdrop.reservoir.claims import Claim, is_believable
from stormdrop.reservoir.database import Database, StoreBusy, StoreFull
from stormdrop.reservoir.donors import Donor, decided, donors_of, winners
from stormdrop.reservoir.evict import Pruned, Pruning, evict, prune, used_bytes
from stormdrop.reservoir.forget import Forgotten, forget
from stormdrop.reservoir.lines import LineReader, line_of, verdict_line
from stormdrop.reservoir.measured import TimedTrial, measured
from stormdrop.reservoir.opening import Unwritable, copy_of, open_file
from stormdrop.reservoir.record import Record, Versions
from stormdrop.reservoir.rows import StoreError, TrialRow, record_of, row_of, task_of
from stormdrop.reservoir.sql import TRIALS, VERDICTS, absent_rules, allowed_rules, id_of, insert, insert_verdicts
from stormdrop.reservoir.summary import Filters, Summary, summaries
from stormdrop.reservoir.training import TrainingRows, training
from stormdrop.reservoir.transfer import Imported, Refusal, import_lines, trial_rows, verdict_rows
from stormdrop.reservoir.verdict import Verdict, VerdictRow, verdict_of, verdict_row
from stormdrop.runtime.host import detect
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.machine import Target

__all__ = ["Filters", "Imported", "Refusal", "Store", "StoreBusy", "StoreError", "StoreFull", "Summary", "TrainingRows"]

_log = logging.getLogger("stormdrop.store")

LineKind = Literal["trial", "verdict"]
FILE = "reservoir.sqlite"
CAP_BYTES = 1 << 30
SLACK = 0.97
"""How much of the cap an eviction leaves filled, so that not every batch evicts."""
TRAINING_ROWS = 20_000


class Store:
    """Open it with `Store.open`; any thread may use it, and so may a forked child."""

    def __init__(self, database: Database, cap_bytes: int | None = CAP_BYTES) -> None:
        self._database, self._cap_bytes = database, cap_bytes
        self._remarked: set[str] = set()

    def __repr__(self) -> str:
        return f"<store {self.path or 'in memory'}>"

    @staticmethod
    def open(path: Path | None = None, cap_bytes: int | None = CAP_BYTES, vfs: str = "") -> Store:
        """The store in a file, by default `default_path()`; made, or brought to this version, as needed.

        Where it cannot be written, one warning says so, and the store lives in memory, beginning with what the file
        holds. `vfs`: one of SQLite's, such as `unix-dotfile` for a file system without locks.

        Raises UserError if the file is damaged, another program's or a newer version's; it is left as it is.
        """
        path = default_path() if path is None else path_of(path).absolute()
        try:
            return Store(open_file(path, vfs), cap_bytes)
        except Unwritable as error:
            _log.warning("what is measured is not kept: the store cannot be written (%s)", error)
            try:
                return Store(copy_of(path), cap_bytes)
            except OSError:
                return Store.in_memory(cap_bytes)

    @staticmethod
    def view(path: Path) -> Store:
        """An existing store to look at: nothing is made, and one that cannot be written is looked at without a warning.

        Raises UserError where there is none.
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
        return Store(Database(None), cap_bytes)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; using the store again opens it again."""
        self._database.close()

    @property
    def path(self) -> Path | None:
        return self._database.path

    @property
    def is_memory(self) -> bool:
        return self._database.path is None

    @property
    def used_bytes(self) -> int:
        """Without free pages and the log; this is what the cap limits."""
        return self._database.read(used_bytes)

    # ---- writing -----------------------------------------------------------------------------------------------------

    def add(self, records: Sequence[Record]) -> None:
        """Keep all of them, or none. Beyond the cap the oldest trials go.

        Raises StoreFull, StoreBusy or another StoreError; what was in the store before still is.
        """
        rows = [row_of(record) for record in records]
        if rows:
            self._database.write(lambda c: insert(c, rows))
            self._keep_to_cap()

    def add_verdicts(self, verdicts: Sequence[Verdict]) -> None:
        """Keep all of them, or none. Each replaces the one before it, but no win that it confirms. Raises as `add`."""
        rows = [verdict_row(verdict) for verdict in verdicts]
        if rows:
            self._database.write(lambda c: insert_verdicts(c, rows))

    def renew_verdicts(self, verdicts: Sequence[tuple[Verdict, Verdict]], rules: Sequence[Rule] = RULES) -> None:
        """Replace each first verdict, which this store gave, by the second, unless another has been decided meanwhile.

        Raises as `add`.
        """

        def renew(c: sqlite3.Connection) -> None:
            for old, new in verdicts:
                row = _newest(c, old.task, old.target, rules, old.model)
                if row is not None and verdict_of(row, old.task, old.target) == old:
                    insert_verdicts(c, [verdict_row(new)])

        self._database.write(renew)

    def _keep_to_cap(self) -> None:
        if self._cap_bytes is not None and self.used_bytes > self._cap_bytes:
            removed = evict(self._database, int(self._cap_bytes * SLACK))
            _log.info("%s exceeded %d bytes: %d old trials were removed", self._database.name, self._cap_bytes, removed)

    def prune(self, max_bytes: int | None = None, older_than: float | None = None, winners: bool = False) -> Pruned:
        """Remove the oldest trials until at most `max_bytes` are used, verified ones last; and those made before
        `older_than` (Unix time), verified ones only with `winners`. The file shrinks. Verdicts stay.
        """
        wanted = Pruning(max_bytes, older_than, winners)
        return prune(self._database, wanted)

    def forget(self, found: Sequence[Summary], with_trials: bool = False) -> Forgotten:
        """Take back what was decided for the tasks behind these lines of `summaries`: compiling treats them as never
        tuned. With `with_trials` what was measured of them goes too. Raises as `add`.
        """
        return self._database.write(lambda c: forget(c, found, with_trials))

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
        """The newest verdict at the target's temperature, unless `cold` says which; with `model` that of this model.

        Imported ones are another matter, and asked for by themselves. A migrated one whose time is less than the
        target needs is none: its record may have been imported. Those whose schedules follow a rule that is not
        among `rules` are skipped, with a remark.
        """

        at = target.with_cold_weights(cold)

        def newest(c: sqlite3.Connection) -> tuple[VerdictRow | None, set[str]]:
            found = _newest(c, task, at, rules, model, is_imported)
            place = _at(c, task.digest, at.key(), at.is_cold)
            return found, absent_rules(c, rules, *place, table="verdict")

        row, absent = self._database.read(newest)
        self._remark(absent)
        found = None if row is None else verdict_of(row, task, target)
        return found if found is None or _is_believable(found, at, rules) else None

    def best(
        self,
        task: Task,
        target: Target,
        cold: bool | None = None,
        versions: Versions | None = None,
        rules: Sequence[Rule] = RULES,
    ) -> Record | None:
        """The fastest verified record at the target's temperature, unless `cold` says which; without one the fastest
        trial that was not stopped early.

        Any version's, or with `versions` only what the same Stormdrop and LLVM measured. Those that follow a rule that
        is not among `rules` are skipped, with a remark.
        """
        is_cold = target.with_cold_weights(cold).is_cold
        row = self._best(task.digest, target.key(), is_cold, rules, versions)
        return None if row is None else record_of(row, task, target)

    def best_of(self, summary: Summary) -> Record | None:
        """The record behind a line of `summaries`. Raises UserError where its task is not of this version."""
        row = self._best(summary.digest, summary.target, summary.cold, RULES)
        return None if row is None else record_of(row, task_of(row.task_json))

    def verdict_of(self, summary: Summary) -> Verdict | None:
        """The verdict behind a line of `summaries`, whose task holds it in any model."""
        record = self.best_of(summary)
        return None if record is None else self.verdict(record.task, record.target, summary.cold)

    def _best(
        self, digest: str, key: str, cold: bool, rules: Sequence[Rule], versions: Versions | None = None
    ) -> TrialRow | None:
        def fastest(c: sqlite3.Connection) -> tuple[TrialRow | None, set[str]]:
            version, place = "", _at(c, digest, key, cold)
            wanted: list[Any] = [*place]
            allowed, absent = allowed_rules(c, rules), absent_rules(c, rules, *place)
            if versions is not None:
                version = "AND version_id IN (SELECT id FROM version WHERE stormdrop = ? AND llvm = ?)"
                wanted += [versions.stormdrop, versions.llvm]
            for verified in (1, 0):
                query = f"""SELECT {TRIALS.row} FROM {TRIALS.source} WHERE trial.id = (SELECT id FROM trial
                    WHERE task_id = ? AND machine_id = ? AND cold = ? AND verified = {verified}
                    AND stopped_early = 0 AND seconds > 0
                    {version} AND rules_id IN ({allowed}) ORDER BY seconds LIMIT 1)"""
                if found := c.execute(query, wanted).fetchone():
                    return TrialRow(*found), absent
            return None, absent

        row, absent = self._database.read(fastest)
        self._remark(absent)
        return row

    def trials(
        self, task: Task, target: Target, cold: bool | None = None, rules: Sequence[Rule] = RULES
    ) -> list[Record]:
        """All that was measured of a task at the target's temperature, unless `cold` says which, in order.

        Those that follow a rule that is not among `rules` are skipped, with a remark.
        """

        def found(c: sqlite3.Connection) -> tuple[list[Any], set[str]]:
            wanted = _at(c, task.digest, target.key(), target.with_cold_weights(cold).is_cold)
            where = f"task_id = ? AND trial.machine_id = ? AND cold = ? AND rules_id IN ({allowed_rules(c, rules)})"
            query = f"SELECT {TRIALS.row} FROM {TRIALS.source} WHERE {where} ORDER BY trial.id"
            return c.execute(query, wanted).fetchall(), absent_rules(c, rules, *wanted)

        rows, absent = self._database.read(found)
        self._remark(absent)
        records: list[Record] = []
        for row in rows:
            try:
                records.append(record_of(TrialRow(*row), task, target))
            except UserError as error:
                _log.debug("%s: a trial of %s is skipped: %s", self._database.name, task.name, error)
        return records

    def _remark(self, absent: set[str]) -> None:
        """Say, once of every rule, that trials which follow it are not used."""
        if told := absent - self._remarked:
            self._remarked |= told
            names = ", ".join(sorted(told))
            told = "%s: trials that follow rules which are not known here are skipped: %s"
            _log.warning(told, self._database.name, names)

    def donors(
        self,
        task: Task,
        target: Target,
        limit: int | None = None,
        models: Collection[str] | None = None,
        rules: Sequence[Rule] = RULES,
    ) -> list[Donor]:
        """Winners of other tasks whose schedules can be re-fitted to this one, the best first, at most `limit`.

        With `models`, only what was measured while these models were tuned, or on machines of these keys.
        """
        rows = self._database.read(lambda c: winners(c, task, models, rules))
        return donors_of(rows, task, target, models)[:limit]

    def decided(self, target: Target, rules: Sequence[Rule] = RULES) -> list[tuple[Verdict, str]]:
        """What tuning here decided for on this kind of machine with any number of threads, each with the name of the
        model that was tuned; without default schedules that nobody challenged, and without what was imported.
        """
        rows = self._database.read(lambda c: decided(c, rules))
        found: list[tuple[Verdict, str]] = []
        for row, model in rows:
            try:
                verdict = verdict_of(row, task_of(row.task_json), target)
            except UserError:
                continue
            is_here = verdict.target.with_threads(target.threads).key() == target.key()
            if is_here and _is_believable(verdict, target.with_threads(verdict.target.threads), rules):
                found.append((verdict, model))
        return found

    def tasks(self, target: Target) -> list[tuple[Task, bool]]:
        """The tasks that were measured on a machine, each with the temperature; without those of another version."""
        query = """SELECT DISTINCT task.json, cold FROM trial JOIN task ON task.id = task_id
            WHERE machine_id = (SELECT id FROM machine WHERE key = ?) ORDER BY task.id, cold"""
        found: list[tuple[Task, bool]] = []
        for text, cold in self._database.read(lambda c: c.execute(query, (target.key(),)).fetchall()):
            with suppress(UserError):
                found.append((task_of(text), bool(cold)))
        return found

    def models(self) -> set[str]:
        """The names of all models that were tuned."""
        rows = self._database.read(lambda c: c.execute("SELECT DISTINCT model FROM trial WHERE model <> ''").fetchall())
        return {row[0] for row in rows}

    def machines(self) -> set[str]:
        """The keys of all machines on which something was measured or decided."""
        query = (
            "SELECT key FROM machine WHERE id IN (SELECT machine_id FROM trial UNION SELECT machine_id FROM verdict)"
        )
        return {row[0] for row in self._database.read(lambda c: c.execute(query).fetchall())}

    def digests(self, models: Collection[str]) -> set[str]:
        """The tasks that were measured while these models were tuned."""
        query = f"""SELECT DISTINCT digest FROM task JOIN trial ON task_id = task.id
            WHERE model IN ({", ".join("?" * len(models))})"""
        return {row[0] for row in self._database.read(lambda c: c.execute(query, list(models)).fetchall())}

    def known(self, task: Task, target: Target, cold: bool | None = None) -> int:
        """How many trials of a task there are, whatever rules they follow."""
        query = "SELECT count(*) FROM trial WHERE task_id = ? AND machine_id = ? AND cold = ?"

        def count(c: sqlite3.Connection) -> int:
            wanted = _at(c, task.digest, target.key(), target.with_cold_weights(cold).is_cold)
            return int(c.execute(query, wanted).fetchone()[0])

        return self._database.read(count)

    def training(self, target: Target, limit: int = TRAINING_ROWS, with_defaults: bool = False) -> TrainingRows:
        """Trials on a machine, with features as its judge computes them now; beyond `limit`, a sample of all tasks, and
        with `with_defaults` all trials of default schedules besides.
        """
        return self._database.read(lambda c: training(c, target, limit, with_defaults))

    def measured(self, target: Target, limit: int, rules: Sequence[Rule] = RULES) -> list[TimedTrial]:
        """Trials of a machine that were not stopped early; beyond `limit`, a sample over all tasks."""
        return self._database.read(lambda c: measured(c, target, limit, rules))

    def summaries(self, wanted: Filters | None = None) -> list[Summary]:
        """One for each task, machine and temperature, in the order in which they were last measured."""
        return self._database.read(lambda c: summaries(c, wanted or Filters()))

    def integrity(self) -> list[str]:
        """What is wrong with the file; empty if nothing is."""

        def problems(c: sqlite3.Connection) -> list[str]:
            found = [str(row[0]) for row in c.execute("PRAGMA integrity_check")]
            dangling = c.execute("PRAGMA foreign_key_check").fetchall()
            found += [f"row {row[1]} of {row[0]} refers to nothing in {row[2]}" for row in dangling]
            return [line for line in found if line != "ok"]

        try:
            return self._database.read(problems)
        except StoreError as error:
            return [str(error)]

    # ---- files of lines ----------------------------------------------------------------------------------------------

    def export(
        self, file: IO[str], wanted: Filters | None = None, kinds: Collection[LineKind] = ("trial", "verdict")
    ) -> int:
        """Write trials, then verdicts, as lines of JSON, in order; how many lines."""
        wanted, count = wanted or Filters(), 0
        trials = map(line_of, trial_rows(self._database, wanted)) if "trial" in kinds else ()
        verdicts = map(verdict_line, verdict_rows(self._database, wanted)) if "verdict" in kinds else ()
        for line in chain(trials, verdicts):
            file.write(line + "\n")
            count += 1
        return count

    def import_(self, file: IO[bytes], here: Target | None = None, foreign: bool = False) -> Imported:
        """Read lines that `export` wrote, anywhere. A line that is neither a record nor a verdict of this version, or
        that was measured on another CPU than `here` (by default this machine; unless `foreign`), is refused; what is in
        the store already is skipped. A verdict is an imported one: a schedule to begin from, nothing that compiling
        uses. A line that follows a rule which is unknown here is kept, with a remark: whoever has the rule can
        use it.

        Raises StoreError where the store takes no more; the batches before are kept.
        """
        done = import_lines(self._database, file, LineReader(here or detect(), foreign), self._keep_to_cap)
        self._remark(set(done.absent))
        return done


def default_path() -> Path:
    return cache_dir() / FILE


def _newest(
    c: sqlite3.Connection, task: Task, target: Target, rules: Sequence[Rule], model: str, is_imported: bool = False
) -> VerdictRow | None:
    """The verdict that holds at the target's temperature."""
    query = f"""SELECT {VERDICTS.row} FROM {VERDICTS.source} WHERE verdict.id = (SELECT max(id) FROM verdict
        WHERE task_id = ? AND machine_id = ? AND cold = ? AND model = ? AND (provenance = 'imported') = ?
        AND rules_id IN ({allowed_rules(c, rules)}))"""
    place = _at(c, task.digest, target.key(), target.is_cold)
    found = c.execute(query, (*place, model, int(is_imported))).fetchone()
    return None if found is None else VerdictRow(*found)


def _is_believable(verdict: Verdict, here: Target, rules: Sequence[Rule]) -> bool:
    """Stores without verdicts did not tell imported records from their own."""
    if verdict.provenance != "migrated":
        return True
    return is_believable(Claim(verdict.task, here, verdict.schedule, verdict.seconds), rules)


def _at(c: sqlite3.Connection, digest: str, key: str, cold: bool) -> tuple[int, int, int]:
    """Task, machine and temperature of a trial, as its row has them."""
    return id_of(c, "task", digest=digest), id_of(c, "machine", key=key), int(cold)
