"""A model beside another runtime, for `stormdrop check` and `bench`: errors of its outputs, times of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from stormdrop.compare.oracle import Agreement
from stormdrop.compare.steady import Loops
from stormdrop.report.console import block, heading, print_pairs, print_table
from stormdrop.report.model import finite, shape_text
from stormdrop.report.text import counted, name_text, seconds_text
from stormdrop.runtime.profile import Profile


def check_json(judged: Sequence[Agreement], tolerance: float) -> dict[str, Any]:
    """Errors are None where outputs cannot be compared: other shapes or types, or NaNs in other places."""
    outputs = [
        {
            "name": a.name,
            "shape": list(a.shape),
            "dtype": a.dtype,
            "absolute_error": finite(a.absolute),
            "relative_error": finite(a.relative),
            "ok": a.ok,
        }
        for a in judged
    ]
    return {"tolerance": tolerance, "ok": all(a.ok for a in judged), "outputs": outputs}


def print_check(console: Console, model: str, against: str, judged: Sequence[Agreement], inputs: str) -> None:
    heading(console, f"{model} on {inputs}, against {against}")
    rows = [
        (
            name_text(a.name),
            a.dtype,
            shape_text(a.shape),
            _error(a.absolute),
            _error(a.relative),
            "equal" if a.is_exact else f"{a.tolerance:.0e}",
            "ok" if a.ok else "WRONG",
        )
        for a in judged
    ]
    titles = ("output", "type", "shape", "largest error", "of magnitude", "allowed", "")
    print_table(console, titles, rows, words=(0, 1, 2, 6))
    console.print()
    wrong, outputs = sum(not a.ok for a in judged), counted(len(judged), "output")
    heading(console, f"{wrong} of {outputs} too far off" if wrong else f"all right: {outputs}")


def _error(x: float) -> str:
    return f"{x:.1e}" if finite(x) is not None else "not comparable"


Times = Mapping[str, Loops]
"""Of each side, by name."""


def speedup_of(times: Times) -> float | None:
    """How many times as fast as the peer, by medians."""
    peer = next((name for name in times if name != "stormdrop"), None)
    return None if peer is None else times[peer].runs.seconds / times["stormdrop"].runs.seconds


def bench_json(model: str, threads: int, times: Times, busy: Mapping[int, Times]) -> dict[str, Any]:
    """`busy`: the times beside so many busy CPUs."""
    tree: dict[str, Any] = {"model": model, "threads": threads, **_sides(times)}
    return tree | ({"busy": {str(count): _sides(beside) for count, beside in busy.items()}} if busy else {})


def _sides(times: Times) -> dict[str, Any]:
    tree: dict[str, Any] = {
        name: {
            "median_seconds": t.runs.seconds,
            "min_seconds": float(t.runs.each.min()),
            "rested_seconds": float(np.median(t.rested)),
            "cpu_seconds": t.cpu_seconds,
        }
        for name, t in times.items()
    }
    speedup = speedup_of(times)
    return tree if speedup is None else tree | {"speedup": speedup}


def print_bench(
    console: Console, model: str, units: str, times: Times, busy: Mapping[int, Times], settings: Mapping[str, str]
) -> None:
    heading(console, f"{model}, {units}")
    cells = [_cells(name, t) for name, t in times.items()]
    rows = [("speedup", f"{speedup:.2f}x, by medians")] if (speedup := speedup_of(times)) is not None else []
    for count, beside in busy.items():
        where = f"beside {counted(count, 'busy CPU')}"
        cells += [_cells(f"{name}, {where}", t) for name, t in beside.items()]
        slower = [f"{name} {t.runs.seconds / times[name].runs.seconds:.2f}x slower" for name, t in beside.items()]
        rows.append((where, ", ".join(slower)))
    print_table(console, ("", "median", "min", "after a rest", "CPU time", "spread", "runs"), cells)
    console.print()
    print_pairs(console, [*rows, *settings.items()])


def _cells(name: str, t: Loops) -> tuple[str, ...]:
    times = (t.runs.seconds, float(t.runs.each.min()), float(np.median(t.rested)), t.cpu_seconds)
    return (name, *map(seconds_text, times), f"{t.runs.spread:.1%}", str(len(t.runs.each)))


def print_profile(console: Console, profile: Profile) -> None:
    console.print()
    block(console, str(profile.by_task()))
