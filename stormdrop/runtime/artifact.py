"""The result of a build: a relocatable object, and its calling convention (buffers and phases).

An artifact is plain data without addresses: it can be sent to another process or written to a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stormdrop.codegen import ENTRY, PREPARE
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
class Launch:
    """How one phase is started: the function `name` of the code, over a parallel range of `extent` units.

    Phases run in order, with a barrier after each. Phases `at_load` run once and write packed constants; the others run
    in every call of the kernel. `scratch_bytes` is the scratch memory of each thread.
    """

    name: str
    extent: int
    scratch_bytes: int = 0
    at_load: bool = False


@dataclass(frozen=True, slots=True)
class Artifact:
    """A built kernel."""

    code: bytes
    buffers: tuple[BufferSpec, ...]
    launches: tuple[Launch, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of the phases of one call."""
        return tuple(launch.extent for launch in self.launches if not launch.at_load)

    @property
    def prepare_extents(self) -> tuple[int, ...]:
        """The extents of the load-time phases."""
        return tuple(launch.extent for launch in self.launches if launch.at_load)

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory of each thread: the maximum over all phases."""
        return max((launch.scratch_bytes for launch in self.launches), default=0)

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
        phases = [(PREPARE, n, True) for n in tree["prepare_extents"]] + [(ENTRY, n, False) for n in tree["extents"]]
        return Artifact(
            code,
            tuple(BufferSpec(name, dtype, Scope(scope), *more) for name, dtype, scope, *more in tree["slots"]),
            tuple(Launch(name, extent, tree["scratch_bytes"], at_load) for name, extent, at_load in phases),
        )

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
