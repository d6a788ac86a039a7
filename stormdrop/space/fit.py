"""Fitting the coefficients of a CPU's estimate to measured seconds.

The formulas of the judge are traced with the coefficients as columns beside the knobs. A single run of a
`ColumnProgram` evaluates many values of the coefficients. The fit minimises the variance of log2(estimate / seconds)
within each task, averaged over tasks; fast programs weigh most. The variance is 0 if the estimates of a task's programs
are proportional to the measured seconds. A small penalty keeps a coefficient that affects none of the programs at its
nominal value. The search is a coordinate descent over factors, with smaller steps once no step improves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stormdrop.space.columns import ColumnProgram, traced
from stormdrop.space.cpu_judge import CpuJudge
from stormdrop.space.judge import Points
from stormdrop.space.knobs import PARTS
from stormdrop.space.sketch import Sketch
from stormdrop.target.coefficients import FITTED, CpuCoefficients
from stormdrop.target.cpu import Cpu

Floats = NDArray[np.float64]
STEPS = (2.0, 1.4, 1.15)
MOST_FACTOR = 16.0
PENALTY = 0.003
"""The penalty for a factor of two: equal to 5 % of disagreement in each task."""
LEAST_WEIGHT = 0.05
FOLDS = 4
MOST_TURNS = 12


@dataclass(frozen=True, slots=True)
class Observation:
    """Points of one sketch with the measured seconds of their programs."""

    sketch: Sketch
    points: Points
    seconds: Floats
    group: str
    """A task at a temperature: the seconds of a group are comparable."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted coefficients; their errors and regrets come from cross-validation with `FOLDS` folds of tasks."""

    coefficients: CpuCoefficients
    programs: int
    tasks: int
    error_before: float
    error_after: float
    regret_before: float
    """The slowdown of the program with the least estimate over a task's fastest program, averaged over tasks."""
    regret_after: float

    @property
    def is_better(self) -> bool:
        return self.error_after < 0.97 * self.error_before and self.regret_after <= self.regret_before


def fit(target: Cpu, observations: Iterable[Observation]) -> Fit:
    """Returns fitted coefficients for a target with measured rates, beginning from the target's own coefficients.

    Raises ValueError if fewer than `FOLDS` tasks have two timed programs.
    """
    data = _Data(target, observations)
    if data.groups < FOLDS:
        raise ValueError(f"{data.groups} tasks with measured programs; a fit needs {FOLDS}")
    nominal = np.array([getattr(target.coefficients, name) for name in FITTED])
    fold = np.arange(data.groups) % FOLDS
    errors, regrets = np.zeros((2, data.groups)), np.zeros((2, data.groups))
    errors[0], regrets[0] = data.judged(nominal)
    for k in range(FOLDS):
        held = fold == k
        error, regret = data.judged(_descended(data, nominal, ~held))
        errors[1, held], regrets[1, held] = error[held], regret[held]
    best = _descended(data, nominal, np.ones(data.groups, bool))
    coefficients = replace(target.coefficients, **{n: float(f"{v:.3g}") for n, v in zip(FITTED, best)})
    means = *errors.mean(axis=1).tolist(), *regrets.mean(axis=1).tolist()
    return Fit(coefficients, data.programs, data.groups, *means)


def _descended(data: _Data, nominal: Floats, used: NDArray[np.bool_]) -> Floats:
    """Returns the coefficients with the least error over the groups in use."""
    factors = np.zeros(len(nominal))  # log2
    best = float(data.errors(nominal[None])[0, used].mean())
    for step in np.log2(STEPS):
        for _ in range(MOST_TURNS):
            moves = np.concatenate([np.eye(len(nominal)) * step, np.eye(len(nominal)) * -step])
            tried = np.clip(factors + moves, -np.log2(MOST_FACTOR), np.log2(MOST_FACTOR))
            values = nominal * 2.0**tried
            errors = data.errors(values)[:, used].mean(axis=1) + PENALTY * (tried**2).sum(axis=1)
            errors[(values[:, _SHARES] > 1.0).any(axis=1)] = np.inf
            k = int(np.argmin(errors))
            if errors[k] >= best - 1e-6:
                break
            factors, best = tried[k], float(errors[k])
    return nominal * 2.0**factors


