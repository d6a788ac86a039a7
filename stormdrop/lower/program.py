"""The loop program: the IR from which code is generated.

A program is a list of phases; a phase is a parallel loop nest with constant trip counts, flattened to one range. Its
body has serial loops and statements on register tiles. The trip count of a serial loop may depend on outer loops
(tails). A tile of a reduction is a named set of accumulators:

    start Y[ow:4, co:2×8]                   every accumulator holds the combiner's identity
    for kh in max(0, 1 - oh):min(3, 6 - oh) reduce loops carry the accumulators
      Y += X[...] * W[...]                  for every row and every vector of the tile
    Y[n, oh, ow, co] = max(Y, 0)            the accumulators are finished and stored

Rows and vectors are unrolled: one statement on a tile stands for one copy per row and vector in the code. Its
expressions are over the stage's axes. All index arithmetic is in elements.

On a GPU a phase is a launch, an iteration of its parallel range is a thread block, and scratch is shared memory. Every
thread of a block executes the phase's body:

    threads m_t in 16, n_t in 16:           the variables are digits of the thread's number
      start Y[m:4, n:1×4]
      for k_0 in 32, carrying Y:            the accumulators stay in registers
        threads …: A.packed[…] = A[…]       the block's threads copy a box of A together
        barrier
        for k in 0:8: Y += …
        barrier
      Y[m, n] = Y
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

from stormdrop.ir.affine import Affine, affine
from stormdrop.ir.expr import Axis, Dtype, Expr, Load, Var, identity_of, loads
from stormdrop.space.structure import Stage
from stormdrop.target.structures import Scope


@dataclass(frozen=True, slots=True)
class View:
    """The memory layout of a caller's array: strides and offset in elements."""

    strides: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A piece of memory.

    `slot` is its index in the pointer table; a scratch buffer has an offset into each thread's scratch instead.
    """

    name: str
    dtype: Dtype
    scope: Scope
    elements: int
    slot: int = -1
    scratch_offset: int = 0  # bytes

    def __str__(self) -> str:
        return self.name


class Spread(Enum):
    """The placement of a vector's lanes in memory."""

    ONE = "scalar"  # one element that all lanes share
    CONTIGUOUS = "vector"
    TRANSPOSED = "transposed"  # a lanes × lanes tile is loaded along a row axis and shuffled
    STRIDED = "strided"  # one address for each lane: a gather or a scatter


@dataclass(frozen=True, slots=True)
class Page:
    """A constant block of `elements` equal values: a guarded read reads it instead of its tensor if a guard fails.

    The select between the two pointers is hoisted above the reduce loop over `above` (None: at every read). The loop
    then advances either pointer, so the page is as long as the advance.
    """

    elements: int
    above: Axis | None


@dataclass(frozen=True, slots=True)
class Access:
    """An element's address inside a register tile: `outer` + Σ coefficient · axis + Σ coefficient · atom. `outer` is
    over loop variables, axes are relative to the tile, and atoms are the parts that are not linear in the axes.
    """

    buffer: Buffer
    outer: Affine
    coefficients: tuple[tuple[Axis, int], ...]
    atoms: tuple[tuple[Expr, int], ...] = ()
    spread: Spread = Spread.ONE
    masked: bool = False  # dead lanes of a tail are masked off; otherwise they are read or written too
    square: Axis | None = None  # the row axis of a transposed tile
    page: Page | None = None  # of a guarded read; None: guards mask lanes, or select at each read
    has_dead: bool = False  # the buffer has room for instances beyond a limit too: they may read it

    def coefficient(self, axis: Axis | None) -> int:
        return next((c for a, c in self.coefficients if a is axis), 0)


@dataclass(frozen=True, slots=True, eq=False)
class RegisterTile:
    """Unrolled rows times vectors: the elements of a stage that are computed together, in registers."""

    stage: Stage
    base: dict[Axis, Affine]  # the first element of every axis
    rows: tuple[tuple[Axis, int], ...]
    vectors: int
    lanes: int
    live: Expr | None  # number of live elements along a spatial vector axis; None: all
    repeats: tuple[tuple[Axis, int, int], ...] = ()
    """Virtual threads: (axis, n, distance). Groups of n rows, or vectors, begin `distance` elements apart."""
    limits: tuple[tuple[Axis, int], ...] = ()
    """Instances at or beyond a limit, at lane 0, are dead: they are not finished, and read only accesses with
    `has_dead`. The lanes of a vector are dead together."""

    def position(self, axis: Axis, number: int, step: int) -> int:
        """Returns the offset of row `number` (`step` 1) or of vector `number` (`step` lanes) along an axis."""
        for repeated, n, distance in self.repeats:
            if repeated is axis:
                return number // n * distance + number % n * step
        return number * step

    @property
    def row_count(self) -> int:
        return prod(n for _, n in self.rows)

    @property
    def chunks(self) -> int:
        """Vectors of a row; a single scalar if the stage has no vector axis."""
        return self.vectors if self.stage.vector is not None else 1


