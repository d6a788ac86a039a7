"""The result of measuring a candidate: its seconds, or the reason why there are none.

No magic number stands for a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FailureKind = Literal["schedule", "build", "crash", "timeout", "memory", "wrong", "bug"]
"""`schedule`: an illegal schedule. `build`: code that LLVM rejects or cannot load. `crash`: a worker that died, stopped
or wrote on the measurer's pipe. `timeout` and `memory`: too much time or memory. `wrong`: a wrong output. `bug`: an
unforeseen exception."""


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
    """True if the candidate was clearly slower than the best: the measurement is too brief for a close comparison."""
    samples: tuple[float, ...] = ()
    """Seconds of single runs, thinned to a few dozen; of candidates timed in turns, the fastest of each round."""

    @property
    def floor(self) -> float:
        """The fastest of the samples, which searches compare.

        Noise only slows runs: over a few milliseconds of runs, the fastest run varies by 2 %, the median by 6 % (C2D
        14/256 3x3).
        """
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