_SHARES = [k for k, name in enumerate(FITTED) if name.endswith("_share")]


class _Data:
    """All observations, as programs over knobs and coefficients."""

    def __init__(self, target: Cpu, observations: Iterable[Observation]) -> None:
        by_group: dict[str, list[Observation]] = {}
        for o in observations:
            by_group.setdefault(o.group, []).append(o)
        kept = [group for group in by_group.values() if sum(len(o.seconds) for o in group) > 1]
        self.groups = len(kept)
        self.programs = sum(len(o.seconds) for group in kept for o in group)
        self._estimates: list[list[tuple[ColumnProgram, Points]]] = []
        self._seconds: list[Floats] = []
        for group in kept:
            pieces = [(piece, o) for o in group for piece in _pieces(target, o)]
            self._estimates.append([(program, points) for (program, points, _), _ in pieces])
            self._seconds.append(np.concatenate([o.seconds[rows] for (_, _, rows), o in pieces]))

    def errors(self, coefficients: Floats) -> Floats:
        """Returns the errors, by row of coefficients and by group."""
        return np.stack([self._error(g, coefficients) for g in range(self.groups)], axis=1)

    def judged(self, coefficients: Floats) -> tuple[Floats, Floats]:
        """Returns, by group, the error and the regret (`Fit.regret_before`)."""
        regrets = [
            seconds[np.argmin(self._priors(g, coefficients[None])[0])] / seconds.min() - 1.0
            for g, seconds in enumerate(self._seconds)
        ]
        return self.errors(coefficients[None])[0], np.array(regrets)

    def _error(self, group: int, coefficients: Floats) -> Floats:
        seconds = self._seconds[group]
        weight = seconds.min() / seconds + LEAST_WEIGHT
        weight = weight / weight.sum()
        off = np.log2(self._priors(group, coefficients)) - np.log2(seconds)
        return ((off - (off * weight).sum(axis=1, keepdims=True)) ** 2 * weight).sum(axis=1)

    def _priors(self, group: int, coefficients: Floats) -> Floats:
        """Returns the estimated seconds of a group's programs, a row for each row of coefficients."""
        priors: list[Floats] = []
        for program, points in self._estimates[group]:
            n, m = len(coefficients), len(points)
            columns = np.concatenate([np.tile(points.T, n), np.repeat(coefficients.T, m, axis=1)])
            (values,) = program.run(np.ascontiguousarray(columns, dtype=np.float64))
            priors.append(np.broadcast_to(values, n * m).reshape(n, m))
        return np.concatenate(priors, axis=1)


def _pieces(target: Cpu, o: Observation) -> list[tuple[ColumnProgram, Points, NDArray[np.int64]]]:
    """Returns programs for the estimate of an observation's points, each with its points and their rows.

    A split reduction has a program for every number of parts, any other observation a single program.
    """
    names = o.sketch.names
    rows = np.arange(len(o.points))
    groups: Sequence[NDArray[np.int64]] = [rows]
    if o.sketch.structure.splits:
        parts = o.points[:, names.index(PARTS)]
        groups = [np.flatnonzero(parts == value) for value in np.unique(parts)]
    pieces: list[tuple[ColumnProgram, Points, NDArray[np.int64]]] = []
    for members in groups:
        structure = o.sketch.at(o.sketch.values(o.points[members[0]]))
        tape, columns = traced((*names, *FITTED))
        symbolic = replace(target.coefficients, **{name: columns[name] for name in FITTED})
        of_machine = replace(target, temperature=o.sketch.target.temperature, coefficients=symbolic)
        assessment = CpuJudge(of_machine).assess(structure, columns)
        pieces.append((tape.program([assessment.prior]), o.points[members], members))
    return pieces
