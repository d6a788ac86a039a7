"""The cost columns of a sketch's stages, computed by the formulas one after the other (the package compiles them
first).
"""

from __future__ import annotations

import numpy as np

from stormdrop.space.cpu_judge import CpuAssessment, CpuJudge
from stormdrop.space.footprint import StageCost
from stormdrop.space.sketch import Points, Sketch
from stormdrop.target.cpu import Cpu


def assessed(sketch: Sketch, points: Points) -> CpuAssessment:
    """All points divide reductions into as many parts."""
    structure = sketch.at(sketch.values(points[0]))
    columns = {name: points[:, i].astype(np.float64) for i, name in enumerate(sketch.names)}
    assert isinstance(sketch.target, Cpu)
    return CpuJudge(sketch.target).assess(structure, columns)


def stage_costs(sketch: Sketch, points: Points) -> list[StageCost]:
    return assessed(sketch, points).costs
