"""Settings of measurements, which do not affect the candidates themselves.

The target's temperature and `surroundings` define the meaning of measured seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from stormdrop.target import Surroundings


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """Settings of a measurer.

    Times are seconds. Time-outs count from the moment a worker has the request; waiting for a worker is free.
    """

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
    """A candidate this much slower is repeated for only a quarter of `min_seconds`."""
    turn_seconds: float = 0.003
    """Spent on each candidate in each round of timing in turns."""
    turn_runs: int = 8
    """The least number of runs of a turn: on a busy machine half of all runs of 5 to 10 ms are interrupted."""
    longest_turn_seconds: float = 0.06
    """No further run begins after this time, regardless of the number of runs."""
    final_seconds: float = 0.1
    """Spent on a winner in its fresh process."""
    memory_limit_bytes: int = 4 << 30
    """The limit on a worker's resident bytes, and on its address space beyond the space at its start."""
    sample_points: int = 256
    """Random elements of every candidate's output that are compared with the reference."""
    final_points: int = 2048
    """Elements of a winner that are compared with the reference; another schedule's output checks the others."""
    seed: int = 0
    surroundings: Surroundings | None = None
    """The model around the measured kernels on a CPU: candidates are timed with the caches as a run of the model leaves
    them. None: a candidate runs repeatedly, with the caches as its last run left them."""
