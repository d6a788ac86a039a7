"""The table of a machine: one line of JSON for each measurement that was finished.

    recipient   a task to be scheduled, at a temperature: its keys, and how often each recorded model calls it
    search      one search for a recipient: its winner, timed again in turns with the default; its improvements
    curves      the improvements of a recipient's searches and its best known schedule, timed in turns with each other
    donors      the re-fitted winners of other tasks, timed in turns with the recipient's default
    duel        the best known schedule of a recipient against its default, measured anew
    model       a whole model with the best known schedules against the same with defaults, in turns

Times are ratios to the default schedule, timed in the same turns; below 1 is faster. A table is only appended to: a
process that is killed loses the row it was measuring, and the next run measures only what is missing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any, Literal

from stormdrop.space.schedule import Schedule
from stormdrop.store.record import group_name
from stormdrop.target.cpu import Cpu

RESULTS = Path(__file__).parents[1] / "results"
GAIN = 0.05
"""A task has something to gain where its best known schedule is faster than the default by this share."""
FAMILIES = {"googlenet": "inception"}
"""The families of models whose names do not begin with the family's."""
Row = dict[str, Any]
SearchKind = Literal["nothing", "only", "seed", "again", "long"]
"""What a search begins from, and its budget:

    nothing   no donors
    only      donors, then a short coordinate descent
    seed      donors, then a whole search
    again     no donors, with another seed and the budget of `seed`: what `only` and `seed` are compared with
    long      no donors, many trials
"""


def family_of(model: str) -> str:
    """The family of a model: variations of one architecture, as resnet18 to resnet152. By the letters that its name
    begins with.
    """
    letters = re.match(r"[a-z]+(?:3d)?", model)
    return FAMILIES.get(model, letters[0] if letters else model)


def path_for(target: Cpu) -> Path:
    return RESULTS / f"reuse-{target.cpu}-{target.isa}-{target.threads}.jsonl"


def stored_tables() -> list[Path]:
    return sorted(RESULTS.glob("reuse-*.jsonl"))


def mark_of(schedule: Schedule) -> str:
    """A short name of a schedule: equal schedules have equal marks."""
    return sha256(json.dumps(schedule.to_json(), sort_keys=True).encode()).hexdigest()[:10]


def recipient_id(digest: str, is_cold: bool) -> str:
    return group_name(digest[:12], is_cold)


# ---- the file --------------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    """The rows of all complete lines; a line that a killed process left incomplete is ignored."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line]


class TableFile:
    """A table to append to."""

    def __init__(self, path: Path) -> None:
        """Removes an incomplete last line."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.rows = path, read_rows(path)
        if path.exists():
            data = path.read_bytes()
            if (whole := data.rfind(b"\n") + 1) < len(data):
                os.truncate(path, whole)

    def append(self, row: Row) -> None:
        """When this returns, the row is on disk."""
        with self.path.open("a") as file:
            file.write(json.dumps(row, separators=(",", ":"), allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)


# ---- what the rows say -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recipient:
    """A task at a temperature. `calls`: how often each recorded model calls it."""

    id: str
    digest: str
    name: str
    class_key: str
    is_cold: bool
    calls: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The best schedule of a search after some seconds and trials. `ratio` was timed after the search; None: it was not
    timed yet.
    """

    seconds: float
    trial: int
    ratio: float | None
    mark: str = ""
    """Of the schedule; empty in rows whose curves were timed at the end of each search."""


@dataclass(frozen=True, slots=True)
class Search:
    """One search. `curve` begins with the first candidate that it timed and ends with the winner; `ratio` is the
    winner's, timed afterwards.
    """

    kind: SearchKind
    curve: Sequence[CurvePoint]
    seconds: float
    """Of the search, its final duel and proof included."""
    trials: int
    budget_seconds: float | None
    winner: Schedule
    ratio: float

    def ratio_after(self, seconds: float) -> float:
        """The ratio of the search's best after some seconds; 1, the default's, before it has one."""
        return next((p.ratio for p in reversed(self.curve) if p.seconds <= seconds and p.ratio is not None), 1.0)

    def seconds_until(self, ratio: float) -> float | None:
        return next((p.seconds for p in self.curve if p.ratio is not None and p.ratio <= ratio), None)

    @property
    def final_ratio(self) -> float:
        """The winner's, timed in the turns of `curves` if it was."""
        last = self.curve[-1].ratio if self.curve else None
        return self.ratio if last is None else last


