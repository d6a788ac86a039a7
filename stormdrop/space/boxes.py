"""Boxes: how the copy of an operand, or the result of an attached stage, lies in the shared memory of a thread block.

A staged operand has two layouts, of which a knob (`nest.layout_knob`) chooses:

    0   its axes as they are, [m, k]: a thread that takes several k of a row reads them as one vector
    1   reduce axes first, [k, m]: a thread that has several neighbouring rows reads them as one vector

Rows are padded in both, so that those which threads access side by side begin in different banks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stormdrop.ir.expr import ITEMSIZE, Axis
from stormdrop.ir.memo import memoised
from stormdrop.ir.shape import row_strides
from stormdrop.space.columns import Num, ceil_div, prod_of, where
from stormdrop.space.nest import has_layouts, is_copy
from stormdrop.space.structure import Stage

ROW_PADDING_BYTES = 16
"""Added to the rows of a staged operand: one row then begins in other banks than the next."""
BOX_ELEMENTS = 16
"""The boxes of a pipeline begin at multiples of it, so that each is aligned as the first."""


def _padding(stage: Stage) -> int:
    """Elements between two rows."""
    return ROW_PADDING_BYTES // ITEMSIZE[stage.tensor.dtype]


@memoised()
def _is_padded(stage: Stage) -> bool:
    """Whether rows are padded as the axes are: the last one is a reduce axis, so rows are the rows of a tile."""
    is_narrow = ITEMSIZE[stage.tensor.dtype] <= ROW_PADDING_BYTES // 2
    return is_copy(stage) and is_narrow and bool(stage.axes) and stage.axis_id(stage.axes[-1]).startswith("r")


def _behind_row(stage: Stage) -> int:
    """Elements behind every row where the axes are as they are. An operand of matrix instructions says so itself."""
    if stage.row_padding:
        return stage.row_padding // ITEMSIZE[stage.tensor.dtype]
    return _padding(stage) if _is_padded(stage) else 0


def split_axes(stage: Stage) -> tuple[list[Axis], list[Axis]]:
    """The axes of a staged operand's box that are spatial in its reader, and those that are reduced."""
    axes = [a for a in stage.place if isinstance(a, Axis)]
    spatial = [a for a in axes if not stage.axis_id(a).startswith("r")]
    return spatial, [a for a in axes if a not in spatial]


def box_elements(stage: Stage, sizes: Mapping[Axis, Num], layout: Num) -> Num:
    """Elements of one box, its padding included."""
    dims = list(sizes.values())
    if len(dims) > 1:
        dims[-1] = dims[-1] + _behind_row(stage)
    plain = prod_of(dims)
    if not has_layouts(stage):
        return plain
    spatial, reduced = split_axes(stage)
    return where(layout, prod_of([sizes[a] for a in reduced]) * _row(stage, [sizes[a] for a in spatial]), plain)


def _row(stage: Stage, spatial: Sequence[Num]) -> Num:
    """Elements from one reduce index to the next, where reduce axes come first."""
    unit = _padding(stage)
    return ceil_div(prod_of(spatial), unit) * unit + unit


def box_strides(stage: Stage, sizes: Mapping[Axis, int], layout: int) -> tuple[int, ...]:
    """The stride of every axis of a box, in the order of the axes."""
    dims = list(sizes.values())
    if not layout:
        if len(dims) > 1:
            dims[-1] += _behind_row(stage)
        return row_strides(tuple(dims))
    spatial, reduced = split_axes(stage)
    inner = row_strides(tuple(sizes[a] for a in spatial))
    row = int(_row(stage, [sizes[a] for a in spatial]))
    outer = row_strides(tuple(sizes[a] for a in reduced))
    found = dict(zip(spatial, inner)) | {a: n * row for a, n in zip(reduced, outer)}
    return tuple(found[a] for a in sizes)


def is_contiguous(stage: Stage, layout: Num) -> Num:
    """Whether the elements that a vector of the copy stores are neighbours in the box."""
    if not stage.axes or stage.vector is None:
        return True
    plain = stage.vector is stage.axes[-1]
    if not has_layouts(stage):
        return plain
    spatial, _ = split_axes(stage)
    return where(layout, stage.vector is spatial[-1], plain)
