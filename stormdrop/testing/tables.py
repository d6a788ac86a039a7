"""Recorded tables: searches run on them instead of on hardware, with the same result every time.

    Table.load(path) ──▶ spaces (restricted sketches) for the strategies, TableMeasurer for the loop

A table holds a task, a target and, for a few sketches, the measured seconds of *every* legal program in a grid of
choices. A grid has some choices of each knob, perhaps only one. Invariant: the canonical form of any combination of a
space's choices is a row of the table, or was illegal when the table was recorded.

Measurers without workers: recorded tables, tests and simulations.
"""

from __future__ import annotations

import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.errors import StormdropError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.derive import derive
from stormdrop.space.knobs import Knob, knobs_of
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch
from stormdrop.space.structure import DerivationStep
from stormdrop.target.machine import Target, target_from_json


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a measurer: measure candidates, time them in turns, or prove a candidate."""

    kind: Literal["measure", "retime", "prove"]
    """Measure candidates alone, time them in turns, or prove a winner."""
    task: Task
    """The task of the candidates."""
    candidates: Sequence[Schedule]
    """The schedules to measure."""
    rounds: int = 1
    """The number of turns of each candidate."""
    best: float | None = None
    """Seconds to beat, for `measure`."""


class AnsweringMeasurer(ABC):
    """A measurer (`Measures` in `stormdrop.tuning.resources`) that answers every request by one method."""

    @abstractmethod
    def answers(self, asked: Request) -> list[Result]:
        """Returns a result for each candidate, in order."""

    def measure(
        self,
        task: Task,
        candidates: Sequence[Schedule],
        best: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Result]:
        """Measures each candidate alone; `meanwhile` runs as if during the builds."""
        results = self.answers(Request("measure", task, candidates, best=best))
        if meanwhile is not None:
            meanwhile()
        return results

    def retime(self, task: Task, candidates: Sequence[Schedule], rounds: int) -> list[Result]:
        """Times candidates in turns."""
        return self.answers(Request("retime", task, candidates, rounds))

    def prove(self, task: Task, candidate: Schedule, witness: Schedule | None = None) -> Result:
        """Proves a winner; `witness` is ignored."""
        return self.answers(Request("prove", task, [candidate]))[0]


FORMAT = 1
Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False, kw_only=True)
class TableSpace(Sketch):
    """A sketch held to the points of a table: knobs have the recorded choices, nothing else is legal."""

    grid: tuple[tuple[int, ...], ...]
    """The choices of every knob."""
    points: Points = field(repr=False)
    """The points, canonical and distinct."""
    seconds: Floats = field(repr=False)
    """The measured seconds; NaN for failed points."""
    spread: Floats = field(repr=False)

    @cached_property
    def _knobs(self) -> tuple[Knob, ...]:
        return tuple(
            replace(k, choices=c) for k, c in zip(knobs_of(self.structure, self.target), self.grid, strict=True)
        )

    def components(self) -> tuple[Sketch, ...]:
        """Returns the space itself: a table holds whole points."""
        return (self,)

    def canonical(self, points: Points) -> Points:
        """Clamps points as the sketch does, but on the grid: a value between choices stands for the next larger choice.

        A clamped value is clamped to itself again, so rows of the table stay as they are.
        """
        columns: list[Points] = []
        for i, k in enumerate(self.knobs):
            choices = np.asarray(k.choices, dtype=np.int64)
            columns.append(choices[np.minimum(np.searchsorted(choices, points[:, i]), len(choices) - 1)])
        return super().canonical(np.stack(columns, axis=1) if columns else points)

    def sample_legal(self, n: int, rng: np.random.Generator) -> Points:
        """Returns `n` rows of the table, drawn uniformly."""
        return self.points[rng.choice(len(self.points), size=min(n, len(self.points)), replace=False)]

    def legal(self, points: Points) -> NDArray[np.bool_]:
        return self.rows(points) >= 0

    def features(self, points: Points) -> NDArray[np.float64]:
        rows = self.rows(points)
        return self._features[rows] if (rows >= 0).all() else super().features(points)

    def prior(self, points: Points) -> NDArray[np.float64]:
        rows = self.rows(points)
        return self._prior[rows] if (rows >= 0).all() else super().prior(points)

    def assess(self, points: Points) -> NDArray[np.float64]:
        return np.where(self.legal(points), self.prior(points), np.inf)

    def rows(self, points: Points) -> NDArray[np.int64]:
        """Returns the row of each point in the table; -1 for points that are not in the table."""
        return np.array([self._row_by_bytes.get(p.tobytes(), -1) for p in points], np.int64)

    @cached_property
    def _row_by_bytes(self) -> dict[bytes, int]:
        return {p.tobytes(): row for row, p in enumerate(self.points)}

    @cached_property
    def _features(self) -> NDArray[np.float64]:
        return super().features(self.points)

    @cached_property
    def _prior(self) -> NDArray[np.float64]:
        return super().prior(self.points)


@dataclass(frozen=True, eq=False)
class Table:
    """The recorded measurements of a task on a machine. `notes` describe the recording for readers."""

    task: Task
    """The recorded task."""
    target: Target
    """The machine of the recording."""
    spaces: tuple[TableSpace, ...]
    """The restricted sketches with their measurements: the `spaces` of `sd.tune`."""
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Remarks about the recording."""

    @property
    def size(self) -> int:
        """The number of recorded points."""
        return sum(len(s.points) for s in self.spaces)

    @cached_property
    def optimum(self) -> float:
        """The fewest seconds. Raises UserError for a table without a successful measurement."""
        values = self._seconds
        if not np.isfinite(values).any():
            raise UserError(f"{self.task.name}: the table has no successful measurement; record the table again")
        return float(np.nanmin(values))

    def share_within(self, slack: float) -> float:
        """Returns the share of points that take at most (1 + slack) times the optimum."""
        return float((self._seconds <= np.float32(self.optimum * (1 + slack))).mean())

    @cached_property
    def _seconds(self) -> Floats:
        return np.concatenate([s.seconds for s in self.spaces])

    def find(self, schedule: Schedule) -> tuple[TableSpace, int] | None:
        """Returns the space and the row of a schedule; None if the schedule was not recorded."""
        space = self._by_steps.get((schedule.variant, schedule.steps))
        values = schedule.by_name
        if space is None or set(values) != set(space.names):
            return None
        if schedule.of(self.task).class_key != self.task.variants[schedule.variant].class_key:
            return None
        row = int(space.rows(np.array([[values[n] for n in space.names]], dtype=np.int64))[0])
        return (space, row) if row >= 0 else None

    @cached_property
    def _by_steps(self) -> dict[tuple[int, tuple[DerivationStep, ...]], TableSpace]:
        return {(s.variant, s.structure.steps): s for s in self.spaces}

    # ---- files -----------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Writes a compressed .npz; columns of sorted points compress to a few bits a point."""
        about = {
            "task": self.task.to_json(),
            "target": self.target.to_json(),
            "notes": dict(self.notes),
            "sketches": [_described(s) for s in self.spaces],
        }
        arrays: dict[str, NDArray[Any]] = {
            "format": np.array(FORMAT),
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
        }
        for i, s in enumerate(self.spaces):
            order = np.lexsort(s.points.T[::-1]) if s.points.shape[1] else np.arange(len(s.points))
            narrow = np.min_scalar_type(int(s.points.max(initial=0)))
            arrays[f"points{i}"] = s.points[order].T.astype(narrow)
            arrays[f"seconds{i}"] = s.seconds[order].astype(np.float32)
            arrays[f"spread{i}"] = s.spread[order].astype(np.float16)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            np.savez_compressed(file, **cast(Any, arrays))  # no object arrays among them: no pickle is written

    @staticmethod
    def load(path: Path) -> Table:
        """Loads a table.

        Raises UserError for a file that is no table, or with sketches that this version derives differently.
        """
        try:
            with np.load(path, allow_pickle=False) as data:
                if int(data["format"]) != FORMAT:
                    raise UserError(
                        f"{path} has format {int(data['format'])}, this version reads {FORMAT}; record the table again"
                    )
                about = json.loads(data["about"].tobytes())
                task, target = Task.from_json(about["task"]), target_from_json(about["target"])
                spaces = tuple(
                    _restored(task, target, sketch, data[f"points{i}"], data[f"seconds{i}"], data[f"spread{i}"])
                    for i, sketch in enumerate(about["sketches"])
                )
                return Table(task, target, spaces, about["notes"])
        except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile, StormdropError) as error:
            raise error if isinstance(error, UserError) else UserError(f"{path} is no table: {error}") from error


