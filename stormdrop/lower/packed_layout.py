"""The layout of packed constants, which determines their bytes, and the points of a task with a given layout.

Models of one network at several sizes hold a packed constant once if its layout is the same in all of them. A layout
depends on the variant, on the axes of the packed tensor, and on the width of the register tile that reads the tensor. A
layout does not depend on the batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stormdrop.base.codec import Size
from stormdrop.base.errors import ScheduleError
from stormdrop.ir.tensor import Task
from stormdrop.lower.regions import panel_region
from stormdrop.space.default import best_point, resolve
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch, sketches
from stormdrop.space.structure import ComputeAt
from stormdrop.target.machine import Target

WORTH_OWN_LAYOUT = 1.03
"""The least speed-up, by the estimate, for which a kernel may pack its constants in a layout of its own."""

PackedTensor = tuple[str, Size, tuple[int, ...], Size, Size]
"""Name, elements, strides, panel width, panel stride."""


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """The packing of all constants of a task. Without tensors, no constant is packed."""

    variant: Size
    tensors: tuple[PackedTensor, ...]


def layout_of(sketch: Sketch, point: Sequence[int] | Points) -> PackedLayout:
    """Returns the layout of a point."""
    values = sketch.values(point)
    structure, tilings = sketch.at(values), sketch.tilings(values)
    tensors: list[PackedTensor] = []
    for stage in structure.stages:
        if stage.level is not ComputeAt.LOAD:
            continue
        reader = tilings.get(stage.reader or "")
        if reader is None:
            tensors.append((stage.tensor.name, stage.tensor.size, (), 0, 0))
            continue
        region = panel_region(stage, tilings[stage.id], reader, {})
        panel = region.panel, region.panel_stride
        tensors.append((stage.tensor.name, region.buffer.elements, region.strides, *panel))
    return PackedLayout(sketch.variant, tuple(tensors))


def sharing_point(
    task: Task,
    schedule: Schedule | None,
    target: Target,
    rules: Sequence[Rule] = RULES,
    known: Sequence[PackedLayout] = (),
    may_own: bool = True,
) -> tuple[Sketch, Points]:
    """Resolves a schedule as `resolve` does, but with a layout in `known` for its packed constants if such a layout is
    good enough.

    With `may_own`, a given schedule keeps its own layout, and a default schedule keeps its layout if it is better by
    more than `WORTH_OWN_LAYOUT`. Raises ScheduleError.
    """
    sketch, point = resolve(task, schedule, target, rules)
    own = layout_of(sketch, point)
    if not known or not own.tensors or own in known or (schedule is not None and may_own):
        return sketch, point
    fixed = [s for layout in known for s in _with_layout(task, layout, target, rules)]
    try:
        shared, other = best_point(fixed)
    except ScheduleError:  # none of the layouts can be had
        return sketch, point
    seconds, shared_seconds = (float(s.prior(p[None])[0]) for s, p in ((sketch, point), (shared, other)))
    is_worth_it = may_own and seconds * WORTH_OWN_LAYOUT < shared_seconds
    return (sketch, point) if is_worth_it or layout_of(shared, other) not in known else (shared, other)


def _with_layout(task: Task, layout: PackedLayout, target: Target, rules: Sequence[Rule]) -> list[Sketch]:
    """Returns the sketches that can have a layout, their knobs narrowed to choices with this layout."""
    matches: list[Sketch] = []
    for sketch in sketches(task, target, rules):
        if sketch.variant != layout.variant:
            continue
        readers = {stage.reader for stage in sketch.structure.stages if stage.level is ComputeAt.LOAD}
        widths = [k for k in sketch.knobs if k.unit == "vectors" and k.stage in readers]
        candidates = [sketch]
        for knob in widths:
            candidates = [s.narrowed(knob.name, choice) for s in candidates for choice in knob.choices]
        for narrow in candidates:
            if layout_of(narrow, narrow.canonical(narrow.smallest())[0]) == layout:
                matches.append(narrow)
    return matches
