"""The report of `stormdrop op` for a person: schedule, code, figures, and how the search went."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rich.console import Console

from stormdrop.builder.building import code_text
from stormdrop.ir.tensor import Task
from stormdrop.lower.program import Program
from stormdrop.measure.result import Timing
from stormdrop.report.console import block, heading, print_pairs, print_table
from stormdrop.report.search_result import next_step, search_rows
from stormdrop.report.text import one_line, schedule_lines, seconds_text, span_text, speed_text
from stormdrop.space.default import ranked
from stormdrop.space.rules import Rule
from stormdrop.space.sketch import sketches
from stormdrop.store.record import DEFAULT, Record
from stormdrop.target.machine import Target
from stormdrop.tuning.curve import first_reaching, improvements, trials_per_second
from stormdrop.tuning.operator import OperatorReport, OperatorSearch

COMPARED_QUALITY = 0.95


def known_text(best: Record, task: Task, peak_gflops: float) -> str:
    """Returns the store's best result for a task that is about to be searched."""
    assert isinstance(best.result, Timing)
    speed = speed_text(best.result.seconds, task.flops, peak_gflops)
    by = f", found by {one_line(best.strategy)}" if best.strategy else ""
    by = ", the default schedule" if best.strategy == DEFAULT else by
    return f"{task.name} is in the store, at {speed}{by}; the search begins from it"


def print_operator(console: Console, report: OperatorReport, show: Sequence[str]) -> None:
    """Prints the whole report; `show` names the parts that precede the figures."""
    task, target, best = report.plan.task, report.plan.target, report.best
    heading(console, f"{task.name} on {target.name}, {target.isa}, {target.units}")
    console.print()
    if "sketches" in show:
        print_sketches(console, task, target, report.plan.rules)
        console.print()
    heading(console, f"schedule, the best, found by {best.tuned.strategy}" if report.is_comparison else "schedule")
    block(console, "\n".join(f"  {line}" for line in schedule_lines(best.tuned.best)))
    console.print()
    for name, text in code_sections(best.program, target, show or ("loops",)):
        heading(console, name)
        block(console, text.rstrip())
        console.print()
    if report.is_comparison:
        print_comparison(console, report)
    print_pairs(console, [*_figures(report), *_search(report)])


def code_sections(program: Program, target: Target, show: Collection[str]) -> list[tuple[str, str]]:
    """Returns title and text of the requested forms of a kernel: loops, llvm, asm."""
    sections: list[tuple[str, str]] = []
    if "loops" in show:
        loops = code_text(program, target, "loops")
        sections.append(("loop program", "\n".join(f"  {line}" for line in loops.splitlines())))
    if "llvm" in show:
        sections.append(("LLVM IR", code_text(program, target, "ir")))
    if "asm" in show:
        sections.append(("assembly", code_text(program, target, "asm")))
    return sections


def _figures(report: OperatorReport) -> list[tuple[str, str]]:
    task, best, peak = report.plan.task, report.best, report.peak_gflops
    seconds = best.tuned.seconds
    rows = [("time", f"{seconds_text(seconds)} with {report.plan.target.units}")]
    if task.flops:
        for name, gflops in (("nominal", best.tuned.gflops), ("executed", best.executed_gflops)):
            rows.append((name, f"{gflops:.1f} GFLOP/s, {gflops / peak:.1%} of peak"))
    rows.append(("peak", f"{peak:.1f} GFLOP/s f32 multiply-add, timed in this run"))
    bandwidth = f"{task.minimal_bytes / seconds / 1e9:.1f} GB/s"
    rows.append(("memory", f"{bandwidth}, each input read and each output written once"))
    return rows


def _search(report: OperatorReport) -> list[tuple[str, str]]:
    tuned = report.best.tuned
    if not report.plan.searches:
        return [("search", f"none: the analytic default; build {seconds_text(tuned.median_build_seconds)}")]
    advice = next_step(tuned, report.best.stored is not None)
    return search_rows(tuned, report.best.stored) + ([("next", advice)] if advice else [])


def print_comparison(console: Console, report: OperatorReport) -> None:
    """Prints one line for each search. All began with nothing; each was timed at a different moment."""
    heading(console, "searches, one after the other, each from nothing")
    has_rate = report.plan.task.flops > 0
    names = ["search", "best", *(["of peak"] if has_rate else [])]
    names += ["trials", "failed", "trials/s", "spent", f"{COMPARED_QUALITY:.0%} at", "ended"]
    cells = [_compared(search, report.peak_gflops, has_rate) for search in report.searches]
    print_table(console, names, cells, words=(0, len(names) - 1))
    console.print()


def _compared(search: OperatorSearch, peak_gflops: float, has_rate: bool) -> list[str]:
    tuned = search.tuned
    near = first_reaching(improvements(tuned.history), COMPARED_QUALITY)
    return [
        tuned.strategy,
        seconds_text(tuned.seconds),
        *([f"{tuned.gflops / peak_gflops:.1%}"] if has_rate else []),
        str(tuned.trials),
        str(tuned.failed),
        f"{trials_per_second(tuned):.1f}",
        span_text(tuned.tuning_seconds),
        f"{near.trial} ({span_text(near.elapsed)})" if near is not None else "",
        tuned.stopped,
    ]


def print_sketches(console: Console, task: Task, target: Target, rules: Sequence[Rule]) -> None:
    """Prints every sketch that rules derive, with the prior's expectation of its best point."""
    heading(console, "sketches, by what the analytic prior expects of their best point")
    cells = [
        (str(k), seconds_text(s["expected_seconds"]), str(s["knobs"]), s["variant"], s["derivation"])
        for k, s in enumerate(sketches_json(task, target, rules))
    ]
    print_table(console, ("#", "expected", "knobs", "variant", "derivation"), cells, words=(3, 4))


def sketches_json(task: Task, target: Target, rules: Sequence[Rule]) -> list[dict[str, Any]]:
    return [
        {
            "expected_seconds": seconds,
            "knobs": len(s.knobs),
            "variant": task.variants[s.variant].name,
            "derivation": " ".join(map(str, s.structure.steps)),
        }
        for s, _, seconds in ranked(sketches(task, target, rules))
    ]
