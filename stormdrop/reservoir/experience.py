"""Experience: what tuning leaves for tasks that were never measured, as one JSON file.

    donors     winners of tasks, each with the one variant of its task that it computes
    scorer     trees that predict how much faster a schedule of a task is than the task's default
    margin     the predicted gain from which a re-fitted donor is taken unmeasured; without one, none is taken

`stormdrop.reservoir.learning` writes the file beside the store when tuning ends; `compile` only reads it. The trees
become stale when the machine's calibration, the features or a rule changes: reading the file then gives the donors
alone.
A portfolio (`stormdrop.reservoir.portfolio`) is the same kind of file, with few donors of each class.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any

from stormdrop.errors import UserError
from stormdrop.files import opened, replacing
from stormdrop.ir.keys import extents
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.donors import Kinship, distance
from stormdrop.reservoir.rows import compact, rules_of, unknown_rules
from stormdrop.space.judge import judge_of
from stormdrop.space.offer import Offer, OfferedSchedule
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.scorer import Scorer
from stormdrop.target.machine import Target

_log = logging.getLogger("stormdrop.store")

FORMAT = 2
READABLE = (1, FORMAT)
"""Of files of format 1 the donors alone: their trees predicted something else."""
MOST_OFFERED = 2
"""Donors that are re-fitted to a task when it is compiled, which takes time. By the timings of recorded tables, two
donors gave ten held-out models 9 % (AVX2) and 30 % (AVX-512) of what search gains, four 11 and 29 %, eight 15 and 9 %.
"""


@dataclass(frozen=True, slots=True)
class DonorEntry:
    """The schedule of a verdict, and the one variant of its task that it computes."""

    task: Mapping[str, Any]
    """JSON of a task that has this variant alone."""
    schedule: Mapping[str, Any]
    """JSON. The schedule names variant 0, the only one of `task`."""
    class_key: str
    """Of the variant, as are the anchor key and the extents."""
    anchor_key: str
    extents: tuple[int, ...]
    threads: int
    cold: bool
    digest: str = ""
    """Of the original task, with all its variants."""
    model: str = ""
    gain: float = 1.0
    """How many times faster it was than the default schedule of its task."""

    @property
    def offered(self) -> OfferedSchedule:
        of = f" of {self.model}" if self.model else ""
        return OfferedSchedule(self.task, self.schedule, f"{self.task['name']}{of}")

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.task["name"],
            "model": self.model,
            "digest": self.digest,
            "class": self.class_key,
            "anchor": self.anchor_key,
            "extents": list(self.extents),
            "threads": self.threads,
            "cold": self.cold,
            "gain": round(self.gain, 4),
            "schedule": self.schedule,
            "task": self.task,
        }

    @staticmethod
    def from_json(data: Any) -> DonorEntry:
        """Raises KeyError, TypeError or ValueError."""
        return DonorEntry(
            dict(data["task"]),
            dict(data["schedule"]),
            str(data["class"]),
            str(data.get("anchor", "")),
            tuple(map(int, data["extents"])),
            int(data["threads"]),
            bool(data["cold"]),
            str(data["digest"]),
            str(data["model"]),
            float(data["gain"]),
        )


def entry_of(task: Task, schedule: Schedule, target: Target, model: str = "", gain: float = 1.0) -> DonorEntry | None:
    """A winner as a donor; None where the task lacks the schedule's variant."""
    if not 0 <= schedule.variant < len(task.variants):
        return None
    variant = task.variants[schedule.variant]
    alone = Task(variants=[variant], name=task.name)
    own = replace(schedule, variant=0, class_key=variant.class_key)
    keys, where = (variant.class_key, variant.anchor_key), (target.threads, target.is_cold)
    return DonorEntry(alone.to_json(), own.to_json(), *keys, extents(variant), *where, task.digest, model, gain)


def promising(donors: Sequence[DonorEntry], task: Task, target: Target) -> list[DonorEntry]:
    """The few donors with which a task is expected to save most, the best first.

    A winner is expected to save of a task what it saved of its own, halved for every unit of distance, for another
    epilogue, and for other threads or another temperature. Among equals the nearest comes first.
    """
    found: list[tuple[float, float, int]] = []
    for k, entry in enumerate(donors):
        is_equal = (entry.threads, entry.cold) == (target.threads, target.is_cold)
        kin = None if is_equal and entry.digest == task.digest else _kinship(entry, task)
        if kin is not None:
            units = kin.units(is_equal) + (kin.key != "class")
            saved = 1.0 - 1.0 / max(1.0, entry.gain)
            found.append((-saved * 0.5**units, units, k))
    return [donors[k] for _, _, k in sorted(found)[:MOST_OFFERED]]


def nearest(donors: Sequence[DonorEntry], task: Task, target: Target, most: int | None = None) -> list[DonorEntry]:
    """Donors that share a class with a variant of the task, without the task's own winner as measured on `target`; the
    nearest first, where other threads or another temperature are one unit of distance.
    """
    found: list[tuple[float, int]] = []
    for k, entry in enumerate(donors):
        is_equal = (entry.threads, entry.cold) == (target.threads, target.is_cold)
        kin = None if is_equal and entry.digest == task.digest else _kinship(entry, task)
        if kin is not None and kin.key == "class":
            found.append((kin.units(is_equal), k))
    return [donors[k] for _, k in sorted(found)[:most]]


