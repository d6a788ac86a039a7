"""The result of a build: machine code, and its calling convention (buffers, phases, launches).

An artifact is plain data without addresses: it can be sent to another process or written to a file.

Groups of kernel phases: the work of a host's threads between two barriers.

A model's calls have phases, each a parallel range. By default a barrier follows every phase. A `Group` is a run of
consecutive phases, of one call or of several, with a barrier only after the last. The group is itself a parallel range,
whose iterations are divided among the threads. Iteration i of a group of n iterations runs, of each phase in turn, the
iterations [⌈extent·i/n⌉, ⌈extent·(i+1)/n⌉), all on one thread. A group of one iteration is serial: a chain of phases on
one thread.

Invariant: an iteration of a group touches nothing that another iteration of the group writes (`builder.grouping`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from stormdrop.base.codec import LARGEST, Count, Range, Row, Size
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.target.structures import Scope


@dataclass(frozen=True, slots=True)
class Group(Row):
    """Phases without a barrier between them, over a range of `extent` iterations. A phase is written (index of its
    call, index of the phase in the call).
    """

    extent: Count
    phases: tuple[tuple[Size, Size], ...]

    @property
    def is_serial(self) -> bool:
        return self.extent == 1


def single_groups(extents: Sequence[Sequence[int]]) -> tuple[Group, ...]:
    """Returns every phase in a group of its own.

    `extents[call][phase]` is the extent of a phase; empty phases are left out.
    """
    return tuple(
        Group(extent, ((call, phase),))
        for call, phases in enumerate(extents)
        for phase, extent in enumerate(phases)
        if extent
    )


@dataclass(frozen=True, slots=True)
class StepRow:
    """The words of the pool's step (`%step` in `pool_ir`) that the groups determine, for one phase of one call.

        entry, buffers, scratch, scratch stride | `words`

    The other words are addresses, which the recording device fills in.
    """

    call: int
    words: tuple[int, ...]


def step_rows(extents: Sequence[Sequence[int]], groups: Sequence[Group]) -> list[StepRow]:
    """Returns the steps of all groups, one for each phase.

    The four `words` of a step are the index of the phase in its call, the extent of the phase, the extent of the group,
    and a size. The size is the number of steps in the group for its first step, else 0.
    """
    rows: list[StepRow] = []
    for group in groups:
        for n, (call, phase) in enumerate(group.phases):
            size = 0 if n else len(group.phases)
            rows.append(StepRow(call, (phase, extents[call][phase], group.extent, size)))
    return rows


def problem_of(extents: Sequence[Sequence[int]], groups: Sequence[Group]) -> str:
    """Returns the fault of the groups of a model with phases of these extents; an empty string if there is none.

    The groups, one after the other, must list every phase that is not empty once, in order. Products of extents must
    not overflow.
    """
    wanted = [(call, p) for call, phases in enumerate(extents) for p, extent in enumerate(phases) if extent]
    if [phase for group in groups for phase in group.phases] != wanted or not all(group.phases for group in groups):
        return "its groups are not all of its phases in their order"
    for group in groups:
        for call, phase in group.phases:
            extent = extents[call][phase]
            if group.extent != extent and group.extent * extent > LARGEST:  # the pool multiplies them
                return f"phase {phase} of step {call} has too many iterations for its group"
    return ""


SLACK_BYTES = 512
"""Padding after packed constants and workspace, where a whole vector may be read past the end; between the scratch of
two threads it prevents false sharing."""


@dataclass(frozen=True, slots=True)
class BufferSpec(Row):
    """One entry of the pointer table.

    A constant, packed or not, that is not `resident` is read only by the load-time phases.
    """

    name: str
    dtype: Dtype
    scope: Scope
    elements: Size
    resident: bool = True

    @property
    def nbytes(self) -> int:
        """The size to allocate, padding included."""
        return self.elements * ITEMSIZE[self.dtype] + (
            SLACK_BYTES if self.scope in (Scope.PACKED, Scope.WORKSPACE) else 0
        )

    @property
    def is_kept(self) -> bool:
        """Whether the buffer holds a constant that calls read."""
        return self.scope in (Scope.PACKED, Scope.CONSTANT) and self.resident


@dataclass(frozen=True, slots=True)
class Launch(Row):
    """How a GPU runs one phase: a one-dimensional grid of one-dimensional blocks, and each block's shared memory."""

    blocks: Annotated[int, Range(1, (1 << 31) - 1)]
    threads: Annotated[int, Range(1, 1024)]
    shared_bytes: Annotated[int, Range(0, (1 << 20) - 1)]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built kernel.

    Phases run in order, with a barrier after each. A phase is a parallel range; `extents` are the ranges of the phases
    of every call. The phases of `prepare_extents` (the function `codegen.PREPARE`) run once and write packed constants.

    For a CPU, `code` is a relocatable object, and its function `codegen.ENTRY` runs the phases of a call. Every thread
    has `scratch_bytes` of scratch memory.

    For a GPU, `code` is a cubin or PTX with one function `phase{i}` for phase i of a call, launched as `launches[i]`
    says; its parameters are pointers to all buffers in their order. Constants are packed on the host: `prepare_code` is
    a relocatable object for the host's CPU.
    """

    code: bytes
    buffers: tuple[BufferSpec, ...]
    extents: tuple[Size, ...]
    prepare_extents: tuple[Size, ...] = ()
    scratch_bytes: Size = 0
    launches: tuple[Launch, ...] = ()
    prepare_code: bytes = b""

    def __post_init__(self) -> None:
        if self.launches and len(self.launches) != len(self.extents):
            raise ValueError(f"{len(self.launches)} launches for {len(self.extents)} phases; each phase needs one")
