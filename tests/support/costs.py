"""The cost columns of a sketch's stages, computed by the formulas one after the other (the package compiles them
first).
"""

from __future__ import annotations

from stormdrop.space.analysis import bare_costs
from stormdrop.space.footprint import StageCost, add_boxes
from stormdrop.space.sketch import Points, Sketch
from stormdrop.space.tiling import tile_all


def stage_costs(sketch: Sketch, points: Points) -> list[StageCost]:
    """All points divide reductions into as many parts."""
    structure = sketch.at(sketch.values(points[0]))
    costs = bare_costs(structure, tile_all(structure, sketch.target.vector_bytes, sketch.columns(points)))
    for c in costs:
        add_boxes(c)
    return costs
