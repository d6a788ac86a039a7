"""Borders: conditions on indices, and where they can be moved into the range of a loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from stormdrop.ir.affine import Affine, affine, conjunction, conjuncts, index_condition
from stormdrop.ir.expr import Axis, Bin, Cmp, Const, Expr, Load, Select, compare, identity_of, loads, walk
from stormdrop.lower.program import Tile
from stormdrop.space.access import axes_of


@dataclass(frozen=True, slots=True)
class Narrowing:
    """A condition that the range of a reduce loop takes over: `form >= 0`, linear in the loop's axis."""

    condition: Expr
    axis: Axis
    form: Affine


@lru_cache(maxsize=4096)
def bordered_loads(e: Expr) -> frozenset[Load]:
    """The loads inside selections by an index condition."""
    return frozenset(
        load for n in walk(e) if isinstance(n, Select) and index_condition(n.condition) for load in loads(n)
    )


def folded(
    e: Expr, decided: Callable[[Expr], bool | None], part: Callable[[Expr], Const | None] | None = None
) -> Const | None:
    """The constant an expression is known to be once some conditions are decided.

    A factor that a condition makes 0 (a border, a coefficient of Winograd's) makes the product 0; a constant of the
    model does not: 0 times infinity is NaN. `part` answers for what stands inside it, where someone remembers.
    """
    part = part or (lambda inner: folded(inner, decided))
    match e:
        case Const():
            return e
        case Select(c, a, b) if index_condition(c):
            answer = decided(c)
            return None if answer is None else part(a if answer else b)
        case Bin("mul", a, b):
            y = part(b)  # the coefficient, which is often zero
            if y is not None and y.value == 0 and not isinstance(b, Const):
                return y
            x = part(a)
            if x is not None and x.value == 0 and not isinstance(a, Const):
                return x
            return None if x is None or y is None else Const(x.value * y.value, e.dtype)
        case _:
            return None


@lru_cache(maxsize=65536)
def deciding_axes(e: Expr) -> tuple[Axis, ...]:
    """The axes that the index conditions inside an expression speak of."""
    axes = {a for n in walk(e) if isinstance(n, Select) and index_condition(n.condition) for a in axes_of(n.condition)}
    return tuple(sorted(axes, key=lambda a: a.serial))


def narrowings(tile: Tile) -> list[Narrowing]:
    """Conditions whose failure makes the body neutral, linear in a rolled reduce axis and fixed inside the register
    tile.
    """
    stage = tile.stage
    if stage.combiner is None:
        return []
    neutral = identity_of(stage.combiner, stage.body.dtype)
    unrolled = {a for a, n in tile.rows if n > 1}
    if stage.vector is not None and not stage.vector_is_reduced:
        unrolled.add(stage.vector)
    rolled = {loop.axis: k for k, loop in enumerate(tile.reduce) if not loop.peeled}
    found: dict[Expr, Narrowing] = {}
    for node in walk(stage.body):
        if not isinstance(node, Select) or not index_condition(node.condition):
            continue
        gone = folded(stage.body, lambda c, node=node: False if c is node.condition else None)
        if gone is None or gone.value != neutral:
            continue
        for part in conjuncts(node.condition):
            axes = axes_of(part)
            candidates = [a for a in axes if a in rolled]
            if not candidates or axes & unrolled:
                continue
            axis = max(candidates, key=lambda a: rolled[a])
            later = {loop.axis for k, loop in enumerate(tile.reduce) if k > rolled[axis]}
            form = non_negative(part)
            if (
                form is None
                or axes & later
                or not form.coefficient(axis)
                or any(not isinstance(a, Axis) for a, _ in form.terms)
            ):
                continue
            found[part] = Narrowing(part, axis, form)
    return list(found.values())


SHORT_LOOP = 16


def interior(tile: Tile) -> tuple[Expr, frozenset[Expr]] | None:
    """When all border conditions of a tile hold at once, and which they are.

    None where there are none, or where the innermost loop is so long that testing borders above it costs nothing.
    """
    stage = tile.stage
    if stage.combiner is None or tile.reduce[-1].span.longest > SHORT_LOOP or tile.row_count < 2:
        return None
    most: dict[Axis, int] = dict(tile.rows)
    most.update({loop.axis: loop.span.longest for loop in tile.reduce})
    if stage.vector is not None and not stage.vector_is_reduced:
        most[stage.vector] = tile.vectors * tile.lanes
    parts: dict[Expr, Expr] = {}
    for node in walk(stage.body):
        if isinstance(node, Select) and index_condition(node.condition):
            for part in conjuncts(node.condition):
                least = _least(part, tile, most)
                if least is not None:
                    parts[part] = compare("ge", least.expr(), 0)
    return (conjunction(parts.values()), frozenset(parts)) if parts else None


def _least(part: Expr, tile: Tile, most: dict[Axis, int]) -> Affine | None:
    """The smallest value over the tile of the form that must not be negative."""
    form = non_negative(part)
    if form is None or any(not isinstance(a, Axis) or a not in tile.base for a, _ in form.terms):
        return None
    least = Affine((), form.constant)
    for a, c in form.terms:
        assert isinstance(a, Axis)
        least = least + tile.base[a].scaled(c)
        if c < 0:
            least = least.shifted(c * (most.get(a, 1) - 1))
    return least


def non_negative(part: Expr) -> Affine | None:
    """The form that is >= 0 exactly where the comparison holds."""
    match part:
        case Cmp("ge", a, b):
            return affine(a) + affine(b).scaled(-1)
        case Cmp("gt", a, b):
            return (affine(a) + affine(b).scaled(-1)).shifted(-1)
        case Cmp("le", a, b):
            return affine(b) + affine(a).scaled(-1)
        case Cmp("lt", a, b):
            return (affine(b) + affine(a).scaled(-1)).shifted(-1)
        case _:
            return None
