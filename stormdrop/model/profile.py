"""A model's time by kernel: the seconds of each kernel inside the running model.

    profile = model.profile(x)
    print(profile)                 # kernels in the order they run
    print(profile.by_task())       # equal kernels together, the most expensive first

A row has the id of its task, the shapes and the ONNX node: `stormdrop show MODEL t3` shows the schedule of task t3.

A kernel's time is from the end of the kernel before it to its own end on all threads. It is the mean over the middle
half of the runs of the model, by their length. It is the sum of four parts, each a mean over the threads:

- computing on a CPU;
- `off`, in the midst of computing but without a CPU, which ran another program;
- `late`, until the thread began (it woke up, or left the kernel before);
- `waiting` with nothing left to do.

`standalone` is the kernel's time when it is run alone again and again, its weights as cold as in the model, and
`busy_alone` the computing in that. Additional computing time in the model is the price of data and code outside the
near caches. `judged` is the kernel's time alone in the state in which tuning times candidates (`device.interlude`). A
search chooses well if `judged` equals the time in the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from stormdrop.device.device import Account
from stormdrop.model.image import KernelCall


@dataclass(frozen=True, slots=True)
class Alone:
    """Seconds of one kernel alone: run again and again, the computing in that, and as tuning times it."""

    seconds: float
    busy: float
    judged: float


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A kernel of the model, or `count` equal kernels together. `share` is of the sum of all rows."""

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
    """The share of the bandwidth of memory, by the bytes of all arguments; more than 1 if they come from a cache."""
    late: float = 0.0
    waiting: float = 0.0
    off: float = 0.0
    standalone: float | None = None
    busy_alone: float | None = None
    judged: float | None = None
    origin: str = ""
    """The source of its schedule; empty for a model that was loaded."""
    id: str = ""
    """The task's, as `stormdrop info` and `show` list it; empty for a copy between two tasks."""
    shapes: str = ""
    """The operands and the output of its first kernel."""
    node: str = ""
    """The main ONNX node of its first kernel."""

    @property
    def computing(self) -> float:
        return self.seconds - self.late - self.waiting - self.off

    @property
    def slowdown(self) -> float | None:
        """Seconds that computing takes longer in the model than alone."""
        return None if self.busy_alone is None else self.computing - self.busy_alone


WORDS = frozenset(("task", "from", "kernel", "node", "shapes"))
"""The columns of a profile that are no numbers."""
SUMMED = ("count", "seconds", "flops", "nbytes", "late", "waiting", "off")
"""The numbers of equal kernels that are added up."""
NONE = "–"
"""The cell of a row without a task, of a file of an older Stormdrop."""
_NO_ROW = ProfileRow("", "", 0, 0.0)


