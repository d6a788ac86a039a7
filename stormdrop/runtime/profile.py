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
class ProfileRow:
    """One kernel of the model, or `count` equal ones together. `share` is of the sum of all rows."""

    label: str
    digest: str
    count: int
    seconds: float
    share: float = 0.0
    flops: float = 0.0
    nbytes: int = 0
    gflops: float = 0.0
    gbs: float = 0.0
    peak_share: float = 0.0
    standalone: float | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """A profiled model. `seconds` is the median of its whole runs, `peak_gflops` that of all its threads, in f32."""

    name: str
    threads: int
    repeats: int
    seconds: float
    peak_gflops: float
    rows: tuple[ProfileRow, ...]

    def by_task(self) -> Profile:
        """Rows of equal tasks added up under the first one's label, the most expensive first."""
        found: dict[str, list[ProfileRow]] = {}
        for row in self.rows:
            found.setdefault(row.digest, []).append(row)
        total = sum(row.seconds for row in self.rows)
        rows = [_together(same, total, self.peak_gflops) for same in found.values()]
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
    calls: Sequence[KernelCall],
    seconds: Seconds,
    peak_gflops: float,
    standalone: Sequence[float] | None = None,
) -> Profile:
    """The profile of measured seconds by run and call."""
    each = np.median(seconds, axis=0) if len(seconds) else np.zeros(len(calls))
    whole = float(np.median(seconds.sum(axis=1))) if len(seconds) else 0.0
    total = float(each.sum())
    alone = standalone or [None] * len(calls)
    rows = [
        _rated(
            ProfileRow(s.label, s.digest, 1, float(t), flops=s.flops, nbytes=s.nbytes, standalone=x), total, peak_gflops
        )
        for s, t, x in zip(calls, each, alone)
    ]
    return Profile(name, threads, len(seconds), whole, peak_gflops, tuple(rows))


def _rated(row: ProfileRow, total: float, peak_gflops: float) -> ProfileRow:
    """The row with its rates and shares; `total` is the seconds of all rows."""
    gflops, gbs = (row.flops / row.seconds / 1e9, row.nbytes / row.seconds / 1e9) if row.seconds > 0 else (0.0, 0.0)
    share, peak_share = row.seconds / total if total > 0 else 0.0, gflops / peak_gflops if peak_gflops > 0 else 0.0
    return replace(row, share=share, gflops=gflops, gbs=gbs, peak_share=peak_share)


def _together(rows: Sequence[ProfileRow], total: float, peak_gflops: float) -> ProfileRow:
    alone = [row.standalone for row in rows if row.standalone is not None]
    row = replace(
        rows[0],
        count=sum(row.count for row in rows),
        seconds=sum(row.seconds for row in rows),
        flops=sum(row.flops for row in rows),
        nbytes=sum(row.nbytes for row in rows),
        standalone=sum(alone) if alone else None,
    )
    return _rated(row, total, peak_gflops)


def _cells(row: ProfileRow, alone: bool) -> list[str]:
    rate = [f"{row.gflops:.1f}", f"{row.peak_share:.1%}"] if row.flops else ["", ""]
    standalone = "" if row.standalone is None else f"{row.standalone * 1e6:.2f}"
    cells = [f"{row.seconds * 1e6:.2f}", f"{row.share:.1%}", *([standalone] if alone else []), *rate]
    return [*cells, f"{row.gbs:.1f}" if row.nbytes else "", str(row.count), _printable(row.label)]


def _printable(text: str) -> str:
    """Names come from model files; control characters among them must not reach a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]
