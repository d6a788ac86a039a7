"""Stores for held-out recipients: the trials of other models, without anything that would leak.

Neither donors nor rows for the cost model may come from the tasks of a held-out model or of another model of its
family. The coefficients of the estimate are nominal throughout: nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.reuse.known import Known, known_of
from benchmarks.reuse.table import Recipient, Table, allowed, mark_of
from stormdrop.ir.tensor import Task
from stormdrop.store.record import DONOR, Record
from stormdrop.store.sqlite import copy_of
from stormdrop.store.store import Store
from stormdrop.target.machine import Target


def keep_trials(trials: Store, own: Store, task: Task, target: Target, model: str) -> None:
    """Copy what one search measured and decided from its store, `own`, into `trials`, unless it is there already."""
    if not trials.known(task, target):
        _copy(own, trials, task, target, lambda record: replace(record, model=model))


def _copy(source: Store, to: Store, task: Task, target: Target, changed: Callable[[Record], Record | None]) -> None:
    records = [changed(record) for record in source.trials(task, target)]
    to.add([record for record in records if record is not None])
    if (verdict := source.verdict(task, target)) is not None:
        to.add_verdicts([verdict])


class HeldOutStores:
    """For each recipient a store in memory with all that may be known where its models are held out. What a search adds
    to it is forgotten.

    `trials` holds the trials of searches from nothing. For a task that is not in it, the store gets what the table has:
    the default, re-fitted donors and the winner.
    """

    def __init__(
        self, table: Table, tasks: Mapping[str, Task], target: Target, trials: Store | None, folder: Path
    ) -> None:
        self._table, self._tasks, self._target, self._trials, self._folder = table, tasks, target, trials, folder
        self._paths: dict[frozenset[str], Path] = {}
        self._known: dict[str, Known] = {}

    def store_for(self, held_out: Recipient) -> Store:
        families = self._table.families(held_out)
        path = self._paths.get(families)
        if path is None:
            path = self._paths[families] = self._folder / f"{'-'.join(sorted(families))}.sqlite"
            donors = allowed(self._table, held_out)
            with Store.open(path) as store:
                for donor in donors:
                    self._add(store, donor, {other.id for other in donors})
        return Store(copy_of(path))

    def _add(self, store: Store, recipient: Recipient, donors: Collection[str]) -> None:
        """Add what is known of a task, without candidates that were re-fitted from held-out donors."""
        search = self._table.searches.get((recipient.id, "nothing"))
        if search is None or recipient.id not in self._tasks:
            return
        task, target = self._tasks[recipient.id], self._target.with_cold_weights(recipient.is_cold)
        links = self._table.links.get(recipient.id, ())
        marks = {mark for link in links if link.donor in donors for mark in link.marks}
        if self._trials is not None and self._trials.known(task, target):

            def kept(record: Record) -> Record | None:
                return record if record.strategy != DONOR or mark_of(record.schedule) in marks else None

            _copy(self._trials, store, task, target, kept)
            return
        if recipient.id not in self._known:
            self._known[recipient.id] = known_of(self._table, recipient, self._tasks, target, is_best=False)
        known = self._known[recipient.id]
        store.add([known.default, *(record for mark, record in known.donated.items() if mark in marks)])
        store.add_verdicts([known.verdict])
