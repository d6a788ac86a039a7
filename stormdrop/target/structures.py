"""TilingStructure structures: the loop levels into which a machine's stages are cut.

A structure has a name, one letter for each level from the outermost: S cuts every spatial axis once more, R every
reduce axis. Schedules in files name structures; what kind of loop each level is stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LoopKind(Enum):
    """What executes the iterations of a loop level."""

    PARALLEL = "parallel"  # the parallel range of a phase: a thread of the host's pool takes some of them
    BLOCK = "block"  # one thread block of a GPU each
    VIRTUAL_THREAD = "virtual thread"  # interleaved within a GPU thread, strided by the thread block
    THREAD = "thread"  # one thread of a thread block each
    SERIAL = "serial"  # one after the other
    REGISTER = "register"  # all unrolled: the register tile

    @property
    def is_parallel(self) -> bool:
        return self in (LoopKind.PARALLEL, LoopKind.BLOCK)


@dataclass(frozen=True, slots=True)
class TilingStructure:
    """The levels of a nest, outermost first: which axes each cuts (a letter of the name), and the kind of its loops."""

    name: str
    kinds: tuple[LoopKind, ...]

    def __post_init__(self) -> None:
        assert len(self.name) == len(self.kinds)
        assert set(self.name) <= {"S", "R"}


_P, _S, _R = LoopKind.PARALLEL, LoopKind.SERIAL, LoopKind.REGISTER


@dataclass(frozen=True, slots=True)
class TilingStructures:
    """The structures of one kind of machine, by what a stage does."""

    reuse: TilingStructure  # a reduction one of whose operands is used again along a spatial axis
    reduction: TilingStructure  # any other reduction
    elementwise: TilingStructure


CPU_STRUCTURES = TilingStructures(
    reuse=TilingStructure("SSRSRS", (_P, _S, _S, _S, _S, _R)),
    reduction=TilingStructure("SSRS", (_P, _S, _S, _R)),
    elementwise=TilingStructure("SSS", (_P, _S, _R)),
)

STRUCTURES = {t.name: t for t in (CPU_STRUCTURES.reuse, CPU_STRUCTURES.reduction, CPU_STRUCTURES.elementwise)}
"""Every structure that a schedule may name."""
