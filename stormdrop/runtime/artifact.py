"""What a build leaves: relocatable object bytes and what one must know to call them.

An artifact is bytes and numbers only: it can be sent to another process or written to a file, and holds no address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stormdrop.errors import UserError
from stormdrop.ir.expr import ITEMSIZE, Dtype
from stormdrop.target.scope import Scope

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
class Artifact:
    """A built kernel."""

    code: bytes
    buffers: tuple[BufferSpec, ...]
    extents: tuple[int, ...]
    prepare_extents: tuple[int, ...]
    scratch_bytes: int

    def to_message(self) -> dict[str, object]:
        """Plain values for another process (`measure.wire`); the code stays bytes."""
        return {
            "code": self.code,
            "slots": [[s.name, s.dtype, s.scope.value, s.elements, s.resident] for s in self.buffers],
            "extents": list(self.extents),
            "prepare_extents": list(self.prepare_extents),
            "scratch_bytes": self.scratch_bytes,
        }

    @staticmethod
    def from_message(data: Any) -> Artifact:
        """Raises UserError for anything that `to_message` did not make."""
        try:
            buffers = tuple(BufferSpec(str(n), d, Scope(r), int(e), bool(x)) for n, d, r, e, x in data["slots"])
            extents, prepare_extents = (tuple(map(int, data[name])) for name in ("extents", "prepare_extents"))
            return Artifact(bytes(data["code"]), buffers, extents, prepare_extents, int(data["scratch_bytes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"not an artifact: {error!r}") from error
