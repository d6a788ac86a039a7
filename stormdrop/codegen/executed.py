"""Floating-point operations that a lowered program executes, counted by walking its loops.

Lanes beyond a tail are counted, since they are computed; what a border lets code generation leave out is not. A loop is
stepped through only where something inside depends on its variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import product
from math import prod

from stormdrop.codegen.borders import Narrowing, folded, narrowings
from stormdrop.ir.affine import Affine, decide
from stormdrop.ir.expr import Axis, Bin, Cmp, Const, Expr, Select, Var, identity_of, rewrite, walk
from stormdrop.ir.tensor import operations
from stormdrop.lower.program import For, If, Phase, Program, ReduceLoop, Stmt, Tile
from stormdrop.space.access import axes_of

Env = Mapping[Expr, int]
Bounds = Mapping[Expr, tuple[int, int]]
LANE = Var("lane")


def executed_flops(program: Program) -> float:
    """Of one call; packing constants is not part of it."""
    return sum(_phase(phase) for phase in program.phases if not phase.at_load)


def _phase(phase: Phase) -> float:
    body = phase.body
    for var, trips in reversed(phase.loops):
        body = (For(var, Const(trips, "i64"), trips, body),)
    return _count(body, {}, {})


def _count(body: tuple[Stmt, ...], env: Env, bounds: Bounds) -> float:
    total = 0.0
    for s in body:
        match s:
            case For(var, trips, most, inner):
                n = _value(trips, env)
                within = {**bounds, var: (0, most - 1)}
                if var in _mentioned(inner):
                    total += sum(_count(inner, {**env, var: i}, within) for i in range(n))
                elif n > 0:
                    total += n * _count(inner, env, within)
            case If(condition, then, orelse):
                total += _count(then if _value(condition, env) else orelse, env, bounds)
            case Tile():
                total += _tile(s, env, bounds)
    return total


@lru_cache(maxsize=4096)
def _mentioned(body: tuple[Stmt, ...]) -> frozenset[Var]:
    """The loop variables that decide how often something in the body runs."""
    found: set[Var] = set()
    for s in body:
        match s:
            case For(_, trips, _, inner):
                found |= _variables(trips) | _mentioned(inner)
            case If(condition, then, orelse):
                found |= _variables(condition) | _mentioned(then) | _mentioned(orelse)
            case Tile():
                for loop in s.reduce:
                    found |= _variables(loop.span.length)
                for n in _narrowings(s):
                    for axis in axes_of(n.condition):
                        found |= {v for atom, _ in s.base[axis].terms for v in _variables(atom)}
                if s.accumulate is not None:
                    found |= _variables(s.accumulate.last)
    return frozenset(found)


def _variables(e: Expr) -> set[Var]:
    return {n for n in walk(e) if isinstance(n, Var) and not isinstance(n, Axis)}


@lru_cache(maxsize=4096)
def _narrowings(tile: Tile) -> tuple[Narrowing, ...]:
    return tuple(narrowings(tile))


# ---- one register tile -----------------------------------------------------------------------------------------------


def _tile(tile: Tile, env: Env, bounds: Bounds) -> float:
    stage = tile.stage
    width = (tile.vectors if stage.vector is not None else 1) * tile.lanes
    finished = tile.row_count * (1 if stage.vector_is_reduced else width)
    total = 0.0
    if stage.is_reduction:
        per_instance = (operations(stage.body) + 1) * width
        total = _reduced(tile, 0, env, bounds, {}) * per_instance
    if tile.accumulate is None or _value(tile.accumulate.last, env):
        total += finished * operations(stage.finish)
    return total


def _reduced(tile: Tile, k: int, env: Env, bounds: Bounds, offsets: Mapping[Axis, int]) -> float:
    """Rows times steps that the reduce loops from the k-th inwards execute."""
    loop = tile.reduce[k]
    if loop.peeled:
        return sum(_inside(tile, k, env, bounds, {**offsets, loop.axis: i}) for i in range(loop.span.longest))
    low, high, static = _range(tile, loop, env, offsets)
    within = {**bounds, loop.var: (0, max(0, loop.span.longest - 1))}
    if k == len(tile.reduce) - 1:
        return _innermost(tile, loop, low, max(low, high), static, within, offsets)
    if high <= low:
        return 0.0
    if static and high - low == 1:
        return _inside(tile, k, env, bounds, {**offsets, loop.axis: low})
    if any(loop.axis in axes_of(n.condition) and n.axis is not loop.axis for n in _narrowings(tile)):
        return sum(_inside(tile, k, {**env, loop.var: i}, within, offsets) for i in range(low, high))
    return (high - low) * _inside(tile, k, env, within, offsets)


def _inside(tile: Tile, k: int, env: Env, bounds: Bounds, offsets: Mapping[Axis, int]) -> float:
    if k + 1 < len(tile.reduce):
        return _reduced(tile, k + 1, env, bounds, offsets)
    return float(_live_rows(tile, bounds, offsets))


def _innermost(
    tile: Tile, loop: ReduceLoop, low: int, high: int, static: bool, bounds: Bounds, offsets: Mapping[Axis, int]
) -> float:
    """Steps times rows; steps written out at constant positions may each lose other rows to the border.

    Where the length is not known, the masked end of a vectorised reduction always runs.
    """
    length = high - low
    steps = -(-length // loop.step) if static or loop.step == 1 else length // loop.step + 1
    if not static or loop.step > 1 or loop.axis not in _guarding(tile):
        return float(steps * _live_rows(tile, bounds, offsets))
    rolled = steps // loop.unroll * loop.unroll
    rolled = 0 if rolled == loop.unroll else rolled
    written = sum(_live_rows(tile, bounds, {**offsets, loop.axis: i}) for i in range(low + rolled, high))
    return float(rolled * _live_rows(tile, bounds, offsets) + written)


def _range(tile: Tile, loop: ReduceLoop, env: Env, offsets: Mapping[Axis, int]) -> tuple[int, int, bool]:
    """The narrowed range of a rolled loop, and whether code generation knows it."""
    low, high = 0, _value(loop.span.length, env)
    static = isinstance(loop.span.length, Const)
    for n in _narrowings(tile):
        if n.axis is not loop.axis:
            continue
        rest = n.form.constant
        for atom, c in n.form.terms:
            assert isinstance(atom, Axis)
            base = tile.base[atom]
            rest += c * (
                _affine(base, env)
                + offsets.get(atom, 0)
                + (env.get(_open(tile, atom), 0) if atom is not loop.axis else 0)
            )
            static = static and not base.terms and (atom is loop.axis or atom in offsets or atom in tile.stage.axes)
        c = n.form.coefficient(loop.axis)
        if c > 0:
            low = max(low, -(rest // c))
        else:
            high = min(high, rest // -c + 1)
    return low, high, static


def _open(tile: Tile, axis: Axis) -> Expr:
    return next((loop.var for loop in tile.reduce if loop.axis is axis), axis)


# ---- rows that borders leave -----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _guarding(tile: Tile) -> frozenset[Axis]:
    """The axes that conditions of the body speak of."""
    found = (axes_of(n.condition) for n in walk(tile.stage.body) if isinstance(n, Select))
    return frozenset(a for axes in found for a in axes)


def _live_rows(tile: Tile, bounds: Bounds, offsets: Mapping[Axis, int]) -> int:
    """Rows whose step is not known to be neutral; what is known depends on constant offsets and on loops' ranges
    alone.
    """
    guarding = _guarding(tile)
    if not guarding:
        return tile.row_count
    relevant = tuple((a, n) for a, n in offsets.items() if a in guarding)
    return _counted(tile, frozenset(bounds.items()), relevant)


@lru_cache(maxsize=65536)
def _counted(tile: Tile, bounds: Iterable[tuple[Expr, tuple[int, int]]], offsets: tuple[tuple[Axis, int], ...]) -> int:
    stage, known = tile.stage, dict(bounds)
    assert stage.combiner is not None
    neutral = identity_of(stage.combiner, stage.body.dtype)
    dropped = {n.condition for n in _narrowings(tile)}
    guarding = _guarding(tile)
    used = [(a, n) for a, n in tile.rows if a in guarding]
    others = prod(n for a, n in tile.rows if a not in guarding)
    vector, lanes = stage.vector, tile.lanes
    live = 0
    for row in product(*(range(n) for _, n in used)):
        at: dict[Axis, int] = {**dict(offsets), **{a: i for (a, _), i in zip(used, row)}}

        def place(e: Expr, at: Mapping[Axis, int] = at) -> Expr | None:
            if not isinstance(e, Axis):
                return None
            form = tile.base[e].shifted(at.get(e, 0))
            opened = _open(tile, e)
            if opened is not e and e not in at and opened in known:
                form = form + Affine(((opened, 1),))
            return (form + Affine(((LANE, 1),))).expr() if e is vector and lanes > 1 else form.expr()

        def of_atom(atom: Expr) -> tuple[int, int] | None:
            return (0, lanes * tile.vectors - 1) if atom is LANE else known.get(atom)

        def decided(c: Expr) -> bool | None:
            if c in dropped:
                return True
            if isinstance(c, Bin) and c.op == "and":
                parts = [decided(c.a), decided(c.b)]
                return False if False in parts else True if all(parts) else None
            return decide(rewrite(c, place), of_atom)

        gone = folded(stage.body, decided)
        live += gone is None or gone.value != neutral
    return live * others


# ---- values ----------------------------------------------------------------------------------------------------------


def _affine(form: Affine, env: Env) -> int:
    return form.constant + sum(c * _value(atom, env) for atom, c in form.terms)


def _value(e: Expr, env: Env) -> int:
    """An integer expression under known loop variables."""
    match e:
        case Const(value):
            return int(value)
        case Bin(op, a, b):
            x, y = _value(a, env), _value(b, env)
            match op:
                case "add":
                    return x + y
                case "sub":
                    return x - y
                case "mul":
                    return x * y
                case "floordiv":
                    return x // y
                case "mod":
                    return x % y
                case "min":
                    return min(x, y)
                case "max":
                    return max(x, y)
                case "and":
                    return int(bool(x) and bool(y))
                case "or":
                    return int(bool(x) or bool(y))
                case _:
                    raise AssertionError(f"no value for {e}")
        case Cmp(op, a, b):
            x, y = _value(a, env), _value(b, env)
            return int({"lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y, "eq": x == y, "ne": x != y}[op])
        case Select(c, a, b):
            return _value(a if _value(c, env) else b, env)
        case _:
            return env[e]
