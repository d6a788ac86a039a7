"""Target machines as data: this file holds the parts that all kinds of target share.

Each kind has its own file; `stormdrop.target.machine` joins them to one type, `Target`.
"""

from dataclasses import dataclass
from enum import Enum

ALIGN_BYTES = 64
"""The alignment of buffers: a cache line of all targets, and their widest vector."""


def whole_lines(nbytes: int) -> int:
    """Returns the size of a buffer rounded up to whole cache lines."""
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES


class Temperature(Enum):
    """The presence of constants in the caches when a kernel begins.

    Cold: constants are not cached, as in a model whose weights exceed the last cache. Kernels are estimated and timed
    at a temperature, and warm and cold seconds are never compared.
    """

    WARM = "warm"
    COLD = "cold"

    @staticmethod
    def of(weights_bytes: int, cache_bytes: int) -> "Temperature":
        """Returns the temperature of a model's weights: cold if they leave the last cache between two runs."""
        return Temperature.COLD if weights_bytes > cache_bytes else Temperature.WARM


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The model around a kernel: the bytes of its constants, and of the arena that holds its activations. A kernel that
    is timed in them finds the caches as a run of the model leaves them.
    """

    constant_bytes: int
    arena_bytes: int

    @property
    def touched_bytes(self) -> int:
        """The bytes read or written between two runs of a kernel."""
        return self.constant_bytes + self.arena_bytes
