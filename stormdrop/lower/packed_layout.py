"""The layout of packed constants, which determines their bytes, and the points of a task with a given layout.

Models of one network at several sizes hold a packed constant once if its layout is the same in all of them. A layout
depends on the variant, on the axes of the packed tensor, and on the width of the register tile that reads the tensor. A
layout does not depend on the batch size.

Storage layouts: the region of a buffer that holds a tensor, and the addresses of its elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stormdrop.base.codec import Size
from stormdrop.base.errors import ScheduleError, UserError
from stormdrop.ir.affine import ZERO, Affine, affine, bounds
from stormdrop.ir.expr import Axis, Expr, Load, walk
from stormdrop.ir.tensor import Task, Tensor
from stormdrop.lower.facts import data_bounds
from stormdrop.lower.program import Access, Buffer
from stormdrop.space.default import best_point, resolve
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.space.sketch import Points, Sketch, sketches
from stormdrop.space.structure import ComputeAt, Stage
from stormdrop.space.tiling import Tiling
from stormdrop.target.machine import Target
from stormdrop.target.structures import Scope


@dataclass(slots=True)
class Region:
    """The storage of a tensor: its buffer, the first index the buffer holds, and one stride per dimension.

    If `panel` > 0, the vector axis is blocked: `panel` contiguous elements, one block every `panel_stride` elements.
    """

    buffer: Buffer
    base: tuple[Affine, ...]
    strides: tuple[int, ...]
    offset: int = 0
    panel: int = 0
    panel_stride: int = 0
    moving: Affine = ZERO  # added to every address: which of several boxes in the buffer


def panel_region(stage: Stage, own: Tiling, reader: Tiling, start: Mapping[Axis, Affine]) -> Region:
    """Returns the layout of a packed operand: [other axes..., block of vector axis, reduce axes, lanes of block]."""
    extent = {a: own.extent[a] for a in stage.axes}
    base = tuple(start.get(a, ZERO) for a in stage.axes)
    turned = reader.stage.vector
    vector = stage.vector
    if vector is None or turned is None or stage.axis_id(vector) != reader.stage.axis_id(turned):
        vector = None
    reduced = {reader.stage.axis_id(a) for a in reader.stage.reduce_axes}
    inner = [a for a in stage.axes if stage.axis_id(a) in reduced and a is not vector]
    outer = [a for a in stage.axes if a not in inner and a is not vector]
    width = own.vectors * own.lanes if vector is not None else 1
    strides: dict[Axis, int] = {}
    size = width
    for a in reversed(inner):
        strides[a] = size
        size *= extent[a]
    panel_stride = size
    if vector is not None:
        strides[vector] = 1
        size *= -(-extent[vector] // width)
    for a in reversed(outer):
        strides[a] = size
        size *= extent[a]
    buffer = Buffer(stage.tensor.name, stage.tensor.dtype, Scope.SCRATCH, max(size, 1))
    return Region(
        buffer, base, tuple(strides[a] for a in stage.axes), 0, width if vector is not None else 0, panel_stride
    )


def access_of(region: Region, tensor: Tensor, indices: tuple[Expr, ...], base: Mapping[Axis, Affine]) -> Access:
    """Returns the address of `tensor[indices]` relative to a tile that begins at `base`."""
    outer = region.moving.shifted(region.offset)
    coefficients: dict[Axis, int] = {}
    atoms: list[tuple[Expr, int]] = []
    for d, (i, stride) in enumerate(zip(indices, region.strides)):
        _check_data(tensor, d, i)
        form = affine(i)
        if region.panel and stride == 1 and d == len(indices) - 1:
            ((axis, _),) = form.terms
            assert isinstance(axis, Axis)
            start = base[axis] + region.base[d].scaled(-1)
            if any(c % region.panel for _, c in start.terms) or start.constant % region.panel:
                raise ScheduleError(f"{tensor.name}: a tile does not start at a panel")
            blocks = Affine(tuple((a, c // region.panel) for a, c in start.terms), start.constant // region.panel)
            outer = outer + blocks.scaled(region.panel_stride)
            coefficients[axis] = coefficients.get(axis, 0) + 1
            continue
        outer = outer + Affine((), form.constant * stride) + region.base[d].scaled(-stride)
        for atom, c in form.terms:
            if isinstance(atom, Axis):
                coefficients[atom] = coefficients.get(atom, 0) + c * stride
                outer = outer + base[atom].scaled(c * stride)
            else:
                atoms.append((atom, c * stride))
    return Access(region.buffer, outer, tuple((a, c) for a, c in coefficients.items() if c), tuple(atoms))


def _check_data(tensor: Tensor, d: int, i: Expr) -> None:
    """Checks that a data-dependent index is clamped, max(min(i, n - 1), 0), or taken modulo n. Raises UserError."""
    if not any(isinstance(n, Load) for n in walk(i)):
        return
    known = bounds(i, data_bounds)
    if known is None or known[0] < 0 or known[1] >= tensor.shape[d]:
        raise UserError(f"{tensor.name} is read at {i}, which data decides: clamp it to 0 … {tensor.shape[d] - 1}")


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
