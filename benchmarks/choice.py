"""Whether the final choice moves without reason, and finds what is faster: on hardware, through a whole small search.

    python -m benchmarks.choice                      # five kernels of 5 µs to 5 ms, 40 runs each way
    python -m benchmarks.choice --minutes 9          # what fits into so many minutes; run again to go on
    python -m benchmarks.choice --table              # print what is stored
    python -m benchmarks.choice --runs 200 --gain 0.02 --only SFM --results elsewhere.json

Every schedule that the search proposes is built as a copy of the default schedule's code, loaded and timed like any
other candidate. Without a planted gain no choice but the incumbent, the default, is right. With one, the times of one
copy are scaled.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.core import label
from benchmarks.stored import StoredRows, TimeIsUp
from stormdrop.builder.building import artifact_of, program_of
from stormdrop.codegen.emit import emit
from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Candidate, HandWritten, Measurer
from stormdrop.measure.result import Result, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target
from stormdrop.tuning.api import tune

RESULTS = Path(__file__).parent / "results" / "choice.json"
KERNELS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("GMM", (1, 64, 64, 128)),
    ("SFM", (512, 512)),
    ("GMM", (1, 256, 256, 256)),
    ("C2D", (1, 14, 14, 256, 256, 3, 1, 1)),
    ("GMM", (1, 768, 768, 1024)),
)
TRIALS = 8


class Twins(Measurer):
    """Measures a copy of one program in place of every candidate; one of them seems faster by a gain."""

    def __init__(self, task: Task, target: Target) -> None:
        super().__init__(target, shared_proofs=True)
        self.default, self._gain = default_schedule(task, target), 0.0
        self.planted: Schedule | None = None
        program = program_of(task, self.default, target)
        self._text, self._like = emit(program, target), artifact_of(program, target)
        self._twins: dict[Candidate, Any] = {}

    def begin(self, gain: float) -> None:
        """Begin another search: another candidate is the one that seems faster."""
        self.planted, self._gain = None, gain

    def _kept_or_built(self, builder: Any, task: Any, candidate: Candidate) -> Any:
        if candidate not in self._twins:
            # Another symbol makes another object: equal ones would be loaded once.
            text = f"{self._text}\ndefine void @twin{len(self._twins)}() {{ ret void }}\n"
            twin = HandWritten(text, self._like, self.default.variant)
            self._twins[candidate] = self._build_one(builder, task, twin)
        return self._twins[candidate]

    def measure(
        self,
        task: Task,
        candidates: Sequence[Candidate],
        best: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> list[Result]:
        others = [c for c in candidates if isinstance(c, Schedule) and c != self.default]
        self.planted = self.planted or next(iter(others), None)
        return self._scaled(candidates, super().measure(task, candidates, best, meanwhile))

    def retime(self, task: Task, candidates: Sequence[Candidate], rounds: int) -> list[Result]:
        return self._scaled(candidates, super().retime(task, candidates, rounds))

    def _scaled(self, candidates: Sequence[Candidate], results: Sequence[Result]) -> list[Result]:
        share = 1 - self._gain
        return [
            replace(r, seconds=share * r.seconds, samples=tuple(share * s for s in r.samples))
            if c == self.planted and isinstance(r, Timing)
            else r
            for c, r in zip(candidates, results)
        ]


def chosen(twins: Twins, task: Task, gain: float, seed: int) -> dict[str, Any]:
    """One search: whether its choice left the incumbent, whether it was the planted candidate, the kernel's seconds."""
    twins.begin(gain)
    tuned = tune(task, twins.target, measurer=twins, search="random", trials=TRIALS, seed=seed)
    return {"moved": tuned.best != twins.default, "found": tuned.best == twins.planted, "seconds": tuned.seconds}


def measure(rows: StoredRows, target: Target, gain: float, runs: int, only: Sequence[str]) -> None:
    """All searches, the first of every kernel before the second of any."""
    with ExitStack() as stack:
        cases = [(label(*case), build(*case)) for case in KERNELS if not only or case[0] in only]
        twins = {name: Twins(task, target) for name, task in cases}
        for each in twins.values():
            stack.enter_context(each)
        for seed in range(runs):
            for name, task in cases:
                for planted in (0.0, gain):
                    key = f"{name} seed {seed}"
                    rows.once(part_of(planted), key, partial(chosen, twins[name], task, planted, seed))


def part_of(gain: float) -> str:
    return f"{gain:.1%} planted"


def table(results: Mapping[str, Any]) -> str:
    """For every planted gain and kernel, how often a choice moved, and how often to the candidate that seems faster."""
    lines = [f"{results.get('machine', '?')}, {results.get('threads', '?')} threads, f32", ""]
    lines += ["| gain | kernel | µs | choices | left the incumbent | found the gain |", "|---|---|---|---|---|---|"]
    for part in sorted(p for p in results if p.endswith(" planted")):
        gain, kernels = part.removesuffix(" planted"), [label(*case) for case in KERNELS]
        rows = {name: [r for k, r in results[part].items() if k.startswith(f"{name} seed")] for name in kernels}
        for name, each in [*rows.items(), ("all", [r for found in rows.values() for r in found])]:
            if each:
                middle = f"{median(r['seconds'] for r in each) * 1e6:.1f}" if name != "all" else ""
                moved, found = (sum(r[what] for r in each) for what in ("moved", "found"))
                shown = found if gain != "0.0%" else "–"
                lines.append(f"| {gain} | {name} | {middle} | {len(each)} | {moved} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40, help="searches of each kernel, with and without a gain")
    parser.add_argument("--gain", type=float, default=0.03, help="the share of its time that one copy seems to save")
    parser.add_argument("--only", nargs="*", default=[], help="operators")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--minutes", type=float, help="begin nothing that would probably last longer than so many")
    parser.add_argument("--table", action="store_true", help="print the stored results")
    parser.add_argument("--again", action="store_true", help="forget what is stored")
    given = parser.parse_args()
    rows = StoredRows(given.results, given.minutes)
    if not given.table:
        target = detect(given.threads)
        if given.again:
            rows.results.clear()
        rows.results |= {"machine": target.name, "threads": target.threads}
        with suppress(TimeIsUp):
            measure(rows, target, given.gain, given.runs, given.only)
    print(table(rows.results))


if __name__ == "__main__":
    main()
