"""Records of small tasks, as a search would have made them, without measuring anything."""

from __future__ import annotations

from functools import cache

import numpy as np

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.cpu_judge import FEATURES
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.store.record import Record, Versions
from stormdrop.store.verdict import Verdict
from stormdrop.target.cpu import cross
from stormdrop.target.machine import Target

HERE = cross("avx512")
ELSEWHERE = cross("neon")
VERSIONS = Versions("0.1.0", "20.1.8", FEATURES.version)


@cache
def small_task(n: int = 32) -> Task:
    return build("GMM", (1, n, 48, 40))


@cache
def _sketch(task: Task, target: Target) -> Sketch:
    return sketches(task, target)[0]


def timing(seconds: float, stopped_early: bool = False) -> Timing:
    return Timing(seconds, 0.0125, 120, 0.031, stopped_early, (seconds * 0.99, seconds, seconds * 1.03))


def make_records(
    count: int,
    task: Task | None = None,
    target: Target = HERE,
    cold: bool = False,
    result: Result | None = None,
    seed: int = 0,
    verified: bool = False,
    created: float = 1.7e9,
    versions: Versions = VERSIONS,
) -> list[Record]:
    """Different points of one sketch; their seconds fall from the first to the last, unless a `result` is given."""
    task = task or small_task()
    sketch = _sketch(task, target)
    points = sketch.sample(count, np.random.default_rng(seed))
    features = sketch.features(points).astype(np.float32)
    return [
        Record(
            task,
            sketch.schedule(point),
            target.with_cold_weights(cold),
            result or timing(1e-3 * (1 + count - k)),
            versions,
            "storm",
            seed,
            k + 1,
            0.25 * k,
            "tiny.onnx",
            verified,
            created + k,
            row,
        )
        for k, (point, row) in enumerate(zip(points, features))
    ]


def legal_records(count: int, task: Task | None = None, target: Target = HERE, seed: int = 0) -> list[Record]:
    """As `make_records`, of legal points only: those that an import takes."""
    task = task or small_task()
    sketch = _sketch(task, target)
    points = sketch.sample_legal(count, np.random.default_rng(seed))
    features = sketch.features(points).astype(np.float32)
    return [
        Record(
            task,
            sketch.schedule(point),
            target,
            timing(1e-3 / (k + 3)),
            VERSIONS,
            "droplet",
            seed,
            k + 1,
            k / 7,
            "",
            False,
            1.7e9 + k / 3,
            row,
        )
        for k, (point, row) in enumerate(zip(points, features))
    ]


def failure(message: str = "it stopped") -> Failure:
    return Failure("crash", message, 0.02)


def make_verdict(record: Record, against: Record | None = None) -> Verdict:
    """That a record's schedule won against another's, or that it stayed."""
    other = against or record
    return Verdict(
        record.task,
        record.target,
        record.schedule,
        1e-3,
        other.schedule,
        2e-3,
        "duel",
        12,
        "2,048 reference values",
        record.versions,
        "0123456789abcdef fedcba9876543210",
        created=record.created,
    )
