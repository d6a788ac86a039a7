"""Target machines as data: this file holds the parts that all kinds of target share.

Each kind has its own file; `stormdrop.target.machine` joins them to one type, `Target`.
"""

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self

from stormdrop.base.codec import Tolerant

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


@dataclass(frozen=True, slots=True)
class Machine(Tolerant):
    """The temperature of a target, of any kind."""

    temperature: Temperature = field(default=Temperature.WARM, kw_only=True)

    @property
    def is_cold(self) -> bool:
        return self.temperature is Temperature.COLD

    @property
    def last_cache_bytes(self) -> int:
        """The size of the last cache."""
        raise NotImplementedError

    def with_weights(self, weights_bytes: int) -> Self:
        """Returns the target at the temperature of a model: cold if its weights leave the last cache between runs."""
        return self.with_cold_weights(weights_bytes > self.last_cache_bytes)

    def with_cold_weights(self, cold: bool | None) -> Self:
        """Returns the target at the cold or the warm temperature; None keeps its own."""
        if cold is None or cold == self.is_cold:
            return self
        return replace(self, temperature=Temperature.COLD if cold else Temperature.WARM)


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
