"""The default schedule: the best point by the analytic prior, without any measurement. Deterministic.

A sketch consists of components that share no knob; sketches of a task share components. Each component is sampled with
a fixed seed, and coordinate descent starts from its best few points. Sketches race: a component descends only while
some sketch with this component is within a slack of the best sketch. The slack shrinks with every sweep. In the winning
sketch each component descends once more, also from perturbed points, with the other components fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.arguments import check_arguments
from stormdrop.base.errors import ScheduleError
from stormdrop.ir.memo import memoised
from stormdrop.ir.tensor import Task
from stormdrop.space.derive import checked
from stormdrop.space.judge import judge_of
from stormdrop.space.knobs import Neighbourhood, moves_of
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch, replay, sketches
from stormdrop.space.structure import Stage
from stormdrop.target.gpu import Gpu
from stormdrop.target.machine import Target

SAMPLES = 640  # of each component
STARTS = 8
SWEEPS = 40
SLACK = 0.6  # in sweep k, a sketch may be slower than the best by this share / k
START_SLACK = 0.4  # the same among the points of a component. With 0.18, AVX2 convolutions lost up to a third
GPU_START_SLACK = 0.18  # the slack of all default schedules that were measured on a GPU
KICKS = 24  # perturbed points from which the winner's components descend again
KICK_SLACK = 0.5
GAIN = 1e-3  # the least relative improvement of a move

Floats = NDArray[np.float64]
Estimate = Callable[[Points], Floats]


def default_schedule(task: Task, target: Target, rules: Sequence[Rule] = RULES) -> Schedule:
    """Returns the schedule for a task without measurements."""
    sketch, point = default_point(task, target, rules)
    return sketch.schedule(point)


def resolve(
    task: Task, schedule: Schedule | None, target: Target, rules: Sequence[Rule] = RULES
) -> tuple[Sketch, Points]:
    """Returns the sketch and the point of a schedule (`replay`); None stands for the default schedule."""
    return default_point(task, target, rules) if schedule is None else replay(task, schedule, target, rules)


def default_point(task: Task, target: Target, rules: Sequence[Rule] = RULES) -> tuple[Sketch, Points]:
    """Returns the sketch and the read-only point of the default schedule."""
    check_arguments(task=task, target=target, rules=rules)
    return _default_point(task, target, checked(rules))


@memoised(64)
def _default_point(task: Task, target: Target, rules: tuple[Rule, ...]) -> tuple[Sketch, Points]:
    sketch, point = best_point(sketches(task, target, rules))
    point.setflags(write=False)
    return sketch, point


def best_point(candidates: Sequence[Sketch]) -> tuple[Sketch, Points]:
    """Returns the sketch and the point with the least estimate. Raises ScheduleError for no sketches."""
    _, winner, _ = _raced(candidates, SAMPLES)
    return winner.sketch, winner.point()


def ranked(candidates: Sequence[Sketch], samples: int = SAMPLES) -> list[tuple[Sketch, Points, float]]:
    """Returns the default point, then every other sketch's best point, fastest first, with estimated seconds."""
    race, winner, pruned = _raced(candidates, samples)
    default = winner.sketch, winner.point(), winner.seconds
    race.run(pruned)
    others = [draft for draft in race.ranked() if draft is not winner]
    for draft in others:
        draft.settle(0)
    return [default, *sorted(((d.sketch, d.point(), d.seconds) for d in others), key=lambda b: b[2])]


def _raced(candidates: Sequence[Sketch], samples: int) -> tuple[_Race, _Draft, list[Sketch]]:
    """Returns a race, its settled winner, and the sketches that did not take part.

    A variant with a lower bound above the best estimate is pruned: direct convolution, say, if Winograd is faster. On a
    GPU, a sketch that leaves in global memory an operand that another sketch stages is pruned too: no such sketch was
    ever the default.
    """
    pruned = [s for s in candidates if isinstance(s.target, Gpu) and _is_staged_by_another(s, candidates)]
    variants: dict[int, list[Sketch]] = {}
    for sketch in candidates:
        if sketch not in pruned:
            variants.setdefault(sketch.variant, []).append(sketch)
    bounds = {k: min(judge_of(s.target).least_seconds(s.structure) for s in some) for k, some in variants.items()}
    race = _Race(samples)
    for k in sorted(variants, key=lambda k: bounds[k]):
        if bounds[k] < race.best():
            race.run(variants[k])
        else:
            pruned += variants[k]
    winner = race.ranked()[0]
    winner.settle(KICKS)
    return race, winner, pruned


