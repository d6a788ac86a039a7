"""The memory accesses of a register tile's statements: vectors, transposes, gathers, masks, pages.

An element beyond a border must not be read. A guard that is uniform over the lanes selects between the element's
address and that of a page, a block filled with the border's value. The select is hoisted above the loops on which the
guard does not depend. Guards that differ by lane mask lanes off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from stormdrop.ir.expr import ITEMSIZE, Axis, Const, Expr, Load
from stormdrop.lower.program import Access, Page, ReduceLoop, RegisterTile, Spread
from stormdrop.space.access import axes_of, has_load, occurrences

PAGE_BYTES = 1 << 16  # the largest page


def decided_reads(
    tile: RegisterTile,
    loops: Sequence[ReduceLoop],
    value: Expr,
    guard: Expr | None,
    access_of: Callable[[Load], Access],
) -> dict[Load, Access]:
    """Returns the access of each load of `value`, which is computed inside `loops` if `guard` holds."""
    accesses: dict[Load, Access] = {}
    for load, alternatives in occurrences(value, guard).items():
        if not isinstance(load, Load):
            continue
        if load.tensor is tile.stage.acc and tile.stage.is_reduction:
            continue
        guards = {g for alternative in alternatives for g in alternative}
        access = spread_over(tile, load, access_of(load), is_guarded=bool(guards))
        uniform = [g for g in guards if tile.lanes == 1 or tile.stage.vector not in axes_of(g)]
        if uniform and access.spread in (Spread.ONE, Spread.CONTIGUOUS):
            access = replace(access, page=_page(tile, loops, access, uniform))
        accesses[load] = access
    return accesses


def spread_over(tile: RegisterTile, e: Expr, access: Access, is_guarded: bool) -> Access:
    """Sets the spread of an access to `e`. An element that all lanes share needs no mask; else `masked` is kept."""
    vector = tile.stage.vector
    if tile.lanes == 1 or vector is None or vector not in axes_of(e):
        return replace(access, masked=False)
    if access.coefficient(vector) == 1 and not any(vector in axes_of(a) for a, _ in access.atoms):
        return replace(access, spread=Spread.CONTIGUOUS)
    square = [a for a, n in tile.rows if access.coefficient(a) == 1 and n % tile.lanes == 0]
    if square and not is_guarded and not access.atoms and access.buffer.dtype != "bool":
        return replace(access, spread=Spread.TRANSPOSED, square=square[0])
    return replace(access, spread=Spread.STRIDED)


def _page(tile: RegisterTile, loops: Sequence[ReduceLoop], access: Access, guards: Sequence[Expr]) -> Page | None:
    """Returns the page of a guarded read; None if the page would be too large, or if the selected pointer could leave
    the page.

    The innermost loop, its written-out steps and the vectors of a row all advance the selected pointer.
    """
    inner, vector = loops[-1] if loops else None, tile.stage.vector
    slope = access.coefficient(inner.axis) if inner is not None else 0
    if slope < 0 or has_data(access):
        return None
    reach = tile.lanes
    if access.coefficient(vector):
        reach += (tile.vectors - 1) * tile.lanes
    if inner is not None and slope:
        reach += _steps_reach(inner, slope, inner.axis is vector)
    if reach * ITEMSIZE[access.buffer.dtype] > PAGE_BYTES:
        return None
    return Page(reach, _above(loops, access, guards))


def _steps_reach(loop: ReduceLoop, slope: int, is_vector: bool) -> int:
    """Returns by how many elements the innermost loop advances a pointer that was selected before the loop.

    Each written-out step selects its own pointer, except along the vector axis: there steps are offsets from the first
    pointer.
    """
    turn = loop.step * loop.unroll
    if isinstance(loop.low, Const) and isinstance(loop.high, Const):
        low = int(loop.low.value)
        rolled, written, _ = loop.split(low, int(loop.high.value))
        if not rolled:
            return low + max(0, len(written) - 1) * loop.step if is_vector else 0
    return slope * (loop.longest + turn) + (turn - loop.step if is_vector else 0)


def _above(loops: Sequence[ReduceLoop], access: Access, guards: Sequence[Expr]) -> Axis | None:
    """Returns the outermost loop above which the select can be hoisted: neither guards nor address depend on its
    variable.

    The address may depend on the innermost loop, which advances the pointer.
    """
    above: Axis | None = None
    used: set[Axis] = {a for e in (*guards, *(a for a, _ in access.atoms)) for a in axes_of(e)}
    for loop in reversed(loops):
        if loop.axis in used or (loop is not loops[-1] and access.coefficient(loop.axis)):
            break
        if not loop.written_out:
            above = loop.axis
    return above


def has_data(access: Access) -> bool:
    """Returns whether the index depends on loaded data.

    Lowering has checked that such an index stays inside its tensor.
    """
    return any(has_load(atom) for atom, _ in access.atoms)
