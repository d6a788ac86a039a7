"""A model beside another runtime, for `stormdrop check` and `bench`: errors of its outputs, times of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from stormdrop.compare.exact import CheckedOutput, ExactErrors
from stormdrop.compare.oracle import ABSOLUTE
from stormdrop.compare.steady import Loops
from stormdrop.ir.shape import shape_text
from stormdrop.model.profile import WORDS, Profile
from stormdrop.report.console import block, heading, print_pairs, print_table
from stormdrop.report.model_reports import finite
from stormdrop.report.text import counted, name_text, seconds_text

SPARE = ("of memory", "GB/s", "of peak", "GFLOP/s", "off", "waiting", "late", "from", "shapes", "kernel")
"""Columns of a profile that a narrow terminal does without, the first of these first."""


def check_json(checked: Sequence[CheckedOutput], tolerance: float, allowed: float = ABSOLUTE) -> dict[str, Any]:
    """Returns the result of a comparison.

    Errors are None if outputs cannot be compared: other shapes or types, or NaNs at different positions. `f64` is None
    unless the f64 reference was computed. `rounding_change` is the change of the f64 reference by one rounding of every
    value, or of the peer by one rounding of the inputs. It is a relative error for floats, the largest difference for
    integers.
    """
    outputs = [
        {
            "name": c.agreement.name,
            "shape": list(c.agreement.shape),
            "dtype": c.agreement.dtype,
            "absolute_error": finite(c.agreement.absolute),
            "relative_error": finite(c.agreement.relative),
            "ok": c.ok,
            "result": c.conclusion,
            "rounding_change": finite(c.exact.rounding[0]) if c.exact is not None and c.exact.rounding else None,
            "f64": _exact_json(c.exact) if c.exact is not None and c.exact.is_f64 else None,
        }
        for c in checked
    ]
    ok = all(c.ok for c in checked)
    return {"tolerance": tolerance, "absolute_tolerance": allowed, "ok": ok, "outputs": outputs}


def _exact_json(exact: ExactErrors) -> dict[str, float | None]:
    return {
        "absolute_error": finite(exact.ours.absolute),
        "relative_error": finite(exact.ours.relative),
        "peer_absolute_error": finite(exact.peer.absolute),
        "peer_relative_error": finite(exact.peer.relative),
    }


def print_check(console: Console, model: str, against: str, checked: Sequence[CheckedOutput], inputs: str) -> None:
    """Prints the result of a comparison; `against` is the peer's name, perhaps with its version."""
    peer = against.rpartition(" ")[0] if against[-1:].isdigit() else against
    has_exact = any(c.exact is not None and c.exact.is_f64 for c in checked)
    has_rounding = any(c.exact is not None for c in checked)
    heading(console, f"{model} on {inputs}, against {against}")
    titles = ("output", "type", "shape", "largest error", "of magnitude", "allowed")
    exact_titles = (*(("off f64", f"{peer} off f64") if has_exact else ()), *(("by rounding",) if has_rounding else ()))
    rows = [_check_row(c, peer, len(exact_titles)) for c in checked]
    result = len(titles) + len(exact_titles)
    print_table(console, (*titles, *exact_titles, "result"), rows, words=(0, 1, 2, result))
    console.print()
    least = checked[0].agreement.allowed if checked else ABSOLUTE
    legend = f"of magnitude: the largest error over the largest element; an error up to {least:.0e} is always right"
    rounded = F64_LEGEND if has_exact else f"by rounding: the change of {peer}'s output if the inputs are rounded once"
    block(console, f"{legend}\n{rounded}" if has_rounding else legend)
    wrong, outputs = sum(not c.ok for c in checked), counted(len(checked), "output")
    not_right = sum(c.conclusion != "right" for c in checked)
    proved = f"{wrong} of {outputs} too far off" if wrong else f"nothing wrong: {outputs}, {not_right} off {peer}'s"
    heading(console, proved if not_right else f"all right: {outputs}")


F64_LEGEND = "off f64: the same against the reference in f64; by rounding: its change if every value is rounded"


def _check_row(c: CheckedOutput, peer: str, exact_cells: int) -> tuple[str, ...]:
    a = c.agreement
    cells = (name_text(a.name), a.dtype, shape_text(a.shape), _error(a.absolute), _error(a.relative))
    results = {"right": "ok", "peer less exact": f"{peer} is less exact", "wrong": "WRONG"}
    return (
        *cells,
        "equal" if a.is_exact else f"{a.tolerance:.0e}",
        *(_exact_cells(c.exact)[3 - exact_cells :] if exact_cells else ()),
        results.get(c.conclusion, c.conclusion),
    )


def _exact_cells(exact: ExactErrors | None) -> tuple[str, str, str]:
    if exact is None:
        return "", "", ""
    rounding = "" if exact.rounding is None else f"{exact.rounding[0]:.1e}"
    return _error(exact.ours.relative), _error(exact.peer.relative), rounding


def _error(x: float) -> str:
    return f"{x:.1e}" if finite(x) is not None else "not comparable"


Times = Mapping[str, Loops]
"""The times of each side, by name."""


def speedup_of(times: Times) -> float | None:
    """Returns the speedup over the peer, by medians."""
    peer = next((name for name in times if name != "stormdrop"), None)
    return None if peer is None else times[peer].runs.seconds / times["stormdrop"].runs.seconds


def bench_json(model: str, threads: int, times: Times, busy: Mapping[int, Times]) -> dict[str, Any]:
    """Returns the times; `busy` has the times beside different numbers of busy CPUs."""
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
    """Prints equal kernels as one row. A narrow terminal shows fewer figures, then no shapes."""
    console.print()
    by_task = profile.by_task()
    headings, rows = by_task.table()
    words = [headings.index(name) for name in headings if name in WORDS]
    spare = [headings.index(name) for name in SPARE if name in headings]
    heading(console, by_task.title)
    print_table(console, headings, rows, words, spare)
