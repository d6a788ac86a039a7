"""The cost columns of a sketch's stages, computed by the formulas one after the other (the package compiles them
first).
"""

from __future__ import annotations

from stormdrop.space.cpu_judge import CpuAssessment, CpuJudge
from stormdrop.space.footprint import StageCost
from stormdrop.space.sketch import Points, Sketch


def assessed(sketch: Sketch, points: Points) -> CpuAssessment:
    return CpuJudge(sketch.target).assess(sketch.structure, sketch.columns(points))


def stage_costs(sketch: Sketch, points: Points) -> list[StageCost]:
    return assessed(sketch, points).costs
