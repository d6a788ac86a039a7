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
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch, sketches
from stormdrop.target.machine import Target

SAMPLES = 1024
STARTS = 4
SWEEPS = 40


def default_schedule(task: Task, target: Target) -> Schedule:
    """The schedule to use when nothing is known of the task."""
    sketch, point, _ = ranked(sketches(task, target))[0]
    return sketch.schedule(point)


def ranked(found: Sequence[Sketch], samples: int = SAMPLES) -> list[tuple[Sketch, Points, float]]:
    """The best point of every sketch with its estimated seconds, fastest first."""
    best: list[tuple[Sketch, Points, float]] = []
    for sketch in found:
        rng = np.random.default_rng(0)
        points = sketch.sample_legal(samples, rng)
        estimates = sketch.prior(points)
        starts = points[np.argsort(estimates, kind="stable")[:STARTS]]
        point, seconds = descend(sketch, starts)
        best.append((sketch, point, seconds))
    if not best:
        raise ScheduleError("the task has no sketch")
    return sorted(best, key=lambda b: b[2])


def neighbours(sketch: Sketch, point: Points) -> Points:
    """The points one choice away along each knob, and those that shift a factor between two levels of one axis."""
    rows: list[Points] = []
    for i, k in enumerate(sketch.knobs):
        for choice in _adjacent(k.choices, int(point[i])):
            moved = point.copy()
            moved[i] = choice
            rows.append(moved)
            for j, other in enumerate(sketch.knobs):
                if j != i and k.name.rpartition(".")[0] == other.name.rpartition(".")[0] and k.unit != "flag":
                    shifted = moved.copy()
                    shifted[j] = other.nearest(point[j] * point[i] / max(choice, 1))
                    rows.append(shifted)
    if not rows:
        return point[None, :]
    return np.unique(sketch.canonical(np.stack(rows)), axis=0)


def _adjacent(choices: tuple[int, ...], value: int) -> list[int]:
    below = [c for c in choices if c < value]
    above = [c for c in choices if c > value]
    return below[-1:] + above[:1]


def descend(sketch: Sketch, starts: Points) -> tuple[Points, float]:
    """Move to the best neighbour by the prior until none is better."""
    best, best_seconds = starts[0], float("inf")
    for start in starts:
        point, seconds = start, float(sketch.prior(start[None, :])[0])
        for _ in range(SWEEPS):
            rows = neighbours(sketch, point)
            estimates: NDArray[np.float64] = np.where(sketch.legal(rows), sketch.prior(rows), np.inf)
            k = int(np.argmin(estimates))
            if estimates[k] >= seconds * (1 - 1e-6):
                break
            point, seconds = rows[k], float(estimates[k])
        if seconds < best_seconds:
            best, best_seconds = point, seconds
    return best, best_seconds
