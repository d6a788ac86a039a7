"""The default schedule: the best point by the analytic prior, found without measuring anything.

A sketch falls into parts that share no knob, and sketches of one task share parts. Each part is searched once: points are
drawn with a fixed seed, and from the best few coordinates are moved to adjacent choices while the estimate falls. What the
parts found is put together; in the most promising sketches the parts are moved once more, now that the rest of the program is
known. The same task on the same target always gets the same schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormdrop.errors import ScheduleError
from stormdrop.ir.tensor import Task
from stormdrop.space import analysis
from stormdrop.space.moves import Neighbourhood, moves_of
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch, sketches
from stormdrop.space.structure import Stage
from stormdrop.target.machine import Target

SAMPLES = 192  # of each part
STARTS = 4
SWEEPS = 40
SETTLED = 3  # the most promising sketches, whose parts are moved again
ROUNDS = 2

Seconds = NDArray[np.float64]
Judge = Callable[[Points], Seconds]


def default_schedule(task: Task, target: Target) -> Schedule:
    """The schedule to use when nothing is known of the task."""
    sketch, point, _ = ranked(sketches(task, target))[0]
    return sketch.schedule(point)


def ranked(found: Sequence[Sketch], samples: int = SAMPLES) -> list[tuple[Sketch, Points, float]]:
    """The best point of every sketch with its estimated seconds, fastest first."""
    if not found:
        raise ScheduleError("the task has no sketch")
    searched: dict[tuple[Stage, ...], _Part] = {}
    drafts: list[_Draft] = []
    for sketch in found:
        parts = [searched.get(p.structure.stages) or _searched(p, samples) for p in sketch.parts()]
        searched.update((p.sketch.structure.stages, p) for p in parts)
        drafts.append(_Draft(sketch, parts))
    drafts.sort(key=lambda d: d.seconds)
    for k, draft in enumerate(drafts):
        if k < SETTLED or draft.seconds == np.inf:
            draft.settle()
    return sorted(((d.sketch, d.point, d.seconds) for d in drafts), key=lambda b: b[2])


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of one or more sketches and its best points, each of which no single move improves."""

    sketch: Sketch
    points: Points
    seconds: Seconds


