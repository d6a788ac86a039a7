"""What grouping needs to know of a kernel's phases (`runtime.grouping`): the memory that they touch, and estimates of
their time on one thread and on all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from stormdrop.lower.program import Program
from stormdrop.lower.touches import ANYWHERE, Columns, PhaseTouches, Touch, touches_of
from stormdrop.runtime.strict import LARGEST, SIZE, Nullable
from stormdrop.space.cpu_judge import CpuAssessment, CpuJudge
from stormdrop.space.sketch import Points, Sketch
from stormdrop.target.cpu import Cpu

_PLACE = range(ANYWHERE[0], LARGEST + 1)
SUMMARY_FORM = {
    "seconds": float,
    "alone": float,
    "loops": [SIZE],
    "touches": [(SIZE, bool, _PLACE, _PLACE, [_PLACE], Nullable((SIZE, SIZE, range(1, LARGEST + 1))))],
}
"""Of `PhaseSummary.to_json`, for `strict.conform`."""


LONG_BARRIERS = 10
"""A phase whose arithmetic alone takes as long as so many barriers needs no estimate (1.5 ms): it is long."""


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """Of one phase of a call. `seconds` are estimated on all threads of the target, `alone` on one of them; of long
    phases they are a lower bound.
    """

    seconds: float
    alone: float
    memory: PhaseTouches

    def to_json(self) -> dict[str, object]:
        touches = [
            [t.slot, t.is_written, t.low, t.high, list(t.strides), list(astuple(t.columns)) if t.columns else None]
            for t in self.memory.touches
        ]
        return {"seconds": self.seconds, "alone": self.alone, "loops": list(self.memory.loops), "touches": touches}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> PhaseSummary:
        """The inverse of `to_json`, for a tree that conforms to `SUMMARY_FORM`."""
        touches = tuple(
            Touch(slot, is_written, low, high, tuple(strides), columns and Columns(*columns))
            for slot, is_written, low, high, strides, columns in tree["touches"]
        )
        return PhaseSummary(float(tree["seconds"]), float(tree["alone"]), PhaseTouches(tuple(tree["loops"]), touches))


def summaries_of(program: Program, sketch: Sketch, point: Points, target: Cpu) -> tuple[PhaseSummary, ...]:
    """Of the phases of a call of the program that a point of a sketch is lowered to."""
    phases = [phase for phase in program.phases if not phase.at_load]
    least = sketch.task.flops / (target.peak_gflops * 1e9)
    if len(phases) == 1 and least > LONG_BARRIERS * target.barrier_seconds:
        return (PhaseSummary(least / target.threads, least, touches_of(phases[0])),)
    values = sketch.values(point)
    structure = sketch.at(values)
    together, alone = (
        _phase_seconds(CpuJudge(machine).assess(structure, values)) for machine in (target, target.with_threads(1))
    )
    return tuple(PhaseSummary(together[p.name], alone[p.name], touches_of(p)) for p in phases)


def _phase_seconds(assessment: CpuAssessment) -> dict[str, float]:
    """By the stage that is the phase; stages computed inside it count as part of it."""
    found: dict[str, float] = {}
    for cost, seconds in zip(assessment.costs, assessment.each_seconds):
        name = cost.stage.host or cost.stage.id
        found[name] = found.get(name, 0.0) + float(seconds)
    return found
