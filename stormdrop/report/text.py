"""Numbers, schedules and other people's text, as one line shows them.

Names, paths and messages come from users, files and crashed programs: `clean` makes them harmless on any terminal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from stormdrop.base.errors import printable

if TYPE_CHECKING:
    from stormdrop.space.schedule import Schedule

clean = printable


def name_text(name: str, most: int = 60) -> str:
    """Returns a name so that it can be typed again, cut if it is very long."""
    return clean(name if len(name) <= most else f"{name[: most - 1]}…")


def node_text(name: str, most: int = 32) -> str:
    """Returns the name of a node; the beginning of a long path is cut, since its end is distinctive."""
    return clean(name if len(name) <= most else f"…{name[1 - most :]}")


def one_line(text: str, most: int = 200) -> str:
    """Returns a message of any length on one line: white space folded, control characters escaped, the end cut off."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def time_unit(seconds: float) -> tuple[str, float]:
    """Returns the unit that suits a time, and the unit's seconds."""
    return next((u for u in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if seconds >= u[1]), ("ns", 1e-9))


def seconds_text(seconds: float) -> str:
    """Returns a time with three digits or more and a fitting unit: 1.04 ms, 34.7 ms, 125 s."""
    if not math.isfinite(seconds):
        return "unknown"
    unit, scale = time_unit(seconds)
    value = seconds / scale
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def span_text(seconds: float) -> str:
    """Returns a time that a person waits: 0.4 s, 12.3 s, 2:05 min, 1:02:05 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d} h"


def bytes_text(count: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} bytes"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Returns a count with its noun: 1 trial, 2 trials."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def threads_text(threads: int) -> str:
    return counted(threads, "thread")


def budget_text(trials: int | None, seconds: float | None) -> str:
    """Returns the limits of a budget: "at most 9 trials or 30.0 s"; empty if there is no limit."""
    limits = [counted(trials, "trial")] if trials is not None else []
    limits += [span_text(seconds)] if seconds is not None else []
    return f"at most {' or '.join(limits)}" if limits else ""


def expected_text(share: float) -> str:
    """Returns the expected gain: "another minute may gain 0.4%"."""
    return f"another minute may gain {share:.1%}"


def stored_text(path: str | None, not_kept: str) -> str:
    """Returns the path at which trials are kept, or the reason if not all of them are."""
    if not_kept:
        return f"not everything: {one_line(not_kept, 500)}"
    return path or "nothing is kept"


def share_text(gflops: float | None, peak_gflops: float) -> str:
    """Returns a share of the peak such as 76.0%; empty without a peak, and above the peak.

    A nominal rate counts the operations of the direct algorithm, and Winograd's needs fewer.
    """
    return f"{gflops / peak_gflops:.1%}" if gflops is not None and 0 < gflops <= peak_gflops else ""


def speed_text(seconds: float | None, flops: float, peak_gflops: float = 0.0) -> str:
    """Returns a time; with its nominal rate, and its share of the peak, if there are operations to count."""
    if seconds is None:
        return "nothing ran yet"
    parts = [seconds_text(seconds)]
    if flops and seconds > 0:
        rate = flops / seconds / 1e9
        parts.append(f"{rate:.1f} GFLOP/s")
        if share := share_text(rate, peak_gflops):
            parts.append(f"{share} of peak")
    return ", ".join(parts)


def schedule_lines(schedule: Schedule) -> list[str]:
    """Returns the derivation, one step a line, then the knobs of each stage on one line."""
    knobs: dict[str, list[str]] = {}
    for name, value in schedule.values:
        stage, _, rest = name.partition(".")
        knobs.setdefault(stage, []).append(f"{rest}={value}")
    return [*map(str, schedule.steps), *(f"{stage}: {' '.join(values)}" for stage, values in knobs.items())]


def change_text(before: Schedule | None, after: Schedule) -> str:
    """Returns the difference between a schedule and the best before it, on one line: its knobs, or its derivation."""
    if before is None or before.steps != after.steps or before.variant != after.variant:
        steps = " ".join(map(str, after.steps))
        return f"variant {after.variant}: {steps}" if after.variant else steps
    old = before.by_name
    moved = [(name, old.get(name), value) for name, value in after.values if old.get(name) != value]
    return " ".join(f"{name} {was}→{now}" for name, was, now in moved) or "the same, timed again"
