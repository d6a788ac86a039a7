"""A model beside another runtime, for `stormdrop check` and `bench`: errors of its outputs, times of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from stormdrop.compare.oracle import Agreement
from stormdrop.measure.stopwatch import Runs
from stormdrop.report.console import block, heading, print_pairs, print_table
from stormdrop.report.model import finite, shape_text
from stormdrop.report.text import counted, name_text, seconds_text, threads_text
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


def speedup_of(times: Mapping[str, Runs]) -> float | None:
    """How many times as fast as the peer, by medians."""
    peer = next((name for name in times if name != "stormdrop"), None)
    return None if peer is None else times[peer].seconds / times["stormdrop"].seconds


def bench_json(model: str, threads: int, times: Mapping[str, Runs]) -> dict[str, Any]:
    tree: dict[str, Any] = {"model": model, "threads": threads}
    tree |= {name: {"median_seconds": r.seconds, "min_seconds": float(r.each.min())} for name, r in times.items()}
    speedup = speedup_of(times)
    return tree if speedup is None else tree | {"speedup": speedup}


def print_bench(
    console: Console, model: str, threads: int, times: Mapping[str, Runs], settings: Mapping[str, str]
) -> None:
    heading(console, f"{model}, {threads_text(threads)}")
    cells: list[tuple[str, ...]] = []
    for name, r in times.items():
        median, least = seconds_text(r.seconds), seconds_text(float(r.each.min()))
        cells.append((name, median, least, f"{r.spread:.1%}", str(len(r.each)), f"{1 / r.seconds:.1f}"))
    print_table(console, ("", "median", "min", "spread", "runs", "runs/s"), cells)
    console.print()
    speedup = speedup_of(times)
    rows = [("speedup", f"{speedup:.2f}x, by medians")] if speedup is not None else []
    print_pairs(console, [*rows, *settings.items()])


def print_profile(console: Console, profile: Profile) -> None:
    console.print()
    block(console, str(profile.by_task()))
