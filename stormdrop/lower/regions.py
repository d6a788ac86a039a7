"""Storage layouts: the region of a buffer that holds a tensor, and the addresses of its elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stormdrop.base.errors import ScheduleError, UserError
from stormdrop.ir.affine import ZERO, Affine, affine, bounds
from stormdrop.ir.expr import Axis, Expr, Load, walk
from stormdrop.ir.tensor import Tensor
from stormdrop.lower.facts import data_bounds
from stormdrop.lower.program import Access, Buffer
from stormdrop.space.structure import Stage
from stormdrop.space.tiling import Tiling
from stormdrop.target.scope import Scope


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
