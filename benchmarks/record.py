"""Record a table that searches are replayed on: the seconds of every program of a grid, measured on this machine.

    python -m benchmarks.record C2D 1 14 14 64 64 3 1 1 --points 12000 -o tests/data/tables/c2d.npz
    python -m benchmarks.record DEP 1 28 28 64 3 1 1 --isa avx2 --threads 1 --points 2400 -o donor.npz
    python -m benchmarks.record DEP 1 28 28 96 3 1 1 --isa avx2 --threads 1 --points 2400 --donor donor.npz -o task.npz

Takes some minutes. What is measured is kept in a file beside the output: run the same command again to go on where it
was broken off. Programs are measured in random order, so that a drift of the machine wrongs no part of the grid, and
each by its fastest run, since noise only ever slows; at the end those that seem good are measured again, and the
fastest are timed in turns. With `--donor`, the grid is laid around what re-fitting the fastest programs of another
table gives, so that reuse can be replayed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.grid import Estimate, chosen_spaces, pruned, space_of
from stormdrop.base.errors import RunError, StormdropError, UserError
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.measure.settings import MeasureSettings
from stormdrop.operators.catalogue import build
from stormdrop.space.cpu_judge import FEATURES
from stormdrop.space.default import ranked
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch, sketches
from stormdrop.target.machine import Target
from stormdrop.testing.tables import Table, TableSpace
from stormdrop.tuning.cost_model import CostModel
from stormdrop.tuning.resources import Measures
from stormdrop.tuning.reuse import refitted

SAMPLES = 2048  # points of a sketch that the prior looks at
SCOUTS = 384  # points of all sketches that are measured before a grid is chosen
BATCH = 128
CLOSE = 1.5  # only what is at most this many times slower than the best is worth measuring again
DONATED = 4  # the fastest so many programs of a donor's table are re-fitted
FINALISTS = 0.02  # the share of programs that are timed in turns at the end
GROUP = 31  # so many of them at once, beside the fastest of all,
LOADS, ROUNDS = 3, 4  # loaded so often, since where code and data lie matters too, and each time in so many rounds
LEAST_POINTS, MOST_NEAR = 10_000, 0.005  # what a table for benchmarks should have, within 5 % of its optimum

Place = tuple[int, int]
"""A space and one of its rows."""


@dataclass
class Recording:
    """What is known so far: seconds (NaN: failed or not yet measured) and spread of every row of every space."""

    task: Task
    target: Target
    spaces: tuple[TableSpace, ...]
    settings: MeasureSettings

    def __post_init__(self) -> None:
        self.seconds: list[NDArray[np.float64]] = [np.full(len(s.points), np.nan) for s in self.spaces]
        self.spread: list[NDArray[np.float64]] = [np.zeros(len(s.points)) for s in self.spaces]
        self.failures: dict[str, int] = {}

    @property
    def best(self) -> float | None:
        known = [float(np.nanmin(s)) for s in self.seconds if np.isfinite(s).any()]
        return min(known, default=None)

    def order(self) -> list[Place]:
        """All places at random, but what the prior likes best first: it tells at once what is slow."""
        places = [(k, i) for k, s in enumerate(self.spaces) for i in range(len(s.points))]
        first = [(k, int(np.argmin(s.prior(s.points)))) for k, s in enumerate(self.spaces)]
        mixed = [places[i] for i in np.random.default_rng(0).permutation(len(places))]
        return list(dict.fromkeys([*first, *mixed]))

    def schedules(self, places: Sequence[Place]) -> list[Schedule]:
        return [self.spaces[k].schedule(self.spaces[k].points[i]) for k, i in places]

    def take(self, places: Sequence[Place], seconds: Sequence[float | None], spread: Sequence[float]) -> None:
        for (k, i), value, wide in zip(places, seconds, spread, strict=True):
            self.seconds[k][i], self.spread[k][i] = np.nan if value is None else value, wide

    def note_failures(self, results: Sequence[Result]) -> None:
        for result in results:
            if isinstance(result, Failure):
                self.failures[str(result)] = self.failures.get(str(result), 0) + 1

    def value(self, place: Place) -> float:
        return float(self.seconds[place[0]][place[1]])

    def fastest(self, n: int) -> list[Place]:
        known = [(k, i) for k, s in enumerate(self.seconds) for i in np.flatnonzero(np.isfinite(s)).tolist()]
        return sorted(known, key=self.value)[:n]

    def table(self) -> Table:
        spaces = tuple(
            replace(s, seconds=sec.astype(np.float32), spread=wide.astype(np.float32))
            for s, sec, wide in zip(self.spaces, self.seconds, self.spread)
        )
        s = self.settings
        notes = {
            "min_seconds": s.min_seconds,
            "slow_factor": s.slow_factor,
            "slower_factor": s.slower_factor,
            "rounds": ROUNDS,
        }
        return Table(self.task, self.target, spaces, notes)


class Partial:
    """A file of JSON lines beside the output: what the recording is of, its grids, then a line for every measured
    batch.
    """

    def __init__(self, path: Path, identity: Mapping[str, object]) -> None:
        """Raises UserError where the file is of another recording."""
        self._path, head = path, json.dumps(identity)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(head + "\n")
        whole, _, _ = path.read_text().rpartition("\n")  # a line that was broken off is measured again
        path.write_text(whole + "\n")
        first, *lines = whole.split("\n")
        if first != head:
            raise UserError(f"{path} is of another recording; remove it to begin anew")
        self.lines: list[Any] = [json.loads(line) for line in lines]

    def append(self, line: object) -> None:
        self.lines.append(line)
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def remove(self) -> None:
        self._path.unlink()


def scouted(
    task: Task, found: Sequence[Sketch], most: int, measurer: Measures, donated: Sequence[Schedule] = ()
) -> tuple[list[tuple[int, Points]], Estimate]:
    """The fastest of some points of each of the best few sketches, and what a cost model learned from them all.

    Points are the best and a spread by the prior. A sketch of `donated` schedules has the fastest of those. The prior's
    favourite, with which a search begins, is beside each.
    """
    favourites = [ranked([sketch])[0] for sketch in found]
    order = sorted(range(len(found)), key=lambda k: favourites[k][2])[:most]
    model, homes, each = CostModel(FEATURES), list[tuple[int, Points]](), SCOUTS // (2 * len(order))
    for k in order:
        points = found[k].sample_legal(SAMPLES, np.random.default_rng(0))
        points = points[np.argsort(found[k].prior(points), kind="stable")]
        spread = np.linspace(0, len(points) - 1, each).astype(np.int64)
        points = points[np.union1d(np.arange(min(each, len(points))), spread)]
        refits = _points_of(found[k], donated)
        points = np.concatenate([refits, points])
        seconds, _ = _columns(measurer.measure(task, [found[k].schedule(p) for p in points]))
        values = np.array([np.nan if s is None else s for s in seconds])
        eligible = values[: len(refits)] if np.isfinite(values[: len(refits)]).any() else values
        if np.isfinite(eligible).any():
            homes.append((k, np.stack([points[int(np.nanargmin(eligible))], favourites[k][1]])))
            model.add(task.name, found[k].features(points), values)
    model.refresh()
    return homes, lambda sketch, points: np.exp2(-model.predict(sketch.features(points), task.name))


def _points_of(sketch: Sketch, schedules: Sequence[Schedule]) -> Points:
    mine = [s for s in schedules if (s.variant, s.steps) == (sketch.variant, sketch.structure.steps)]
    rows = [[s.by_name[name] for name in sketch.names] for s in mine]
    return sketch.canonical(np.array(rows, dtype=np.int64).reshape(-1, len(sketch.names)))


def refits_of(table: Table, task: Task, target: Target) -> list[Schedule]:
    """What re-fitting the fastest programs of a table to another task gives."""
    places = [(float(v), k, i) for k, s in enumerate(table.spaces) for i, v in enumerate(s.seconds) if np.isfinite(v)]
    fastest = [table.spaces[k].schedule(table.spaces[k].points[i]) for _, k, i in sorted(places)[:DONATED]]
    return refitted(task, [(table.task, schedule) for schedule in fastest], target)


def prepared(
    task: Task, points: int, most: int, partial: Partial, measurer: Measurer, donor: Table | None = None
) -> Recording:
    """The recording that the partial file began, or a new one. Raises RunError where nothing can be timed."""
    target = measurer.target
    found = sketches(task, target)
    if not partial.lines:
        _say(f"{task.name} on {target}: choosing programs")
        donated = [] if donor is None else refits_of(donor, task, target)
        homes, estimate = scouted(task, found, most, measurer, donated)
        if not homes:
            raise RunError(f"{task.name}: nothing can be timed")
        spaces = chosen_spaces([(found[k], home) for k, home in homes], points, estimate)
        partial.append([{"sketch": k, "grid": s.grid} for (k, _), s in zip(homes, spaces)])
    grids = [(found[one["sketch"]], tuple(tuple(choices) for choices in one["grid"])) for one in partial.lines[0]]
    return Recording(task, target, tuple(space_of(sketch, grid) for sketch, grid in grids), measurer.settings)


def record(recording: Recording, partial: Partial, measurer: Measures) -> Table:
    """Measure what is not in the partial file yet, then refine; says on stderr how far it is."""
    order = recording.order()
    done = 0
    for seconds, spread in partial.lines[1:]:
        recording.take(order[done : done + len(seconds)], seconds, spread)
        done += len(seconds)
    restored, began = done, time.monotonic()
    while done < len(order):
        places = order[done : done + BATCH]
        results = measurer.measure(recording.task, recording.schedules(places), recording.best)
        seconds, spread = _columns(results)
        recording.take(places, seconds, spread)
        recording.note_failures(results)
        partial.append([seconds, spread])
        done += len(places)
        rate = (done - restored) / (time.monotonic() - began)
        best = f"{recording.best * 1e6:.1f} µs" if recording.best is not None else "none"
        _say(
            f"\r{done} of {len(order)} programs, {rate:.0f} a second, best {best}, {sum(recording.failures.values())} "
            "failed ",
            end="",
        )
    _say("")
    for message, count in recording.failures.items():
        _say(f"{count} times {message}")
    measure_again(recording, measurer)
    time_in_turns(recording, measurer, max(64, int(FINALISTS * len(order))))
    return recording.table()


def measure_again(recording: Recording, measurer: Measures) -> None:
    """Once more what may be good; the faster timing is the truer one."""
    best = recording.best
    if best is None:
        return
    again = [p for p in recording.fastest(len(recording.order())) if recording.value(p) < CLOSE * best]
    for begin in range(0, len(again), BATCH):
        places = again[begin : begin + BATCH]
        results = measurer.measure(recording.task, recording.schedules(places))
        for place, result in zip(places, results):
            if isinstance(result, Timing) and result.floor < recording.value(place):
                recording.take([place], [result.floor], [result.spread])
    _say(f"{len(again)} programs that may be good measured again")


def time_in_turns(recording: Recording, measurer: Measures, most: int) -> None:
    """The fastest anew, each group beside the fastest of all: what counts is the ratio to it."""
    first, *others = recording.fastest(most)
    scales: list[float] = []
    ratios: dict[Place, list[float]] = {place: [] for place in others}
    for begin, _ in product(range(0, len(others), GROUP), range(LOADS)):
        places = others[begin : begin + GROUP]
        lead, *results = measurer.retime(recording.task, recording.schedules([first, *places]), ROUNDS)
        if isinstance(lead, Timing):
            scales += lead.samples
            for place, result in zip(places, results):
                samples = result.samples if isinstance(result, Timing) else (np.nan,)  # who fails once has failed
                ratios[place] += [s / lead.seconds for s in samples]
    scale = float(np.median(scales)) if scales else recording.value(first)
    recording.take([first], [scale], [_spread(scales)])
    for place, each in ratios.items():
        if each:
            middle = float(np.median(each))
            recording.take([place], [None if np.isnan(middle) else middle * scale], [_spread(each)])
    _say(f"the fastest {len(others) + 1} timed in turns")


def _columns(results: Sequence[Result]) -> tuple[list[float | None], list[float]]:
    timings = [r if isinstance(r, Timing) else None for r in results]
    return [t.floor if t else None for t in timings], [round(t.spread, 4) if t else 0.0 for t in timings]


def _spread(values: Sequence[float]) -> float:
    """The share of the median that the middle half spans."""
    if not values or np.isnan(values).any():
        return 0.0
    low, middle, high = np.percentile(values, (25, 50, 75))
    return float((high - low) / middle)


def _say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="record a table that searches are replayed on")
    parser.add_argument("operator", help="as `stormdrop op` names it: GMM, C2D, …")
    parser.add_argument("sizes", type=int, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--points", type=int, default=12_000, help="programs to measure, about")
    parser.add_argument("--sketches", type=int, default=3, help="the best so many by the prior, at most")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--isa", help="a narrower instruction set than this machine's: avx2, sse")
    parser.add_argument("--donor", type=Path, help="the table of another task of the class")
    given = parser.parse_args()
    target = detect(given.threads)
    target = target if given.isa is None else target.with_isa(given.isa)
    settings = MeasureSettings(min_seconds=0.003)
    try:
        task = build(given.operator, given.sizes)
        identity = {"task": task.digest, "points": given.points, "sketches": given.sketches, "target": target.to_json()}
        partial = Partial(given.output.with_suffix(".partial"), identity | {"settings": asdict(settings)})
        with Measurer(target, settings) as measurer:
            donor = None if given.donor is None else Table.load(given.donor)
            recording = prepared(task, given.points, given.sketches, partial, measurer, donor)
            table = record(recording, partial, measurer)
    except StormdropError as error:
        sys.exit(f"error: {error}")
    if table.size >= LEAST_POINTS and table.share_within(0.05) >= MOST_NEAR:
        table = replace(table, spaces=pruned(table.spaces, LEAST_POINTS, MOST_NEAR, 0.05))
        _say(f"choices taken out that too many good programs have in common: {table.size} programs are left")
    table.save(given.output)
    partial.remove()
    near = table.share_within(0.05)
    print(
        f"{given.output}: {table.size} programs, {given.output.stat().st_size / 1000:.0f} kB, "
        f"best {table.optimum * 1e6:.1f} µs, {near:.2%} within 5 % of it"
    )
    if table.size < LEAST_POINTS or near >= MOST_NEAR:
        _say(
            f"a table for benchmarks should have at least {LEAST_POINTS} programs, and fewer than {MOST_NEAR:.1%} of "
            "them that near"
        )


if __name__ == "__main__":
    main()
