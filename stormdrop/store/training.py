"""Training data of a cost model: features and seconds of the stored trials of a machine, over all tasks.

Stored features contain the cost estimate and its terms, so that a new calibration of the machine or a new version of
the features outdates them. Outdated features are recomputed from the trial's schedule. Beyond a limit on their number,
the trials are sampled, stratified by group: a task at a temperature, that is with warm or cold weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import StormdropError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Sketch, replay
from stormdrop.store.database import Connection
from stormdrop.store.record import group_name
from stormdrop.store.rows import read, target_of, task_of
from stormdrop.store.sql import queries
from stormdrop.target.machine import Target

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """One row for each trial, oldest first. Only seconds of the same group are comparable.

    Trials with outdated features whose schedules cannot be replayed are left out.
    """

    features: NDArray[np.float32]
    seconds: Floats
    """The seconds of each row; NaN if the candidate failed."""
    group: Ints
    """The index into `names` of each row's group."""
    names: tuple[str, ...]
    """The names of the groups: a task's digest and the temperature, `…/warm` or `…/cold`."""


@dataclass(frozen=True, slots=True)
class TimedTrial:
    """A stored trial with its task; `seconds` is None if the trial failed."""

    task: Task
    schedule: Schedule
    cold: bool
    seconds: float | None

    @property
    def group(self) -> str:
        return group_name(self.task.digest, self.cold)


@dataclass(frozen=True, slots=True)
class SketchRows:
    """Trials of one sketch: one point per row, and the indices of the trials in the sequence given to `by_sketch`."""

    sketch: Sketch
    points: Ints
    indices: Ints


def training(c: Connection, target: Target, limit: int) -> TrainingRows:
    """Returns at most `limit` trials of a machine, with the features that its judge computes now."""
    feature_set = judge_of(target).features
    ids = sampled_ids(queries.groups_of_trials(c, target.key()), limit)
    targets = [id for id, text in queries.texts_by_id(c, "target", "json").items() if _has_same_features(text, target)]
    rows = queries.features_of(c, ids, feature_set.version, len(feature_set), targets)
    recomputed = _recomputed(c, [id for features, *_, id in rows if features is None], target)
    features_by_id = {id: features for features, *_, id in rows if features is not None} | recomputed
    kept = [(features_by_id[id], seconds, key) for _, seconds, key, id in rows if id in features_by_id]
    features = np.frombuffer(b"".join([row[0] for row in kept]), "<f4").astype(np.float32)
    keys, group = np.unique(np.array([row[2] for row in kept], dtype=np.int64), return_inverse=True)
    digests = queries.texts_by_id(c, "task", "digest")
    return TrainingRows(
        features.reshape(len(kept), len(feature_set)),
        np.array([row[1] for row in kept], dtype=np.float64),  # None becomes NaN
        group.astype(np.int64).reshape(len(kept)),
        tuple(group_name(digests[k // 2], bool(k % 2)) for k in keys.tolist()),  # a key is 2 · task id + cold
    )


def timed_trials(c: Connection, target: Target, limit: int, rules: Sequence[Rule]) -> list[TimedTrial]:
    """Returns at most `limit` successful trials of a machine whose schedules use only `rules`.

    Trials that were stopped early are left out.
    """
    return list(trials_of(c, sampled_ids(queries.groups_of_timed_trials(c, target.key(), rules), limit)).values())


def trials_of(c: Connection, ids: Sequence[int]) -> dict[int, TimedTrial]:
    """Returns trials by id, in ascending order; trials that this version cannot read are left out."""
    trials: dict[int, TimedTrial] = {}
    for id, text, schedule, cold, seconds in queries.schedules_of(c, ids):
        try:
            task = task_of(text)
            trials[id] = TimedTrial(task, read("schedule", Schedule.from_json, schedule).of(task), bool(cold), seconds)
        except UserError:
            continue
    return trials


def by_sketch(trials: Sequence[TimedTrial], target: Target, rules: Sequence[Rule]) -> Iterable[SketchRows]:
    """Returns the trials grouped by sketch, replayed on the target at the trial's temperature.

    Trials that cannot be replayed are left out.
    """
    sketches: dict[tuple[Sketch, bool], list[tuple[int, Ints]]] = {}
    for k, trial in enumerate(trials):
        try:
            sketch, point = replay(trial.task, trial.schedule, target.with_cold_weights(trial.cold), rules)
        except StormdropError:
            continue
        sketches.setdefault((sketch, trial.cold), []).append((k, point))
    for (sketch, _), rows in sketches.items():
        yield SketchRows(sketch, np.stack([point for _, point in rows]), np.array([k for k, _ in rows]))


def _has_same_features(stored_target: str, target: Target) -> bool:
    """Returns whether trials on a stored target have current features: the targets differ at most in temperature."""
    try:
        return target_of(stored_target).with_cold_weights(False) == target.with_cold_weights(False)
    except UserError:
        return False


def _recomputed(c: Connection, ids: list[int], target: Target) -> dict[int, bytes]:
    """Returns current features by trial id, without trials that cannot be replayed."""
    trials = trials_of(c, ids)
    features: dict[int, bytes] = {}
    ids_in_order = list(trials)
    for rows in by_sketch(list(trials.values()), target, RULES):
        matrix = rows.sketch.features(rows.points).astype("<f4")
        for k, row in zip(rows.indices.tolist(), matrix):
            if np.isfinite(row).all():
                features[ids_in_order[k]] = row.tobytes()
    return features


# ---- the sample ------------------------------------------------------------------------------------------------------


def sampled_ids(trials: Sequence[tuple[int, int, float | None]], limit: int) -> list[int]:
    """Returns the ids of at most `limit` trials, given as (id, group, seconds), as `sampled` picks them."""
    groups = np.array([group for _, group, _ in trials], np.int64)
    seconds = np.array([seconds for *_, seconds in trials], np.float64)  # None becomes NaN
    return [trials[k][0] for k in sampled(groups, seconds, limit).tolist()]


def sampled(group: Ints, seconds: Floats, limit: int) -> Ints:
    """Returns the ascending indices of at most `limit` rows, stratified by group; rows are oldest first.

    From each group come as many rows as `quotas` allows: the fastest row, and rows evenly spaced in age. `seconds` are
    NaN for failures.
    """
    if len(group) <= limit:
        return np.arange(len(group))
    _, group, sizes = np.unique(group, return_inverse=True, return_counts=True)
    chosen: list[Ints] = []
    for g, quota in enumerate(quotas(sizes, limit).tolist()):
        rows = np.flatnonzero(group == g)
        spread = rows[np.linspace(0, len(rows) - 1, quota).round().astype(np.int64)]
        if quota and np.isfinite(seconds[rows]).any():
            fastest = rows[np.nanargmin(seconds[rows])]
            spread[np.abs(spread - fastest).argmin()] = fastest
        chosen.append(spread)
    return np.sort(np.concatenate(chosen))


def quotas(sizes: Ints, limit: int) -> Ints:
    """Returns the number of rows to sample from each group, at most `limit` in all.

    Small groups are sampled completely, large groups in equal numbers.
    """
    rows = np.zeros_like(sizes)
    left = min(limit, int(sizes.sum()))
    for done, k in enumerate(np.argsort(sizes, kind="stable").tolist()):
        rows[k] = min(int(sizes[k]), left // (len(sizes) - done))
        left -= int(rows[k])
    return rows
