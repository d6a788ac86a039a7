"""The default schedule: the best point by the analytic prior, found without measuring anything.

All sketches are sampled with a fixed seed; from the best few points of each, coordinates are moved to adjacent choices while
the prior falls. The same task on the same target always gets the same schedule.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stormdrop.errors import ScheduleError
from stormdrop.ir.tensor import Task
from stormdrop.space.moves import neighbour_rows
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch, sketches
from stormdrop.target.machine import Target

SAMPLES = 4096  # over all sketches
STARTS = 4
SWEEPS = 40
DESCENTS = 8  # the sketches with the best samples are descended from; the others keep their best sample


def default_schedule(task: Task, target: Target) -> Schedule:
    """The schedule to use when nothing is known of the task."""
    sketch, point, _ = ranked(sketches(task, target))[0]
    return sketch.schedule(point)


def ranked(found: Sequence[Sketch], samples: int = SAMPLES) -> list[tuple[Sketch, Points, float]]:
    """The best point of every sketch with its estimated seconds, fastest first."""
    if not found:
        raise ScheduleError("the task has no sketch")
    each = max(128, samples // len(found))
    starts: list[tuple[Points, NDArray[np.float64]]] = []
    for sketch in found:
        points = sketch.sample_legal(each, np.random.default_rng(0))
        estimates = sketch.prior(points)
        order = np.argsort(estimates, kind="stable")[:STARTS]
        starts.append((points[order], estimates[order]))
    limit = sorted(float(e[0]) for _, e in starts)[min(len(starts), DESCENTS) - 1]
    best: list[tuple[Sketch, Points, float]] = []
    for sketch, (points, estimates) in zip(found, starts):
        point, seconds = descend(sketch, points, estimates) if estimates[0] <= limit else (points[0], float(estimates[0]))
        best.append((sketch, point, seconds))
    return sorted(best, key=lambda b: b[2])


def _around(sketch: Sketch, point: Points) -> Points:
    """The point and those that one move leads to."""
    return np.concatenate([point[None], neighbour_rows(sketch.knobs, point.tolist())[1]])


def descend(sketch: Sketch, starts: Points, estimates: NDArray[np.float64]) -> tuple[Points, float]:
    """Move every start to its best neighbour by the prior until none improves; the best of all that were reached."""
    points, seconds = starts.copy(), estimates.copy()
    moving = list(range(len(points)))
    for _ in range(SWEEPS):
        around = [_around(sketch, points[i]) for i in moving]
        ends = np.cumsum([len(rows) for rows in around])[:-1]
        every = sketch.canonical(np.concatenate(around))
        judged = sketch.assess(every)
        still: list[int] = []
        for i, rows, part in zip(moving, np.split(every, ends), np.split(judged, ends)):
            k = int(np.argmin(part))
            if part[k] < seconds[i] * (1 - 1e-6):
                points[i], seconds[i] = rows[k], part[k]
                still.append(i)
        moving = still
        if not moving:
            break
    k = int(np.argmin(seconds))
    return points[k], float(seconds[k])
