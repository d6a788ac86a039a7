"""Sketches: a structure with its knobs, and vectorised queries over its points.

A point is one row of knob values. `canonical` clamps rows, so that equal programs are equal rows. `features`, `legal`
and `prior` take a matrix of points and lower nothing. `schedule` and `tilings` take one point to be built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.arguments import check_arguments
from stormdrop.base.errors import ScheduleError
from stormdrop.ir.memo import memoised
from stormdrop.ir.tensor import Task
from stormdrop.space import judge
from stormdrop.space.derive import checked, derive, divided, enumerate_structures
from stormdrop.space.judge import Appraisal, Points, Query
from stormdrop.space.knobs import PARTS, Knob, even_count, knobs_of, likely_parts, merged, parts_knob
from stormdrop.space.rules import FEWEST_PARTS, RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.structure import DerivationStep, Structure
from stormdrop.space.tiling import Tiling, tile_all
from stormdrop.target.machine import Target

SHRINKS = 24
REPAIR_DRAWS = 1000
_POWERS = {"rows": 1.0, "few rows": 2.0, "vectors": 1.0, "steps": 1.0, "residents": 1.0, "group": 1.0}
"""Large choices are drawn in inverse proportion to this power, by the unit of the knob; other units are uniform."""


@dataclass(frozen=True, eq=False)
class Sketch:
    """One structure of one task on one target."""

    task: Task
    """The task that every point computes."""
    variant: int
    """The index of the variant among the task's."""
    structure: Structure
    """The loops, whose extents are expressions over knobs."""
    target: Target
    """The machine that decides which points are legal."""
    rules: tuple[Rule, ...] = RULES
    """The rules that the structure was derived with."""
    narrow: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """The knobs that are restricted to some of their choices."""

    def narrowed(self, knob: str, *choices: int) -> Sketch:
        """Returns the sketch restricted to some choices of a knob."""
        return replace(self, narrow=(*self.narrow, (knob, choices)))

    def likely(self) -> Sketch:
        """Returns the sketch with only promising numbers of parts (`likely_parts`): each number costs a trace."""
        splits = self.structure.splits
        return self.narrowed(PARTS, *likely_parts(splits, self.target)) if splits else self

    def smallest(self) -> Points:
        """Returns one row with the first choice of every knob. The row may be neither canonical nor legal."""
        return np.array([[k.choices[0] for k in self.knobs]], dtype=np.int64)

    def __repr__(self) -> str:
        return f"<sketch of {self.task.name}, {len(self.structure.stages)} stages, {len(self.knobs)} knobs>"

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """The knobs of the sketch, one for each column of a matrix of points."""
        return self._knobs  # a plain property, as the protocols of spaces require

    @cached_property
    def _knobs(self) -> tuple[Knob, ...]:
        if not self.structure.splits:
            knobs = knobs_of(self.structure, self.target)
        else:
            parts = parts_knob(self.structure.splits, self.target)
            few, many = (knobs_of(self._divided(parts.choices[end]), self.target) for end in (0, -1))
            knobs = (parts, *merged(few, many))
        only = dict(self.narrow)
        return tuple(replace(k, choices=only.get(k.name, k.choices)) for k in knobs)

    def at(self, values: Mapping[str, int]) -> Structure:
        """Returns the structure at a point, its open splits fixed at the value of the knob `parts`."""
        return self._divided(values[PARTS]) if self.structure.splits else self.structure

    def _divided(self, parts: int) -> Structure:
        return divided(self.task.variants[self.variant], self.structure, parts, self.rules)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the knobs, in the order of `knobs`."""
        return tuple(k.name for k in self.knobs)

    @cached_property
    def _appraisals(self) -> dict[int, Appraisal]:
        """The appraisals by the number of parts. Without open splits, the only appraisal has key 0."""
        return {} if self.structure.splits else {0: Appraisal(self.structure, self.target, self.names, {})}

    def _asked(self, query: Query, points: Points) -> NDArray[np.float64]:
        """Returns a row per value, a column per point.

        Points are grouped by `parts`: each number of parts has its own Appraisal.
        """
        splits = self.structure.splits
        if not splits:
            return self._appraisals[0].ask(query, points)
        counts, group = np.unique(points[:, self.names.index(PARTS)], return_inverse=True)
        answers: list[NDArray[np.float64]] = []
        for k, parts in enumerate(counts.tolist() or [FEWEST_PARTS]):
            count = even_count(splits, parts)
            if count not in self._appraisals:
                self._appraisals[count] = Appraisal(self._divided(count), self.target, self.names, {PARTS: count})
            answers.append(self._appraisals[count].ask(query, points[group == k]))
        matrix = np.concatenate(answers, axis=1)
        matrix[:, np.argsort(group, kind="stable")] = matrix.copy()
        return matrix

    def components(self) -> tuple[Sketch, ...]:
        """Returns a sketch per component of the structure; only this sketch for one component, or with open splits."""
        components = self.structure.components()
        if len(components) < 2 or self.structure.splits:
            return (self,)
        return tuple(replace(self, structure=Structure(stages, self.structure.outputs)) for stages in components)

    def canonical(self, points: Points) -> Points:
        """Clamps every knob as `tiling` does: equal programs become equal rows."""
        return self._asked(judge.canonical, points).T.astype(np.int64, order="C") if self.knobs else points

    def draw(self, n: int, rng: np.random.Generator) -> Points:
        """Returns random choices of every knob. Small register tiles are likelier: most large tiles do not fit."""
        uniform = rng.random((len(self.knobs), n))
        columns = [
            choices[shares.searchsorted(u, side="right")] if len(choices) > 1 else np.repeat(choices, n)
            for u, (choices, shares) in zip(uniform, self._odds)
        ]
        return np.stack(columns, axis=1) if columns else np.zeros((n, 0), np.int64)

    def sample(self, n: int, rng: np.random.Generator) -> Points:
        """Returns the canonical rows of `draw`."""
        return self.canonical(self.draw(n, rng))

    @cached_property
    def _odds(self) -> list[tuple[Points, NDArray[np.float64]]]:
        """The choices of every knob, and their cumulative probabilities."""
        odds: list[tuple[Points, NDArray[np.float64]]] = []
        for k in self.knobs:
            choices = np.asarray(k.choices, dtype=np.int64)
            weights = np.maximum(choices, 1.0) ** -_POWERS.get(k.unit, 0.0)
            shares = (weights / weights.sum()).cumsum()
            odds.append((choices, shares / shares[-1]))
        return odds

    def sample_legal(self, n: int, rng: np.random.Generator) -> Points:
        """Returns between 1 and `n` distinct legal points.

        Illegal points are shrunk, a random knob at a time, until they fit.
        """
        points = self.sample(2 * n, rng)
        for _ in range(SHRINKS):
            bad = np.flatnonzero(~self.legal(points))
            if len(points) - len(bad) >= n or not len(bad):
                break
            points[bad] = self._shrunk(points[bad], rng)
        good = points[self.legal(points)]
        if not len(good):
            good = self.repair(points[:1])
        order = np.sort(np.unique(good, axis=0, return_index=True)[1])
        return good[order[:n]]

    def _shrunk(self, points: Points, rng: np.random.Generator) -> Points:
        """Returns every row with one random knob moved down to a random smaller choice."""
        points = points.copy()
        least = np.array([k.choices[0] for k in self.knobs])
        weights = np.array([1.0 if k.unit in ("trips", "flag") else 3.0 for k in self.knobs])
        draws = rng.random(points.shape) * weights * (points > least)
        column = np.argmax(draws, axis=1)
        rows = np.arange(len(points))
        smaller = (points[rows, column] * rng.random(len(points))).astype(np.int64)
        points[rows, column] = np.maximum(least[column], smaller)
        return self.canonical(self.snapped(points))

    def snapped(self, points: Points) -> Points:
        """Returns every value at the largest choice that does not exceed it."""
        columns: list[Points] = []
        for i, k in enumerate(self.knobs):
            choices = np.asarray(k.choices, dtype=np.int64)
            columns.append(choices[np.maximum(0, np.searchsorted(choices, points[:, i], side="right") - 1)])
        return np.stack(columns, axis=1) if columns else points

    def legal(self, points: Points) -> NDArray[np.bool_]:
        """Returns whether each point fits the target: registers, code size, code variants, scratch."""
        return self._asked(judge.legal, points)[0] > 0.0

    def features(self, points: Points) -> NDArray[np.float64]:
        """Returns a row per point, as log2(1 + x); a column has the same meaning in every sketch."""
        matrix = self._asked(judge.features, points)
        matrix += 1.0
        return np.ascontiguousarray(np.log2(matrix, out=matrix).T)

    def prior(self, points: Points) -> NDArray[np.float64]:
        """Returns the estimated seconds of every point."""
        return self._asked(judge.prior, points)[0]

    def assess(self, points: Points) -> NDArray[np.float64]:
        """Returns the estimated seconds of every point, infinite for an illegal point."""
        return self._asked(judge.prior_if_legal, points)[0]

    def amounts(self, points: Points) -> NDArray[np.float64]:
        """Returns `Assessment.amounts`: the additive terms by which components are combined, a column per point."""
        return self._asked(judge.amounts, points)

    def values(self, point: Sequence[int] | Points) -> dict[str, int]:
        """Returns the value of each knob at a point, by the knob's name."""
        return {n: int(v) for n, v in zip(self.names, point)}

    def tilings(self, values: Mapping[str, int]) -> dict[str, Tiling]:
        """Returns the integer tile sizes of one point."""
        return tile_all(self.at(values), self.target.vector_bytes, dict(values))

    def schedule(self, point: Sequence[int] | Points) -> Schedule:
        """Returns the schedule of a point: the derivation of this sketch with the point's values."""
        key = self.task.variants[self.variant].class_key
        return Schedule(key, self.variant, self.structure.steps, tuple(self.values(point).items()))

    def fit(self, values: Mapping[str, int]) -> Points:
        """Returns a legal point near values that were tuned at another shape of the class."""
        row = np.array([[k.nearest(values.get(k.name, k.choices[0])) for k in self.knobs]], dtype=np.int64)
        return self.repair(self.canonical(row))

    def repair(self, points: Points) -> Points:
        """Shrinks knobs, deterministically, until every point is legal."""
        points = points.copy()
        for _ in range(200):
            bad = np.flatnonzero(~self.legal(points))
            if not len(bad):
                return points
            for i in bad:
                smaller = self._smaller(points[i])
                points[i] = self._legal_somewhere() if smaller is None else smaller
            points = self.canonical(points)
        raise ScheduleError("no legal point was found near the given one")

    def _legal_somewhere(self) -> Points:
        """Returns a random legal point, for use if shrinking fails.

        A box must be a multiple of packed panels, which the smallest point's box may not be.
        """
        drawn = self.sample(REPAIR_DRAWS, np.random.default_rng(0))
        legal = drawn[self.legal(drawn)]
        if not len(legal):
            raise ScheduleError("the smallest point is not legal")
        return legal[0]

    def _smaller(self, point: Points) -> Points | None:
        """Returns the point after the step down that reduces `excess` most; None at the smallest point."""
        trials: list[Points] = []
        for i, k in enumerate(self.knobs):
            lower = [c for c in k.choices if c < point[i]]
            if lower:
                moved = point.copy()
                moved[i] = lower[-1]
                trials.append(moved)
        if not trials:
            return None
        rows = np.stack(trials)
        excess = self._asked(judge.excess, self.canonical(rows))[0]
        return rows[int(np.argmin(excess))]


