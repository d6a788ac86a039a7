"""Reports about this machine: the results of `stormdrop peak`, `stormdrop calibrate` and `stormdrop doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from stormdrop.device.peak import LEVELS, Peak
from stormdrop.doctor.calibrate import Calibration
from stormdrop.doctor.doctor import Diagnosis
from stormdrop.report.console import heading, print_pairs, print_table, say
from stormdrop.report.text import bytes_text, clean, threads_text
from stormdrop.target.coefficients import FITTED
from stormdrop.target.machine import Target

if TYPE_CHECKING:
    from stormdrop.device.cuda.peak import GpuPeak


def print_peak(console: Console, target: Target, peak: Peak) -> None:
    """Prints multiply-add throughput, then bandwidth by level for one thread and for all threads."""
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


def print_calibration(console: Console, calibration: Calibration) -> None:
    """Prints rates and coefficients of the estimate, nominal and now; then models by default schedules, before and
    after.
    """
    before, after = calibration.nominal, calibration.calibrated
    heading(console, f"{before.name}, {before.isa}, {threads_text(before.threads)}")
    console.print()
    rates = {"GFLOP/s of a core": "peak_gflops", "L2, GB/s of a core": "l2_gbs", "L3, GB/s": "l3_gbs"}
    rates["memory, GB/s"] = "dram_gbs"
    cells = [(text, *(f"{getattr(t, name):.4g}" for t in (before, after))) for text, name in rates.items()]
    print_table(console, ("rate", "nominal", "measured"), cells)
    console.print()
    both = before.coefficients, after.coefficients
    cells = [(name.replace("_", " "), *(f"{getattr(c, name):.3g}" for c in both)) for name in FITTED]
    print_table(console, ("coefficient", "nominal", "now"), cells)
    say(console, f"coefficients are {calibration.coefficients_reason}")
    if calibration.fit is not None:
        f = calibration.fit
        text = f"tasks left out of the fit: error {f.error_before:.3f} before, {f.error_after:.3f} after"
        say(console, f"{text}; the best by estimate is {f.regret_before:.1%}, {f.regret_after:.1%} behind the fastest")
    timed: list[tuple[str, ...]] = []
    if calibration.models:
        console.print()
        for m in calibration.models:
            times = m.nominal_seconds, m.calibrated_seconds
            row = (f"{s * 1e3:.3f}" for s in times)
            timed.append((m.model, f"{m.changed} of {m.tasks}", *row, f"{times[0] / times[1]:.2f}"))
        names = ("default schedules", "changed", "ms before", "ms after", "times faster")
        print_table(console, names, timed)


def print_gpu_peak(console: Console, target: Target, peak: GpuPeak) -> None:
    """Prints multiply-add throughput, bandwidth by level, and the cost of a launch."""
    heading(console, f"{target.name}, {target.isa}, {target.units}")
    console.print()
    heading(console, "f32 multiply-add")
    print_pairs(console, [("all multiprocessors", f"{peak.gflops / 1e3:.1f} TFLOP/s")])
    console.print()
    heading(console, "bf16 matrix instructions (mma.sync)")
    print_pairs(console, [("all multiprocessors", f"{peak.matrix_gflops / 1e3:.0f} TFLOP/s")])
    console.print()
    rates = (("shared memory", peak.shared_gbs), ("L2", peak.l2_gbs), ("DRAM", peak.dram_gbs))
    print_table(console, ("bandwidth, GB/s", "read"), [(level, f"{rate:.0f}") for level, rate in rates])
    console.print()
    heading(console, "launches")
    rows = [("a kernel of a graph", peak.kernel_gap_seconds), ("a graph, from the host", peak.launch_seconds)]
    print_pairs(console, [(what, f"{1e6 * seconds:.2f} µs") for what, seconds in rows])


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Prints one line for each check, and the remedy if it failed."""
    width = max(len(check.name) for check in diagnosis.checks)
    for check in diagnosis.checks:
        mark = Text("ok    " if check.ok else "FAILED", style="green" if check.ok else "bold red")
        console.print(Text.assemble(mark, f"  {check.name:{width}}  {clean(check.detail)}"), soft_wrap=True)
        if check.advice:
            console.print(Text(f"{'':{width + 10}}{check.advice}"), soft_wrap=True)
    console.print()
    broken = sum(not check.ok for check in diagnosis.checks)
    if broken:
        heading(console, f"{broken} of {len(diagnosis.checks)} checks failed: see the advice above")
    else:
        heading(console, f"everything works, with {threads_text(diagnosis.threads)}")
