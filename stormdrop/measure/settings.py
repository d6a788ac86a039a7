"""How to measure: nothing that changes what a candidate is.

What its seconds mean is said by the target's temperature and by `surroundings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stormdrop.target import Surroundings


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """Times are seconds. Time-outs count from the moment a worker has the request; waiting for a worker is free."""

    build_timeout: float = 15.0
    run_timeout: float = 10.0
    """For loading, checking and timing one candidate together."""
    start_timeout: float = 60.0
    """For a worker to start, and for a task's inputs and reference values to be made."""
    min_seconds: float = 0.005
    """Spent on repeating one candidate."""
    max_repeats: int = 10_000
    slow_factor: float = 2.0
    """A candidate this much slower than the best so far is not repeated further."""
    slower_factor: float = 1.2
    """One this much slower is repeated for a quarter of `min_seconds` only."""
    turn_seconds: float = 0.003
    """Spent on each candidate in each round where several are timed in turns."""
    turn_runs: int = 8
    """Runs of a turn at least. On a busy machine a fifth of all runs of 2 ms, and half of those of 5 to 10 ms, are
    interrupted: the fastest of eight is hardly ever one of them."""
    longest_turn_seconds: float = 0.06
    """No further run is begun after so long, however few there were."""
    final_seconds: float = 0.1
    """Spent on a winner in its fresh process."""
    memory_limit_bytes: int = 4 << 30
    """What a worker may have resident, and what address space it may take beyond what it starts with."""
    sample_points: int = 256
    """Random elements of every candidate's output that are compared with the reference."""
    final_points: int = 2048
    """Compared with the reference before a winner is recorded; all others are compared with another schedule's output.
    """
    seed: int = 0
    surroundings: Surroundings | None = None
    """The model whose kernels are measured on a CPU: candidates are timed in the state of the caches that a run of it
    leaves to them. None: a candidate is run again and again, and finds what its last run left.
    """

    @staticmethod
    def from_message(data: Mapping[str, Any]) -> MeasureSettings:
        """The inverse of `dataclasses.asdict`."""
        values = dict(data)
        if values["surroundings"] is not None:
            values["surroundings"] = Surroundings(**values["surroundings"])
        return MeasureSettings(**values)
