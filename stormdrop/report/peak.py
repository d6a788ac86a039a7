"""The machine's measured limits as a table: what `stormdrop peak` reports."""

from __future__ import annotations

from rich.console import Console

from stormdrop.report.console import heading, print_pairs, print_table
from stormdrop.report.text import bytes_text, threads_text
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
    found = [peak.bandwidth(level, threads) for threads in dict.fromkeys((1, peak.threads)) for level in LEVELS]
    cells = [
        (b.level, str(b.threads), bytes_text(b.footprint_bytes), f"{b.read_gbs:.1f}", f"{b.triad_gbs:.1f}")
        for b in found
    ]
    print_table(console, ("bandwidth, GB/s", "threads", "footprint", "read", "triad"), cells)
