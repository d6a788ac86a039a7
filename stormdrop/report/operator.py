"""One kernel, tuned or by default, timed beside the machine's peak: what `stormdrop op` reports."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from stormdrop.codegen.emit import emit
from stormdrop.codegen.llvm import assembly
from stormdrop.errors import RunError
from stormdrop.ir.tensor import Task
from stormdrop.lower.program import Program
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure
from stormdrop.measure.settings import MeasureSettings
from stormdrop.report.console import block, heading, notes, print_pairs, print_table, seconds_text, threads_text
from stormdrop.report.executed import executed_flops
from stormdrop.report.progress import TuningProgress
from stormdrop.runtime.artifact import program_of
from stormdrop.runtime.pool import shared_pool
from stormdrop.search.tune import ROUNDS, Event, Retiming, RoundEnded, Trial, Tuned, tune
from stormdrop.space.default import default_schedule, ranked
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import sketches
from stormdrop.target.machine import Target
from stormdrop.target.peak import PeakMeter

STEADY = 0.9  # a machine to itself keeps its peak within a few percent


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """A measured kernel. Nominal rates count the direct algorithm's operations; executed ones what the program really does."""

    op: str
    args: tuple[int, ...]
    task: Task
    target: Target
    peak_gflops: float
    tuned: Tuned
    program: Program
    is_default: bool

    @property
    def gflops(self) -> float:
        return self.task.flops / self.tuned.seconds / 1e9

    @property
    def executed_gflops(self) -> float:
        return executed_flops(self.program) / self.tuned.seconds / 1e9

    @property
    def share_of_peak(self) -> float:
        return self.gflops / self.peak_gflops

    def to_json(self) -> dict[str, object]:
        return {
            "op": self.op,
            "args": list(self.args),
            "threads": self.target.threads,
            "peak_gflops": self.peak_gflops,
            "trials": self.tuned.trials,
            "failed": self.tuned.failed,
            "tuning_seconds": self.tuned.tuning_seconds,
            "median_build_seconds": self.tuned.median_build_seconds,
            "best": {
                "seconds": self.tuned.seconds,
                "gflops": self.gflops,
                "executed_gflops": self.executed_gflops,
                "share_of_peak": self.share_of_peak,
                "schedule": self.tuned.best.to_json(),
            },
        }


def measure_operator(op: str, args: Sequence[int], task: Task, target: Target, trials: int | None, seed: int) -> OperatorReport:
    """Tune a task, or (`trials` None) time its default schedule; the peak is timed before, after, and between the rounds.

    Raises RunError if no candidate could be timed.
    """
    meter = PeakMeter(target, shared_pool(target.threads))
    peaks = [meter.gflops()]
    with Measurer(target, MeasureSettings(threads=target.threads, seed=seed)) as measurer, TuningProgress(task.flops) as progress:

        def listen(event: Event) -> None:
            progress(event)
            if isinstance(event, (RoundEnded, Retiming)):
                peaks.append(meter.gflops())

        if trials is None:
            tuned = _time_default(task, target, measurer)
        else:
            tuned = tune(task, target, measurer, trials, seed, listen)
    peaks.append(meter.gflops())
    if min(peaks) < STEADY * max(peaks):
        notes().print(f"the peak moved between {min(peaks):.0f} and {max(peaks):.0f} GFLOP/s: is something else running here?")
    program = program_of(task, tuned.best, target)
    return OperatorReport(op, tuple(args), task, target, max(peaks), tuned, program, trials is None)


def _time_default(task: Task, target: Target, measurer: Measurer) -> Tuned:
    began = time.perf_counter()
    schedule = default_schedule(task, target)
    notes().print(f"timing the default schedule of {task.name}")
    result = measurer.retime(task, [schedule], ROUNDS)[0]
    if isinstance(result, Failure):
        raise RunError(f"{task.name}: the default schedule could not be timed: {result}")
    spent = time.perf_counter() - began
    return Tuned(schedule, result.seconds, 1, 0, spent, result.build_seconds, (Trial(schedule, result),))


def print_operator(console: Console, report: OperatorReport, show: Sequence[str]) -> None:
    """The report for a person; `show` names the parts that follow the figures."""
    task, target, tuned = report.task, report.target, report.tuned
    heading(console, f"{task.name} on {target.name}, {target.isa}, {threads_text(target.threads)}")
    console.print()
    if "sketches" in show:
        print_sketches(console, task, target)
    heading(console, "schedule")
    block(console, "\n".join(f"  {line}" for line in schedule_lines(tuned.best)))
    console.print()
    for name, text in _code(report, show):
        heading(console, name)
        block(console, text.rstrip())
        console.print()
    print_pairs(console, _figures(report))


def _code(report: OperatorReport, show: Sequence[str]) -> list[tuple[str, str]]:
    sections: list[tuple[str, str]] = []
    if "loops" in show or not show:
        sections.append(("loop program", "\n".join(f"  {line}" for line in str(report.program).splitlines())))
    if "llvm" in show:
        sections.append(("LLVM IR", emit(report.program, report.target)))
    if "asm" in show:
        sections.append(("assembly", assembly(emit(report.program, report.target), report.target)))
    return sections


def _figures(report: OperatorReport) -> list[tuple[str, str]]:
    task, tuned, peak = report.task, report.tuned, report.peak_gflops
    rows = [("time", f"{seconds_text(tuned.seconds)} with {threads_text(report.target.threads)}")]
    if task.flops:
        rows.append(("nominal", f"{report.gflops:.1f} GFLOP/s, {report.share_of_peak:.1%} of peak"))
        rows.append(("executed", f"{report.executed_gflops:.1f} GFLOP/s, {report.executed_gflops / peak:.1%} of peak"))
    rows.append(("peak", f"{peak:.1f} GFLOP/s f32 multiply-add, timed in this run"))
    rows.append(("memory", f"{task.minimal_bytes / tuned.seconds / 1e9:.1f} GB/s, each input read and each output written once"))
    build = f"median build {seconds_text(tuned.median_build_seconds)}"
    if report.is_default:
        rows.append(("search", f"none: the analytic default; build {seconds_text(tuned.median_build_seconds)}"))
    else:
        rows.append(("search", f"{tuned.trials} trials, {tuned.failed} failed, {seconds_text(tuned.tuning_seconds)}; {build}"))
    failures = [t.result for t in tuned.history if isinstance(t.result, Failure)]
    if failures:
        rows.append(("first failure", str(failures[0])))
    return rows


def print_sketches(console: Console, task: Task, target: Target) -> None:
    """Every sketch with what the prior expects of its best point."""
    heading(console, "sketches, by what the analytic prior expects of their best point")
    cells = [
        (
            str(k),
            seconds_text(seconds),
            str(len(sketch.knobs)),
            task.variants[sketch.variant].name,
            " ".join(map(str, sketch.structure.steps)),
        )
        for k, (sketch, _, seconds) in enumerate(ranked(sketches(task, target)))
    ]
    print_table(console, ("#", "expected", "knobs", "variant", "derivation"), cells, words=(3, 4))
    console.print()


def schedule_lines(schedule: Schedule) -> list[str]:
    """The derivation, one step a line, then the knobs of each stage on one line."""
    knobs: dict[str, list[str]] = {}
    for name, value in schedule.values:
        stage, _, rest = name.partition(".")
        knobs.setdefault(stage, []).append(f"{rest}={value}")
    return [*map(str, schedule.steps), *(f"{stage}: {' '.join(values)}" for stage, values in knobs.items())]
