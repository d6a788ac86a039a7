"""Records as lines of JSON: what `store export` writes and `store import` reads.

A line stands for itself: it holds the task, the target, the schedule and everything that was measured. What is read
comes from anybody. A line is kept only if this version could have written it: `line_of(row_of(record))` of what was
read says the same. A schedule whose rules are all known must be a program of its task; one that follows another rule
is looked at when somebody replays it. Nothing is imported for it.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.errors import ScheduleError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.reservoir.record import Record, Versions
from stormdrop.reservoir.rows import (
    INT64,
    KINDS,
    MESSAGE_CHARACTERS,
    NAME_CHARACTERS,
    TrialRow,
    compact,
    is_duration,
    result_of,
    rules_of,
    unknown_rules,
)
from stormdrop.space.derive import derive
from stormdrop.space.features import FeatureSet
from stormdrop.space.judge import judge_of
from stormdrop.space.rule_names import is_name
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch
from stormdrop.target.machine import Target, target_from_json

FORMAT = 1
LINE_BYTES, BATCH_BYTES = 1 << 20, 16 << 20
MAX_FEATURES, MAX_SAMPLES, MAX_DIGITS = 4096, 100_000, 40
REASON_CHARACTERS = 200
LEAST_SECONDS = 1e-8
"""No call of a kernel takes less."""
FLOOR_SHARE = 0.5
"""Of the judge's lower bound, below which no time is believed: clocks may be higher than when the peak was timed."""
THREAD_BYTES_PER_SECOND = 2 * 64 * 6.5e9
"""More than any thread stores: two vectors of 64 bytes a cycle, at a clock that no CPU has. A multiprocessor of a GPU,
which counts as a thread, stores no more in a cycle, at less than half of this clock."""


class Refused(Exception):
    """A line that is not kept; the message says why."""


# ---- writing ---------------------------------------------------------------------------------------------------------


def line_of(row: TrialRow) -> str:
    """Without its newline. Task, target and schedule are JSON already, and go in as they are."""
    features = None if row.features is None else base64.b64encode(row.features).decode()
    tail = {
        "result": _result_json(result_of(row)),
        "versions": {"stormdrop": row.stormdrop, "llvm": row.llvm, "features": row.feature_version},
        "strategy": row.strategy,
        "seed": int(row.seed),
        "number": row.number,
        "elapsed": row.elapsed,
        "model": row.model,
        "verified": bool(row.verified),
        "created": row.created,
        "features": features,
    }
    cold = "true" if row.cold else "false"
    head = f'"format":{FORMAT},"task":{row.task_json},"target":{row.target_json},"cold":{cold}'
    return f'{{{head},"schedule":{row.schedule},{compact(tail)[1:]}'


