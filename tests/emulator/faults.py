"""What the emulator reports."""

from __future__ import annotations

from enum import Enum


class FaultKind(Enum):
    OUT_OF_BOUNDS = "out of bounds"
    MISALIGNED = "misaligned"
    READ_ONLY = "write to read-only memory"
    RACE = "race"
    PENDING_COPY = "access during an asynchronous copy"
    STALE_INVARIANT = "invariant load of memory that the launch writes"
    DIVERGENT_BARRIER = "divergent barrier"
    SHUFFLE = "shuffle without its threads"
    HANG = "no end"
    LAUNCH = "launch that no GPU accepts"


class Fault(Exception):
    """A kernel does what it must not."""

    def __init__(self, kind: FaultKind, text: str) -> None:
        super().__init__(f"{kind.value}: {text}")
        self.kind = kind


class Unsupported(Exception):
    """LLVM text that the emulator does not know."""
