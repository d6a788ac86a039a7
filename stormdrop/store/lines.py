"""Trials and verdicts as lines of JSON: the format of `store export` and `store import`.

A line is self-contained: it holds the task, the target, the schedule and every measurement or decision. A verdict's
line has `"kind": "verdict"`, a trial's has no kind. Lines are untrusted. A line is kept only if this version could have
written it: `line_of(row_of(record))` reproduces the line, and so does `verdict_line(verdict_row(verdict))`. A line's
claims about its schedules must be possible (`stormdrop.store.claims`). A line with an unknown rule is checked when
it is replayed; no module is imported for the rule.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.space.derive import is_name
from stormdrop.space.features import FeatureSet
from stormdrop.space.judge import judge_of
from stormdrop.space.schedule import Schedule
from stormdrop.store.claims import Claim, Refused, replayed, shortened
from stormdrop.store.database import Connection, Database
from stormdrop.store.record import Record, Versions
from stormdrop.store.rows import (
    INT64,
    KINDS,
    MESSAGE_CHARACTERS,
    NAME_CHARACTERS,
    TrialRow,
    VerdictRow,
    compact,
    is_duration,
    plain_fields,
    result_of,
    row_of,
    rules_of,
    typed_fields,
    unknown_rules,
)
from stormdrop.store.sql import tables
from stormdrop.store.sql.queries import BATCH
from stormdrop.store.verdict import VERIFIED_RECORD, Verdict, imported_verdict, verdict_row
from stormdrop.target.machine import Target, target_from_json

FORMAT = 1
VERDICT = "verdict"
"""The kind of a verdict's line."""
Entry = Record | Verdict
"""The content of a line."""
LINE_BYTES, BATCH_BYTES = 1 << 20, 16 << 20
MAX_FEATURES, MAX_SAMPLES, MAX_DIGITS, MAX_REFUSALS = 4096, 100_000, 40, 1000


# ---- writing ---------------------------------------------------------------------------------------------------------


def line_of(row: TrialRow) -> str:
    """Returns the line of a trial, without its newline; the JSON of task, target and schedule is copied unchanged."""
    features = None if row.features is None else base64.b64encode(row.features).decode()
    tail = _tail(Record, row, result=_result_json(result_of(row)), features=features)
    return f'{{"format":{FORMAT},{_place(row)},"schedule":{row.schedule},{tail}'


def verdict_line(row: VerdictRow) -> str:
    """Returns the line of a verdict, without its newline and its provenance: to every reader it is imported."""
    head = f'"format":{FORMAT},"kind":"{VERDICT}",{_place(row)}'
    return f'{{{head},"schedule":{row.schedule},"against":{row.against},{_tail(Verdict, row)}'


def _place(row: TrialRow | VerdictRow) -> str:
    cold = "true" if row.cold else "false"
    return f'"task":{row.task_json},"target":{row.target_json},"cold":{cold}'


def _tail(kind: type[Entry], row: TrialRow | VerdictRow, **more: object) -> str:
    """Returns the JSON of an entry's other fields, in their order, from behind the opening bracket."""
    versions = {"stormdrop": row.stormdrop, "llvm": row.llvm, "features": row.feature_version}
    values = {**plain_fields(kind, row), "versions": versions, **more}
    return compact({name: values[name] for name, _ in typed_fields(kind) if name in values})[1:]