def _is_staged_by_another(sketch: Sketch, candidates: Sequence[Sketch]) -> bool:
    """Returns whether the derivation of another sketch extends this sketch's derivation: `pack` is the last rule."""
    steps = sketch.structure.steps
    return any(
        other.variant == sketch.variant
        and len(other.structure.steps) > len(steps)
        and other.structure.steps[: len(steps)] == steps
        for other in candidates
    )


class _Race:
    """A race of sketches. Their components, shared among sketches, descend in turn."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._components: dict[tuple[Stage, ...], _Component] = {}
        self._drafts: list[_Draft] = []

    def best(self) -> float:
        return min((d.estimate() for d in self._drafts), default=np.inf)

    def ranked(self) -> list[_Draft]:
        """Returns all drafts, the most promising first."""
        if not self._drafts:
            raise ScheduleError("the task has no sketch")
        return sorted(self._drafts, key=lambda d: d.estimate())

    def run(self, added: Sequence[Sketch]) -> None:
        """Adds sketches, and sweeps until no sketch within the slack of the best improves."""
        for sketch in added:
            components = [
                self._components.get(p.structure.stages) or _Component(p.likely(), p is sketch, self._samples)
                for p in sketch.components()
            ]
            self._components.update((p.sketch.structure.stages, p) for p in components)
            self._drafts.append(_Draft(sketch, components))
        for k in range(1, SWEEPS):
            limit = self.best() * (1.0 + SLACK / k)
            racing = {
                p: None for d in self._drafts if d.estimate() <= limit for p in d.components if p.descent.moving.size
            }
            if not racing:
                break
            for component in racing:
                is_gpu = isinstance(component.sketch.target, Gpu)
                component.descent.sweep((GPU_START_SLACK if is_gpu else START_SLACK) / k)


class Descent:
    """Coordinate descent of several points in lockstep."""

    def __init__(self, sketch: Sketch, seconds_at: Estimate, starts: Points) -> None:
        """`seconds_at` accepts rows that are not canonical."""
        self._sketch, self._seconds_at = sketch, seconds_at
        self.points, self.seconds = starts.copy(), seconds_at(starts)
        self.moving = np.arange(len(starts))
        self._around = Neighbourhood.of(sketch.knobs)
        number = {axis: i for i, axis in enumerate(dict.fromkeys(k.axis or k.name for k in sketch.knobs))}
        axes = [number[k.axis or k.name] for k in sketch.knobs]
        self._axis = np.array([axes[m.knob] for m in moves_of(sketch.knobs)], dtype=np.int64)  # by move

    def best(self) -> int:
        return int(np.argmin(self.seconds))

    def sweep(self, slack: float) -> None:
        """Moves every point to its best neighbour, or by several improving moves at once if the joint move is better.

        Points slower than the best by more than `slack`, and duplicates, stop for good.
        """
        limit = self.seconds.min() * (1.0 + slack)
        at = {self.points[i].tobytes(): i for i in reversed(self.moving.tolist()) if self.seconds[i] <= limit}
        self.moving = np.array(sorted(at.values()), dtype=np.int64)
        here = self.points[self.moving]
        (owner, move), rows = self._around.rows(here)
        judged = self._seconds_at(rows) if len(rows) else np.zeros(0)
        better = np.flatnonzero(judged < self.seconds[self.moving][owner] * (1.0 - GAIN))
        better = better[np.argsort(judged[better], kind="stable")]
        chosen: list[dict[int, int]] = [{} for _ in here]  # by point: the best move along each axis, best first
        for i, k, axis in zip(better.tolist(), owner[better].tolist(), self._axis[move[better]].tolist()):
            chosen[k].setdefault(axis, i)
        joint: list[Points] = []
        of: list[int] = []
        for k, by_axis in enumerate(chosen):
            together = _joint_moves(here[k], rows[list(by_axis.values())]) if len(by_axis) > 1 else []
            joint += together
            of += [k] * len(together)
        goals = {k: (judged[i], rows[i]) for k, by_axis in enumerate(chosen) for i in list(by_axis.values())[:1]}
        for k, row, seconds in zip(of, joint, self._seconds_at(np.array(joint)) if joint else ()):
            goals[k] = min(goals[k], (seconds, row), key=lambda goal: goal[0])
        self.moving = self.moving[list(goals)]
        if goals:
            self.points[self.moving] = self._sketch.canonical(np.array([row for _, row in goals.values()]))
            self.seconds[self.moving] = [seconds for seconds, _ in goals.values()]

    def run(self, slack: float) -> None:
        for k in range(1, SWEEPS):
            if self.moving.size:
                self.sweep(slack / k)


def _joint_moves(point: Points, rows: Points) -> list[Points]:
    """Returns the points after the first two, the first four and all moves; each of `rows` is one move."""
    joint: list[Points] = []
    together = point.copy()
    for n, row in enumerate(rows, 1):
        changed = row != point
        together[changed] = row[changed]
        if n > 1 and n in (2, 4, len(rows)):
            joint.append(together.copy())
    return joint


class _Component:
    """A component of one or more sketches, and its descent."""

    def __init__(self, sketch: Sketch, alone: bool, samples: int) -> None:
        self.sketch, self._alone = sketch, alone
        points = sketch.draw(samples, np.random.default_rng(0))
        seconds = self.seconds_at(points)
        if np.count_nonzero(np.isfinite(seconds)) < STARTS:
            points = sketch.sample_legal(max(1, samples // 4), np.random.default_rng(0))
            seconds = self.seconds_at(points)
        best = np.argsort(seconds, kind="stable")[: STARTS if sketch.knobs else 1]
        self.descent = Descent(sketch, self.seconds_at, sketch.canonical(points[best]))

    def seconds_at(self, points: Points) -> Floats:
        """Returns the estimated seconds of the component as a program of its own; infinite if it is illegal."""
        if self._alone:
            return self.sketch.assess(self.sketch.canonical(points))
        return _combined(self.sketch, self.sketch.amounts(points))

    def amounts(self) -> Floats:
        """Returns `Assessment.amounts` of the best point."""
        k = self.descent.best()
        return self.sketch.amounts(self.descent.points[k : k + 1])[:, 0]


def _combined(sketch: Sketch, amounts: Floats) -> Floats:
    return judge_of(sketch.target).combined(sketch.structure, amounts)


class _Draft:
    """A sketch, and a point composed of the points of its components."""

    def __init__(self, sketch: Sketch, components: Sequence[_Component]) -> None:
        self.sketch, self.components = sketch, components
        self.seconds = np.inf
        self._points: list[Points] = []
        self._amounts = np.zeros((0, 0))  # a row per component

    def estimate(self) -> float:
        """Returns the sum of the components' best seconds. Limits on the whole program are ignored."""
        return float(sum(p.descent.seconds.min() for p in self.components))

    def point(self) -> Points:
        values = {
            name: value for p, point in zip(self.components, self._points) for name, value in zip(p.sketch.names, point)
        }
        point = np.array([values[name] for name in self.sketch.names], dtype=np.int64)
        return point if self.seconds < np.inf else self.sketch.repair(point[None])[0]

    def settle(self, kicks: int) -> None:
        """Composes the best points of the components; with `kicks`, or if the result is illegal, descends again.

        Components descend one after the other, the slowest first, with the other components fixed.
        """
        self._points = [p.descent.points[p.descent.best()] for p in self.components]
        self.seconds = self.estimate()
        if len(self.components) > 1:
            self._amounts = np.array([p.amounts() for p in self.components])
            self.seconds = float(_combined(self.sketch, self._amounts.sum(axis=0)[:, None])[0])
        if kicks or self.seconds == np.inf:
            for k in np.argsort([-p.descent.seconds.min() for p in self.components], kind="stable").tolist():
                self._move(k, kicks)

    def _move(self, k: int, kicks: int) -> None:
        component = self.components[k]
        seconds_at = component.seconds_at
        if len(self.components) > 1:
            rest = (self._amounts.sum(axis=0) - self._amounts[k])[:, None]

            def seconds_at(points: Points) -> Floats:
                return _combined(self.sketch, component.sketch.amounts(points) + rest)

        descent = Descent(
            component.sketch,
            seconds_at,
            np.concatenate([self._points[k][None], component.descent.points, self._kicked(k, kicks)]),
        )
        descent.run(KICK_SLACK)
        best = descent.best()
        if descent.seconds[best] < self.seconds:
            self._points[k], self.seconds = descent.points[best], float(descent.seconds[best])
            if len(self.components) > 1:
                self._amounts[k] = component.sketch.amounts(descent.points[best : best + 1])[:, 0]

    def _kicked(self, k: int, n: int) -> Points:
        """Returns `n` copies of the component's point, each with about three knobs redrawn."""
        rng = np.random.default_rng(1)
        point, drawn = self._points[k], self.components[k].sketch.draw(n, rng)
        return self.components[k].sketch.canonical(
            np.where(rng.random(drawn.shape) * max(1, len(point)) < 3.0, drawn, point)
        )
