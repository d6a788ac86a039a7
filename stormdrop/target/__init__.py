"""What a machine is, as data: this file has what all kinds of target share.

A kind has a file of its own; `stormdrop.target.machine` joins them to one type, `Target`.
"""

from dataclasses import dataclass
from enum import Enum

ALIGN_BYTES = 64
"""Buffers begin at multiples of this: a cache line of all our targets, and their widest vector."""


def whole_lines(nbytes: int) -> int:
    """The bytes of a buffer with what is left of its last line."""
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES


class Temperature(Enum):
    """Whether constants are in the caches when a kernel begins.

    Cold: they are not, as in a model whose weights exceed the last cache. Kernels are estimated and timed at a
    temperature, and warm and cold seconds are never compared.
    """

    WARM = "warm"
    COLD = "cold"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The model around a kernel: the bytes of its constants, and of the arena that holds its activations. A kernel that
    is timed in them finds the caches as a run of the model leaves them.
    """

    constant_bytes: int
    arena_bytes: int

    @property
    def touched_bytes(self) -> int:
        """What is read or written between two runs of a kernel."""
        return self.constant_bytes + self.arena_bytes