def _result_json(result: Result) -> dict[str, object]:
    fields = asdict(result)
    return {"failure": fields.pop("kind"), **fields} if isinstance(result, Failure) else fields


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_lines(file: IO[bytes], most: int = LINE_BYTES) -> Iterator[tuple[int, bytes | None]]:
    """Yields number (from 1) and content of each line that is not blank; None for a line too long for memory."""
    number = 0
    while line := file.readline(most):
        number += 1
        if len(line) == most and not line.endswith(b"\n"):
            while (rest := file.readline(most)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        elif line.strip():
            yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def batched(lines: Iterator[tuple[int, bytes | None]], size: int) -> Iterator[list[tuple[int, bytes | None]]]:
    """Yields at most `size` lines at a time, fewer if they are long."""
    batch: list[tuple[int, bytes | None]] = []
    nbytes = 0
    for number, line in lines:
        batch.append((number, line))
        nbytes += len(line or b"")
        if len(batch) == size or nbytes > BATCH_BYTES:
            yield batch
            batch, nbytes = [], 0
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class LineReader:
    """A reader of lines for the machine `here`; it accepts lines of other CPUs only if `foreign`."""

    here: Target
    foreign: bool
    tasks: dict[str, Task] = field(default_factory=dict[str, Task])
    """Tasks read before: many lines share a task."""

    def entries(self, lines: Sequence[tuple[int, bytes | None]]) -> list[tuple[int, Entry | Refused]]:
        """Returns each line's number with its content, or with the reason for the refusal."""
        answers: list[Entry | Refused] = []
        for _, line in lines:
            try:
                answers.append(self.entry(line))
            except Refused as error:
                answers.append(error)
        return [(number, answer) for (number, _), answer in zip(lines, _checked(answers, self.here))]

    def entry(self, line: bytes | None) -> Entry:
        """Returns the content of a line. Raises Refused, and no other error, for a line that is neither a record nor a
        verdict.

        `replayed` decides whether its schedules can be replayed.
        """
        if line is None:
            raise Refused(f"longer than {LINE_BYTES} bytes")
        try:
            return self._entry(_parsed(line))
        except Refused:
            raise
        except UserError as error:
            raise Refused(shortened(str(error))) from error
        except Exception as error:  # anything may stand in the file: no assumption of the code that reads it need hold
            raise Refused(shortened(f"it cannot be read: {error!r}")) from error

    def _entry(self, data: dict[str, Any]) -> Entry:
        if data.get("format") != FORMAT or isinstance(data["format"], bool):
            raise Refused(f"format {data.get('format')!r:.40}; this version reads {FORMAT}")
        if "kind" in data and data["kind"] != VERDICT:
            raise Refused(shortened(f"unknown kind of line {data['kind']!r:.40}"))
        target = target_from_json(_field(data, "target", dict))
        _encodable("target", target.key())
        if target.cpu != self.here.cpu and not self.foreign:
            reason = f"measured on another CPU, {target.cpu}; this is {self.here.cpu}"
            raise Refused(shortened(f"{reason} (import with --foreign to keep it)"))
        task = self._task(_field(data, "task", dict))
        read = _verdict if "kind" in data else _record
        return read(data, task, target.with_cold_weights(_field(data, "cold", bool)))

    def _task(self, data: Any) -> Task:
        text = compact(data)
        if text not in self.tasks:
            names = [data.get("name"), *(t["name"] for t in data["inputs"])]
            for variant in data["variants"]:
                names += [variant["name"], *(stage["name"] for stage in variant["stages"])]
            if not all(isinstance(name, str) and len(name) <= NAME_CHARACTERS for name in names):
                raise Refused("task: a name is not a text")
            try:
                task = Task.from_json(data)
            except UserError as error:
                raise Refused(shortened(f"task: {error}")) from error
            if not _is_same(task.to_json(), data):
                raise Refused("task: not as this version writes it")
            self.tasks[text] = task
        return self.tasks[text]


def _record(data: dict[str, Any], task: Task, target: Target) -> Record:
    result = _result(_field(data, "result", dict))
    fields = _fields(Record, data, task)
    if fields["verified"] and isinstance(result, Failure):
        raise Refused("a failure cannot be verified")
    features = _features(data, fields["versions"].features, judge_of(target).features)
    return Record(task=task, target=target, result=result, features=features, **fields)


def _verdict(data: dict[str, Any], task: Task, target: Target) -> Verdict:
    """Returns a line's verdict as an imported verdict, regardless of its provenance in its source."""
    fields = _fields(Verdict, data, task)
    if fields["method"] == VERIFIED_RECORD:
        raise Refused("a verdict that was made of a verified record has no line")
    for name in ("seconds", "against_seconds"):
        _check_duration(fields[name])
    return Verdict(task=task, target=target, provenance="imported", **fields)


def _fields(kind: type[Entry], data: dict[str, Any], task: Task) -> dict[str, Any]:
    """Returns an entry's texts, numbers, flags, schedules and versions, read by the types of its fields."""
    values: dict[str, Any] = {}
    for name, type in typed_fields(kind):
        match type:
            case "str":
                values[name] = _text(data, name)
            case "int":
                values[name] = _field(data, name, int) if name == "seed" else _count(data, name)
            case "float":
                values[name] = _amount(data, name)
            case "bool":
                values[name] = _field(data, name, bool)
            case "Schedule":
                values[name] = _schedule(data, name, task)
            case "Versions":
                tree = _field(data, name, dict)
                values[name] = Versions(_text(tree, "stormdrop"), _text(tree, "llvm"), _count(tree, "features"))
            case _:
                pass
    return values


def _checked(entries: Sequence[Entry | Refused], here: Target) -> Iterator[Entry | Refused]:
    """Yields the entries, with schedules in their sketches' form; an entry with a refused claim is refused."""
    claims = [{} if isinstance(entry, Refused) else _claims(entry) for entry in entries]
    schedules = iter(replayed([claim for some in claims for claim in some.values()], here))
    for entry, some in zip(entries, claims):
        fields: Any = {name: next(schedules) for name in some}
        refused = next((f for f in fields.values() if isinstance(f, Refused)), None)
        yield refused or (entry if isinstance(entry, Refused) else replace(entry, **fields))


def _claims(entry: Entry) -> dict[str, Claim]:
    """Returns an entry's claims about its schedules, by field; none if the schedule of a trial could not be lowered."""
    if isinstance(entry, Verdict):
        against = Claim(entry.task, entry.target, entry.against, entry.against_seconds)
        return {"schedule": Claim(entry.task, entry.target, entry.schedule, entry.seconds), "against": against}
    if isinstance(entry.result, Failure) and entry.result.kind == "schedule":
        return {}
    seconds = entry.result.floor if isinstance(entry.result, Timing) else None
    return {"schedule": Claim(entry.task, entry.target, entry.schedule, seconds)}


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line.decode(), parse_constant=_finite, parse_float=_finite, parse_int=_bounded)
    except UnicodeDecodeError as error:
        raise Refused(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise Refused("not JSON: nested too deeply") from error
    except ValueError as error:
        raise Refused(shortened(f"not JSON: {error}")) from error
    if not isinstance(data, dict):
        raise Refused("not a JSON object")
    return data


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.40} is no number")
    return value


