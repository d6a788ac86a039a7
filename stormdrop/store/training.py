"""Training data of a cost model: features and seconds of a machine's trials, over all tasks.

Features contain the estimate and its terms. Features from another calibration or another version are computed anew,
from the trial's schedule.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from stormdrop.space.judge import judge_of
from stormdrop.space.rules import RULES
from stormdrop.store.measured import by_sketch, trials_of
from stormdrop.store.record import group_name
from stormdrop.store.rows import target_of
from stormdrop.store.sample import sampled
from stormdrop.store.sql import id_of
from stormdrop.target.machine import Target


@dataclass(frozen=True, slots=True)
class TrainingRows:
    """One row for each trial, oldest first. Only seconds of one `group` (a task at a temperature) may be compared."""

    features: NDArray[np.float32]
    seconds: NDArray[np.float64]
    """The seconds of each row; NaN if the candidate failed."""
    group: NDArray[np.int64]
    names: tuple[str, ...]
    """The names of the groups: a task's digest and the temperature, `…/warm` or `…/cold`."""
    left_out: int
    """The number of sampled trials left out, since they have no current features and cannot be replayed for new
    features.
    """
    was_recomputed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    """The rows with features computed anew, since another calibration or version judged them when they were
    measured.
    """


def training(c: sqlite3.Connection, target: Target, limit: int) -> TrainingRows:
    """Returns trials on a machine, with features as its judge computes them now.

    Beyond `limit`, they are a sample over all tasks.
    """
    wanted = judge_of(target).features
    machine = id_of(c, "machine", key=target.key())
    # The index covers sampling, so only the sampled trials are read from the table.
    query = "SELECT id, 2 * task_id + cold, seconds FROM trial INDEXED BY trial_best WHERE machine_id = ?"
    known = sorted(c.execute(query, (machine,)).fetchall())
    seconds = np.array([k[2] for k in known], np.float64)  # None becomes NaN
    chosen = {known[k][0] for k in sampled(np.array([k[1] for k in known], np.int64), seconds, limit).tolist()}
    current = [id for id, text in c.execute("SELECT id, json FROM target") if _judges_alike(text, target)]
    rows = c.execute(
        """SELECT CASE WHEN feature_version = ? AND length(features) = ?
                AND trial.target_id IN (SELECT value FROM json_each(?)) THEN features END,
            seconds, 2 * task_id + cold, trial.id
        FROM trial WHERE trial.id IN (SELECT value FROM json_each(?)) ORDER BY trial.id""",
        (wanted.version, 4 * len(wanted), json.dumps(current), json.dumps(sorted(chosen))),
    ).fetchall()
    anew = _computed_anew(c, [row[3] for row in rows if row[0] is None], target)
    found: list[Any] = [(anew.get(row[3]) if row[0] is None else row[0], *row[1:3], row[0] is None) for row in rows]
    kept = [row for row in found if row[0] is not None]
    features = np.frombuffer(b"".join([row[0] or b"" for row in kept]), "<f4").astype(np.float32)
    keys, group = np.unique(np.array([row[2] for row in kept], dtype=np.int64), return_inverse=True)
    digests = dict(c.execute("SELECT id, digest FROM task").fetchall())
    return TrainingRows(
        features.reshape(len(kept), len(wanted)),
        np.array([row[1] for row in kept], dtype=np.float64),
        group.astype(np.int64).reshape(len(kept)),
        tuple(group_name(digests[k // 2], bool(k % 2)) for k in keys.tolist()),
        len(found) - len(kept),
        np.array([row[3] for row in kept], dtype=bool),
    )


def _judges_alike(text: str, target: Target) -> bool:
    """Returns whether a stored target equals this target, temperature aside: then the stored features are current."""
    try:
        return target_of(text).with_cold_weights(False) == target.with_cold_weights(False)
    except UserError:
        return False


def _computed_anew(c: sqlite3.Connection, ids: list[int], target: Target) -> dict[int, bytes]:
    """Returns features by the id of the trial, without trials that cannot be replayed."""
    trials = trials_of(c, ids)
    found: dict[int, bytes] = {}
    names = list(trials)
    for rows in by_sketch(list(trials.values()), target, RULES):
        matrix = rows.sketch.features(rows.points).astype("<f4")
        found |= {names[k]: row.tobytes() for k, row in zip(rows.places.tolist(), matrix) if np.isfinite(row).all()}
    return found