def _searched(sketch: Sketch, samples: int) -> _Part:
    points = sketch.sample(samples, np.random.default_rng(0))
    seconds = sketch.assess(points)
    if np.count_nonzero(np.isfinite(seconds)) < STARTS:
        points = sketch.sample_legal(max(1, samples // 4), np.random.default_rng(0))
        seconds = sketch.assess(points)
    best = np.argsort(seconds, kind="stable")[:STARTS]
    return _Part(sketch, *descend(sketch, sketch.assess, points[best], seconds[best]))


class _Draft:
    """A sketch with a point put together from its parts'."""

    def __init__(self, sketch: Sketch, parts: Sequence[_Part]) -> None:
        self.sketch, self._parts = sketch, parts
        self._points = [p.points[0] for p in parts]
        self._alone = len(parts) == 1
        self._amounts = np.array([[0.0] * 4] if self._alone else [self._outline(p.sketch, p.points[:1])[:, 0] for p in parts])
        self.seconds = float(parts[0].seconds[0]) if self._alone else float(self._judged(self._amounts.sum(axis=0)[:, None])[0])

    @property
    def point(self) -> Points:
        values = {name: value for p, point in zip(self._parts, self._points) for name, value in zip(p.sketch.names, point)}
        return np.array([values[name] for name in self.sketch.names], dtype=np.int64)

    def _outline(self, part: Sketch, points: Points) -> NDArray[np.float64]:
        seconds, code, scratch, fits = part.outline(points)
        return np.stack([seconds, code, scratch, 1.0 - fits])

    def _judged(self, amounts: NDArray[np.float64]) -> Seconds:
        """Estimated seconds of whole programs; infinite where one is not legal."""
        seconds, code, scratch, misfits = amounts
        structure = self.sketch.structure
        legal = (misfits == 0.0) & (code <= analysis.most_code(structure)) & (scratch <= analysis.MAX_SCRATCH_BYTES)
        return np.where(legal, analysis.prior(seconds, code, analysis.phases(structure)), np.inf)

    def settle(self) -> None:
        """Move the parts in turn, each with the others as they are, the slowest first."""
        if self._alone:
            return
        for _ in range(ROUNDS):
            before = self.seconds
            for k in np.argsort(-self._amounts[:, 0], kind="stable"):
                part = self._parts[k]
                rest = self._amounts.sum(axis=0) - self._amounts[k]

                def judge(points: Points, part: Sketch = part.sketch, rest: NDArray[np.float64] = rest) -> Seconds:
                    return self._judged(self._outline(part, points) + rest[:, None])

                starts = np.concatenate([self._points[k][None], part.points])
                points, seconds = descend(part.sketch, judge, starts, judge(starts))
                if seconds[0] < self.seconds:
                    self._points[k], self.seconds = points[0], float(seconds[0])
                    self._amounts[k] = self._outline(part.sketch, points[:1])[:, 0]
            if not self.seconds < before * (1 - 1e-4):
                break


def descend(sketch: Sketch, judge: Judge, starts: Points, seconds: Seconds) -> tuple[Points, Seconds]:
    """Move every start to better neighbours until none is; where they ended, the best first, each once.

    Where several moves of different axes help, it is also tried to take them at once.
    """
    around = Neighbourhood.of(sketch.knobs)
    axis = _axes(sketch)
    points, seconds = starts.copy(), seconds.copy()
    moving = np.arange(len(points))
    for _ in range(SWEEPS):
        (owner, move), raw = around.rows(points[moving])
        if not len(raw):
            break
        raw, owner = _with_pairs(raw, owner, move, points[moving], seconds[moving], judge(sketch.canonical(raw)), axis)
        rows = sketch.canonical(raw)
        judged = judge(rows)
        still: list[int] = []
        for k, i in enumerate(moving):
            own = np.flatnonzero(owner == k)
            if not len(own):
                continue
            best = own[np.argmin(judged[own])]
            if judged[best] < seconds[i] * (1 - 1e-6):
                points[i], seconds[i] = rows[best], judged[best]
                still.append(i)
        moving = np.array(still, dtype=np.int64)
        if not still:
            break
    order = np.argsort(seconds, kind="stable")
    first = np.sort(np.unique(points[order], axis=0, return_index=True)[1]) if points.shape[1] else np.zeros(1, np.int64)
    return points[order[first]], seconds[order[first]]


def _axes(sketch: Sketch) -> NDArray[np.int64]:
    """For every move the axis it moves along."""
    names = [k.name.rpartition(".")[0] if k.unit != "flag" else k.name for k in sketch.knobs]
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[names[m.knob]] for m in moves_of(sketch.knobs)], dtype=np.int64)


def _with_pairs(
    raw: Points, owner: NDArray[np.int64], move: NDArray[np.int64], points: Points, seconds: Seconds, judged: Seconds, axis: NDArray[np.int64]
) -> tuple[Points, NDArray[np.int64]]:  # fmt: skip
    """The best move of every point, and what the best moves of its axes lead to together: of two axes, of four, of all."""
    found: list[Points] = []
    owners: list[int] = []
    for k, point in enumerate(points):
        own = np.flatnonzero((owner == k) & (judged < seconds[k]))
        if not len(own):
            continue
        own = own[np.argsort(judged[own], kind="stable")]
        chosen: dict[int, int] = {}
        for i in own.tolist():
            chosen.setdefault(int(axis[move[i]]), i)
        row = point.copy()
        for n, i in enumerate(chosen.values(), 1):
            changed = raw[i] != point
            row[changed] = raw[i][changed]
            if n in (1, 2, 4) or n == len(chosen):
                found.append(row.copy())
                owners.append(k)
    return np.array(found, dtype=np.int64).reshape(len(found), points.shape[1]), np.array(owners, dtype=np.int64)
