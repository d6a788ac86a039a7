"""What a build leaves: relocatable object bytes and what one must know to call them.

An artifact is bytes and numbers only: it can be sent to another process or written to a file, and holds no address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stormdrop.codegen import ENTRY, PREPARE
from stormdrop.errors import UserError
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.runtime.strict import Fields, dtype_of, flag_of, list_of, one_of, row_of, size_of, text_of
from stormdrop.target.scope import Scope

_SCOPES = {scope.value: scope for scope in Scope if scope is not Scope.SCRATCH}

SLACK_BYTES = 512
"""Past the end of packed constants and workspace a whole vector may be read; between threads' scratch it keeps lines
apart, against false sharing."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One entry of the pointer table.

    A constant, packed or not, that is not `resident` is only read while others are packed.
    """

    name: str
    dtype: Dtype
    scope: Scope
    elements: int
    resident: bool = True

    @property
    def nbytes(self) -> int:
        """The memory that its pointer must have behind it."""
        return self.elements * ITEMSIZE[self.dtype] + (
            SLACK_BYTES if self.scope in (Scope.PACKED, Scope.WORKSPACE) else 0
        )

    @property
    def is_kept(self) -> bool:
        """Whether it holds constants while the kernel runs."""
        return self.scope in (Scope.PACKED, Scope.CONSTANT) and self.resident


@dataclass(frozen=True, slots=True)
class Launch:
    """How one phase is started: the function `name` of the code, over a parallel range of `extent` units.

    Phases run in their order; none begins before all units of the one before it have ended. Phases `at_load` write
    packed constants, once; the others are one call of the kernel. `scratch_bytes` is the memory of each thread.
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
        """Of the phases of one call."""
        return tuple(launch.extent for launch in self.launches if not launch.at_load)

    @property
    def prepare_extents(self) -> tuple[int, ...]:
        """Of the phases at load."""
        return tuple(launch.extent for launch in self.launches if launch.at_load)

    @property
    def scratch_bytes(self) -> int:
        """Of each thread, for any phase."""
        return max((launch.scratch_bytes for launch in self.launches), default=0)

    def to_json(self) -> dict[str, object]:
        """All but the code."""
        return {
            "scratch_bytes": self.scratch_bytes,
            "extents": list(self.extents),
            "prepare_extents": list(self.prepare_extents),
            "slots": [[b.name, b.dtype, b.scope.value, b.elements, b.resident] for b in self.buffers],
        }

    @staticmethod
    def from_fields(fields: Fields, code: bytes) -> Artifact:
        """The artifact of what `to_json` made. Raises ValueError for anything else."""
        scratch_bytes = fields.take("scratch_bytes", size_of)
        launches = [
            Launch(PREPARE if at_load else ENTRY, size_of(extent), scratch_bytes, at_load)
            for name, at_load in (("prepare_extents", True), ("extents", False))
            for extent in fields.take(name, list_of)
        ]
        buffers = tuple(map(_buffer, fields.take("slots", list_of)))
        fields.close()
        return Artifact(code, buffers, tuple(launches))

    def to_message(self) -> dict[str, object]:
        """Plain values for another process (`measure.wire`); the code stays bytes."""
        return {"code": self.code, **self.to_json()}

    @staticmethod
    def from_message(data: Any) -> Artifact:
        """Raises UserError for anything that `to_message` did not make."""
        try:
            fields = Fields(data, "artifact")
            return Artifact.from_fields(fields, fields.take("code", bytes))
        except (TypeError, ValueError) as error:
            raise UserError(f"not an artifact: {error}") from error


def _buffer(tree: Any) -> BufferSpec:
    name, dtype, scope, elements, resident = row_of(tree, 5)
    return BufferSpec(text_of(name), dtype_of(dtype), one_of(scope, _SCOPES), size_of(elements), flag_of(resident))
