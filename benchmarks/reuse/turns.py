"""Timing candidates of one task in turns with its default schedule, each loaded several times.

The addresses of code and data change the time of short kernels by some percent, until they are loaded again. So a
candidate's result is the median, over several loads, of its ratio to the default in the same turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.reuse.table import HalfRatios, halves
from stormdrop.base.errors import RunError
from stormdrop.device.rotation import rotation_bytes
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure, Timing
from stormdrop.space.schedule import Schedule
from stormdrop.target import Surroundings
from stormdrop.target.machine import Target
from stormdrop.tuning.resources import Measures

MOST_TOGETHER = 32
HELD_BYTES = 2 << 30
"""Memory for candidates that are timed together, of a worker's 4 GiB."""
PACKED = 4
"""Packed weights take at most this many times the bytes of the task's weights, as those of Winograd variants do."""


@dataclass
class Turns:
    """The results of `in_turns`. Candidates that failed are not among `loads`."""

    default_seconds: float = 0.0
    loads: dict[Schedule, list[float]] = field(default_factory=dict[Schedule, list[float]])
    """By schedule: for each load, the ratio of its time to the default's."""
    failures: dict[Schedule, str] = field(default_factory=dict[Schedule, str])

    def halves(self, schedule: Schedule) -> HalfRatios:
        return halves(self.loads[schedule])

    def ratio(self, schedule: Schedule) -> float:
        return round(median(self.loads[schedule]), 4)


def in_turns(
    task: Task,
    default: Schedule,
    others: Sequence[Schedule],
    measurer: Measures,
    target: Target,
    loads: int,
    rounds: int,
) -> Turns:
    """Load each candidate `loads` times; after each load run it in `rounds` turns with the default and some others.

    Raises RunError where the default itself fails.
    """
    found = Turns(loads={default: [1.0] * loads})
    candidates = [s for s in dict.fromkeys(others) if s != default]
    seconds: list[float] = []
    most = together(task, target, measurer.settings.surroundings if isinstance(measurer, Measurer) else None)
    for begin in range(0, len(candidates), most) if candidates else (0,):
        group = candidates[begin : begin + most]
        for load in range(loads):
            timed = [default, *(s for s in group if s not in found.failures)]
            shift = load % len(timed)
            timed = timed[shift:] + timed[:shift]
            results = dict(zip(timed, measurer.retime(task, timed, rounds), strict=True))
            own = results.pop(default)
            if isinstance(own, Failure):
                raise RunError(f"{task.name}: its default schedule cannot be timed: {own}")
            seconds.append(own.seconds)
            for schedule, result in results.items():
                if isinstance(result, Timing):
                    found.loads.setdefault(schedule, []).append(result.seconds / own.seconds)
                else:
                    found.failures[schedule] = str(result)
                    found.loads.pop(schedule, None)
    found.default_seconds = median(seconds)
    return found


def together(task: Task, target: Target, surroundings: Surroundings | None = None) -> int:
    """How many candidates a worker can hold at once besides the default, each with its packed weights and with the
    memory that timing it touches: copies of weights, or its surroundings.
    """
    weights = PACKED * sum(t.nbytes for t in task.constants)
    copies = 0 if surroundings is None else min(surroundings.touched_bytes, target.l3_bytes)
    copies = rotation_bytes(target.l3_bytes) if target.is_cold else copies
    return max(2, min(MOST_TOGETHER, HELD_BYTES // max(1, weights + copies) - 1))