@dataclass(frozen=True, slots=True)
class Profile:
    """A profiled model. `seconds` is the sum of its rows, `peak_gflops` the f32 rate that all its threads reached."""

    name: str
    threads: int
    repeats: int
    seconds: float
    peak_gflops: float
    rows: tuple[ProfileRow, ...]
    memory_gbs: float = 0.0
    """The bandwidth of a GPU's memory; 0: not known."""

    def by_task(self) -> Profile:
        """Returns rows of equal tasks added up under the label of the first, the most expensive first."""
        by_digest: dict[str, list[ProfileRow]] = {}
        for row in self.rows:
            by_digest.setdefault(row.digest, []).append(row)
        total = sum(row.seconds for row in self.rows)
        rows = [_together(same, total, self.peak_gflops, self.memory_gbs) for same in by_digest.values()]
        return replace(self, rows=tuple(sorted(rows, key=lambda row: -row.seconds)))

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        headings, rows = self.table()
        table = [headings, *rows]
        widths = [max(len(line[c]) for line in table) for c in range(len(headings))]
        sides = ["<" if name in WORDS else ">" for name in headings]
        lines = [
            "  ".join(f"{cell:{side}{w}}" for cell, side, w in zip(line, sides, widths)).rstrip() for line in table
        ]
        hint = [f"stormdrop show MODEL {self.shown_id} shows how a task is computed"] if self.shown_id else []
        return "\n".join([self.title, *lines, *hint])

    @property
    def shown_id(self) -> str:
        """The id of the most expensive row that has an id; empty if no row has an id."""
        return max((row for row in self.rows if row.id), key=lambda row: row.seconds, default=_NO_ROW).id

    @property
    def title(self) -> str:
        count = sum(row.count for row in self.rows)
        return (
            f"{_printable(self.name)}: {self.seconds * 1e3:.3f} ms, {count} kernel{'s' if count != 1 else ''}, "
            f"{self.threads} thread{'s' if self.threads != 1 else ''}, peak {self.peak_gflops:.0f} GFLOP/s"
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Returns the headings, and the cells of each row; the columns in `WORDS` are texts."""
        alone = any(row.standalone is not None for row in self.rows)
        from_ = any(row.origin for row in self.rows)
        headings = [
            "task",
            *("µs", "share", "late", "waiting", "off"),
            *(["alone µs", "slower by", "judged µs"] if alone else []),
            *("GFLOP/s", "of peak", "GB/s"),
            *(["of memory"] if self.memory_gbs else []),
            "count",
            *(["from"] if from_ else []),
            *("kernel", "node", "shapes"),
        ]
        return headings, [_cells(row, alone, from_, bool(self.memory_gbs)) for row in self.rows]


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
    """Returns the profile of an account; `alone` has the times of each call alone.

    `origins` maps the digest of a call's task to the source of its schedule.
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
            id=call.id,
            shapes=call.shapes,
            node=call.node,
        )
        rows.append(_rated(row, total, peak_gflops, memory_gbs))
    return Profile(name, threads, len(runs), total, peak_gflops, tuple(rows), memory_gbs)


def profile_of_parts(name: str, threads: int, repeats: int, parts: Sequence[Profile | ProfileRow]) -> Profile:
    """Returns the profile of a model in parts that run one after the other, each with a profile or one row of
    its own.
    """
    profiles = [part for part in parts if isinstance(part, Profile)]
    rows = [row for part in parts for row in (part.rows if isinstance(part, Profile) else [part])]
    peak = max((p.peak_gflops for p in profiles), default=0.0)
    memory = max((p.memory_gbs for p in profiles), default=0.0)
    total = sum(row.seconds for row in rows)
    rated = tuple(_rated(row, total, peak, memory) for row in rows)
    return Profile(name, threads, repeats, total, peak, rated, memory)


def _rated(row: ProfileRow, total: float, peak_gflops: float, memory_gbs: float) -> ProfileRow:
    """Returns the row with its rates and shares; `total` is the seconds of all rows."""
    gflops, gbs = (row.flops / row.seconds / 1e9, row.nbytes / row.seconds / 1e9) if row.seconds > 0 else (0.0, 0.0)
    share, peak_share = row.seconds / total if total > 0 else 0.0, gflops / peak_gflops if peak_gflops > 0 else 0.0
    memory_share = gbs / memory_gbs if memory_gbs > 0 else 0.0
    return replace(row, share=share, gflops=gflops, gbs=gbs, peak_share=peak_share, memory_share=memory_share)


def _together(rows: Sequence[ProfileRow], total: float, peak_gflops: float, memory_gbs: float) -> ProfileRow:
    def added(values: Iterable[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return sum(known) if known else None

    sums = {name: sum(getattr(row, name) for row in rows) for name in SUMMED}
    alone = {name: added(getattr(row, name) for row in rows) for name in ("standalone", "busy_alone", "judged")}
    row = replace(rows[0], **sums, **alone)
    return _rated(row, total, peak_gflops, memory_gbs)


def _cells(row: ProfileRow, alone: bool, from_: bool, with_memory: bool) -> list[str]:
    whole = row.seconds or 1.0
    cells = [row.id or NONE, f"{row.seconds * 1e6:.2f}", f"{row.share:.1%}"]
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
    return [*cells, _printable(row.label), _printable(row.node) or NONE, row.shapes or NONE]


def _printable(text: str) -> str:
    """Escapes control characters of names from model files, which must not reach a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]
