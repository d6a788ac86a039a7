"""Borders: index conditions that select between an operand and a constant (padding).

Two rewrites of a register tile take such conditions out of the reduced value. `narrowed`: a condition that is uniform
over the tile becomes a bound of a reduce loop. `interior` partitions loops: a tile with short inner loops gets a second
body for the case that all conditions hold. The conditions that remain guard reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace

from stormdrop.ir.affine import Affine, Interval, affine, bounds, conjunction, conjuncts, index_condition
from stormdrop.ir.expr import (
    Axis,
    Bin,
    Cmp,
    Const,
    Expr,
    Load,
    Select,
    binary,
    children,
    compare,
    identity_of,
    rewrite,
    walk,
)
from stormdrop.ir.memo import memoised
from stormdrop.lower.program import ReduceLoop, RegisterTile
from stormdrop.space.access import axes_of

Known = Callable[[Expr], Interval | None]
"""Looks up the bounds of a loop variable."""

SHORT_LOOP = 16  # iterations


def folded(
    e: Expr, decided: Callable[[Expr], bool | None], part: Callable[[Expr], Const | None] | None = None
) -> Const | None:
    """Returns the constant value of `e`, given the decided index conditions; None if `e` is not constant.

    A factor that a decided condition turns into 0 (padding, a Winograd coefficient) makes the product 0. A literal 0
    does not: 0 · infinity is NaN. `part` folds the operands; callers pass a memoised one.
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


@memoised()
def deciding_axes(e: Expr) -> tuple[Axis, ...]:
    """Returns the axes that occur in the index conditions of an expression."""
    axes = {a for n in walk(e) if isinstance(n, Select) and index_condition(n.condition) for a in axes_of(n.condition)}
    return tuple(sorted(axes, key=lambda a: a.serial))


def without(e: Expr, holding: Set[Expr]) -> Expr:
    """Simplifies `e`, given that `holding` are true: `where(a and b, x, 0)` without `a` is `where(b, x, 0)`."""

    def visit(n: Expr) -> Expr | None:
        if isinstance(n, Select) and index_condition(n.condition):
            parts = [part for part in conjuncts(n.condition) if part not in holding]
            a = without(n.a, holding)
            return Select(conjunction(parts), a, without(n.b, holding)) if parts else a
        return n if isinstance(n, Load) else None

    return rewrite(e, visit) if holding else e


@memoised(4096)
def borders(e: Expr) -> tuple[Select, ...]:
    """Returns the Selects on an index condition, except Selects inside the index of a load."""
    seen: dict[Expr, None] = {}
    stack = [e]
    while stack:
        node = stack.pop()
        if node not in seen and not isinstance(node, Load):
            seen[node] = None
            stack.extend(reversed(children(node)))
    return tuple(n for n in seen if isinstance(n, Select) and index_condition(n.condition))


# ---- narrowed loops --------------------------------------------------------------------------------------------------


def narrowed(
    tile: RegisterTile, loops: Sequence[ReduceLoop], value: Expr, around: Mapping[Expr, Interval]
) -> tuple[list[ReduceLoop], Expr]:
    """Moves conditions into the ranges of reduce loops. `around` bounds the variables of the loops around the tile.

        for k in 0:n: acc += where(i + k >= 1, x[i + k - 1], 0)   ->   for k in max(0, 1 - i):n: acc += x[i + k - 1]

    A condition is moved if three properties hold. A false condition makes the value the combiner's identity. The
    condition is linear in the axis of a rolled loop. The condition contains no unrolled row, no lane and no inner loop.
    """
    stage, result = tile.stage, list(loops)
    known = {**around, **{loop.var: (0, max(0, loop.longest - 1)) for loop in loops}}.get
    assert stage.combiner is not None
    neutral = identity_of(stage.combiner, value.dtype)
    inside = {a for a, n in tile.rows if n > 1} | ({stage.vector} if not stage.vector_is_reduced else set())
    number = {loop.axis: k for k, loop in enumerate(loops)}
    places: dict[Expr, Affine] = {
        a: base + Affine(((loops[number[a]].var, 1),)) if a in number else base for a, base in tile.base.items()
    }
    moved: set[Expr] = set()
    for node in borders(value):
        gone = folded(value, lambda c, node=node: False if c is node.condition else None)
        if gone is None or gone.value != neutral:
            continue
        for part in conjuncts(node.condition):
            axes, form = axes_of(part), non_negative(part)
            rolled = [number[a] for a in axes if a in number and not loops[number[a]].written_out]
            if part in moved or form is None or not rolled or axes & inside:
                continue
            k = max(rolled)
            linear = form.coefficient(loops[k].axis) and all(isinstance(a, Axis) for a, _ in form.terms)
            if linear and not any(number.get(a, k) > k for a in axes):
                moved.add(part)
                result[k] = _cut(result[k], form.replace(places), known)
    return result, without(value, moved)


def _cut(loop: ReduceLoop, form: Affine, known: Known) -> ReduceLoop:
    """Returns the loop restricted to the iterations in which `form >= 0`."""
    c = form.coefficient(loop.var)
    rest = form + Affine(((loop.var, -c),))

    def is_at_most(a: Expr, b: Expr) -> bool:
        gap = bounds(binary("sub", b, a), known)
        return gap is not None and gap[0] >= 0

    if c > 0:  # c·r + rest >= 0
        bound = rest.scaled(-1).expr() if c == 1 else binary("floordiv", rest.scaled(-1).shifted(c - 1).expr(), c)
        return loop if is_at_most(bound, loop.low) else replace(loop, low=binary("max", loop.low, bound))
    bound = rest.expr() if c == -1 else binary("floordiv", rest.expr(), -c)
    bound = affine(bound).shifted(1).expr()
    return loop if is_at_most(loop.high, bound) else replace(loop, high=binary("min", loop.high, bound))


# ---- interior and border ---------------------------------------------------------------------------------------------


def interior(tile: RegisterTile, loops: Sequence[ReduceLoop], value: Expr) -> tuple[Expr, frozenset[Expr]] | None:
    """Returns a test, outside the reduce loops, that all border conditions hold in the whole tile; and these
    conditions.

    Returns None if partitioning does not pay: no linear condition, one row, or a long innermost loop. Guards are tested
    above a long loop and cost nothing.
    """
    if loops[-1].longest > SHORT_LOOP or tile.row_count < 2:
        return None
    most = dict(tile.rows) | {loop.axis: loop.longest for loop in loops}
    if tile.stage.vector is not None and not tile.stage.vector_is_reduced:
        most[tile.stage.vector] = tile.vectors * tile.lanes
    parts: dict[Expr, Expr] = {}
    for node in borders(value):
        for part in conjuncts(node.condition):
            form = non_negative(part)
            if form is None or any(a not in tile.base for a, _ in form.terms):
                continue
            least = Affine((), form.constant)
            for a, c in form.terms:
                assert isinstance(a, Axis)
                least = least + tile.base[a].scaled(c).shifted(min(0, c * (most.get(a, 1) - 1)))
            parts[part] = compare("ge", least.expr(), 0)
    return (conjunction(parts.values()), frozenset(parts)) if parts else None


def non_negative(part: Expr) -> Affine | None:
    """Returns the affine form that is >= 0 exactly if an inequality holds; None for other conditions."""
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
