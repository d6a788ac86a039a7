"""The passes that measure. Each skips what the table already has. Kinds of search are those of `table.SearchKind`.

    winners   `nothing`: every recipient is searched without donors
    donors    winners of other recipients are re-fitted and timed in turns; the best known duels the default
    reuse     `only`: every recipient is searched from donors, with its models held out; tasks with something to gain
              are also searched as `seed` and, for comparison, as `again`
    long      `long`: tasks with something to gain are searched without donors, with many trials
    model     every model with the best known schedules against the same with defaults, in turns

Rates and coefficients of the estimate are nominal, however this machine was calibrated.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path

import numpy as np

from benchmarks.reuse.budgets import Budgets
from benchmarks.reuse.held_out import HeldOutStores, keep_trials
from benchmarks.reuse.networks import Network, worth_in_model
from benchmarks.reuse.table import Recipient, Row, SearchKind, Table, TableFile, family_of, mark_of, recipient_id
from benchmarks.reuse.turns import Turns, in_turns
from stormdrop.base.errors import ScheduleError, StormdropError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Timing
from stormdrop.space.default import default_schedule
from stormdrop.space.refit import refit
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import replay
from stormdrop.store.donors import Kinship, kinship
from stormdrop.store.record import DONOR, Record, versions
from stormdrop.store.store import Store
from stormdrop.target.cpu import Cpu
from stormdrop.tuning.api import tune
from stormdrop.tuning.events import Event, Measured
from stormdrop.tuning.resources import Measures
from stormdrop.tuning.reuse import MOST_DONORS
from stormdrop.tuning.search_settings import TuneSettings
from stormdrop.tuning.tune import MODEL_SETTINGS

DONOR_LOADS, DONOR_ROUNDS = 6, 1
"""`loads` and `rounds` of `in_turns`, for re-fitted donors: with four, the luckiest of many candidates was chosen, and
larger pools seemed worse."""
WINNER_LOADS, WINNER_ROUNDS = 4, 2
"""The same for the winner of a search, and for the choice among a duel's finalists."""
CURVE_LOADS, CURVE_ROUNDS = 6, 2
"""The same for the improvements of the searches that are compared."""
COMPARED: tuple[SearchKind, ...] = ("only", "seed", "again", "long")
DUEL_LOADS = 12
FINALISTS = 4
CURVE_POINTS = 10
"""Improvements of a search that are timed again."""
BETTER = 0.99
"""There is another duel if some candidate seems to take less than this share of the best known's time."""


