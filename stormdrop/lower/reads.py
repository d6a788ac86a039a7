"""How a statement of a register tile reads and writes memory: vectors, transposes, gathers, masks, pages.

An element beyond a border must not be read. Where all lanes of a read share the guard, the address is selected between
the element and a page that holds the border's value: once, above the loops that the guard does not depend on. Other
guards switch lanes off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from stormdrop.ir.affine import conjuncts, index_condition, opposite
from stormdrop.ir.expr import ITEMSIZE, Axis, Const, Expr, Load, Select, children, walk
from stormdrop.lower.program import Access, Page, ReduceLoop, RegisterTile, Spread
from stormdrop.space.access import axes_of

PAGE_BYTES = 1 << 16


def decided_reads(
    tile: RegisterTile,
    loops: Sequence[ReduceLoop],
    value: Expr,
    guard: Expr | None,
    access_of: Callable[[Load], Access],
) -> dict[Load, Access]:
    """How each load of `value`, which is computed inside `loops` where `guard` holds, is done."""
    found: dict[Load, Access] = {}
    for load, guards in guards_of(value, guard).items():
        if load.tensor is tile.stage.acc and tile.stage.is_reduction:
            continue
        access = spread_over(tile, load, access_of(load), is_guarded=bool(guards))
        uniform = [g for g in guards if tile.lanes == 1 or tile.stage.vector not in axes_of(g)]
        if uniform and access.spread in (Spread.ONE, Spread.CONTIGUOUS):
            access = replace(access, page=_page(tile, loops, access, uniform))
        found[load] = access
    return found


def spread_over(tile: RegisterTile, e: Expr, access: Access, is_guarded: bool) -> Access:
    """Where the lanes of an access to `e` lie. Lanes that a tail leaves dead must not be touched: `access.masked` says
    whether memory ends there.
    """
    vector = tile.stage.vector
    if tile.lanes == 1 or vector is None or vector not in axes_of(e):
        return replace(access, masked=False)
    if access.coefficient(vector) == 1 and not any(vector in axes_of(a) for a, _ in access.atoms):
        return replace(access, spread=Spread.CONTIGUOUS)
    square = [a for a, n in tile.rows if access.coefficient(a) == 1 and n % tile.lanes == 0]
    if square and not is_guarded and not access.atoms and access.buffer.dtype != "bool":
        return replace(access, spread=Spread.TRANSPOSED, square=square[0])
    return replace(access, spread=Spread.STRIDED)


@lru_cache(maxsize=4096)
def guards_of(value: Expr, guard: Expr | None) -> Mapping[Load, Collection[Expr]]:
    """The index conditions under which each load is read, wherever it stands."""
    found: dict[Load, set[Expr]] = {}
    seen: set[tuple[Expr, tuple[Expr, ...]]] = set()

    def visit(e: Expr, guards: tuple[Expr, ...]) -> None:
        if (e, guards) in seen or not has_load(e):
            return
        seen.add((e, guards))
        if isinstance(e, Select) and index_condition(e.condition):
            visit(e.a, (*guards, *conjuncts(e.condition)))
            visit(e.b, (*guards, opposite(e.condition)))
            return
        if isinstance(e, Load):
            found.setdefault(e, set()).update(guards)
        for child in children(e):
            visit(child, guards)

    visit(value, () if guard is None else tuple(conjuncts(guard)))
    return found


def _page(tile: RegisterTile, loops: Sequence[ReduceLoop], access: Access, guards: Sequence[Expr]) -> Page | None:
    """The page of a guarded read; None where it would be too large or be left behind.

    The innermost loop moves the selected address on, and so do the steps written out and the vectors of a row.
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
    """How far the steps of the innermost loop move an address that was selected before them.

    Steps written out have addresses of their own, but for vectors, which lie behind the first one's.
    """
    turn = loop.step * loop.unroll
    if isinstance(loop.low, Const) and isinstance(loop.high, Const):
        low = int(loop.low.value)
        rolled, written, _ = loop.split(max(0, int(loop.high.value) - low))
        if not rolled:
            return low + max(0, written - 1) * loop.step if is_vector else 0
    return slope * (loop.longest + turn) + (turn - loop.step if is_vector else 0)


def _above(loops: Sequence[ReduceLoop], access: Access, guards: Sequence[Expr]) -> Axis | None:
    """The outermost reduce loop that neither the guards nor the address depend on, but for the innermost loop's own
    steps.
    """
    above: Axis | None = None
    used: set[Axis] = {a for e in (*guards, *(a for a, _ in access.atoms)) for a in axes_of(e)}
    for loop in reversed(loops):
        if loop.axis in used or (loop is not loops[-1] and access.coefficient(loop.axis)):
            break
        if not loop.written_out:
            above = loop.axis
    return above


@lru_cache(maxsize=65536)
def has_load(e: Expr) -> bool:
    return any(isinstance(n, Load) for n in walk(e))


def has_data(access: Access) -> bool:
    """Whether a part of the index is loaded from memory. Lowering has seen to it that it stays inside its tensor."""
    return any(has_load(atom) for atom, _ in access.atoms)
