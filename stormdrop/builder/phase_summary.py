"""Summaries of a kernel's phases, the input of grouping (`builder.grouping`): the memory that a phase touches, and
estimates of its time on one thread and on all threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from stormdrop.ir.strict import LARGEST, SIZE, Nullable
from stormdrop.lower.program import Program
from stormdrop.lower.touches import ANYWHERE, Columns, PhaseTouches, Touch, touches_of
from stormdrop.space.cpu_judge import CpuAssessment, CpuJudge
from stormdrop.space.judge import arithmetic_seconds
from stormdrop.space.sketch import Points, Sketch
from stormdrop.target.cpu import Cpu

_PLACE = range(ANYWHERE[0], LARGEST + 1)
SUMMARY_FORM = {
    "seconds": float,
    "alone": float,
    "loops": [SIZE],
    "touches": [(SIZE, bool, _PLACE, _PLACE, [_PLACE], Nullable((SIZE, SIZE, range(1, LARGEST + 1))))],
}
"""The form of `PhaseSummary.to_json`, which `strict.conform` checks."""


LONG_BARRIERS = 10
"""A kernel of one phase is *long* if its arithmetic takes one thread more time than so many barriers. A long phase is
never worth running on one thread, so the judge's estimate, which takes 1.5 ms to compute, is left out.
"""


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """The summary of one phase of a call. `seconds` is the estimated time on all threads of the target, `alone` the
    estimated seconds on one thread. For long phases (`LONG_BARRIERS`) both are lower bounds.
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
        """Parses a tree of `to_json` that conforms to `SUMMARY_FORM`."""
        touches = tuple(
            Touch(slot, is_written, low, high, tuple(strides), columns and Columns(*columns))
            for slot, is_written, low, high, strides, columns in tree["touches"]
        )
        return PhaseSummary(float(tree["seconds"]), float(tree["alone"]), PhaseTouches(tuple(tree["loops"]), touches))


def summaries_of(program: Program, sketch: Sketch, point: Points, target: Cpu) -> tuple[PhaseSummary, ...]:
    """Returns the summaries of the phases that a call runs, without load-time phases.

    `program` is the lowered `point` of `sketch`.
    """
    phases = [phase for phase in program.phases if not phase.at_load]
    least = arithmetic_seconds(sketch.task, target)
    if len(phases) == 1 and least > LONG_BARRIERS * target.barrier_seconds:
        return (PhaseSummary(least / target.threads, least, touches_of(phases[0])),)
    values = sketch.values(point)
    structure = sketch.at(values)
    together, alone = (
        _phase_seconds(CpuJudge(machine).assess(structure, values)) for machine in (target, target.with_threads(1))
    )
    return tuple(PhaseSummary(together[p.name], alone[p.name], touches_of(p)) for p in phases)


def _phase_seconds(assessment: CpuAssessment) -> dict[str, float]:
    """Returns estimated seconds by phase.

    A phase has the id of its outermost stage; stages computed inside that are added.
    """
    seconds_by_phase: dict[str, float] = {}
    for cost, seconds in zip(assessment.costs, assessment.each_seconds):
        name = cost.stage.host or cost.stage.id
        seconds_by_phase[name] = seconds_by_phase.get(name, 0.0) + float(seconds)
    return seconds_by_phase
