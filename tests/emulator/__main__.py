"""Many random points in the emulator; goes on where it was stopped.

    python -m tests.emulator                      5,000 points in all, on all cores
    python -m tests.emulator --processes 16 --seconds 300
    python -m tests.emulator --precision bf16 --log .emulate/bf16.jsonl
    python -m tests.emulator --case 145:1         one point again, as a failure names it

The log has a line for each trial: its number, the operator, seconds, for every point the marks of its program (bits,
in the order of `MARKS`), and what is wrong by point. The table counts points by operator and by mark.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stormdrop.target.microkernels import MATRIX_KERNELS, Precision
from tests.emulator.trials import CASES, MARKS, GpuTrial, MatrixTrial, emulated, outcome
from tests.fuzz.workers import Died, outcomes
from tests.support.trials import GRAPHS


def trial_of(seed: int, precision: Precision | None) -> GpuTrial:
    """With a precision: only points with matrix instructions, none where the task has no such sketch."""
    return GpuTrial(seed) if precision is None else MatrixTrial(seed, precision=precision)


def tried(number: int, precision: Precision | None = None) -> dict[str, Any]:
    """What became of the points of one trial, as it is logged."""
    began = time.monotonic()
    trial = trial_of(seed_of(number), precision)
    row: dict[str, Any] = {"number": number, "name": trial.name, "marks": [], "wrong": {}}
    for case in trial.cases():
        problem, found = outcome(case, lambda text: text, None)
        row["marks"].append(sum(1 << k for k, mark in enumerate(MARKS) if mark in found))
        if problem:
            row["wrong"][str(case.number)] = f"{problem}\n{case}"
    return row | {"seconds": round(time.monotonic() - began, 2)}


def seed_of(number: int) -> int:
    """Every fifth task is one that the graph layer makes."""
    return number + GRAPHS if number % 5 == 4 else number


def main() -> int:
    given = _arguments()
    if given.case:
        return _replay(given.case, given.precision)
    log: Path = given.log
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    known = {row["number"] for row in rows}
    left = [n for n in range(given.points // CASES) if n not in known]
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def within_limit() -> Iterator[int]:
        for number in left:
            if time.monotonic() - began > given.seconds:
                return
            yield number

    with log.open("a") as file:
        try:
            for number, done in outcomes(within_limit(), partial(tried, precision=given.precision), given.processes):
                row: dict[str, Any] = done
                if isinstance(done, Died):
                    row = {"number": number, "name": "?", "marks": [], "wrong": {"": done.cause}, "seconds": 0.0}
                print(json.dumps(row), file=file, flush=True)
                rows.append(row)
                for k, problem in row["wrong"].items():
                    print(f"{seed_of(number)}:{k}: {problem}", flush=True)
                if len(rows) % 100 == 0:
                    print(f"… {len(rows)} trials, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            print("stopped; the next run goes on from here", file=sys.stderr)
    print(table(rows))
    return int(any(row["wrong"] for row in rows))


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    names: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    wrong = 0
    for row in rows:
        names[row["name"]] += len(row["marks"])
        marks.update(mark for bits in row["marks"] for k, mark in enumerate(MARKS) if bits >> k & 1)
        wrong += len(row["wrong"])
    lines = [f"{names.total()} points, {wrong} wrong"]
    for counts in (names, marks):
        lines += [f"{n:8d}  {name}" for name, n in sorted(counts.items())]
    return "\n".join(lines)


def _replay(text: str, precision: Precision | None) -> int:
    seed, _, number = text.partition(":")
    failed = 0
    for case in trial_of(int(seed), precision).cases():
        if number in ("", str(case.number)):
            problem = emulated(case)
            failed += bool(problem)
            print(case, case.trial.task, case.program(), problem or "right", sep="\n")
    return min(1, failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.emulator", description="Random GPU kernels in the emulator.")
    parser.add_argument(
        "--points", type=int, default=5000, metavar="N", help="so many in all, those of the log included"
    )
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="S", help="begin no trial after so long")
    parser.add_argument("--log", type=Path, default=Path(".emulate/log.jsonl"), help="decides where to go on")
    parser.add_argument("--precision", choices=tuple(MATRIX_KERNELS), help="points with matrix instructions; own --log")
    parser.add_argument("--case", default="", metavar="SEED[:NUMBER]", help="one trial, or one point of it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
