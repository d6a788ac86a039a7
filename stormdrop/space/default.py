"""The default schedule: the best point by the analytic prior, found without measuring anything.

A sketch falls into parts that share no knob, and the sketches of a task share parts. Points of each part are drawn with a fixed
seed, and from the best few coordinates are moved to adjacent choices while the estimate falls. It is a race: a part moves on
only while a sketch that it belongs to is close to the best, and ever closer. In the winning sketches the parts are moved once
more, each with the rest of the program as it is. The same task on the same target always gets the same schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
SETTLED = 2  # the winning sketches, whose parts are moved again
ROUNDS = 2

Floats = NDArray[np.float64]
Judge = Callable[[Points], Floats]


def default_schedule(task: Task, target: Target) -> Schedule:
    """The schedule to use when nothing is known of the task."""
    sketch, point, _ = ranked(sketches(task, target))[0]
    return sketch.schedule(point)


def ranked(found: Sequence[Sketch], samples: int = SAMPLES) -> list[tuple[Sketch, Points, float]]:
    """The best point of every sketch with its estimated seconds, fastest first."""
    if not found:
        raise ScheduleError("the task has no sketch")
    parts: dict[tuple[Stage, ...], _Part] = {}
    drafts: list[_Draft] = []
    for sketch in found:
        own = [parts.get(p.structure.stages) or _Part(p, sketch, samples) for p in sketch.parts()]
        parts.update((p.sketch.structure.stages, p) for p in own)
        drafts.append(_Draft(sketch, own))
    for k in range(1, SWEEPS):
        estimates = [d.estimate() for d in drafts]
        limit = min(estimates) * (1.0 + 1.0 / k)
        racing = {p: None for d, seconds in zip(drafts, estimates) if seconds <= limit for p in d.parts if p.descent.moving.size}
        if not racing:
            break
        for part in racing:
            part.descent.sweep()
    drafts.sort(key=lambda d: d.estimate())
    for k, draft in enumerate(drafts):
        draft.assemble()
        if k < SETTLED or draft.seconds == np.inf:
            draft.settle()
    return sorted(((d.sketch, d.point(), d.seconds) for d in drafts), key=lambda b: b[2])


class Descent:
    """Points that move to better neighbours, all of them at once, until none is better."""

    def __init__(self, sketch: Sketch, judge: Judge, starts: Points, seconds: Floats) -> None:
        self._sketch, self._judge = sketch, judge
        self.points, self.seconds = starts.copy(), seconds.copy()
        self.moving = np.arange(len(starts))
        self._around = Neighbourhood.of(sketch.knobs)
        self._axis = _axes_of_moves(sketch)

    def best(self) -> int:
        return int(np.argmin(self.seconds))

    def sweep(self) -> None:
        """Every point that moves to its best neighbour, or to where several moves lead that each help."""
        here, seconds = self.points[self.moving], self.seconds[self.moving]
        (owner, move), rows = self._around.rows(here)
        still: list[int] = []
        if len(rows):
            rows, owner = self._together(rows, owner, move, here, seconds, self._judge(self._sketch.canonical(rows)))
        if len(rows):
            rows = self._sketch.canonical(rows)
            judged = self._judge(rows)
            for k, i in enumerate(self.moving.tolist()):
                own = np.flatnonzero(owner == k)
                best = own[np.argmin(judged[own])] if len(own) else -1
                if best >= 0 and judged[best] < self.seconds[i] * (1 - 1e-6):
                    self.points[i], self.seconds[i] = rows[best], judged[best]
                    still.append(i)
        self.moving = np.array(still, dtype=np.int64)

    def run(self) -> None:
        for _ in range(SWEEPS):
            if self.moving.size:
                self.sweep()

    def _together(
        self, rows: Points, owner: NDArray[np.int64], move: NDArray[np.int64], points: Points, seconds: Floats, judged: Floats
    ) -> tuple[Points, NDArray[np.int64]]:  # fmt: skip
        """The best neighbour of every point, and where the best moves along its axes lead at once: along two, four, all."""
        found: list[Points] = []
        owners: list[int] = []
        for k, point in enumerate(points):
            own = np.flatnonzero((owner == k) & (judged < seconds[k]))
            own = own[np.argsort(judged[own], kind="stable")]
            chosen: dict[int, int] = {}
            for i in own.tolist():
                chosen.setdefault(int(self._axis[move[i]]), i)
            row = point.copy()
            for n, i in enumerate(chosen.values(), 1):
                changed = rows[i] != point
                row[changed] = rows[i][changed]
                if n in (1, 2, 4) or n == len(chosen):
                    found.append(row.copy())
                    owners.append(k)
        return np.array(found, dtype=np.int64).reshape(len(found), points.shape[1]), np.array(owners, dtype=np.int64)


def _axes_of_moves(sketch: Sketch) -> NDArray[np.int64]:
    """For every move a number of the axis it moves along."""
    names = [k.name.rpartition(".")[0] if k.unit != "flag" else k.name for k in sketch.knobs]
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[names[m.knob]] for m in moves_of(sketch.knobs)], dtype=np.int64)


class _Part:
    """A part of one or more sketches, and its points on their way down."""

    def __init__(self, sketch: Sketch, whole: Sketch, samples: int) -> None:
        self.sketch = sketch
        self._alone = sketch is whole
        points = sketch.sample(samples, np.random.default_rng(0))
        seconds = self.judge(points)
        if np.count_nonzero(np.isfinite(seconds)) < STARTS:
            points = sketch.sample_legal(max(1, samples // 4), np.random.default_rng(0))
            seconds = self.judge(points)
        best = np.argsort(seconds, kind="stable")[: STARTS if sketch.knobs else 1]
        self.descent = Descent(sketch, self.judge, points[best], seconds[best])

    def judge(self, points: Points) -> Floats:
        """Estimated seconds of the part as if it were a program; infinite where that is not legal."""
        return self.sketch.assess(points) if self._alone else judged(self.sketch, amounts(self.sketch, points))

    def amounts(self) -> Floats:
        """Of the best point."""
        k = self.descent.best()
        return amounts(self.sketch, self.descent.points[k : k + 1])[:, 0]


def amounts(part: Sketch, points: Points) -> Floats:
    """What parts of a program add up: seconds, instructions, bytes of scratch, and whether a stage does not fit."""
    seconds, code, scratch, fits = part.outline(points)
    return np.stack([seconds, code, scratch, 1.0 - fits])


def judged(sketch: Sketch, amounts: Floats) -> Floats:
    """Estimated seconds of programs with these amounts; infinite where one is not legal."""
    seconds, code, scratch, misfits = amounts
    legal = (misfits == 0.0) & (code <= analysis.most_code(sketch.structure)) & (scratch <= analysis.MAX_SCRATCH_BYTES)
    return np.where(legal, analysis.prior(seconds, code, analysis.phases(sketch.structure)), np.inf)


class _Draft:
    """A sketch with a point put together from its parts'."""

    def __init__(self, sketch: Sketch, parts: Sequence[_Part]) -> None:
        self.sketch, self.parts = sketch, parts
        self.seconds = np.inf
        self._points: list[Points] = []
        self._amounts = np.zeros((0, 4))

    def estimate(self) -> float:
        """What the parts' best points take together, their limits apart."""
        return float(sum(p.descent.seconds.min() for p in self.parts))

    def point(self) -> Points:
        values = {name: value for p, point in zip(self.parts, self._points) for name, value in zip(p.sketch.names, point)}
        return np.array([values[name] for name in self.sketch.names], dtype=np.int64)

    def assemble(self) -> None:
        """Take the best point of each part."""
        self._points = [p.descent.points[p.descent.best()] for p in self.parts]
        if len(self.parts) == 1:
            self.seconds = self.estimate()
            return
        self._amounts = np.array([p.amounts() for p in self.parts])
        self.seconds = float(judged(self.sketch, self._amounts.sum(axis=0)[:, None])[0])

    def settle(self) -> None:
        """Move the parts in turn, each with the others as they are, the slowest first."""
        for _ in range(ROUNDS if len(self.parts) > 1 else 0):
            before = self.seconds
            for k in np.argsort(-self._amounts[:, 0], kind="stable").tolist():
                self._settle(k)
            if not self.seconds < before * (1 - 1e-4):
                break

    def _settle(self, k: int) -> None:
        part = self.parts[k]
        rest = (self._amounts.sum(axis=0) - self._amounts[k])[:, None]

        def judge(points: Points) -> Floats:
            return judged(self.sketch, amounts(part.sketch, points) + rest)

        starts = np.concatenate([self._points[k][None], part.descent.points])
        descent = Descent(part.sketch, judge, starts, judge(starts))
        descent.run()
        best = descent.best()
        if descent.seconds[best] < self.seconds:
            self._points[k], self.seconds = descent.points[best], float(descent.seconds[best])
            self._amounts[k] = amounts(part.sketch, descent.points[best : best + 1])[:, 0]
