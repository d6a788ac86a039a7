"""Prefetching packed constants: while a block of them is used, the next block is fetched into the L2 cache.

A block is the part that a register tile reads in its reduce loops. Serial loops that do not index the constants use the
same block again, and each use fetches its share of the next block, which spreads the traffic over the computing time:

    for k_0 in 4:                 the next block is 192 · 16 elements further on
      for m in 8:                 the block is used eight times
        for k in 0:192 unroll 8:  a trip reads eight lines; every use of the block prefetches one of the next block's
          Y += A[...] * W.packed[...]

Nothing is prefetched for blocks that are used once, for the first block of an iteration of the parallel loop (another
thread may run the iteration before), and for blocks that an outer loop repeats. Loops of one trip, which are written
out, and remainders after whole trips prefetch nothing either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stormdrop.ir.affine import ZERO, Affine
from stormdrop.ir.expr import ITEMSIZE, Const, Expr, Select, binary, compare
from stormdrop.lower.program import Access, For, Phase, Prefetch, Program, ReduceLoop, Spread, Stmt, Update, with_inner
from stormdrop.target.structures import Scope

LEAST_BYTES = 1 << 20
"""The least size of prefetched constants. Smaller constants stay in the L2 cache, or arrive soon enough."""


def with_prefetches(program: Program, least_bytes: int = LEAST_BYTES) -> Program:
    """Returns the program with prefetches of packed constants of at least `least_bytes` that its CPU phases read."""

    def statement(s: Stmt, loops: tuple[For, ...] = ()) -> Stmt:
        """Adds prefetches to a statement; `loops` are the serial loops around the statement, outermost first."""
        match s:
            case ReduceLoop(body=(Update() as update,)):
                accesses = [a for a in update.reads.values() if _is_packed(a, s, least_bytes)]
                prefetches = [p for access in accesses if (p := _prefetch(access, loops)) is not None]
                return replace(s, prefetches=tuple(prefetches))
            case _:
                around = (*loops, s) if isinstance(s, For) else loops
                return with_inner(s, lambda inner: statement(inner, around))

    def on_cpu(phase: Phase) -> Phase:
        return phase if phase.threads or phase.at_load else replace(phase, body=tuple(map(statement, phase.body)))

    return replace(program, phases=tuple(map(on_cpu, program.phases)))


def _is_packed(access: Access, loop: ReduceLoop, least_bytes: int) -> bool:
    """Returns whether the loop reads packed constants of at least `least_bytes` line by line."""
    buffer, width = access.buffer, loop.tile.chunks * loop.tile.lanes
    is_packed = buffer.scope is Scope.PACKED and buffer.elements * ITEMSIZE[buffer.dtype] >= least_bytes
    is_plain = access.spread is Spread.CONTIGUOUS and not access.atoms
    return is_packed and is_plain and access.coefficient(loop.axis) == width


def _prefetch(access: Access, loops: Sequence[For]) -> Prefetch | None:
    """Returns the prefetch of the next block; None if a block is used once, or is the only block."""
    use, uses, outer = ZERO, 1, list(loops)
    while outer and (uses == 1 or not access.outer.coefficient(outer[-1].var)):
        loop = outer.pop()
        if not access.outer.coefficient(loop.var):
            use, uses = use + Affine(((loop.var, uses),)), uses * loop.most
    indexing = [loop for loop in outer if access.outer.coefficient(loop.var)]
    if not indexing or uses == 1:
        return None
    distance = _distance(access, indexing)
    for loop in outer:
        if loop not in indexing:  # it goes through the blocks once more: they were fetched before
            distance = Select(compare("gt", loop.var, 0), Const(0, "i64"), distance)
    return Prefetch(access, distance, use, uses)


def _distance(access: Access, loops: Sequence[For]) -> Expr:
    """Returns the distance from a block to the next block, in elements: one more iteration of the innermost loop. At
    the end of a loop, the next block is at its first iteration, one iteration further in the enclosing loop. The last
    block is followed by the first.
    """
    if not loops:
        return Const(0, "i64")
    *outer, loop = loops
    step = access.outer.coefficient(loop.var)
    at_end = binary("sub", _distance(access, outer), binary("mul", loop.var, step))
    return Select(compare("ge", binary("add", loop.var, 1), loop.trips), at_end, Const(step, "i64"))
