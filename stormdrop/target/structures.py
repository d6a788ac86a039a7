"""Tiling structures: the loop levels into which a machine's stages are cut.

A structure has a name, one letter for each level from the outermost.

- CPUs: S cuts every spatial axis once more, R every reduce axis.
- GPUs: B, V, T, W and S cut the spatial axes (blocks, virtual threads, threads, warps; serial or register loops). X and
  R cut the reduce axes (across threads; serial loops).

Schedules in files name structures; this module defines the kind of loop of each level.

The scopes of a kernel's buffers: their memory and their writers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Scope(Enum):
    """The memory of one buffer; the value is the word in files. All but scratch are entries of the pointer table."""

    INPUT = "input"  # the caller's, read
    CONSTANT = "constant"  # known when the kernel is loaded
    OUTPUT = "output"  # the caller's, written
    PACKED = "packed"  # constants in the order in which the kernel reads them, written when it is loaded
    WORKSPACE = "shared"  # between the phases of one call, for all of its threads
    SCRATCH = "scratch"  # of one thread, within one phase

    def __str__(self) -> str:
        return self.name.lower()


class LoopKind(Enum):
    """The executor of the iterations of a loop level."""

    PARALLEL = "parallel"  # the parallel range of a phase: a thread of the host's pool takes some of them
    BLOCK = "block"  # one thread block of a GPU each
    VIRTUAL_THREAD = "virtual thread"  # interleaved within a GPU thread, strided by the thread block
    THREAD = "thread"  # one thread of a thread block each
    WARP = "warp"  # one warp of a thread block each: its lanes hold one tile, as matrix instructions lay it out
    SERIAL = "serial"  # one after the other
    REGISTER = "register"  # all unrolled: the register tile

    @property
    def is_parallel(self) -> bool:
        return self in (LoopKind.PARALLEL, LoopKind.BLOCK)


_SPATIAL, _REDUCE = "SBVTW", "RX"


@dataclass(frozen=True, slots=True)
class TilingStructure:
    """The levels of a nest, outermost first: which axes each cuts (a letter of the name), and the kind of its loops."""

    name: str
    kinds: tuple[LoopKind, ...]

    def __post_init__(self) -> None:
        assert len(self.name) == len(self.kinds)
        assert set(self.name) <= {*_SPATIAL, *_REDUCE}

    @property
    def is_cooperative(self) -> bool:
        """True if the threads of a block execute the nest together, as on a GPU."""
        return LoopKind.THREAD in self.kinds or LoopKind.WARP in self.kinds

    @property
    def levels(self) -> tuple[tuple[bool, LoopKind], ...]:
        """The levels: whether each cuts the reduce axes, and the kind of its loops."""
        return tuple((letter in _REDUCE, kind) for letter, kind in zip(self.name, self.kinds))


_P, _S, _R = LoopKind.PARALLEL, LoopKind.SERIAL, LoopKind.REGISTER


@dataclass(frozen=True, slots=True)
class TilingStructures:
    """The structures of one kind of machine, by the kind of a stage."""

    reuse: TilingStructure  # a reduction with an operand that is used again along a spatial axis
    reduction: TilingStructure  # any other reduction
    elementwise: TilingStructure


CPU_STRUCTURES = TilingStructures(
    reuse=TilingStructure("SSRSRS", (_P, _S, _S, _S, _S, _R)),
    reduction=TilingStructure("SSRS", (_P, _S, _S, _R)),
    elementwise=TilingStructure("SSS", (_P, _S, _R)),
)

_B, _V, _T = LoopKind.BLOCK, LoopKind.VIRTUAL_THREAD, LoopKind.THREAD

GPU_STRUCTURES = TilingStructures(
    reuse=TilingStructure("BSRVTRS", (_B, _S, _S, _V, _T, _S, _R)),
    reduction=TilingStructure("BSTRXS", (_B, _S, _T, _S, _T, _R)),
    elementwise=TilingStructure("BSTS", (_B, _S, _T, _R)),
)
"""The structures of a GPU.

A stage with reuse keeps its accumulators in registers across the outer reduce loop, which stages operands in shared
memory. A reduction without reuse may divide a reduce axis among neighbouring threads.

The serial level takes the elements of a block beyond one per thread: axes that blocks do not divide, and the stages
inside a block."""

MATRIX_STRUCTURE = TilingStructure("BSRWRS", (_B, _S, _S, LoopKind.WARP, _S, _R))
"""A matrix product by matrix instructions: the register tile is a warp's, in groups of 8 rows and of 8 columns."""

STRUCTURES = {
    MATRIX_STRUCTURE.name: MATRIX_STRUCTURE,
    **{t.name: t for kind in (CPU_STRUCTURES, GPU_STRUCTURES) for t in (kind.reuse, kind.reduction, kind.elementwise)},
}
"""Every structure that a schedule may name."""
