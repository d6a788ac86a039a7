"""The result of a build: a relocatable object, and its calling convention (buffers and phases).

An artifact is plain data without addresses: it can be sent to another process or written to a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stormdrop.errors import UserError
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.runtime.strict import DTYPE, SIZE, conform
from stormdrop.target.scope import Scope

_SCOPES = frozenset(scope.value for scope in Scope if scope is not Scope.SCRATCH)
ARTIFACT_FORM = {
    "scratch_bytes": SIZE,
    "extents": [SIZE],
    "prepare_extents": [SIZE],
    "slots": [(str, DTYPE, _SCOPES, SIZE, bool)],
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
class Artifact:
    """A built kernel.

    Phases run in order over parallel ranges of so many units, with a barrier after each: those of `extents` (the
    function `codegen.ENTRY`) in every call, those of `prepare_extents` (`codegen.PREPARE`) once, to write packed
    constants. Every thread has `scratch_bytes` of scratch memory.
    """

    code: bytes
    buffers: tuple[BufferSpec, ...]
    extents: tuple[int, ...]
    prepare_extents: tuple[int, ...] = ()
    scratch_bytes: int = 0

    def to_json(self) -> dict[str, object]:
        """Everything but the code, as JSON values."""
        return {
            "scratch_bytes": self.scratch_bytes,
            "extents": list(self.extents),
            "prepare_extents": list(self.prepare_extents),
            "slots": [[b.name, b.dtype, b.scope.value, b.elements, b.resident] for b in self.buffers],
        }

    @staticmethod
    def from_json(tree: dict[str, Any], code: bytes) -> Artifact:
        """The inverse of `to_json`, for a tree that conforms to `ARTIFACT_FORM`."""
        buffers = tuple(BufferSpec(name, dtype, Scope(scope), *more) for name, dtype, scope, *more in tree["slots"])
        extents, prepare_extents = tuple(tree["extents"]), tuple(tree["prepare_extents"])
        return Artifact(code, buffers, extents, prepare_extents, tree["scratch_bytes"])

    def to_message(self) -> dict[str, object]:
        """Plain values for another process (`measure.wire`); the code stays bytes."""
        return {"code": self.code, **self.to_json()}

    @staticmethod
    def from_message(data: Any) -> Artifact:
        """The inverse of `to_message`. Raises UserError."""
        try:
            conform(data, {"code": bytes, **ARTIFACT_FORM}, "artifact")
        except ValueError as error:
            raise UserError(f"not an artifact: {error}") from error
        return Artifact.from_json(data, data["code"])
