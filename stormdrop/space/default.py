"""The default schedule: the best point by the analytic prior, found without measuring anything.

All sketches are sampled with a fixed seed; from the best few points of each, coordinates are moved to adjacent choices while
the prior falls. The same task on the same target always gets the same schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stormdrop.errors import ScheduleError
from stormdrop.ir.tensor import Task
from stormdrop.space.knobs import Knob
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


def neighbours(sketch: Sketch, point: Points) -> Points:
    """The points one choice away along each knob, and those that shift a factor between two levels of one axis."""
    return np.unique(sketch.canonical(_moves(sketch, point)), axis=0)


def _moves(sketch: Sketch, point: Points) -> Points:
    rows: list[Points] = [point]
    siblings = _siblings(sketch.knobs)
    for i, k in enumerate(sketch.knobs):
        for choice in _adjacent(k.choices, int(point[i])):
            moved = point.copy()
            moved[i] = choice
            rows.append(moved)
            for j in siblings[i]:
                shifted = moved.copy()
                shifted[j] = sketch.knobs[j].nearest(point[j] * point[i] / max(choice, 1))
                rows.append(shifted)
    return np.stack(rows)


@lru_cache(maxsize=256)
def _siblings(knobs: tuple[Knob, ...]) -> tuple[tuple[int, ...], ...]:
    """For every knob the others of the same axis, between which a factor can be shifted."""
    axes = [k.name.rpartition(".")[0] if k.unit != "flag" else k.name for k in knobs]
    return tuple(tuple(j for j, other in enumerate(axes) if other == axis and j != i) for i, axis in enumerate(axes))


def _adjacent(choices: tuple[int, ...], value: int) -> list[int]:
    below = [c for c in choices if c < value]
    above = [c for c in choices if c > value]
    return below[-1:] + above[:1]


def descend(sketch: Sketch, starts: Points, estimates: NDArray[np.float64]) -> tuple[Points, float]:
    """Move every start to its best neighbour by the prior until none improves; the best of all that were reached."""
    points, seconds = starts.copy(), estimates.copy()
    moving = list(range(len(points)))
    for _ in range(SWEEPS):
        around = [_moves(sketch, points[i]) for i in moving]
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
