"""A record as the store keeps it: numbers, text and bytes, without a Python object in it.

    Record ──row_of──▶ TrialRow ──▶ a row of the database, or a line of a file
    TrialRow ──record_of──▶ Record

The columns of records and verdicts follow from the types of their fields. Columns and their bytes never change: the
mark of a stored trial is a hash of its columns.

Invariant: `row_of(record_of(row)) == row` for every row that `row_of` made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import sha256
from typing import Any, TypeVar, get_args

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.ir.memo import memoised
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, FailureKind, Result, Timing
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.store.database import StoreError
from stormdrop.store.record import Record, Versions
from stormdrop.target.machine import Target, target_from_json

KINDS: tuple[str, ...] = get_args(FailureKind)
NAME_CHARACTERS, MESSAGE_CHARACTERS = 500, 4000
INT64 = 2**63
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedRow:
    """The fields that trials and verdicts share, which are columns of other tables."""

    task_digest: str
    class_key: str
    anchor_key: str
    task_name: str
    flops: float
    task_json: str
    target_key: str
    target_json: str
    stormdrop: str
    llvm: str
    feature_version: int


@dataclass(frozen=True, slots=True)
class TrialRow(SharedRow):
    """A trial's columns. A failed trial has a kind of `failure`, and neither `seconds` nor `spread` nor `runs`."""

    cold: int
    verified: int
    strategy: str
    seed: str
    number: int
    elapsed: float
    model: str
    created: float
    seconds: float | None
    spread: float | None
    runs: int | None
    build_seconds: float
    stopped_early: int
    failure: str | None
    message: str | None
    features: bytes | None
    schedule: str
    samples: bytes


@dataclass(frozen=True, slots=True)
class VerdictRow(SharedRow):
    """A verdict's columns."""

    cold: int
    schedule: str
    seconds: float
    against: str
    against_seconds: float
    method: str
    rounds: int
    proof: str
    code: str
    model: str
    provenance: str
    is_timing_old: int
    created: float


_NAMES = {"class_key", "anchor_key", "task_name", "flops", "task_json"}
MARKED = tuple(f.name for f in fields(TrialRow) if f.name not in _NAMES)
"""The fields that distinguish rows: tasks of one digest are one task, whatever its name."""


ELSEWHERE = {
    "task_digest": "task.digest",
    "class_key": "task.class_key",
    "anchor_key": "task.anchor_key",
    "task_name": "task.name",
    "flops": "task.flops",
    "task_json": "task.json",
    "target_key": "machine.key",
    "target_json": "target.json",
    "stormdrop": "version.stormdrop",
    "llvm": "version.llvm",
    "feature_version": "version.features",
}
"""The fields of a `SharedRow`, and the tables and columns that hold them."""


def column(name: str, table: str = "trial") -> str:
    return ELSEWHERE.get(name, f"{table}.{name}")


def mark_of(values: Iterable[object]) -> int:
    """Returns 64 bits of a digest of the `MARKED` values, in their order: equal rows have equal marks."""
    text = json.dumps([v.hex() if isinstance(v, bytes) else v for v in values])
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big", signed=True)


def rules_of(schedule: Any) -> str:
    """Returns the rules that a schedule's JSON names, with their versions, each once: `pack 1, tile 1`."""
    return ", ".join(sorted({f"{step[0]} {step[1]}" for step in schedule["steps"]}))


def unknown_rules(rules: str, known: Iterable[Rule] = RULES) -> set[str]:
    """Returns the rules of a `rules_of` text that are not among the known rules."""
    return set(filter(None, rules.split(", "))) - {f"{rule.name} {rule.version}" for rule in known}


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


# ---- columns of records and verdicts ---------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def typed_fields(kind: type) -> tuple[tuple[str, str], ...]:
    """Returns the names and the declared types of a dataclass's fields, in order."""
    return tuple((f.name, str(f.type)) for f in fields(kind))


def text(value: str, most: int = NAME_CHARACTERS) -> str:
    """Returns a text that a database and files can hold: limited in length, without lone surrogates."""
    return value[:most].encode("utf-8", "replace").decode()


def _schedule_text(schedule: Schedule) -> str:
    return compact(schedule.to_json())


_TO_COLUMN: Mapping[str, Callable[[Any], Any]] = {
    "str": text,
    "Provenance": str,
    "int": int,
    "float": float,
    "bool": int,
    "Schedule": _schedule_text,
}
_FROM_COLUMN: Mapping[str, Callable[[Any], Any]] = {"str": str, "int": int, "float": float, "bool": bool}


def columns_of(entry: Any) -> dict[str, Any]:
    """Returns the columns of a record or a verdict: task, machine, versions, and its own fields by their types."""
    target: Target = entry.target
    versions: Versions = entry.versions
    shared: dict[str, Any] = {
        "target_key": target.key(),
        "target_json": target_text(target),
        "stormdrop": versions.stormdrop,
        "llvm": versions.llvm,
        "feature_version": versions.features,
        "cold": int(target.is_cold),
    }
    typed = [(name, _TO_COLUMN[kind]) for name, kind in typed_fields(type(entry)) if kind in _TO_COLUMN]
    return task_columns(entry.task) | shared | {name: convert(getattr(entry, name)) for name, convert in typed}