def _result_json(result: Result) -> dict[str, object]:
    fields = asdict(result)
    return {"failure": fields.pop("kind"), **fields} if isinstance(result, Failure) else fields


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_lines(file: IO[bytes], most: int = LINE_BYTES) -> Iterator[tuple[int, bytes | None]]:
    """Number (from 1) and content of each line that is not blank; None for one too long to be held in memory."""
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
    """At most `size` lines at a time, fewer where they are long."""
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
    """Reads lines for the machine `here`; those of other CPUs only if `foreign`."""

    here: Target
    foreign: bool
    tasks: dict[str, Task] = field(default_factory=dict[str, Task])
    """Those read before: one task has many lines."""

    def records(self, lines: Sequence[tuple[int, bytes | None]]) -> list[tuple[int, Record | Refused]]:
        """Each line's number with the record it holds, or with why it is not kept."""
        answers: list[Record | Refused] = []
        for _, line in lines:
            try:
                answers.append(self.record(line))
            except Refused as error:
                answers.append(error)
        checked = iter(replayed([a for a in answers if isinstance(a, Record)], self.here))
        return [(number, next(checked) if isinstance(a, Record) else a) for (number, _), a in zip(lines, answers)]

    def record(self, line: bytes | None) -> Record:
        """Raises Refused, and nothing else, for whatever is not a record.

        Whether its schedule can be replayed is for `replayed` to say.
        """
        if line is None:
            raise Refused(f"longer than {LINE_BYTES} bytes")
        try:
            return self._record(_parsed(line))
        except Refused:
            raise
        except UserError as error:
            raise Refused(_short(str(error))) from error
        except Exception as error:  # anything may stand in the file: no assumption of the code that reads it need hold
            raise Refused(_short(f"it cannot be read: {error!r}")) from error

    def _record(self, data: dict[str, Any]) -> Record:
        if data.get("format") != FORMAT or isinstance(data["format"], bool):
            raise Refused(f"format {data.get('format')!r:.40}; this version reads {FORMAT}")
        target = target_from_json(_field(data, "target", dict))
        if target.cpu != self.here.cpu and not self.foreign:
            told = f"measured on another CPU, {target.cpu}; this is {self.here.cpu}"
            raise Refused(_short(f"{told} (import with --foreign to keep it)"))
        task = self._task(_field(data, "task", dict))
        result, verified = _result(_field(data, "result", dict)), _field(data, "verified", bool)
        if verified and isinstance(result, Failure):
            raise Refused("a failure cannot be verified")
        versions = _field(data, "versions", dict)
        feature_version = _count(versions, "features")
        schedule = _schedule(_field(data, "schedule", dict)).of(task)
        if schedule.class_key not in [v.class_key for v in task.variants]:
            raise Refused("the schedule is of another class than the task")
        return Record(
            task,
            schedule,
            target.with_cold_weights(_field(data, "cold", bool)),
            result,
            Versions(_text(versions, "stormdrop"), _text(versions, "llvm"), feature_version),
            _text(data, "strategy"),
            _field(data, "seed", int),
            _count(data, "number"),
            _amount(data, "elapsed"),
            _text(data, "model"),
            verified,
            _amount(data, "created"),
            _features(data, feature_version, judge_of(target).features),
        )

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
                raise Refused(_short(f"task: {error}")) from error
            if not _is_same(task.to_json(), data):
                raise Refused("task: not as this version writes it")
            self.tasks[text] = task
        return self.tasks[text]


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line.decode(), parse_constant=_finite, parse_float=_finite, parse_int=_bounded)
    except UnicodeDecodeError as error:
        raise Refused(f"not UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise Refused("not JSON: nested too deeply") from error
    except ValueError as error:
        raise Refused(_short(f"not JSON: {error}")) from error
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


def _short(reason: str) -> str:
    return reason if len(reason) <= REASON_CHARACTERS else f"{reason[: REASON_CHARACTERS - 1]}…"


def _field(data: dict[str, Any], name: str, kind: type) -> Any:
    if name not in data:
        raise Refused(f"{name} is missing")
    value = data[name]
    if type(value) is not kind:
        raise Refused(_short(f"{name} is {value!r:.60}, not of type {kind.__name__}"))
    return value


def _text(data: dict[str, Any], name: str, most: int = NAME_CHARACTERS) -> str:
    value: str = _field(data, name, str)
    if len(value) > most:
        raise Refused(f"{name} is longer than {most} characters")
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


def _result(data: dict[str, Any]) -> Result:
    if "failure" in data:
        kind = _text(data, "failure")
        if kind not in KINDS:
            raise Refused(_short(f"unknown kind of failure {kind!r}"))
        found: Any = kind
        return Failure(found, _text(data, "message", MESSAGE_CHARACTERS), _amount(data, "build_seconds"))
    seconds = _amount(data, "seconds")
    samples: list[Any] = _field(data, "samples", list)
    if not all(type(s) in (int, float) for s in samples) or len(samples) > MAX_SAMPLES:
        raise Refused("samples are not all numbers")
    for value in (seconds, *samples):
        if not is_duration(value):
            raise Refused(f"{value} seconds cannot have been measured")
    early = _field(data, "stopped_early", bool)
    runs, spread = _count(data, "runs", least=1), _amount(data, "spread")
    return Timing(seconds, spread, runs, _amount(data, "build_seconds"), early, tuple(map(float, samples)))


def _schedule(data: dict[str, Any]) -> Schedule:
    _text(data, "class")
    schedule = Schedule.from_json(data)
    if not _is_same(schedule.to_json(), {**data, "class": schedule.class_key}):
        raise Refused("schedule: not as this version writes it")
    for step in schedule.steps:
        if not is_name(step.rule) or len(step.rule) > NAME_CHARACTERS:
            raise Refused(_short(f"schedule: {step.rule!r} is not the name of a rule"))
    return schedule


def _features(data: dict[str, Any], version: int, known: FeatureSet) -> NDArray[np.float32] | None:
    if "features" in data and data["features"] is None:
        return None
    try:
        values = np.frombuffer(base64.b64decode(_field(data, "features", str), validate=True), "<f4").astype(np.float32)
    except (binascii.Error, ValueError) as error:
        raise Refused(_short(f"features are not base64 of 32-bit floats: {error}")) from error
    if not 0 < len(values) <= MAX_FEATURES or (version == known.version and len(values) != len(known)):
        raise Refused(f"{len(values)} features, of version {version}")
    if not np.isfinite(values).all():
        raise Refused("a feature is not a number")
    return values


def replayed(records: Sequence[Record], here: Target) -> list[Record | Refused]:
    """Each record whose schedule is a program of its task on its target, or follows unknown rules; or why it is none.

    A program that was faster than `floor_seconds` permits was not measured. Those of one sketch are looked at together,
    as a matrix of points, since one at a time takes a millisecond each.
    """
    sketches: dict[object, list[int]] = {}
    for k, record in enumerate(records):
        schedule = record.schedule
        if isinstance(record.result, Failure) and record.result.kind == "schedule":
            continue  # that it cannot be lowered is what it says
        if unknown_rules(rules_of(schedule.to_json())):
            continue
        sketches.setdefault((record.task, record.target, schedule.variant, schedule.steps), []).append(k)
    found: list[Record | Refused] = list(records)
    for places in sketches.values():
        for k, answer in zip(places, _replayed_together([records[k] for k in places], here)):
            found[k] = answer
    return found


def _replayed_together(records: Sequence[Record], here: Target) -> list[Record | Refused]:
    """For records of one sketch; one by one where one of several broke the computation for all."""
    first = records[0]
    try:
        schedule, task = first.schedule, first.task
        if not 0 <= schedule.variant < len(task.variants):
            raise ScheduleError(f"the task has no variant {schedule.variant}")
        sketch = Sketch(task, schedule.variant, derive(task.variants[schedule.variant], schedule.steps), first.target)
        values = [r.schedule.by_name for r in records]
        points = np.array([[v.get(name, 0) for name in sketch.names] for v in values], dtype=np.int64)
        points = points.reshape(len(records), len(sketch.names))
        least, most = (np.array([k.choices[end] for k in sketch.knobs], dtype=np.int64) for end in (0, -1))
        good = np.asarray(((points >= least) & (points <= most)).all(axis=1))
        tried = np.where(good[:, None], points, least)  # outside of their choices knobs mean nothing
        with np.errstate(all="ignore"):
            good &= sketch.legal(tried) & (sketch.canonical(tried) == tried).all(axis=1)
        floor = floor_seconds(sketch, here)
    except Exception as error:  # as above: what stands in a file need not be what the code expects
        if len(records) > 1:
            return [_replayed_together([record], here)[0] for record in records]
        return [Refused(_short(f"the schedule cannot be replayed: {error}"))]
    answers: list[Record | Refused] = []
    for record, named, point, is_good in zip(records, values, points, good):
        if isinstance(record.result, Timing) and record.result.floor < floor:
            answers.append(Refused(f"{record.result.floor:.3g} seconds are fewer than the {floor:.3g} that it needs"))
        elif is_good and set(named) == set(sketch.names):
            answers.append(replace(record, schedule=sketch.schedule(point)))
        else:
            answers.append(Refused("the schedule cannot be replayed: its values are no legal point of its sketch"))
    return answers


def floor_seconds(sketch: Sketch, here: Target) -> float:
    """Fewer seconds are not believed of any point. A line's own description of a machine like `here` is not trusted.

    Multiply-adds take time, and so do the bytes of the results. Those of inputs may not: a gather reads little of its
    table.
    """
    target = here.with_threads(sketch.target.threads) if sketch.target.cpu == here.cpu else sketch.target
    computing = FLOOR_SHARE * judge_of(target).least_seconds(sketch.structure)
    storing = sum(t.nbytes for t in sketch.task.outputs) / (THREAD_BYTES_PER_SECOND * target.threads)
    return max(LEAST_SECONDS, computing, storing)


def _is_same(a: object, b: object) -> bool:
    """Equality of JSON values, in which true is not 1."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_is_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_is_same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b
