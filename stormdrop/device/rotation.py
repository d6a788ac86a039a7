"""Timing of a kernel with its constants as far away as in a model: every run reads another copy of them.

A rotation makes copies of the constants, as many as fit a block of memory, and records one call for each. Before a
copy is read again, all other copies have gone through the caches. If constants should come from a cache, the block is
at most as large as the memory that the model touches. If they should come from memory, it is twice the last-level
cache.

A rotation moves constants only. An optional interlude (`device.interlude`) does the same for inputs and code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stormdrop.device.device import Array, BoundCall, BufferPlace, Device, Memory, Seconds
from stormdrop.target import ALIGN_BYTES, whole_lines

MOST_COPIES = 2048
"""Each copy is a recorded call. Only small constants would need more copies, and their loads cost little."""
MOST_BYTES = 1 << 30
"""The most bytes of all copies together."""
WARM_CALLS = 64
"""The number of recorded calls if nothing is rotated: all are the same call."""


def rotation_bytes(cache_bytes: int) -> int:
    """Returns the total size of copies that evict each other from a cache of `cache_bytes`.

    It is twice the size of the cache, at most `MOST_BYTES`.
    """
    return min(2 * cache_bytes, MOST_BYTES)


class Rotation:
    """A bench of one call. The arguments with indices `rotated`, if any, are another copy in every run.

    The copies are made in `block`, or in a new block if `block` is None or does not hold two copies. Reuse a block for
    the next rotation: page faults cost more than copying. If there is an `interlude`, this call runs before every run;
    its time is not part of the run's.
    """

    def __init__(
        self,
        device: Device,
        call: BoundCall,
        rotated: Sequence[int],
        block: Memory | None,
        interlude: BoundCall | None = None,
        most_copies: int = MOST_COPIES,
    ) -> None:
        places = {k: argument for k in rotated if isinstance(argument := call.arguments[k], BufferPlace)}
        sizes = {k: call.kernel.artifact.buffers[k].nbytes for k in places}
        constants = {k: place.memory.read(place.offset, sizes[k]) for k, place in places.items()}
        rooms = [whole_lines(nbytes) + ALIGN_BYTES for nbytes in sizes.values()]
        available = 0 if block is None else block.nbytes
        self._copies = max(2, min(most_copies, available // sum(rooms))) if rooms else WARM_CALLS
        if block is None or self._copies * sum(rooms) > available:
            block = device.allocate(self._copies * sum(rooms))
        calls: list[BoundCall] = []
        at = 0
        for _ in range(self._copies):
            arguments = list(call.arguments)
            for (k, data), room in zip(constants.items(), rooms):
                block.write(at, data)
                arguments[k] = BufferPlace(block, at)
                at += room
            calls += [] if interlude is None else [interlude]
            calls.append(BoundCall(call.kernel, tuple(arguments)))
        self._stride = 1 if interlude is None else 2
        self.interlude_seconds = 0.0
        """The mean time of an interlude in the last `bench`; 0 without one."""
        self._recording = device.record(calls)
        self._turn = 0

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._recording.bind(inputs, outputs)

    def bench(self, repeats: int) -> Seconds:
        """Returns the seconds of each of `repeats` runs; the rotation continues from its last position."""
        seconds = np.concatenate([self._recording.each(calls) for calls in self._turns(repeats)])
        *interludes, runs = seconds.reshape(-1, self._stride).T
        self.interlude_seconds = float(np.mean(interludes)) if interludes else 0.0
        return runs

    def busy(self, repeats: int) -> Seconds:
        """Returns seconds as `bench`, but only of computing, the mean over the threads."""
        busy = np.concatenate([self._recording.account(1, calls).busy.ravel() for calls in self._turns(repeats)])
        return busy[self._stride - 1 :: self._stride]

    def _turns(self, repeats: int) -> Iterator[range]:
        """Yields ranges of recorded calls that hold the next `repeats` runs; a range ends at the last copy."""
        while repeats:
            count = min(repeats, self._copies - self._turn)
            yield range(self._stride * self._turn, self._stride * (self._turn + count))
            self._turn = (self._turn + count) % self._copies
            repeats -= count