def _bounded(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"{text:.40}… has too many digits")
    return int(text)


def _field(data: dict[str, Any], name: str, kind: type) -> Any:
    if name not in data:
        raise Refused(f"{name} is missing")
    value = data[name]
    if type(value) is not kind:
        raise Refused(shortened(f"{name} is {value!r:.60}, not of type {kind.__name__}"))
    return value


def _text(data: dict[str, Any], name: str, most: int = NAME_CHARACTERS) -> str:
    value: str = _field(data, name, str)
    if len(value) > most:
        raise Refused(f"{name} is longer than {most} characters")
    return _encodable(name, value)


def _encodable(name: str, value: str) -> str:
    """Returns `value`. Raises Refused for a lone surrogate, which neither SQLite nor a file of lines can hold."""
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise Refused(f"{name} has a lone surrogate")
    return value


def _count(data: dict[str, Any], name: str, least: int = 0) -> int:
    value: int = _field(data, name, int)
    if not least <= value < INT64:
        raise Refused(f"{name} is {value}")
    return value


def _amount(data: dict[str, Any], name: str) -> float:
    value = float(_field(data, name, type(data.get(name)) if type(data.get(name)) is int else float))
    if not 0 <= value < math.inf:
        raise Refused(f"{name} is {value}")
    return value


def _check_duration(seconds: float) -> float:
    if not is_duration(seconds):
        raise Refused(f"{seconds} seconds cannot have been measured")
    return seconds


def _result(data: dict[str, Any]) -> Result:
    if "failure" in data:
        kind = _text(data, "failure")
        if kind not in KINDS:
            raise Refused(shortened(f"unknown kind of failure {kind!r}"))
        known: Any = kind
        return Failure(known, _text(data, "message", MESSAGE_CHARACTERS), _amount(data, "build_seconds"))
    seconds = _check_duration(_amount(data, "seconds"))
    samples: list[Any] = _field(data, "samples", list)
    if not all(type(s) in (int, float) for s in samples) or len(samples) > MAX_SAMPLES:
        raise Refused("samples are not all numbers")
    for value in samples:
        _check_duration(value)
    early = _field(data, "stopped_early", bool)
    runs, spread = _count(data, "runs", least=1), _amount(data, "spread")
    return Timing(seconds, spread, runs, _amount(data, "build_seconds"), early, tuple(map(float, samples)))


def _schedule(data: dict[str, Any], name: str, task: Task) -> Schedule:
    tree = _field(data, name, dict)
    _text(tree, "class")
    schedule = Schedule.from_json(tree)
    if not _is_same(schedule.to_json(), {**tree, "class": schedule.class_key}):
        raise Refused(f"{name}: not as this version writes it")
    for step in schedule.steps:
        if not is_name(step.rule) or len(step.rule) > NAME_CHARACTERS:
            raise Refused(shortened(f"{name}: {step.rule!r} is not the name of a rule"))
    schedule = schedule.of(task)
    if schedule.class_key not in [v.class_key for v in task.variants]:
        raise Refused(f"the {name} is of another class than the task")
    return schedule


def _features(data: dict[str, Any], version: int, known: FeatureSet) -> NDArray[np.float32] | None:
    if "features" in data and data["features"] is None:
        return None
    try:
        values = np.frombuffer(base64.b64decode(_field(data, "features", str), validate=True), "<f4").astype(np.float32)
    except (binascii.Error, ValueError) as error:
        raise Refused(shortened(f"features are not base64 of 32-bit floats: {error}")) from error
    if not 0 < len(values) <= MAX_FEATURES or (version == known.version and len(values) != len(known)):
        raise Refused(f"{len(values)} features, of version {version}")
    if not np.isfinite(values).all():
        raise Refused("a feature is not a number")
    return values


def _is_same(a: object, b: object) -> bool:
    """Returns whether JSON values are equal, with true unequal to 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_is_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


# ---- import ----------------------------------------------------------------------------------------------------------


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
    added = tables.insert(c, [row_of(record) for record in records], skip_known=True)
    new = [record for record, is_new in zip(records, added) if is_new]
    verified = [imported_verdict(r, r.result.seconds) for r in new if r.verified and isinstance(r.result, Timing)]
    rows = [verdict_row(verdict) for verdict in verified]
    tables.insert_verdicts(c, [row for row in rows if not tables.is_decided_by_import(c, row)])
    decided = [verdict_row(entry) for entry in entries if isinstance(entry, Verdict)]
    return len(new), sum(tables.insert_verdicts(c, decided, skip_known=True))