@dataclass(frozen=True, slots=True, eq=False)
class For:
    """`for var in range(trips)`; at most `most` trips. It carries the accumulators of `tile`, if given."""

    var: Var
    trips: Expr
    most: int
    body: tuple[Stmt, ...]
    tile: RegisterTile | None = None


@dataclass(frozen=True, slots=True, eq=False)
class If:
    """A branch between two bodies."""

    condition: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Start:
    """The initial accumulators of a tile: the combiner's identity, or, if not `first`, the values in `resume`."""

    tile: RegisterTile
    resume: Access | None
    first: Expr


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A prefetch into the L2 cache in a reduce loop, of lines `distance` elements after the lines of `access`.

    The same lines are read in `uses` runs of the loop; `use` is the number of the present run. Each run fetches every
    `uses`-th of the lines of a trip, and at least one line.
    """

    access: Access
    distance: Expr
    use: Affine
    uses: int


@dataclass(frozen=True, slots=True, eq=False)
class ReduceLoop:
    """`for axis in range(low, high, step)`, relative to the tile's base; it carries the tile's accumulators.

    A trip makes `unroll` steps. The remaining whole steps follow singly, and a partial last step is `masked`.
    """

    tile: RegisterTile
    axis: Axis
    var: Var
    low: Expr
    high: Expr
    longest: int  # high - low is at most this
    step: int  # along the vector axis: vectors · lanes; else 1, or the threads that divide the axis
    unroll: int
    written_out: bool  # fully unrolled: one copy of the body per iteration
    masked: bool
    body: tuple[Stmt, ...]
    prefetches: tuple[Prefetch, ...] = ()

    @property
    def is_innermost(self) -> bool:
        return isinstance(self.body[0], Update)

    def split(self, low: int, high: int) -> tuple[range, range, int]:
        """Splits a constant range: the trips of the loop, the whole steps after the loop, and the elements left.

        A loop of one trip is written out.
        """
        turn = self.step * self.unroll
        turns = max(0, high - low) // turn
        middle = low + turns * turn if turns > 1 else low
        steps, left = divmod(max(0, high - middle), self.step)
        return range(low, middle, turn), range(middle, middle + steps * self.step, self.step), left


@dataclass(frozen=True, slots=True)
class Fragment:
    """An operand of matrix instructions in shared memory. The lanes of a warp load 8 × 8 matrices with rows of 16
    bytes, a row per lane, or single elements of 32 bits.

    `access` is the address of the present lane's row, or element, in a group of 8 rows (or columns) of the tile. Lanes
    with `second` = 1 load from the next group instead. With `is_transposed`, rows of the matrices lie along the
    reduction.
    """

    access: Access
    second: Expr
    is_transposed: bool
    is_scalar: bool


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """One reduction step: every accumulator is combined with `value`.

    With `fragments`, of rows and of columns, a step is a matrix instruction of a warp, and sums its depth along the
    innermost reduce axis.
    """

    tile: RegisterTile
    value: Expr
    reads: dict[Load, Access]
    fragments: tuple[Fragment, Fragment] | None = None

    @property
    def depth(self) -> int:
        """Positions along the innermost reduce axis that a step sums."""
        return 1 if self.tile.stage.matrix is None else self.tile.stage.matrix.kernel.k


@dataclass(frozen=True, slots=True, eq=False)
class Save:
    """A store of the accumulators as partial results, for a later `Start` to resume."""

    tile: RegisterTile
    access: Access


@dataclass(frozen=True, slots=True, eq=False)
class Finish:
    """A store of `value` if the stage's guard holds. A load of the stage's `acc` stands for the accumulators."""

    tile: RegisterTile
    value: Expr
    reads: dict[Load, Access]
    store: Access
    is_asynchronous: bool = False  # a copy to shared memory that lands later: see `WaitForCopies`


@dataclass(frozen=True, slots=True, eq=False)
class CommitCopies:
    """The asynchronous copies that a thread has begun since the last such statement become one group."""


@dataclass(frozen=True, slots=True, eq=False)
class WaitForCopies:
    """A thread waits until at most `pending` of its latest groups of copies have not landed."""

    pending: int


@dataclass(frozen=True, slots=True, eq=False)
class Threads:
    """Every thread of a block runs the body with its own values of the variables: the digits of its number, the last
    variable's changing fastest. Threads beyond the product of the trips skip the body.
    """

    loops: tuple[tuple[Var, int], ...]
    body: tuple[Stmt, ...]

    @property
    def count(self) -> int:
        return prod(n for _, n in self.loops)


@dataclass(frozen=True, slots=True, eq=False)
class Barrier:
    """A barrier for all threads of a block. Behind it, each thread can read all threads' writes to shared memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Combine:
    """The combination of a tile's accumulators across the threads of a reduction; the first thread gets the result.

    First `shuffled` neighbouring threads exchange values in registers. Then `groups` of such threads exchange through
    `buffer`, between barriers: slot (thread // shuffled) is a thread's own; the groups' slots are `distance` apart.
    """

    tile: RegisterTile
    shuffled: int
    groups: int
    distance: int
    buffer: Buffer | None


