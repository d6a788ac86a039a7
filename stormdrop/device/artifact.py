"""The result of a build: machine code, and its calling convention (buffers, phases, launches).

An artifact is plain data without addresses: it can be sent to another process or written to a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stormdrop.base.codec import Range, Row, Size
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.target.scope import Scope

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

    Phases run in order over parallel ranges of so many units, with a barrier after each: those of `extents` in every
    call, those of `prepare_extents` (the function `codegen.PREPARE`) once, to write packed constants.

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