@memoised(256)
def task_columns(task: Task) -> dict[str, Any]:
    return {
        "task_digest": task.digest,
        "class_key": task.class_key,
        "anchor_key": task.anchor_key,
        "task_name": text(task.name),
        "flops": float(task.flops),
        "task_json": compact(task.to_json()),
    }


@lru_cache(maxsize=64)
def target_text(target: Target) -> str:
    """Returns a target's JSON in the form of every version: without the kind of a CPU, so that marks stay equal."""
    return compact({name: value for name, value in target.to_json().items() if (name, value) != ("kind", "cpu")})


def plain_fields(kind: type, row: SharedRow) -> dict[str, Any]:
    """Returns the texts, numbers and flags of a record or a verdict from its row."""
    typed = [(name, _FROM_COLUMN[kind]) for name, kind in typed_fields(kind) if kind in _FROM_COLUMN]
    return {name: convert(getattr(row, name)) for name, convert in typed}


def fields_of(kind: type, row: TrialRow | VerdictRow, task: Task, target: Target | None) -> dict[str, Any]:
    """Returns the fields of a record or a verdict from its row.

    `target` replaces the row's target if its format is obsolete. Raises UserError if this version cannot read the row.
    """
    schedules = [name for name, kind in typed_fields(kind) if kind == "Schedule"]
    return {
        "task": task,
        "target": target_of(row.target_json, target).with_cold_weights(bool(row.cold)),
        "versions": Versions(row.stormdrop, row.llvm, row.feature_version),
        **{name: read("schedule", Schedule.from_json, getattr(row, name)).of(task) for name in schedules},
        **plain_fields(kind, row),
    }


# ---- records ---------------------------------------------------------------------------------------------------------


def row_of(record: Record) -> TrialRow:
    """Returns the row of a record.

    Raises StoreError for a record with figures that are not numbers: it would mislead every later search.
    """
    result, name = record.result, text(record.task.name)
    times = {"elapsed": record.elapsed, "created": record.created, "build_seconds": result.build_seconds}
    for what, value in times.items():
        if not math.isfinite(value):
            raise StoreError(f"a trial of {name} cannot be kept: {what} is {value}")
    timing = result if isinstance(result, Timing) else None
    if timing is not None:
        is_measured = all(is_duration(s) for s in (timing.seconds, *timing.samples))
        if not (is_measured and 0 <= timing.spread < math.inf):
            figures = f"it took {timing.seconds} s with a spread of {timing.spread}"
            raise StoreError(f"a trial of {name} cannot be kept: {figures}")
    features = None if record.features is None else np.ascontiguousarray(record.features, "<f4")
    if features is not None and not np.isfinite(features).all():
        features = None  # no model may learn from it, but the time is good
    results: dict[str, Any] = {
        "seed": str(record.seed),  # may exceed 64 bits
        "seconds": None if timing is None else float(timing.seconds),
        "spread": None if timing is None else float(timing.spread),
        "runs": None if timing is None else timing.runs,
        "build_seconds": float(result.build_seconds),
        "stopped_early": int(timing is not None and timing.stopped_early),
        "failure": result.kind if isinstance(result, Failure) else None,
        "message": text(result.message, MESSAGE_CHARACTERS) if isinstance(result, Failure) else None,
        "features": None if features is None else features.tobytes(),
        "samples": np.asarray(() if timing is None else timing.samples, "<f8").tobytes(),
    }
    return TrialRow(**columns_of(record) | results)


def is_duration(seconds: float) -> bool:
    return 0 < seconds < math.inf


def record_of(row: TrialRow, task: Task, target: Target | None = None) -> Record:
    """Returns the record of a row of `task`, which is read once for many rows; raises as `fields_of`."""
    features = None if row.features is None else np.frombuffer(row.features, "<f4").astype(np.float32)
    return Record(**fields_of(Record, row, task, target), result=result_of(row), features=features)


def result_of(row: TrialRow) -> Result:
    if row.seconds is None or row.spread is None or row.runs is None:
        kind: Any = row.failure if row.failure in KINDS else "bug"
        return Failure(kind, row.message or "", row.build_seconds)
    samples = tuple(map(float, np.frombuffer(row.samples, "<f8")))
    return Timing(row.seconds, row.spread, row.runs, row.build_seconds, bool(row.stopped_early), samples)


# ---- texts -----------------------------------------------------------------------------------------------------------


def read(what: str, from_json: Callable[[Any], T], text: str) -> T:
    """Raises UserError if the text is not of a format that this version reads."""
    try:
        return from_json(json.loads(text))
    except ValueError as error:
        raise UserError(f"not a {what}: {error}") from error


def target_of(text: str, otherwise: Target | None = None) -> Target:
    """Returns the target of a text, `otherwise` if its format is obsolete. Raises UserError if `otherwise` is None."""
    try:
        return _target(text)
    except UserError:
        if otherwise is None:
            raise
        return otherwise


@lru_cache(maxsize=64)
def _target(text: str) -> Target:
    return read("target", target_from_json, text)


@memoised(256)
def task_of(text: str) -> Task:
    return read("task", Task.from_json, text)
