"""This machine for people: its measured limits for `stormdrop peak`, and what `stormdrop doctor` found."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from stormdrop.driver.doctor import Diagnosis
from stormdrop.report.console import heading, print_pairs, print_table
from stormdrop.report.text import bytes_text, clean, threads_text
from stormdrop.runtime.peak import LEVELS, Peak
from stormdrop.target.machine import Target


def print_peak(console: Console, target: Target, peak: Peak) -> None:
    """Multiply-add throughput, then bandwidth by level for one thread and for all."""
    heading(console, f"{target.name}, {target.isa}, {threads_text(peak.threads)}")
    console.print()
    rows = [("one thread", f"{peak.thread_gflops:.1f} GFLOP/s")]
    if peak.threads > 1:
        rows.append((threads_text(peak.threads), f"{peak.gflops:.1f} GFLOP/s"))
    heading(console, "f32 multiply-add")
    print_pairs(console, rows)
    console.print()
    cells: list[tuple[str, ...]] = []
    for b in [peak.bandwidth(level, threads) for threads in dict.fromkeys((1, peak.threads)) for level in LEVELS]:
        size = bytes_text(b.footprint_bytes)
        cells.append((b.level, str(b.threads), size, f"{b.read_gbs:.1f}", f"{b.triad_gbs:.1f}"))
    print_table(console, ("bandwidth, GB/s", "threads", "footprint", "read", "triad"), cells)


def print_diagnosis(console: Console, found: Diagnosis) -> None:
    """One line for each check, and what to do where it failed."""
    width = max(len(check.name) for check in found.checks)
    for check in found.checks:
        mark = Text("ok    " if check.ok else "FAILED", style="green" if check.ok else "bold red")
        console.print(Text.assemble(mark, f"  {check.name:{width}}  {clean(check.detail)}"), soft_wrap=True)
        if check.advice:
            console.print(Text(f"{'':{width + 10}}{check.advice}"), soft_wrap=True)
    console.print()
    broken = sum(not check.ok for check in found.checks)
    if broken:
        heading(console, f"{broken} of {len(found.checks)} checks failed: see the advice above")
    else:
        heading(console, f"everything works, with {threads_text(found.threads)}")
