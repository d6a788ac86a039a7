"""Whether the final choice moves without reason, and finds what is faster: on hardware, through a whole small search.

    python -m benchmarks.choice                      # five kernels of 5 µs to 5 ms, 40 runs each way
    python -m benchmarks.choice --runs 200 --gain 0.02 --only SFM

Every schedule that the search proposes is built as a copy of the default schedule's code, loaded and timed like any
other candidate. Without a planted gain no choice but the incumbent, the default, is right. With one, the times of one
copy are scaled.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.core import label, say
from stormdrop.codegen.emit import emit
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Candidate, HandWritten, Measurer
from stormdrop.measure.result import Result, Timing
from stormdrop.ops.catalogue import build
from stormdrop.runtime.building import artifact_of, program_of
from stormdrop.runtime.host import detect
from stormdrop.search.tune import tune
from stormdrop.space.default import default_schedule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

KERNELS = (
    ("GMM", (1, 64, 64, 128)),
    ("SFM", (512, 512)),
    ("GMM", (1, 256, 256, 256)),
    ("C2D", (1, 14, 14, 256, 256, 3, 1, 1)),
    ("GMM", (1, 768, 768, 1024)),
)
TRIALS = 8


class Twins(Measurer):
    """Measures a copy of one program in place of every candidate; one of them seems faster by `gain`."""

    def __init__(self, task: Task, target: Target, gain: float) -> None:
        super().__init__(target, shared_proofs=True)
        self.default, self._gain = default_schedule(task, target), gain
        self.planted: Schedule | None = None
        program = program_of(task, self.default, target)
        self._text, self._like = emit(program, target), artifact_of(program, target)
        self._twins: dict[Candidate, Any] = {}

    def forget(self) -> None:
        """Begin another search: another candidate is the one that seems faster."""
        self.planted = None

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


def chosen(task: Task, target: Target, gain: float, runs: int) -> tuple[int, int, float]:
    """How often the choice left the incumbent, how often for the planted candidate, and the seconds of the kernel."""
    moved = found = 0
    seconds = 0.0
    twins = Twins(task, target, gain)
    with twins:
        for seed in range(runs):
            twins.forget()
            tuned = tune(task, target, measurer=twins, search="random", trials=TRIALS, seed=seed)
            moved += tuned.best != twins.default
            found += tuned.best == twins.planted
            seconds = tuned.seconds
    return moved, found, seconds


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.choice", description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="searches of each kernel, with and without a gain")
    parser.add_argument("--gain", type=float, default=0.03, help="the share of its time that one copy seems to save")
    parser.add_argument("--only", nargs="*", default=[], help="operators")
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    target = detect(given.threads)
    for name, args in KERNELS:
        if given.only and name not in given.only:
            continue
        task = build(name, args)
        moved, _, seconds = chosen(task, target, 0.0, given.runs)
        _, found, _ = chosen(task, target, given.gain, given.runs)
        without = f"moved {moved} of {given.runs} times without a gain"
        say(f"{label(name, args)}, {seconds * 1e6:.1f} µs: {without}, found {given.gain:.0%} {found} times")


if __name__ == "__main__":
    main()