def commit() -> str:
    """The commit of the checkout; empty where there is none."""
    try:
        completed = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
        return completed.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class Recorder:
    """Measures and appends the rows of a table. `measurers`: one for each temperature, by `is_cold`."""

    def __init__(
        self,
        file: TableFile,
        networks: Sequence[Network],
        target: Cpu,
        measurers: Mapping[bool, Measures],
        budgets: Budgets,
        trials: Store | None = None,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file, self._target, self._measurers, self._budgets = file, target, measurers, budgets
        self._trials, self._say, self._clock = trials, say, clock
        self._origin: Row = {"commit": commit(), "cpu": target.name, "target": target.key()}
        self.table = Table.of(file.rows)
        self._tasks: dict[str, Task] = {}
        self._defaults: dict[str, Schedule] = {}
        self._note(networks)
        self.recipients = [r for r in self.table.recipients.values() if r.id in self._tasks]

    def _note(self, networks: Sequence[Network]) -> None:
        """Append recipients that the table lacks, and anew those that further models call."""
        calls: dict[str, dict[str, int]] = {}
        for network in networks:
            for task, count in network.tasks:
                id = recipient_id(task.digest, network.is_cold)
                self._tasks.setdefault(id, task)
                calls.setdefault(id, {})[network.name] = count
        for id, found in calls.items():
            task, known = self._tasks[id], self.table.recipients.get(id)
            before = {} if known is None else dict(known.calls)
            if found.items() <= before.items():
                continue
            keys = {"digest": task.digest, "task": task.name, "class": task.class_key, "anchor": task.anchor_key}
            self._append({"kind": "recipient", "id": id, **keys, "cold": id.endswith("cold"), "calls": before | found})

    def _append(self, row: Row) -> None:
        row |= self._origin | {"date": date.today().isoformat()}
        if (recipient := self.table.recipients.get(row.get("id", ""))) is not None and row["kind"] != "recipient":
            names = {"digest": recipient.digest, "class": recipient.class_key, "models": list(recipient.calls)}
            row |= names | {"families": sorted(self.table.families(recipient))}
        self._file.append(row)
        self.table.add(row)

    def target_of(self, recipient: Recipient) -> Cpu:
        return self._target.with_cold_weights(recipient.is_cold)

    def default_of(self, recipient: Recipient) -> Schedule:
        if recipient.id not in self._defaults:
            self._defaults[recipient.id] = default_schedule(self._tasks[recipient.id], self.target_of(recipient))
        return self._defaults[recipient.id]

    def _in_turns(self, recipient: Recipient, others: Iterable[Schedule], loads: int, rounds: int) -> Turns:
        measurer, default = self._measurers[recipient.is_cold], self.default_of(recipient)
        task, target = self._tasks[recipient.id], self.target_of(recipient)
        return in_turns(task, default, list(others), measurer, target, loads, rounds)

    def _each(self, what: str, recipients: Sequence[Recipient], do: Callable[[Recipient], str]) -> None:
        for number, recipient in enumerate(recipients, 1):
            began = self._clock()
            try:
                outcome = do(recipient)
            except StormdropError as error:  # one task that cannot be timed does not end the recording
                outcome = f"failed: {error}"
            spent = self._clock() - began
            self._say(f"{what} {number}/{len(recipients)}: {recipient.id} {recipient.name}: {outcome} ({spent:.1f} s)")

    # ---- searches --------------------------------------------------------------------------------------------------

    def winners(self) -> None:
        self._each("winners", self._without("nothing"), lambda r: self._search(r, "nothing", None))

    def reuse(self, folder: Path) -> None:
        """`folder` is for temporary stores."""
        stores = HeldOutStores(self.table, self._tasks, self._target, self._trials, folder)
        self._each("reuse only", self._without("only"), lambda r: self._search(r, "only", stores))
        self._each("reuse seed", self._gaining("seed"), lambda r: self._search(r, "seed", stores))
        self._each("once more", self._gaining("again"), lambda r: self._search(r, "again", None))
        self.duels()
        self.curves()

    def long(self) -> None:
        self._each("long", self._gaining("long"), lambda r: self._search(r, "long", None))
        self.duels()
        self.curves()

    def _gaining(self, kind: SearchKind) -> list[Recipient]:
        return [r for r in self._without(kind) if self.table.has_gain(r)]

    def _without(self, kind: SearchKind) -> list[Recipient]:
        return [r for r in self.recipients if (r.id, kind) not in self.table.searches]

    def _search(self, recipient: Recipient, kind: SearchKind, stores: HeldOutStores | None) -> str:
        task, target = self._tasks[recipient.id], self.target_of(recipient)
        store = Store.in_memory() if stores is None else stores.store_for(recipient)
        seconds, trials = self._budgets.of(kind)
        bests: list[tuple[float, int, Schedule]] = []
        began = self._clock()

        def listen(event: Event) -> None:
            if isinstance(event, Measured) and event.is_best:
                bests.append((self._clock() - began, event.trial.number, event.trial.schedule))

        is_long = kind == "long"
        tuned = tune(
            task,
            target,
            search="storm" if is_long else "storm+droplet",
            settings=(TuneSettings() if is_long else MODEL_SETTINGS).on(target),
            trials=trials,
            seconds=seconds,
            seed=int(kind == "again"),
            store=store,
            measurer=self._measurers[recipient.is_cold],
            reuse="off" if stores is None else kind,
            listen=listen,
        )
        if tuned.interrupted:
            raise KeyboardInterrupt
        spent = self._clock() - began
        points = (
            [*spread(bests, CURVE_POINTS), (spent, tuned.trials, tuned.best)]
            if self._is_compared(kind, recipient)
            else []
        )
        turns = self._in_turns(recipient, [tuned.best], WINNER_LOADS, WINNER_ROUNDS)
        ratio = turns.ratio(tuned.best)
        if kind == "nothing" and self._trials is not None:
            keep_trials(self._trials, store, task, target, next(iter(recipient.calls)))
        self._append(
            {
                "kind": "search",
                "id": recipient.id,
                "how": kind,
                "curve": [[round(at, 3), number, mark_of(s)] for at, number, s in points],
                "schedules": {mark_of(s): s.to_json() for _, _, s in points},
                "seconds": round(spent, 3),
                "trials": tuned.trials,
                "budget_seconds": seconds,
                "winner": tuned.best.to_json(),
                "ratio": ratio,
                "default_seconds": turns.default_seconds,
            }
        )
        return f"{1 / ratio:.3f} times the default's speed after {tuned.trials} trials"

    def _is_compared(self, kind: SearchKind, recipient: Recipient) -> bool:
        return kind in COMPARED and self.table.has_gain(recipient)

    def curves(self) -> None:
        """Time the improvements of searches that are compared, and the best known, in turns with each other, as many at
        a time as a process can hold: differences of 2 % cannot be told from timings of different occasions.
        """
        self._each("curves", [r for r in self.recipients if self._has_untimed(r)], self._time_improvements)

    def _has_untimed(self, recipient: Recipient) -> bool:
        wanted, best = self.table.improvements.get(recipient.id), self.table.best.get(recipient.id)
        if not wanted or best is None:
            return False
        return not {*wanted, mark_of(best.schedule)} <= set(self.table.curve_ratios.get(recipient.id, ()))

    def _time_improvements(self, recipient: Recipient) -> str:
        schedules = [*self.table.improvements[recipient.id].values(), self.table.best[recipient.id].schedule]
        turns = self._in_turns(recipient, schedules, CURVE_LOADS, CURVE_ROUNDS)
        ratios = {mark_of(s): turns.ratio(s) for s in schedules if s in turns.loads}
        self._append({"kind": "curves", "id": recipient.id, "ratios": ratios, "default_seconds": turns.default_seconds})
        return f"{len(ratios)} improvements timed in turns"

    # ---- donors ----------------------------------------------------------------------------------------------------

    def donors(self) -> None:
        searched = [r for r in self.recipients if (r.id, "nothing") in self.table.searches]
        todo = [r for r in searched if self._fresh_donors(r, searched)]
        self._each("donors", todo, lambda r: self._time_donors(r, self._fresh_donors(r, searched)))
        self.duels()

    def _fresh_donors(self, recipient: Recipient, searched: Sequence[Recipient]) -> list[Recipient]:
        """The donors to time: the nearest few of each model and the nearest of all, without those timed before."""
        others = [d for d in searched if d.digest != recipient.digest]
        kin = {d.id: (*found.order, d.id) for d in others if (found := self._kin(d, recipient)) is not None}
        near = sorted((d for d in others if d.id in kin), key=lambda d: kin[d.id])
        chosen = {d.id for d in near[:MOST_DONORS]}
        for model in self.table.model_names:
            chosen |= {d.id for d in [d for d in near if model in d.calls][: self._budgets.donors]}
        known = {link.donor for link in self.table.links.get(recipient.id, ())}
        return [d for d in near if d.id in chosen - known]

    def _kin(self, donor: Recipient, recipient: Recipient) -> Kinship | None:
        return kinship(self._tasks[donor.id], self._winner(donor), self._tasks[recipient.id])

    def _winner(self, donor: Recipient) -> Schedule:
        return self.table.searches[donor.id, "nothing"].winner

    def _refitted(self, donor: Recipient, recipient: Recipient) -> tuple[Schedule, ...]:
        try:
            tasks = self._tasks[donor.id], self._tasks[recipient.id]
            return refit(self._winner(donor), *tasks, self.target_of(recipient))
        except ScheduleError:
            return ()  # a schedule that this version cannot replay

    def _time_donors(self, recipient: Recipient, donors: Sequence[Recipient]) -> str:
        found = {donor.id: self._refitted(donor, recipient) for donor in donors}
        schedules = dict.fromkeys(s for each in found.values() for s in each)
        turns = self._in_turns(recipient, schedules, DONOR_LOADS, DONOR_ROUNDS)
        ratios = {mark_of(s): turns.halves(s) for s in schedules if s in turns.loads}
        links: Row = {}
        for donor in donors:
            kin = self._kin(donor, recipient)
            assert kin is not None
            links[donor.id] = kin.key, round(kin.distance, 3), [mark_of(s) for s in found[donor.id] if s in turns.loads]
        self._append(
            {
                "kind": "donors",
                "id": recipient.id,
                "donors": links,
                "ratios": {mark: [r.first, r.second] for mark, r in ratios.items()},
                "default_seconds": turns.default_seconds,
                "failures": [message[:200] for message in turns.failures.values()],
                "empty": sum(not each for each in found.values()),
            }
        )
        if self._trials is not None:
            self._trials.add(self._donated(recipient, schedules, turns))
        best = min((r.both for r in ratios.values()), default=1.0)
        failed = f", {len(turns.failures)} failed" if turns.failures else ""
        return f"{len(donors)} donors, {len(schedules)} candidates{failed}, the best {1 / best:.3f}"

    def _donated(self, recipient: Recipient, schedules: Iterable[Schedule], turns: Turns) -> list[Record]:
        """The timed candidates as records, as if a search from donors had measured them.

        Their seconds are the ratio times the default's seconds in the search from nothing, so that they compare with
        its trials.
        """
        task, target = self._tasks[recipient.id], self.target_of(recipient)
        found: list[Record] = []
        base = self._default_trial(recipient) or turns.default_seconds
        for schedule in (s for s in schedules if s in turns.loads):
            sketch, point = replay(task, schedule, target)
            seconds = turns.ratio(schedule) * base
            timing = Timing(seconds, 0.0, DONOR_LOADS * DONOR_ROUNDS, 0.0, samples=(seconds,))
            features = sketch.features(point[None])[0].astype(np.float32)
            record = Record(task, schedule, target, timing, versions(target), DONOR, features=features)
            found.append(replace(record, model=next(iter(recipient.calls)), created=time.time()))
        return found

    def _default_trial(self, recipient: Recipient) -> float | None:
        """Seconds of the default's fastest run in the search from nothing; None where it was not timed there."""
        if self._trials is None:
            return None
        records = self._trials.trials(self._tasks[recipient.id], self.target_of(recipient))
        results = [r.result for r in records if r.schedule == self.default_of(recipient)]
        return next((r.floor for r in results if isinstance(r, Timing)), None)

    def duels(self) -> None:
        """A duel of the best known with the default, for every recipient that may have a better candidate by now."""
        todo = [r for r in self.recipients if self._challengers(r) is not None]
        self._each("duel", todo, self._duel)

    def _challengers(self, recipient: Recipient) -> dict[str, float] | None:
        """The marks and ratios of the best few candidates, the best first; None where no duel is needed."""
        searches = [s for (id, _), s in self.table.searches.items() if id == recipient.id]
        if not searches:
            return None
        found = {mark: r.both for mark, r in self.table.ratios.get(recipient.id, {}).items()}
        found |= {mark_of(s.winner): s.ratio for s in searches}
        before = self.table.best.get(recipient.id)
        if before is not None:
            tried = self.table.tried.get(recipient.id, frozenset())
            found = {m: r for m, r in found.items() if r < BETTER * before.ratio and m not in tried}
            if not found:
                return None
        return dict(sorted(found.items(), key=lambda item: item[1])[:FINALISTS])

    def _duel(self, recipient: Recipient) -> str:
        challengers = self._challengers(recipient) or {}
        finalists = self._schedules(recipient, challengers)
        default = self.default_of(recipient)
        if (before := self.table.best.get(recipient.id)) is not None:
            finalists[before.schedule] = before.origin
        first = self._in_turns(recipient, finalists, WINNER_LOADS, WINNER_ROUNDS)
        chosen = min(first.loads, key=first.ratio)
        turns = self._in_turns(recipient, [chosen], DUEL_LOADS, 1)
        ratio = turns.ratio(chosen)
        if ratio >= 1:
            chosen, ratio = default, 1.0
        self._append(
            {
                "kind": "duel",
                "id": recipient.id,
                "schedule": chosen.to_json(),
                "origin": "default" if chosen == default else finalists[chosen],
                "ratio": ratio,
                "default_seconds": turns.default_seconds,
                "tried": [mark_of(s) for s in finalists],
            }
        )
        return f"{1 / ratio:.3f} times the default's speed"

    def _schedules(self, recipient: Recipient, marks: Iterable[str]) -> dict[Schedule, str]:
        """The schedules with these marks, and their origins: winners of searches, and donors re-fitted once more."""
        wanted = set(marks)
        found: dict[Schedule, str] = {}
        for (id, kind), search in self.table.searches.items():
            if id == recipient.id and mark_of(search.winner) in wanted:
                found[search.winner] = kind
        for link in self.table.links.get(recipient.id, ()):
            if wanted & set(link.marks) and link.donor in self._tasks:
                donor = self.table.recipients[link.donor]
                again = [s for s in self._refitted(donor, recipient) if mark_of(s) in wanted]
                found |= {s: f"donor {link.donor}" for s in again if s not in found}
        return found

    def models(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.table.models:
                worth = worth_in_model(name, self._target, self.table)
                self._append({"kind": "model", "families": [family_of(name)], **asdict(worth)})
                self._say(f"model {name}: {worth.default_seconds / worth.seconds:.3f} times the default's speed")


def spread(bests: Sequence[tuple[float, int, Schedule]], most: int) -> list[tuple[float, int, Schedule]]:
    """At most `most` of a search's improvements: the first, the last, and others evenly between them."""
    if len(bests) <= most:
        return list(bests)
    chosen = np.unique(np.linspace(0, len(bests) - 1, most).round().astype(int))
    return [bests[k] for k in chosen.tolist()]