@dataclass(frozen=True, slots=True)
class HalfRatios:
    """The ratios of one candidate in two halves of its loads. A choice by one half is judged by the other, since the
    smallest of several noisy ratios is too small.
    """

    first: float
    second: float

    @property
    def both(self) -> float:
        return (self.first + self.second) / 2


@dataclass(frozen=True, slots=True)
class DonorLink:
    """One donor of a recipient: the key that they share, their distance, and the marks of the re-fitted schedules."""

    donor: str
    """The id of the donor as a recipient."""
    key: str
    distance: float
    marks: tuple[str, ...]

    @property
    def order(self) -> tuple[bool, float, str]:
        """As the store orders donors."""
        return self.key != "class", self.distance, self.donor


@dataclass(frozen=True, slots=True)
class KnownBest:
    """A duel of the best known schedule with the default. `schedule` is the default itself where nothing is faster."""

    schedule: Schedule
    origin: str
    ratio: float
    default_seconds: float
    is_default: bool


@dataclass(frozen=True, slots=True)
class ModelWorth:
    """Seconds of a whole model, in turns."""

    model: str
    seconds: float
    default_seconds: float
    changed: int
    """Tasks whose best known schedule stayed in the model; others were reverted to the default."""
    offered: int
    """Tasks whose best known schedule is not the default."""