def _described(space: TableSpace) -> dict[str, object]:
    steps = [[s.rule, s.version, s.stage, *s.args] for s in space.structure.steps]
    return {"variant": space.variant, "steps": steps, "grid": {k.name: k.choices for k in space.knobs}}


def _restored(
    task: Task, target: Target, about: Any, points: NDArray[Any], seconds: NDArray[Any], spread: NDArray[Any]
) -> TableSpace:
    schedule = Schedule.from_json({"class": "", "variant": about["variant"], "steps": about["steps"], "values": {}})
    structure = derive(task.variants[schedule.variant], schedule.steps)
    names = tuple(k.name for k in knobs_of(structure, target))
    if names != tuple(about["grid"]):
        raise UserError(
            f"{task.name}: this version's sketch has other knobs, {', '.join(names)}; record the table again"
        )
    grid = tuple(tuple(int(c) for c in choices) for choices in about["grid"].values())
    space = TableSpace(
        task,
        schedule.variant,
        structure,
        target,
        grid=grid,
        points=np.ascontiguousarray(points.T, dtype=np.int64),
        seconds=seconds.astype(np.float32),
        spread=spread.astype(np.float32),
    )
    if not len(space.points) == len(space.seconds) == len(space.spread):
        raise UserError(f"{task.name}: the table's columns differ in length")
    if not np.array_equal(space.canonical(space.points), space.points):
        raise UserError(
            f"{task.name}: recorded programs differ from the programs of this version; record the table again"
        )
    return space