def _kinship(entry: DonorEntry, task: Task) -> Kinship | None:
    for variant in task.variants:
        if variant.class_key == entry.class_key and len(own := extents(variant)) == len(entry.extents):
            return Kinship("class", distance(entry.extents, own))
    for variant in task.variants:
        if entry.anchor_key and variant.anchor_key == entry.anchor_key:
            own = extents(variant)
            return Kinship("anchor", distance(entry.extents, own)) if len(own) == len(entry.extents) else None
    return None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the margin rests on: predictions for held-out tasks, which the trees had not seen."""

    tasks: int
    """Held-out tasks with a timed default and timed donors."""
    picks: int
    """Those among them whose best predicted gain reaches the margin."""
    gain: float
    """The geometric mean of the gains of these picks, as timed."""


@dataclass(frozen=True)
class Experience:
    """What was learned for a machine. Without `scorer` and `margin`, the donors only serve to begin a search from."""

    key: str
    """The key of the target. With the next three it says what the trees were grown for (`is_current`)."""
    judged_by: str
    """A digest of the target's rates and coefficients (`judged_by`)."""
    features: int
    """The version of the features."""
    rules: str
    """Names and versions of the derivation rules."""
    donors: tuple[DonorEntry, ...]
    scorer: Scorer | None = None
    margin: float | None = None
    evidence: Evidence | None = None
    made: Mapping[str, Any] | None = None
    """For people: date, versions, CPU."""

    def is_current(self, target: Target, rules: Sequence[Rule] = RULES) -> bool:
        """Whether the trees were grown for this target's present estimate, features and rules."""
        now = self.key, self.judged_by, self.features, self.rules
        return now == (target.key(), judged_by(target), judge_of(target).features.version, rules_text(rules))

    def offer(
        self, task: Task, target: Target, origin: str, donors: Sequence[DonorEntry] | None = None
    ) -> Offer | None:
        """The most promising of its donors, or of those given, for a task to take unmeasured. The caller has checked
        `is_current`.
        """
        if self.scorer is None or self.margin is None:
            return None
        listed = promising(self.donors if donors is None else donors, task, target)
        return Offer(tuple(d.offered for d in listed), self.scorer, self.margin, origin) if listed else None

    def to_json(self) -> dict[str, object]:
        evidence = self.evidence
        return {
            "format": FORMAT,
            "made": dict(self.made or {}),
            "target": self.key,
            "judged_by": self.judged_by,
            "features": self.features,
            "rules": self.rules,
            "margin": self.margin,
            "evidence": None if evidence is None else [evidence.tasks, evidence.picks, evidence.gain],
            "donors": [entry.to_json() for entry in self.donors],
            "scorer": None if self.scorer is None else self.scorer.to_json(),
        }

    @staticmethod
    def from_json(data: Any, target: Target) -> Experience:
        """The inverse of `to_json`, without the trees where they are not current, and without donors whose derivations
        use rules that this version lacks. Raises UserError for anything else than an experience.
        """
        try:
            if data["format"] not in READABLE:
                raise UserError(f"not an experience of format {FORMAT}")
            entries = (DonorEntry.from_json(entry) for entry in data["donors"])
            donors = tuple(e for e in entries if not unknown_rules(rules_of(e.schedule)))
            judged = str(data["judged_by"]) if data["format"] == FORMAT else ""  # never current
            stamp = str(data["target"]), judged, int(data["features"]), str(data["rules"])
            evidence = Evidence(*data["evidence"]) if data["evidence"] else None
            found = Experience(*stamp, donors, evidence=evidence, made=dict(data["made"]))
            if data["scorer"] is None or not found.is_current(target):
                return found
            margin = None if data["margin"] is None else float(data["margin"])
            scorer = Scorer.from_json(data["scorer"], judge_of(target).features)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise UserError(f"not an experience: {error!r}") from error
        if margin is not None and not (isfinite(margin) and margin >= 1.0):
            raise UserError(f"not an experience: a margin of {margin}")
        return replace(found, scorer=scorer, margin=margin)


@lru_cache(maxsize=64)
def judged_by(target: Target) -> str:
    """A digest of all fields of a target that features depend on; the same for both temperatures."""
    tree = target.with_cold_weights(False).to_json()
    return sha256(
        compact({k: v for k, v in tree.items() if k not in ("name", "triple", "features")}).encode()
    ).hexdigest()[:16]


def rules_text(rules: Iterable[Rule]) -> str:
    return ", ".join(sorted(f"{rule.name} {rule.version}" for rule in rules))


# ---- files -----------------------------------------------------------------------------------------------------------


def path_beside(store: Path, target: Target) -> Path:
    """Where the experience of a store is kept, by machine and number of threads."""
    return store.with_name(f"{store.stem}.experience-{sha256(target.key().encode()).hexdigest()[:12]}.json")


def save(path: Path, experience: Experience) -> None:
    """Raises UserError where it cannot be written."""
    with replacing(path, follow_links=False) as write:
        write(readable(experience.to_json()).encode())


def readable(tree: Mapping[str, Any]) -> str:
    """JSON with a line for each value, and for each element of a list."""
    lines: list[str] = []
    for name, value in tree.items():
        if isinstance(value, list) and value and not isinstance(value[0], (int, float)):
            rows = ",\n  ".join(compact(row) for row in value)
            lines.append(f"{compact(name)}: [\n  {rows}\n ]")
        else:
            lines.append(f"{compact(name)}: {compact(value)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def load(path: Path, target: Target) -> Experience | None:
    """None where there is no such file; also, with a warning in the log, where it cannot be read."""
    try:
        return _parsed(path, path.stat().st_mtime_ns, target)
    except FileNotFoundError:
        return None
    except (OSError, UserError, ValueError, RecursionError) as error:
        _log.warning("%s is ignored: %s", path, error)
        return None


@lru_cache(maxsize=8)
def _parsed(path: Path, changed: int, target: Target) -> Experience:
    """The experience in a file. `changed`, its time of modification, is there for the cache's key."""
    with opened(path, str(path)) as file:
        return Experience.from_json(json.loads(file.read()), target)
