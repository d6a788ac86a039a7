"""Where a model's time goes: the seconds of each kernel inside the running model.

    profile = model.profile(x)
    print(profile)                 # kernels in the order they run
    print(profile.by_task())       # equal kernels together, the most expensive first

A kernel's time is the median over whole runs of the model, from the end of the step before it to its own end on all
threads. `standalone` is its median when it is run alone again and again, its weights as cold as in the model: the
difference is what kernels cost each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stormdrop.runtime.image import KernelCall

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel of the model, or `count` equal ones together. `share` is of the sum of all rows."""

    label: str
    digest: str
    count: int
    seconds: float
    share: float
    flops: float
    nbytes: int
    gflops: float
    gbs: float
    peak_share: float
    standalone: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """A profiled model. `seconds` is the median of its whole runs, `peak_gflops` that of all its threads, in f32."""

    name: str
    threads: int
    repeats: int
    seconds: float
    peak_gflops: float
    rows: tuple[Row, ...]

    def by_task(self) -> Profile:
        """Rows of equal tasks added up under the first one's label, the most expensive first."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.digest, []).append(row)
        rows = [_together(same, self.peak_gflops) for same in found.values()]
        return replace(self, rows=tuple(sorted(rows, key=lambda row: -row.seconds)))

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        count = sum(row.count for row in self.rows)
        title = (
            f"{_printable(self.name)}: {self.seconds * 1e3:.3f} ms, {count} kernel{'s' if count != 1 else ''}, "
            f"{self.threads} thread{'s' if self.threads != 1 else ''}, peak {self.peak_gflops:.0f} GFLOP/s"
        )
        alone = any(row.standalone is not None for row in self.rows)
        head = ["µs", "share", *(["alone µs"] if alone else []), "GFLOP/s", "of peak", "GB/s", "count", "kernel"]
        table = [head, *(_cells(row, alone) for row in self.rows)]
        widths = [max(len(line[c]) for line in table) for c in range(len(head) - 1)]
        lines = ["  ".join([*(cell.rjust(w) for cell, w in zip(line, widths)), line[-1]]) for line in table]
        return "\n".join([title, *lines])


def profile_of(
    name: str,
    threads: int,
    steps: Sequence[KernelCall],
    seconds: Seconds,
    peak_gflops: float,
    standalone: Sequence[float] | None = None,
) -> Profile:
    """The profile of measured seconds by run and step."""
    each = np.median(seconds, axis=0) if len(seconds) else np.zeros(len(steps))
    whole = float(np.median(seconds.sum(axis=1))) if len(seconds) else 0.0
    total = float(each.sum())
    rows = [
        _row(
            step.label,
            step.digest,
            1,
            float(t),
            total,
            step.flops,
            step.nbytes,
            peak_gflops,
            standalone[k] if standalone else None,
        )
        for k, (step, t) in enumerate(zip(steps, each))
    ]
    return Profile(name, threads, len(seconds), whole, peak_gflops, tuple(rows))


def _row(
    label: str,
    digest: str,
    count: int,
    seconds: float,
    total: float,
    flops: float,
    nbytes: int,
    peak_gflops: float,
    standalone: float | None,
) -> Row:
    gflops, gbs = (flops / seconds / 1e9, nbytes / seconds / 1e9) if seconds > 0 else (0.0, 0.0)
    share, peak_share = seconds / total if total > 0 else 0.0, gflops / peak_gflops if peak_gflops > 0 else 0.0
    return Row(label, digest, count, seconds, share, flops, nbytes, gflops, gbs, peak_share, standalone)


def _together(rows: Sequence[Row], peak_gflops: float) -> Row:
    first, seconds = rows[0], sum(row.seconds for row in rows)
    total = seconds / share if (share := sum(row.share for row in rows)) > 0 else 0.0
    alone = [row.standalone for row in rows if row.standalone is not None]
    return _row(
        first.label,
        first.digest,
        sum(row.count for row in rows),
        seconds,
        total,
        sum(row.flops for row in rows),
        sum(row.nbytes for row in rows),
        peak_gflops,
        sum(alone) if alone else None,
    )


def _cells(row: Row, alone: bool) -> list[str]:
    rate = [f"{row.gflops:.1f}", f"{row.peak_share:.1%}"] if row.flops else ["", ""]
    standalone = "" if row.standalone is None else f"{row.standalone * 1e6:.2f}"
    cells = [f"{row.seconds * 1e6:.2f}", f"{row.share:.1%}", *([standalone] if alone else []), *rate]
    return [*cells, f"{row.gbs:.1f}" if row.nbytes else "", str(row.count), _printable(row.label)]


def _printable(text: str) -> str:
    """Names come from model files; control characters among them must not reach a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]
