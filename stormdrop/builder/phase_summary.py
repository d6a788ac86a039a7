"""Summaries of a kernel's phases, the input of grouping (`builder.grouping`): the memory that a phase touches, and
estimates of its time on one thread and on all threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from stormdrop.base.codec import Amount
from stormdrop.lower.program import Program
from stormdrop.lower.touches import PhaseTouches, touches_of
from stormdrop.space.cpu_judge import CpuAssessment, CpuJudge
from stormdrop.space.judge import arithmetic_seconds
from stormdrop.space.sketch import Points, Sketch
from stormdrop.target.cpu import Cpu

LONG_BARRIERS = 10
"""A kernel of one phase is *long* if its arithmetic takes one thread more time than so many barriers. A long phase is
never worth running on one thread, so the judge's estimate, which takes 1.5 ms to compute, is left out.
"""


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """The summary of one phase of a call. `seconds` is the estimated time on all threads of the target, `alone` the
    estimated seconds on one thread. For long phases (`LONG_BARRIERS`) both are lower bounds.
    """

    seconds: Amount
    alone: Amount
    memory: PhaseTouches


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
