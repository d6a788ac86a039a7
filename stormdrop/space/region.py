"""Bounds inference, symbolic half: the region of an attached stage that its readers need.

The result depends on the structure alone and holds at every point. `tiling` computes the sizes.
"""

from __future__ import annotations

from typing import NamedTuple

from stormdrop.ir.affine import affine
from stormdrop.ir.expr import Axis
from stormdrop.ir.memo import memoised
from stormdrop.space.structure import Stage, Structure


class Reach(NamedTuple):
    """The values of an index in one iteration of the parallel loop: sum(coefficient * axis of `cut`) + [low, high]."""

    cut: frozenset[tuple[Axis, int]]  # host axes that the parallel loop splits, with coefficients
    low: int
    high: int


def _reach_of_axis(s: Structure, reader: Stage, axis: Axis) -> Reach:
    if reader.host is None and axis in reader.axes and axis not in reader.unsplit:
        return Reach(frozenset({(axis, 1)}), 0, 0)
    if reader.host is not None and axis in reader.axes:
        found = reaches(s, reader, axis)
        if len(found) == 1:
            return next(iter(found))
    return Reach(frozenset(), 0, axis.extent - 1)


@memoised()
def reaches(s: Structure, stage: Stage, axis: Axis) -> frozenset[Reach]:
    """Returns the distinct reaches of all reads of an attached stage along an axis."""
    position = stage.place.index(axis)
    found: set[Reach] = set()
    for reader, load in s.reads_of(stage.tensor):
        form = affine(load.indices[position])
        cut: dict[Axis, int] = {}
        low = high = form.constant
        for atom, c in form.terms:
            assert isinstance(atom, Axis), "attached stages are read linearly"
            inner = _reach_of_axis(s, reader, atom)
            for a, k in inner.cut:
                cut[a] = cut.get(a, 0) + c * k
            low += min(c * inner.low, c * inner.high)
            high += max(c * inner.low, c * inner.high)
        found.add(Reach(frozenset(cut.items()), low, high))
    return frozenset(found)


@memoised()
def is_computed_whole(s: Structure, stage: Stage, axis: Axis) -> bool:
    """Returns whether an attached stage computes the full axis in every iteration of the parallel loop.

    Two cases require the full axis. In the first, the reads have different reaches. In the second, an operand is packed
    for the full axis and the needed region may begin inside a panel. A register tile must begin at a panel boundary.
    """
    found = reaches(s, stage, axis)
    if len(found) != 1:
        return True
    if axis is not stage.vector or not any(c.reader == stage.id and c.host is None for c in s.stages):
        return False
    (reach,) = found
    host = s.stage(stage.host or stage.id)
    along = host.vector is not None and reach == Reach(frozenset({(host.vector, 1)}), 0, 0)
    panels = along and host.itemsize <= stage.itemsize  # host lanes: a multiple of panel lanes
    return not panels and reach != Reach(frozenset(), 0, axis.extent - 1)
