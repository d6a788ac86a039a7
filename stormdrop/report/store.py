"""Reports about the store: its size, its tasks, the best of one task. The output of `stormdrop store`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from stormdrop.measure.result import Timing
from stormdrop.report.console import block, heading, print_pairs, print_table, say
from stormdrop.report.text import bytes_text, counted, name_text, schedule_lines, seconds_text, speed_text
from stormdrop.store.record import Record
from stormdrop.store.sql.summaries import VerdictSummary
from stormdrop.store.store import CAP_BYTES, Store, Summary
from stormdrop.store.verdict import Verdict

SHORT = 8
OLD_TIMING = ", timing of an earlier version"


def size_of(store: Store, path: Path) -> dict[str, Any]:
    """Returns the bytes of the file, of its write-ahead log and in use; trials and tasks."""
    summaries = store.summaries()
    return {
        "path": str(path),
        "file_bytes": _bytes(path),
        "log_bytes": _bytes(path.with_name(path.name + "-wal")),
        "used_bytes": store.used_bytes if path.exists() else 0,
        "cap_bytes": CAP_BYTES,
        "trials": sum(s.trials for s in summaries),
        "tasks": len({s.digest for s in summaries}),
    }


def _bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def print_size(console: Console, size: dict[str, Any]) -> None:
    rows = [
        ("file", f"{size['path']}, {bytes_text(size['file_bytes'] + size['log_bytes'])}"),
        ("in use", f"{bytes_text(size['used_bytes'])} of at most {bytes_text(size['cap_bytes'])}"),
        ("holds", f"{counted(size['trials'], 'trial')} of {counted(size['tasks'], 'task')}"),
    ]
    print_pairs(console, rows)


def _temperature(cold: bool) -> str:
    return "cold" if cold else "warm"


def _when(created: float) -> str:
    """Returns local time; "?" for a time that a wrong clock or a foreign file made invalid."""
    try:
        return datetime.fromtimestamp(created).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "?"


def _names(s: Summary) -> dict[str, Any]:
    names = {"name": s.name, "digest": s.digest, "class": s.class_key, "target": s.target}
    return {**names, "temperature": _temperature(s.cold)}


def summary_json(s: Summary) -> dict[str, Any]:
    return {
        **_names(s),
        "trials": s.trials,
        "failed": s.failed,
        "seconds": s.seconds,
        "verified": s.verified,
        "gflops": s.gflops,
        "created": s.created,
        "verdict": None if s.verdict is None else {**asdict(s.verdict), "gain": s.verdict.gain},
    }


def print_summaries(console: Console, summaries: Sequence[Summary]) -> None:
    if not summaries:
        say(console, "nothing is known")
        return
    names, figures = ("task", "digest", "class", "target", "temperature"), ("trials", "failed", "best", "GFLOP/s")
    titles = (*names, *figures, "verdict", "when")
    rows = [
        (
            name_text(s.name),
            s.digest[:SHORT],
            s.class_key[:SHORT],
            s.target,
            _temperature(s.cold),
            str(s.trials),
            str(s.failed),
            "" if s.seconds is None else seconds_text(s.seconds) + ("" if s.verified else " ?"),
            "" if s.gflops is None else f"{s.gflops:.1f}",
            _decided(s.verdict),
            _when(s.created),
        )
        for s in summaries
    ]
    print_table(console, titles, rows, words=(0, 1, 2, 3, 4, 9, 10))
    if any(s.seconds is not None and not s.verified for s in summaries):
        say(console, "?: a single trial, not timed again and compared with the reference in a fresh process")


def _decided(verdict: VerdictSummary | None) -> str:
    """Returns the method of the decision and its gain; the incumbent (a verdict's or the default schedule) may have
    stayed.

    The timing may be older than the code. Without a verdict `compile` uses the default schedule.
    """
    if verdict is None:
        return ""
    outcome = f"{verdict.gain:.2f}x" if verdict.is_change else "incumbent stays"
    return f"{verdict.method}, {outcome}{OLD_TIMING if verdict.is_timing_old else ''}"


def best_json(summary: Summary, record: Record, verdict: Verdict | None) -> dict[str, Any]:
    assert isinstance(record.result, Timing)
    timing = record.result
    return {
        **_names(summary),
        "seconds": timing.seconds,
        "gflops": summary.flops / timing.seconds / 1e9 if summary.flops else None,
        "verified": record.verified,
        "spread": timing.spread,
        "runs": timing.runs,
        "build_seconds": timing.build_seconds,
        **{name: getattr(record, name) for name in ("strategy", "seed", "number", "elapsed", "model", "created")},
        "versions": asdict(record.versions),
        "trials": summary.trials,
        "failed": summary.failed,
        "schedule": record.schedule.to_json(),
        "verdict": None if verdict is None else _verdict_json(verdict),
    }


def _verdict_json(v: Verdict) -> dict[str, Any]:
    named = ("seconds", "against_seconds", "method", "rounds", "proof", "provenance", "is_timing_old", "created")
    schedules = {"schedule": v.schedule.to_json(), "against": v.against.to_json()}
    return {**schedules, **{name: getattr(v, name) for name in named}, "versions": asdict(v.versions)}


def print_bests(console: Console, results: Sequence[tuple[Summary, Record, Verdict | None]]) -> None:
    """Prints the best record of each task, with an empty line between tasks."""
    for number, result in enumerate(results):
        if number:
            console.print()
        print_best(console, *result)


def print_best(console: Console, summary: Summary, record: Record, verdict: Verdict | None) -> None:
    """Prints the schedule, its figures, and the verdict; the verdict's schedule only if it is a different schedule."""
    assert isinstance(record.result, Timing)
    timing = record.result
    heading(console, f"{summary.name} on {summary.target}, {_temperature(summary.cold)}")
    console.print()
    heading(console, "schedule")
    block(console, "\n".join(f"  {line}" for line in schedule_lines(record.schedule)))
    console.print()
    proof = "timed again in a fresh process and compared with the reference there" if record.verified else "no, a trial"
    speed, runs = speed_text(timing.seconds, summary.flops), counted(timing.runs, "run")
    trial = f"seed {record.seed}, trial {record.number} of {summary.trials} known"
    versions = f"Stormdrop {record.versions.stormdrop} with LLVM {record.versions.llvm}"
    rows = [
        ("time", f"{speed}; {runs}, spread {timing.spread:.1%}"),
        ("verified", proof),
        ("found by", f"{record.strategy or 'unknown search'}, {trial}; {summary.failed} failed"),
        ("measured", f"{_when(record.created)} by {versions}"),
        ("digest", f"{summary.digest}, class {summary.class_key}"),
    ]
    if record.model:
        rows.insert(3, ("model", record.model))
    print_pairs(console, rows)
    console.print()
    heading(console, "verdict")
    if verdict is None:
        say(console, "none: nothing was decided, `compile` takes the default")
        return
    is_change = verdict.schedule != verdict.against
    against = "against another schedule, the incumbent" if is_change else "the incumbent stayed"
    versions = f"Stormdrop {verdict.versions.stormdrop} with LLVM {verdict.versions.llvm}"
    rows = [
        ("time", seconds_text(verdict.seconds) + (OLD_TIMING if verdict.is_timing_old else "")),
        ("decided by", f"{verdict.method}, {against}; {counted(verdict.rounds, 'round')}"),
        ("proof", verdict.proof),
        ("decided", f"{_when(verdict.created)} by {versions}"),
    ]
    if is_change:
        gain = f"{verdict.against_seconds / verdict.seconds:.2f}x"
        rows.insert(1, ("incumbent", f"{seconds_text(verdict.against_seconds)}: {gain} in turns"))
    print_pairs(console, rows)
    if verdict.schedule != record.schedule:
        block(console, "\n".join(f"  {line}" for line in schedule_lines(verdict.schedule)))