def sketches(task: Task, target: Target, rules: Sequence[Rule] = RULES) -> list[Sketch]:
    """Returns all sketches of a task, over its variants. Raises UserError for rules with equal name and version."""
    check_arguments(task=task, target=target, rules=rules)
    known = checked(rules)
    return [
        Sketch(task, k, s, target, known)
        for k, v in enumerate(task.variants)
        for s in enumerate_structures(v, target, known)
    ]


def replay(task: Task, schedule: Schedule, target: Target, rules: Sequence[Rule] = RULES) -> tuple[Sketch, Points]:
    """Returns the sketch and the point of a schedule; a point that was tuned at another shape is fitted to this shape.

    Raises ScheduleError for a schedule of another class or of a rule that is not among `rules`.
    """
    sketch = replayed(task, variant_of(task, schedule), schedule.steps, target, checked(rules))
    values = schedule.by_name
    row = np.array([[values.get(n, 1) for n in sketch.names]], dtype=np.int64)
    is_canonical = set(sketch.names) == set(values) and np.array_equal(sketch.canonical(row), row)
    return sketch, (row if is_canonical and sketch.legal(row)[0] else sketch.fit(values))[0]


def variant_of(task: Task, schedule: Schedule) -> int:
    """Returns the number of the task's variant with the schedule's class, by preference the schedule's own number.
    Raises ScheduleError if no variant matches.

    If the class is unknown, the number alone decides. A class key of an early version must be the key of this variant
    (`Schedule.of`).
    """
    schedule = schedule.of(task)
    classes = [variant.class_key for variant in task.variants]
    number, key = schedule.variant, schedule.class_key
    if 0 <= number < len(classes) and key == classes[number]:
        return number
    if not key:
        raise ScheduleError(f"the task has no variant {number}")
    if key not in classes:
        raise ScheduleError(f"this schedule is for tasks of class {key}; the task is of class {', '.join(classes)}")
    return classes.index(key)


@memoised(256)
def replayed(
    task: Task, variant: int, steps: tuple[DerivationStep, ...], target: Target, rules: tuple[Rule, ...]
) -> Sketch:
    """Returns the sketch of a derivation. Raises ScheduleError if the derivation does not apply to the variant."""
    return Sketch(task, variant, derive(task.variants[variant], steps, rules), target, rules)
