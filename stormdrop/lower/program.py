"""The concrete loop program that code is generated from.

A program is a list of phases; a phase is one parallel range over loops with constant trip counts. Inside stand serial
loops whose trip counts may depend on outer loops (tails), and register tiles, in which everything is unrolled. All
index arithmetic is in elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stormdrop.ir.affine import Affine
from stormdrop.ir.expr import Axis, Dtype, Expr, Load, Var
from stormdrop.space.structure import Stage
from stormdrop.target.scope import Scope


@dataclass(frozen=True, slots=True)
class View:
    """How a caller's array lies in memory: strides and offset in elements."""

    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A piece of memory.

    `slot` is its entry of the pointer table; scratch has a place in each thread's scratch instead.
    """

    name: str
    dtype: Dtype
    scope: Scope
    elements: int
    slot: int = -1
    scratch_offset: int = 0  # bytes

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Access:
    """An element's address inside a register tile: `outer` (over loop variables) + Σ coefficient · (axis relative to
    the tile) + Σ coefficient · atom, where atoms are the parts that are not linear in the axes."""

    buffer: Buffer
    outer: Affine
    coefficients: tuple[tuple[Axis, int], ...]
    atoms: tuple[tuple[Expr, int], ...] = ()
    padded: bool = False  # whole vectors may be read or written, dead lanes included

    def coefficient(self, axis: Axis) -> int:
        return next((c for a, c in self.coefficients if a is axis), 0)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of an axis: it begins at `base` and is `length` long, which is one of `lengths`."""

    base: Affine
    length: Expr
    lengths: frozenset[int]

    @property
    def is_fixed(self) -> bool:
        return len(self.lengths) == 1

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)


@dataclass(frozen=True, slots=True)
class ReduceLoop:
    """A reduce loop of a tile: `step` elements a trip (lanes times vectors on the vector axis), `unroll` trips a
    turn.
    """

    axis: Axis
    span: Span
    var: Var
    step: int
    unroll: int
    peeled: bool


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Partial sums in memory between the outer reduce blocks: loaded unless `first`, stored unless `last`."""

    access: Access
    first: Expr
    last: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A register tile: rows of unrolled axes times vectors, reduced in registers, finished and stored."""

    stage: Stage
    base: dict[Axis, Affine]  # the first element of every axis; reduce axes begin at their span's base
    rows: tuple[tuple[Axis, int], ...]
    vectors: int
    lanes: int
    live: Expr | None  # live elements of the vector tile; None: all
    reduce: tuple[ReduceLoop, ...]
    accumulate: Accumulate | None
    access: dict[Load, Access]
    store: Access

    @property
    def row_count(self) -> int:
        count = 1
        for _, n in self.rows:
            count *= n
        return count


@dataclass(frozen=True, slots=True)
class For:
    """`for var in range(trips)`; at most `most` trips."""

    var: Var
    trips: Expr
    most: int
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class If:
    """One of two bodies."""

    condition: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


Stmt = For | If | Tile


@dataclass(frozen=True, slots=True)
class Phase:
    """A parallel range over the product of `loops`; a barrier follows it.

    `at_load`: it runs once, to pack constants.
    """

    name: str
    loops: tuple[tuple[Var, int], ...]
    body: tuple[Stmt, ...]
    at_load: bool = False

    @property
    def extent(self) -> int:
        count = 1
        for _, n in self.loops:
            count *= n
        return count


@dataclass(frozen=True, slots=True)
class Program:
    """Everything code generation needs."""

    phases: tuple[Phase, ...]
    buffers: tuple[Buffer, ...]  # the pointer table, in order
    scratch_bytes: int  # per thread

    def __str__(self) -> str:
        return "\n".join(_program_lines(self))


def tiles(body: tuple[Stmt, ...]) -> Iterator[Tile]:
    """Every tile of a body, each code variant separately."""
    for s in body:
        match s:
            case For():
                yield from tiles(s.body)
            case If():
                yield from tiles(s.then)
                yield from tiles(s.orelse)
            case Tile():
                yield s


def buffers_of(phase: Phase) -> list[Buffer]:
    """Every buffer that a phase reads or writes."""
    found: dict[Buffer, None] = {}
    for tile in tiles(phase.body):
        for access in (*tile.access.values(), tile.store, *([tile.accumulate.access] if tile.accumulate else [])):
            found[access.buffer] = None
    return list(found)


def _program_lines(p: Program) -> Iterator[str]:
    for b in p.buffers:
        yield f"{b.scope} {b.name}: {b.dtype}[{b.elements}]"
    if p.scratch_bytes:
        yield f"scratch {p.scratch_bytes} bytes per thread"
    for phase in p.phases:
        loops = ", ".join(f"{v} in {n}" for v, n in phase.loops) or "once"
        yield f"{'load' if phase.at_load else 'parallel'} {phase.name}: {loops}"
        yield from _lines(phase.body, 1)


def _lines(body: tuple[Stmt, ...], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for s in body:
        match s:
            case For(var, trips, _, inner):
                yield f"{pad}for {var} in {trips}:"
                yield from _lines(inner, depth + 1)
            case If(condition, then, orelse):
                yield f"{pad}if {condition}:"
                yield from _lines(then, depth + 1)
                if orelse:
                    yield f"{pad}else:"
                    yield from _lines(orelse, depth + 1)
            case Tile():
                yield from _tile_lines(s, depth)


def _tile_lines(t: Tile, depth: int) -> Iterator[str]:
    pad = "  " * depth
    rows = " × ".join(f"{a}:{n}" for a, n in t.rows if n > 1) or "1 row"
    vector = f" × {t.stage.vector}:{t.vectors}×{t.lanes}" if t.stage.vector is not None else ""
    mask = f" masked to {t.live}" if t.live is not None else ""
    at = ", ".join(f"{a} = {b}" for a, b in t.base.items() if a in t.stage.axes)
    yield f"{pad}tile {rows}{vector}{mask}" + (f" at {at}" if at else "")
    inner = pad + "  "
    for loop in t.reduce:
        how = " written out" if loop.peeled else f" unroll {loop.unroll}" if loop.unroll > 1 else ""
        start = f"{loop.span.base} + " if loop.span.base.terms or loop.span.base.constant else ""
        yield (
            f"{inner}for {loop.axis} in {start}0:{loop.span.length}"
            + (f" step {loop.step}" if loop.step > 1 else "")
            + how
        )
        inner += "  "
    if t.stage.is_reduction:
        yield f"{inner}{t.stage.acc} {t.stage.combiner}= {t.stage.body}"
    if t.accumulate is not None:
        yield f"{pad}  partial sums in {t.accumulate.access.buffer}; last block when {t.accumulate.last}"
    yield f"{pad}  {t.stage.tensor}[{', '.join(map(str, t.stage.place))}] = {t.stage.finish}"
