"""Runs the loops of a lowered program in Python and counts: tiles, steps, body instances, and the boxes of operands.

It knows nothing of tile sizes and knobs: trip counts are evaluated where the loops stand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stormdrop.ir.affine import Affine
from stormdrop.ir.expr import Axis, Bin, Cmp, Const, Expr, Select, Var
from stormdrop.lower.program import (
    Barrier,
    Combine,
    CommitCopies,
    Finish,
    For,
    If,
    Phase,
    Program,
    ReduceLoop,
    RegisterTile,
    Save,
    Start,
    Stmt,
    Threads,
    Update,
    WaitForCopies,
    statements,
)
from stormdrop.space.structure import ComputeAt, Stage

Env = Mapping[Expr, int]


def number(e: Expr, env: Env) -> int:
    """The value of index arithmetic."""
    match e:
        case Const(value):
            return int(value)
        case Var() | Axis():
            return env[e]
        case Bin(op, a, b):
            x, y = number(a, env), number(b, env)
            return {
                "add": lambda: x + y,
                "sub": lambda: x - y,
                "mul": lambda: x * y,
                "floordiv": lambda: x // y,
                "mod": lambda: x % y,
                "min": lambda: min(x, y),
                "max": lambda: max(x, y),
                "and": lambda: int(bool(x and y)),
                "or": lambda: int(bool(x or y)),
            }[op]()
        case Cmp(op, a, b):
            x, y = number(a, env), number(b, env)
            return int({"lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y, "eq": x == y, "ne": x != y}[op])
        case Select(c, a, b):
            return number(a if number(c, env) else b, env)
        case _:
            raise AssertionError(f"{e} is no index arithmetic")


def place(form: Affine, env: Env) -> int:
    return form.constant + sum(c * number(atom, env) for atom, c in form.terms)


@dataclass(frozen=True, slots=True)
class Visit:
    """One execution of a register tile: where the loops around it stand, and the stretch of every axis it covers."""

    tile: RegisterTile
    loops: tuple[tuple[Var, int], ...]  # outermost first
    reduce: tuple[ReduceLoop, ...]
    stretch: dict[Axis, tuple[int, int]]  # first element and length; the vector axis clipped to what is live
    is_finished: bool


@dataclass(slots=True)
class Walk:
    """What one stage did."""

    entries: int = 0
    visits: list[Visit] = field(default_factory=list[Visit])

    @property
    def tiles(self) -> int:
        """Register tiles finished: those whose partial sums go on do not count."""
        return sum(v.is_finished for v in self.visits)

    @property
    def steps(self) -> int:
        return sum(_steps(v) for v in self.visits)

    @property
    def body_instances(self) -> int:
        return sum(_steps(v) * v.tile.row_count * v.tile.vectors for v in self.visits)

    @property
    def lanes_live(self) -> int:
        """Points of the iteration space that were computed."""
        return sum(math.prod(n for _, n in v.stretch.values()) for v in self.visits)


def _steps(v: Visit) -> int:
    return math.prod(-(-v.stretch[loop.axis][1] // loop.step) for loop in v.reduce)


def walk_program(program: Program) -> dict[str, Walk]:
    """Every stage that runs when the kernel is called, by id."""
    found: dict[str, Walk] = {}
    for phase in program.phases:
        if not phase.at_load:
            _walk_phase(phase, found)
    return found


def stages_of(s: Stmt) -> dict[str, Stage]:
    return {f.tile.stage.id: f.tile.stage for f in statements((s,)) if isinstance(f, Finish)}


def _walk_phase(phase: Phase, found: dict[str, Walk]) -> None:
    reduced: dict[RegisterTile, tuple[ReduceLoop, ...]] = {}

    def body(stmts: Sequence[Stmt], loops: tuple[tuple[Var, int], ...], outside: frozenset[str]) -> None:
        for s in stmts:
            inside = frozenset(stages_of(s)) or outside
            for id in entered(s) if inside != outside else ():
                found.setdefault(id, Walk()).entries += 1
            match s:
                case For(var, trips, most, inner):
                    count = number(trips, dict(loops))
                    assert 0 <= count <= most
                    for k in range(count):
                        body(inner, (*loops, (var, k)), inside)
                case If(condition, then, orelse):
                    body(then if number(condition, dict(loops)) else orelse, loops, inside)
                case ReduceLoop():
                    reduced[s.tile] = tuple(x for x in statements((s,)) if isinstance(x, ReduceLoop))
                case Save(tile) | Finish(tile):
                    visit = _visit(tile, loops, reduced.get(tile, ()), isinstance(s, Finish))
                    found.setdefault(tile.stage.id, Walk()).visits.append(visit)
                case Threads() | Barrier() | Combine() | CommitCopies() | WaitForCopies():
                    raise AssertionError("the walk is through a CPU's programs")
                case Start() | Update():
                    pass

    def entered(s: Stmt) -> set[str]:
        """The nest that begins here: that of the only stage inside, but for copies that are made again in its loops."""
        stages = stages_of(s)
        own = {id for id, stage in stages.items() if stage.level is not ComputeAt.REDUCE_BLOCK}
        return set(stages) if not own else own if s in phase.body else set()

    for unit in _units(phase):
        body(phase.body, unit, frozenset())


def _units(phase: Phase) -> Iterator[tuple[tuple[Var, int], ...]]:
    for k in range(phase.extent):
        digits: list[tuple[Var, int]] = []
        for var, n in reversed(phase.loops):
            digits.append((var, k % n))
            k //= n
        yield tuple(reversed(digits))


def _visit(
    t: RegisterTile, loops: tuple[tuple[Var, int], ...], reduce: tuple[ReduceLoop, ...], is_finished: bool
) -> Visit:
    """Reduce loops are taken as they were before borders narrowed them."""
    env: Env = dict(loops)
    stretch: dict[Axis, tuple[int, int]] = {}
    for a, n in t.rows:
        stretch[a] = place(t.base[a], env), n
    vector = t.stage.vector
    if vector is not None and not t.stage.vector_is_reduced:
        stretch[vector] = place(t.base[vector], env), t.vectors * t.lanes if t.live is None else number(t.live, env)
    for loop in reduce:
        start = place(t.base[loop.axis], env)
        stretch[loop.axis] = start, min(loop.longest, loop.axis.extent - start)
    return Visit(t, loops, reduce, stretch, is_finished)