@dataclass
class Table:
    """The rows of one machine, read."""

    recipients: dict[str, Recipient] = field(default_factory=dict[str, Recipient])
    searches: dict[tuple[str, SearchKind], Search] = field(default_factory=dict[tuple[str, SearchKind], Search])
    links: dict[str, list[DonorLink]] = field(default_factory=dict[str, list[DonorLink]])
    ratios: dict[str, dict[str, HalfRatios]] = field(default_factory=dict[str, dict[str, HalfRatios]])
    """Of re-fitted donors, by recipient and mark."""
    default_seconds: dict[str, float] = field(default_factory=dict[str, float])
    first_best: dict[str, KnownBest] = field(default_factory=dict[str, KnownBest])
    """By recipient, from its first duel. It decides for good whether the task has something to gain (`has_gain`)."""
    best: dict[str, KnownBest] = field(default_factory=dict[str, KnownBest])
    """By recipient, from its latest duel."""
    tried: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """By recipient: marks of the schedules that its duels chose from."""
    curve_ratios: dict[str, dict[str, float | None]] = field(default_factory=dict[str, dict[str, float | None]])
    """By recipient and mark: ratios that were timed in the turns of its row `curves`; None: it failed there."""
    improvements: dict[str, dict[str, Schedule]] = field(default_factory=dict[str, dict[str, Schedule]])
    """By recipient and mark: the schedules of its searches' curves."""
    models: dict[str, ModelWorth] = field(default_factory=dict[str, ModelWorth])
    machine: str = ""
    _families: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    @staticmethod
    def of(rows: Iterable[Row]) -> Table:
        table = Table()
        for row in rows:
            table.add(row)
        return table

    def add(self, row: Row) -> None:
        """A later row replaces an earlier one of its kind and recipient; rows of donors are merged."""
        self.machine = f"{row['cpu']}, {row['target'].split('/')[1]}, {row['target'].split('/')[2]} threads"
        if row["kind"] == "model":
            seconds = row["seconds"], row["default_seconds"], row["changed"], row["offered"]
            self.models[row["model"]] = ModelWorth(row["model"], *seconds)
            return
        id = row["id"]
        match row["kind"]:
            case "recipient":
                keys = row["digest"], row["task"], row["class"], row["cold"]
                self.recipients[id] = Recipient(id, *keys, row["calls"])
                families = frozenset(map(family_of, row["calls"]))
                self._families[row["digest"]] = self._families.get(row["digest"], frozenset()) | families
            case "search":
                ratios, schedules = self.curve_ratios.get(id, {}), row.get("schedules", {})
                curve = [_point(at, number, timed, ratios) for at, number, timed in row["curve"]]
                spent = row["seconds"], row["trials"], row["budget_seconds"]
                found = Search(row["how"], curve, *spent, Schedule.from_json(row["winner"]), row["ratio"])
                self.searches[id, row["how"]] = found
                read = {mark: Schedule.from_json(schedule) for mark, schedule in schedules.items()}
                self.improvements.setdefault(id, {}).update(read)
                self.default_seconds[id] = row["default_seconds"]
            case "curves":
                ratios = self.curve_ratios[id] = dict(row["ratios"])
                for key, search in self.searches.items():
                    if key[0] == id:
                        curve = [_point(p.seconds, p.trial, p.mark or p.ratio, ratios) for p in search.curve]
                        self.searches[key] = replace(search, curve=curve)
            case "donors":
                self.ratios.setdefault(id, {}).update({m: HalfRatios(*halves) for m, halves in row["ratios"].items()})
                links = [DonorLink(d, key, far, tuple(marks)) for d, (key, far, marks) in row["donors"].items()]
                known = {link.donor for link in links}
                self.links[id] = [link for link in self.links.get(id, []) if link.donor not in known] + links
                self.default_seconds[id] = row["default_seconds"]
            case "duel":
                schedule, seconds = Schedule.from_json(row["schedule"]), row["default_seconds"]
                best = KnownBest(schedule, row["origin"], row["ratio"], seconds, row["origin"] == "default")
                self.first_best.setdefault(id, best)
                self.best[id] = best
                self.tried[id] = self.tried.get(id, frozenset()) | set(row["tried"])
                self.default_seconds[id] = seconds
            case other:
                raise ValueError(f"a row of the kind {other!r}")

    @property
    def model_names(self) -> list[str]:
        """In the order in which they were recorded."""
        return list(dict.fromkeys(model for r in self.recipients.values() for model in r.calls))

    def of_model(self, model: str) -> list[Recipient]:
        """The recipients of a model whose defaults have been timed."""
        return [r for r in self.recipients.values() if model in r.calls and r.id in self.default_seconds]

    def families(self, recipient: Recipient) -> frozenset[str]:
        """The families of all models that have the task, at any temperature."""
        return self._families[recipient.digest]

    def has_gain(self, recipient: Recipient) -> bool:
        """Whether the task has something to gain, by its first duel: later duels do not change the set of tasks."""
        found = self.first_best.get(recipient.id)
        return found is not None and found.ratio <= 1 / (1 + GAIN)

    def weight(self, recipient: Recipient, model: str) -> float:
        """Seconds that a model spends in the task with its default schedule."""
        return recipient.calls[model] * self.default_seconds[recipient.id]


def _point(seconds: float, trial: int, timed: float | str | None, ratios: Mapping[str, float | None]) -> CurvePoint:
    """`timed`: a ratio, or the mark of a schedule whose ratio is among `ratios` once it was timed."""
    if isinstance(timed, str):
        return CurvePoint(seconds, trial, ratios.get(timed), timed)
    return CurvePoint(seconds, trial, timed)


def is_allowed(table: Table, donor: Recipient, held_out: Recipient) -> bool:
    """Whether a donor may be used where a recipient's models are held out: no model of theirs shares a family."""
    return not table.families(donor) & table.families(held_out)


def allowed(table: Table, held_out: Recipient) -> list[Recipient]:
    return [r for r in table.recipients.values() if is_allowed(table, r, held_out)]


def donors_in(table: Table, model: str, recipient: Recipient, target_model: str) -> set[str]:
    """Ids of the tasks of `model` that may be donors for a recipient of `target_model`: those that `target_model` does
    not have itself. Where both are the same model: its other tasks.
    """
    own = {r.digest for r in table.recipients.values() if target_model in r.calls} if model != target_model else set()
    excluded: Collection[str] = {recipient.digest, *own}
    return {r.id for r in table.recipients.values() if model in r.calls and r.digest not in excluded}


def halves(loads: Sequence[float]) -> HalfRatios:
    """The medians of the even and of the odd loads."""
    return HalfRatios(round(median(loads[::2]), 4), round(median(loads[1::2] or loads), 4))
