"""Dividing a model's search over its tasks on hardware: by gain in a second (`Gradient`) against by share (`ByShare`).

    python -m benchmarks.division resnet50 --seconds 60                  # each way once, from nothing
    python -m benchmarks.division resnet50 --seconds 60 --threads 16 --repeats 2
    python -m benchmarks.division --table                                # print what is stored

Each way tunes the model from an empty store, without donors. Its curve is the sum of the tasks' best times so far, each
as often as the model calls it, over that of their defaults in the same search; a task not timed yet counts with
its default. The objective is the worse of the two curves' ends. `seconds` are those until each curve reached it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core import geometric_mean, say
from benchmarks.models import keep, stored
from benchmarks.reuse.networks import partition_of
from stormdrop import zoo
from stormdrop.device.host import detect
from stormdrop.store.store import Store
from stormdrop.tuning.divide import Divide, Gradient
from stormdrop.tuning.events import Event, Measured, Moved
from stormdrop.tuning.tuned import TaskRow
from tests.support.divisions import ByShare
from tests.support.tuning import tune_models

RESULTS = Path(__file__).parent / "results" / "division.json"
Curve = list[tuple[float, float]]
"""Seconds since the search began, and the sum of the best times over that of the defaults."""


def curve_of(moves: Sequence[tuple[float, TaskRow]]) -> Curve:
    """A point for each move. Tasks without a timed default are left out."""
    defaults = {row.id: row.count * row.default_seconds for _, row in moves if row.default_seconds}
    totals, found = dict(defaults), Curve()
    for at, row in moves:
        if row.id in totals and row.seconds:
            totals[row.id] = min(totals[row.id], row.total)
            found.append((at, sum(totals.values()) / sum(defaults.values())))
    return found


def seconds_until(curve: Curve, objective: float) -> float:
    """For an objective that the curve reaches."""
    return next(at for at, value in curve if value <= objective)


def searched(name: str, threads: int, seconds: float, divide: Divide, seed: int) -> Curve:
    moves: list[tuple[float, TaskRow]] = []

    def listen(event: Event) -> None:
        if isinstance(event, (Measured, Moved)):
            moves.append((event.elapsed, event.row))

    tune_models(
        [partition_of(name)],
        detect(threads),
        seconds=seconds,
        seed=seed,
        store=Store.in_memory(),
        listen=listen,
        divide=divide,
        reuse="off",
    )
    return curve_of([move for move in moves if move[0] <= seconds])


def compared(curves: Mapping[str, Curve]) -> dict[str, Any]:
    objective = max(curve[-1][1] for curve in curves.values())
    until = {way: seconds_until(curve, objective) for way, curve in curves.items()}
    ends = {way: curve[-1][1] for way, curve in curves.items()}
    return {"ends": ends, "seconds": until}


def table(results: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for machine, rows in results.items():
        lines += [*([""] if lines else []), machine, ""]
        lines.append("| model | threads | gradient, of defaults' time | by share | seconds | by share | ratio |")
        lines.append("|---|---:|---:|---:|---:|---:|---:|")
        ratios: list[float] = []
        for r in rows:
            ends, until = r["ends"], r["seconds"]
            ratios.append(until["gradient"] / until["share"])
            lines.append(
                f"| {r['model']} | {r['threads']} | {ends['gradient']:.3f} | {ends['share']:.3f} "
                f"| {until['gradient']:.0f} | {until['share']:.0f} | {ratios[-1]:.2f} |"
            )
        lines.append(f"| geometric mean ({len(ratios)}) | | | | | | {geometric_mean(ratios):.2f} |")
    return "\n".join(lines)


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *zoo.names()], metavar="MODEL")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search")
    parser.add_argument("--repeats", type=int, default=1, help="searches of each way, with other seeds")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where results are kept")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args(None if arguments is None else list(arguments))
    threads = detect(given.threads).threads
    for name in given.names if not given.table else ():
        for seed in range(given.repeats):
            ways: dict[str, Divide] = {"gradient": Gradient(np.random.default_rng(seed)), "share": ByShare()}
            order = list(ways) if seed % 2 == 0 else list(ways)[::-1]
            curves = {way: searched(name, threads, given.seconds, ways[way], seed) for way in order}
            what = {"model": name, "threads": threads, "seed": seed, "budget": given.seconds}
            row = {**what, **compared(curves)}
            results = stored(given.json)
            machine = f"{detect(threads).name}, {os.cpu_count()} CPUs"
            others = [r for r in results.get(machine, []) if any(r[k] != v for k, v in what.items())]
            keep(given.json, results | {machine: [*others, row]})
            say(str(row))
    if given.table:
        print(table(stored(given.json)))


if __name__ == "__main__":
    main()
