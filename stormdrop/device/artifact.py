"""The result of a build: machine code, and its calling convention (buffers, phases, launches).

An artifact is plain data without addresses: it can be sent to another process or written to a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stormdrop.base.errors import UserError
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.ir.strict import DTYPE, SIZE, Optional, conform
from stormdrop.target.scope import Scope

_SCOPES = frozenset(scope.value for scope in Scope if scope is not Scope.SCRATCH)
ARTIFACT_FORM = {
    "scratch_bytes": SIZE,
    "extents": [SIZE],
    "prepare_extents": [SIZE],
    "slots": [(str, DTYPE, _SCOPES, SIZE, bool)],
    "launches": Optional([(range(1, 1 << 31), range(1, 1025), range(1 << 20))]),
}
"""Of `Artifact.to_json`, for `strict.conform`."""

SLACK_BYTES = 512
"""Padding after packed constants and workspace, where a whole vector may be read past the end; between the scratch of
two threads it prevents false sharing."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One entry of the pointer table.

    A constant, packed or not, that is not `resident` is read only by the load-time phases.
    """

    name: str
    dtype: Dtype
    scope: Scope
    elements: int
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
class Launch:
    """How a GPU runs one phase: a one-dimensional grid of one-dimensional blocks, and each block's shared memory."""

    blocks: int
    threads: int
    shared_bytes: int


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
    extents: tuple[int, ...]
    prepare_extents: tuple[int, ...] = ()
    scratch_bytes: int = 0
    launches: tuple[Launch, ...] = ()
    prepare_code: bytes = b""

    def to_json(self) -> dict[str, object]:
        """Everything but the code, as JSON values; `launches` only where there are some, so a CPU's have the form that
        they always had.
        """
        launches = [[launch.blocks, launch.threads, launch.shared_bytes] for launch in self.launches]
        return {
            "scratch_bytes": self.scratch_bytes,
            "extents": list(self.extents),
            "prepare_extents": list(self.prepare_extents),
            "slots": [[b.name, b.dtype, b.scope.value, b.elements, b.resident] for b in self.buffers],
            **({"launches": launches} if launches else {}),
        }

    @staticmethod
    def from_json(tree: dict[str, Any], code: bytes, prepare_code: bytes = b"") -> Artifact:
        """The inverse of `to_json`, for a tree that conforms to `ARTIFACT_FORM`. Raises ValueError."""
        buffers = tuple(BufferSpec(name, dtype, Scope(scope), *more) for name, dtype, scope, *more in tree["slots"])
        extents, prepare_extents = tuple(tree["extents"]), tuple(tree["prepare_extents"])
        launches = tuple(Launch(*launch) for launch in tree.get("launches", ()))
        if launches and len(launches) != len(extents):
            raise ValueError(f"{len(launches)} launches for {len(extents)} phases")
        return Artifact(code, buffers, extents, prepare_extents, tree["scratch_bytes"], launches, prepare_code)

    def to_message(self) -> dict[str, object]:
        """Plain values for another process (`measure.wire`); the code stays bytes."""
        prepare = {"prepare_code": self.prepare_code} if self.prepare_code else {}
        return {"code": self.code, **prepare, **self.to_json()}

    @staticmethod
    def from_message(data: Any) -> Artifact:
        """The inverse of `to_message`. Raises UserError."""
        try:
            conform(data, {"code": bytes, "prepare_code": Optional(bytes), **ARTIFACT_FORM}, "artifact")
            return Artifact.from_json(data, data["code"], data.get("prepare_code", b""))
        except ValueError as error:
            raise UserError(f"not an artifact: {error}") from error