Stmt = (
    For | If | Start | ReduceLoop | Update | Save | Finish | Threads | Barrier | Combine | CommitCopies | WaitForCopies
)


BlockStmt = Threads | Barrier | Combine | CommitCopies | WaitForCopies
"""Statements that all threads of a block execute together. No phase of a CPU has them."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A parallel range over the product of `loops`; a barrier follows it.

    `at_load`: it runs once, when the kernel is loaded, to pack constants.
    """

    name: str
    loops: tuple[tuple[Var, int], ...]
    body: tuple[Stmt, ...]
    at_load: bool = False
    threads: int = 0  # of a thread block; 0: the phase runs on a CPU
    shared_bytes: int = 0  # scratch of a thread block
    residents: int = 1  # blocks that a multiprocessor must have registers for at the same time

    @property
    def extent(self) -> int:
        return prod(n for _, n in self.loops)


@dataclass(frozen=True, slots=True)
class Program:
    """Everything code generation needs."""

    phases: tuple[Phase, ...]
    buffers: tuple[Buffer, ...]  # the pointer table, in order
    scratch_bytes: int  # per thread

    def __str__(self) -> str:
        return "\n".join(_program_lines(self))


def inner_of(s: Stmt) -> tuple[Stmt, ...]:
    """Returns the statements directly inside a statement."""
    match s:
        case For() | ReduceLoop() | Threads():
            return s.body
        case If():
            return (*s.then, *s.orelse)
        case _:
            return ()