class TableMeasurer(AnsweringMeasurer):
    """A measurer that looks up results. It is deterministic: even with `noise`, two measurers with the same seed answer
    the same calls alike.

    `noise` is the standard deviation of the logarithm of every single timing.
    """

    table: Table
    """The table with the results."""

    def __init__(self, table: Table, noise: float = 0.0, seed: int = 0) -> None:
        self.table = table
        self._noise, self._rng = noise, np.random.default_rng(seed)
        self._slower = MeasureSettings().slower_factor

    def answers(self, asked: Request) -> list[Result]:
        """Returns the table's results. As on hardware, a candidate that is clearly slower than the best so far counts
        as timed briefly.

        A proof compares no output: recorded programs had been compared with the reference.
        """
        results = [self._timed(asked.task, one, asked.rounds) for one in asked.candidates]
        return self._cut_short(results, asked.best) if asked.kind == "measure" else results

    def _cut_short(self, results: Sequence[Result], best: float | None) -> list[Result]:
        shortened: list[Result] = []
        for result in results:
            if isinstance(result, Timing):
                result = replace(result, stopped_early=best is not None and result.seconds > self._slower * best)
                best = result.seconds if best is None else min(best, result.seconds)
            shortened.append(result)
        return shortened

    def _timed(self, task: Task, schedule: Schedule, rounds: int) -> Result:
        place = self.table.find(schedule) if task.digest == self.table.task.digest else None
        if place is None:
            return Failure("schedule", "this schedule is not in the table")
        space, row = place
        seconds = float(space.seconds[row])
        if not np.isfinite(seconds):
            return Failure("build", "this candidate failed when the table was recorded")
        noise = self._noise * self._rng.standard_normal(rounds) if self._noise else np.zeros(rounds)
        samples = seconds * np.exp(noise)
        return Timing(float(np.median(samples)), float(space.spread[row]), rounds, 0.0, samples=tuple(samples.tolist()))
