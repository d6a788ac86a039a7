"""Where a model's time goes: the seconds of each kernel inside the running model.

    profile = model.profile(x)
    print(profile)                 # kernels in the order they run
    print(profile.by_task())       # equal kernels together, the most expensive first

A kernel's time is from the end of the kernel before it to its own end on all threads, the mean over the middle half of
the runs of the model, by their length. It is the sum of four parts, each a mean over the threads: computing on a CPU;
`off`, in the midst of computing but without a CPU, which ran another program; `late`, until the thread began (it woke
up, or left the kernel before); and `waiting` with nothing left to do. `standalone` is the kernel's time when it is run
alone again and again, its weights as cold as in the model, and `busy_alone` the computing in that. What computing takes
longer in the model is the price of data and code that are not in the near caches. `judged` is the kernel's time alone
in the state in which tuning times candidates (`runtime.interlude`): a search chooses well where it is that in the
model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from stormdrop.runtime.device import Account
from stormdrop.runtime.image import KernelCall


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds of one kernel alone: run again and again, the computing in that, and as tuning times it."""

    seconds: float
    busy: float
    judged: float


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
    memory_share: float = 0.0
    """Of the bandwidth of memory, by the bytes of all arguments; more than 1 where they come from a cache."""
    late: float = 0.0
    waiting: float = 0.0
    off: float = 0.0
    standalone: float | None = None
    busy_alone: float | None = None
    judged: float | None = None
    origin: str = ""
    """Where its schedule came from; empty for a model that was loaded."""

    @property
    def computing(self) -> float:
        return self.seconds - self.late - self.waiting - self.off

    @property
    def slowdown(self) -> float | None:
        """Seconds that computing takes longer in the model than alone."""
        return None if self.busy_alone is None else self.computing - self.busy_alone


@dataclass(frozen=True, slots=True)
class Profile:
    """A profiled model. `seconds` is the sum of its rows, `peak_gflops` what all its threads reached in f32."""

    name: str
    threads: int
    repeats: int
    seconds: float
    peak_gflops: float
    rows: tuple[ProfileRow, ...]
    memory_gbs: float = 0.0
    """The bandwidth of a GPU's memory; 0: not known."""

    def by_task(self) -> Profile:
        """Rows of equal tasks added up under the first one's label, the most expensive first."""
        found: dict[str, list[ProfileRow]] = {}
        for row in self.rows:
            found.setdefault(row.digest, []).append(row)
        total = sum(row.seconds for row in self.rows)
        rows = [_together(same, total, self.peak_gflops, self.memory_gbs) for same in found.values()]
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
        head = ["µs", "share", "late", "waiting", "off", *(["alone µs", "slower by", "judged µs"] if alone else [])]
        from_ = any(row.origin for row in self.rows)
        head += [
            "GFLOP/s",
            "of peak",
            "GB/s",
            *(["of memory"] if self.memory_gbs else []),
            "count",
            *(["from"] if from_ else []),
            "kernel",
        ]
        table = [head, *(_cells(row, alone, from_, bool(self.memory_gbs)) for row in self.rows)]
        widths = [max(len(line[c]) for line in table) for c in range(len(head) - 1)]
        lines = ["  ".join([*(cell.rjust(w) for cell, w in zip(line, widths)), line[-1]]) for line in table]
        return "\n".join([title, *lines])


def profile_of(
    name: str,
    threads: int,
    calls: Sequence[KernelCall],
    account: Account,
    peak_gflops: float,
    alone: Sequence[Alone] | None = None,
    origins: Mapping[str, str] | None = None,
    memory_gbs: float = 0.0,
) -> Profile:
    """The profile of an account; `alone` has the times of each call alone; `origins`, by the digest of a call's task,
    where its schedule came from.
    """
    runs = np.argsort(account.seconds.sum(axis=1))
    middle = runs[len(runs) // 4 : len(runs) - len(runs) // 4]
    parts = (account.seconds, account.late, account.waiting, account.off)
    seconds, late, waiting, off = (p[middle].mean(axis=0) if len(middle) else np.zeros(len(calls)) for p in parts)
    total = float(seconds.sum())
    rows: list[ProfileRow] = []
    for k, call in enumerate(calls):
        by_itself = alone[k] if alone is not None else None
        row = ProfileRow(
            call.label,
            call.digest,
            1,
            float(seconds[k]),
            flops=call.flops,
            nbytes=call.nbytes,
            late=float(late[k]),
            waiting=float(waiting[k]),
            off=float(off[k]),
            standalone=by_itself and by_itself.seconds,
            busy_alone=by_itself and by_itself.busy,
            judged=by_itself and by_itself.judged,
            origin=(origins or {}).get(call.digest, ""),
        )
        rows.append(_rated(row, total, peak_gflops, memory_gbs))
    return Profile(name, threads, len(runs), total, peak_gflops, tuple(rows), memory_gbs)


def _rated(row: ProfileRow, total: float, peak_gflops: float, memory_gbs: float) -> ProfileRow:
    """The row with its rates and shares; `total` is the seconds of all rows."""
    gflops, gbs = (row.flops / row.seconds / 1e9, row.nbytes / row.seconds / 1e9) if row.seconds > 0 else (0.0, 0.0)
    share, peak_share = row.seconds / total if total > 0 else 0.0, gflops / peak_gflops if peak_gflops > 0 else 0.0
    memory_share = gbs / memory_gbs if memory_gbs > 0 else 0.0
    return replace(row, share=share, gflops=gflops, gbs=gbs, peak_share=peak_share, memory_share=memory_share)


def _together(rows: Sequence[ProfileRow], total: float, peak_gflops: float, memory_gbs: float) -> ProfileRow:
    def added(values: Iterable[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) if known else None

    row = replace(
        rows[0],
        count=sum(row.count for row in rows),
        seconds=sum(row.seconds for row in rows),
        flops=sum(row.flops for row in rows),
        nbytes=sum(row.nbytes for row in rows),
        late=sum(row.late for row in rows),
        waiting=sum(row.waiting for row in rows),
        off=sum(row.off for row in rows),
        standalone=added(row.standalone for row in rows),
        busy_alone=added(row.busy_alone for row in rows),
        judged=added(row.judged for row in rows),
    )
    return _rated(row, total, peak_gflops, memory_gbs)


def _cells(row: ProfileRow, alone: bool, from_: bool, with_memory: bool) -> list[str]:
    whole = row.seconds or 1.0
    cells = [f"{row.seconds * 1e6:.2f}", f"{row.share:.1%}"]
    cells += [f"{part / whole:.1%}" for part in (row.late, row.waiting, row.off)]
    if alone:
        cells.append("" if row.standalone is None else f"{row.standalone * 1e6:.2f}")
        cells.append("" if row.slowdown is None else f"{row.slowdown / whole:.1%}")
        cells.append("" if row.judged is None else f"{row.judged * 1e6:.2f}")
    cells += [f"{row.gflops:.1f}", f"{row.peak_share:.1%}"] if row.flops else ["", ""]
    cells.append(f"{row.gbs:.1f}" if row.nbytes else "")
    if with_memory:
        cells.append(f"{row.memory_share:.1%}" if row.nbytes else "")
    cells += [str(row.count), *([row.origin] if from_ else [])]
    return [*cells, _printable(row.label)]


def _printable(text: str) -> str:
    """Names come from model files; control characters among them must not reach a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]
