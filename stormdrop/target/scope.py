"""The scopes of a kernel's buffers: their memory and their writers."""

from __future__ import annotations

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