def with_inner(s: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """Returns a statement with every statement directly inside changed."""
    match s:
        case For() | ReduceLoop() | Threads():
            return replace(s, body=tuple(map(change, s.body)))
        case If():
            return replace(s, then=tuple(map(change, s.then)), orelse=tuple(map(change, s.orelse)))
        case _:
            return s


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Yields every statement of a body, outer statements first."""
    for s in body:
        yield s
        yield from statements(inner_of(s))


def buffers_of(phase: Phase) -> list[Buffer]:
    """Returns every buffer that a phase reads or writes."""
    buffers: dict[Buffer, None] = {}
    for s in statements(phase.body):
        match s:
            case Update():
                buffers.update(dict.fromkeys(access.buffer for access in s.reads.values()))
            case Finish():
                buffers.update(dict.fromkeys(access.buffer for access in (*s.reads.values(), s.store)))
            case Save():
                buffers[s.access.buffer] = None
            case Combine() if s.buffer is not None:
                buffers[s.buffer] = None
            case _:
                pass
    return list(buffers)


# ---- text ------------------------------------------------------------------------------------------------------------

_SIGNS = {"sum": "+=", "prod": "*=", "max": "max=", "min": "min="}


def _program_lines(p: Program) -> Iterator[str]:
    for b in p.buffers:
        yield f"{b.scope} {b.name}: {b.dtype}[{b.elements}]"
    if p.scratch_bytes:
        yield f"scratch {p.scratch_bytes} bytes per thread"
    for phase in p.phases:
        loops = ", ".join(f"{v} in {n}" for v, n in phase.loops) or "once"
        block = f", {phase.threads} threads, {phase.shared_bytes} bytes shared" if phase.threads else ""
        block += f", {phase.residents} resident" if phase.residents > 1 else ""
        yield f"{'load' if phase.at_load else 'parallel'} {phase.name}: {loops}{block}"
        yield from _lines(phase.body, "  ")


def _lines(body: tuple[Stmt, ...], pad: str) -> Iterator[str]:
    for s in body:
        match s:
            case For(var, trips, _, inner, carried):
                yield f"{pad}for {var} in {trips}{f', carrying {_acc(carried)}' if carried is not None else ''}:"
                yield from _lines(inner, pad + "  ")
            case Threads(loops, inner):
                yield f"{pad}threads {', '.join(f'{v} in {n}' for v, n in loops) or 'the first'}:"
                yield from _lines(inner, pad + "  ")
            case Barrier():
                yield f"{pad}barrier"
            case CommitCopies():
                yield f"{pad}commit copies"
            case WaitForCopies(pending):
                yield f"{pad}wait for copies{f' but the last {pending}' if pending else ''}"
            case Combine():
                how = [f"{s.shuffled} neighbours by shuffles"] * (s.shuffled > 1)
                how += [f"{s.groups} groups {s.distance} apart through {s.buffer}"] * (s.groups > 1)
                yield f"{pad}combine {_acc(s.tile)} across {', '.join(how) or 'one thread'}"
            case If(condition, then, orelse):
                yield f"{pad}if {condition}:"
                yield from _lines(then, pad + "  ")
                if orelse:
                    yield f"{pad}else:"
                    yield from _lines(orelse, pad + "  ")
            case Start(tile, resume, first):
                assert tile.stage.combiner is not None
                start = str(identity_of(tile.stage.combiner, tile.stage.acc.dtype))
                yield f"{pad}{_tile_text(tile)}:"
                pad += "  "  # the statements on the tile follow
                yield f"{pad}{_acc(tile)} = {start if resume is None else f'{start} if {first} else {resume.buffer}'}"
            case ReduceLoop():
                yield f"{pad}{_loop_text(s)}:"
                yield from _lines(s.body, pad + "  ")
            case Update(tile, value, reads):
                assert tile.stage.combiner is not None
                matrix = tile.stage.matrix
                how = f", by {matrix.kernel.name}" if matrix is not None else ""
                yield f"{pad}{_acc(tile)} {_SIGNS[tile.stage.combiner]} {value}{how}"
                yield from _read_lines(reads, pad)
            case Save(tile, access):
                yield f"{pad}{access.buffer} = {_acc(tile)}"
            case Finish():
                yield from _finish_lines(s, pad)


def _acc(tile: RegisterTile) -> str:
    return f"{tile.stage.acc}.acc"


def _tile_text(t: RegisterTile) -> str:
    rows = " × ".join(f"{a}:{n}" for a, n in t.rows if n > 1) or "1 row"
    vector = f" × {t.stage.vector}:{t.vectors}×{t.lanes}" if t.stage.vector is not None else ""
    mask = f" masked to {t.live}" if t.live is not None else ""
    at = ", ".join(f"{a} = {b}" for a, b in t.base.items() if a in t.stage.axes)
    mask += "".join(f", every {n} of {a} {distance} apart" for a, n, distance in t.repeats)
    mask += "".join(f", dead from {a} = {n}" for a, n in t.limits)
    return f"tile {rows}{vector}{mask}" + (f" at {at}" if at else "")


def _loop_text(s: ReduceLoop) -> str:
    base = s.tile.base[s.axis]
    low, high = (base + affine(bound) for bound in (s.low, s.high))
    how = f" step {s.step}" if s.step > 1 else ""
    how += " written out" if s.written_out else f" unroll {s.unroll}" if s.unroll > 1 else ""
    how += ", the last step masked" if s.masked else ""
    how += "".join(f", prefetching {p.access.buffer}" for p in s.prefetches)
    return f"for {s.axis} in {low}:{high}{how}"


def _finish_lines(s: Finish, pad: str) -> Iterator[str]:
    stage, value = s.tile.stage, str(s.value)
    if stage.is_reduction:
        for load in loads(s.value):
            value = value.replace(str(load), _acc(s.tile)) if load.tensor is stage.acc else value
    else:
        yield f"{pad}{_tile_text(s.tile)}:"
        pad += "  "
    how = {Spread.STRIDED: "scattered", Spread.CONTIGUOUS: "masked" if s.store.masked else ""}.get(s.store.spread, "")
    where = f" where {stage.guard}" if stage.guard is not None else ""
    how = "asynchronously" if s.is_asynchronous else how
    yield f"{pad}{stage.tensor}[{', '.join(map(str, stage.place))}] = {value}{where}{how and f', {how}'}"
    yield from _read_lines(s.reads, pad)


def _read_lines(reads: Mapping[Load, Access], pad: str) -> Iterator[str]:
    tensors = [load.tensor for load in reads]
    for load, access in reads.items():
        how = access.spread.value
        how += f" along {access.square}" if access.square is not None else ""
        how += ", masked" if access.masked else ""
        if access.page is not None:
            above = f"above {access.page.above}" if access.page.above is not None else "with every read"
            how += f", or a page of {access.page.elements}, selected {above}"
        yield f"{pad}  {load.tensor if tensors.count(load.tensor) == 1 else load}: {how}"
