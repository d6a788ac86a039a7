"""What measuring a candidate gives: how long it takes, or why it could not be told. Never a magic number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FailureKind = Literal["schedule", "build", "crash", "timeout", "memory", "wrong", "bug"]
"""An illegal schedule; code that LLVM refuses or cannot load; a worker that died, stopped or wrote on our pipe; one
that took too long; one that took too much memory; a kernel that computed something else; an exception nobody
foresaw."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A candidate that ran, and was right if that was checked."""

    seconds: float
    """The median of the runs."""
    spread: float
    """The middle half of the runs spans this share of the median."""
    runs: int
    build_seconds: float
    stopped_early: bool = False
    """Clearly slower than the best: measured too briefly to be compared closely."""
    samples: tuple[float, ...] = ()
    """Seconds of single runs, thinned to a few dozen; of candidates timed in turns, the fastest of each round."""

    @property
    def floor(self) -> float:
        """The fastest of the samples. Noise only ever slows: of a few milliseconds of runs the fastest varies by 2 %
        where their median varies by 6 % (C2D 14/256 3x3), so this is what searches compare."""
        return min(self.samples, default=self.seconds)


@dataclass(frozen=True, slots=True)
class Failure:
    """A candidate that could not be measured."""

    kind: FailureKind
    message: str
    build_seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


Result = Timing | Failure
