"""Boxes: the layout of a staged operand, or of an attached stage's result, in the shared memory of a thread block.

A staged operand that ends in a reduce axis has two layouts. The knob `layout` chooses between the layouts:

    0   plain: its axes in their own order, [m, k]. A thread reads several k of one row as a vector.
    1   reduce axes first, [k, m]. A thread reads one k of several neighbouring rows as a vector.

Rows are padded in both, so that the rows that threads access side by side begin in different banks. Other boxes have
the plain layout.
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
"""Padding behind each row of a staged operand, so that neighbouring rows begin in different banks."""
BOX_ELEMENTS = 16
"""The boxes of a pipeline begin at multiples of this, so that all are aligned like the first."""


def _padding(stage: Stage) -> int:
    """Returns `ROW_PADDING_BYTES` in elements."""
    return ROW_PADDING_BYTES // ITEMSIZE[stage.tensor.dtype]


@memoised()
def _behind_row(stage: Stage) -> int:
    """Returns the elements of padding behind a row in the plain layout: only in copies that end in a reduce axis.

    Threads that compute different rows of a tile then read the same column of different box rows. Copies for matrix
    instructions set their own padding.
    """
    itemsize = ITEMSIZE[stage.tensor.dtype]
    if stage.row_padding:
        return stage.row_padding // itemsize
    is_padded = is_copy(stage) and bool(stage.axes) and stage.axis_id(stage.axes[-1]).startswith("r")
    return _padding(stage) if is_padded and itemsize <= ROW_PADDING_BYTES // 2 else 0


def split_axes(stage: Stage) -> tuple[list[Axis], list[Axis]]:
    """Returns the axes of a staged operand's box: the spatial axes of its reader, and the reduce axes of its reader."""
    axes = [a for a in stage.place if isinstance(a, Axis)]
    spatial = [a for a in axes if not stage.axis_id(a).startswith("r")]
    return spatial, [a for a in axes if a not in spatial]


def box_elements(stage: Stage, sizes: Mapping[Axis, Num], layout: Num) -> Num:
    """Returns the number of elements of one box, its padding included."""
    dims = list(sizes.values())
    if len(dims) > 1:
        dims[-1] = dims[-1] + _behind_row(stage)
    plain = prod_of(dims)
    if not has_layouts(stage):
        return plain
    spatial, reduced = split_axes(stage)
    return where(layout, prod_of([sizes[a] for a in reduced]) * _row(stage, [sizes[a] for a in spatial]), plain)


def _row(stage: Stage, spatial: Sequence[Num]) -> Num:
    """Returns the padded length of a row in layout 1: elements from one reduce index to the next."""
    unit = _padding(stage)
    return ceil_div(prod_of(spatial), unit) * unit + unit


def box_strides(stage: Stage, sizes: Mapping[Axis, int], layout: int) -> tuple[int, ...]:
    """Returns the stride of every axis of a box, in the order of the axes."""
    dims = list(sizes.values())
    if not layout:
        if len(dims) > 1:
            dims[-1] += _behind_row(stage)
        return row_strides(tuple(dims))
    spatial, reduced = split_axes(stage)
    inner = row_strides(tuple(sizes[a] for a in spatial))
    row = int(_row(stage, [sizes[a] for a in spatial]))
    outer = row_strides(tuple(sizes[a] for a in reduced))
    strides = dict(zip(spatial, inner)) | {a: n * row for a, n in zip(reduced, outer)}
    return tuple(strides[a] for a in sizes)


def is_contiguous(stage: Stage, layout: Num) -> Num:
    """Returns whether the elements of a stored vector are neighbours in the box."""
    if not stage.axes or stage.vector is None:
        return True
    plain = stage.vector is stage.axes[-1]
    if not has_layouts(stage):
        return plain
    spatial, _ = split_axes(stage)
    return where(layout, stage.vector is spatial[-1], plain)
