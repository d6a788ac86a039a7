"""Timing a kernel as a model meets it: every run reads its constants from another copy, after an interlude.

A kernel run repeatedly finds its constants in the near caches; in a model it finds them where a whole run of the model
has left them. A rotation records one call for each of many copies, which together are as large as what the model reads
and writes, or twice the last cache: before a copy is read again, the others have gone through the caches. What becomes
of inputs, outputs and code is the matter of an interlude (`runtime.interlude`), which runs before every timed run;
without one they stay near.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from stormdrop.runtime.device import Array, BoundCall, BufferPlace, Device, Memory, Seconds
from stormdrop.target import ALIGN_BYTES, whole_lines

MOST_COPIES = 2048
"""Each copy is a recorded call. Only small constants would need more copies, and their loads cost little."""
MOST_BYTES = 1 << 30
WARM_CALLS = 64
"""Recorded calls where nothing is rotated."""


def rotation_bytes(cache_bytes: int) -> int:
    """The total size of copies that exceeds a cache of `cache_bytes`, up to `MOST_BYTES`."""
    return min(2 * cache_bytes, MOST_BYTES)


class Rotation:
    """A bench of one call, in which the arguments with indices `rotated`, if any, are another copy in every run.

    The copies are made in `block`, or in a new block if `block` does not hold two copies. Reuse a block for the next
    rotation: page faults cost more than copying. With an `interlude`, that call runs before every run, untimed.
    """

    def __init__(
        self,
        device: Device,
        call: BoundCall,
        rotated: Sequence[int],
        block: Memory,
        interlude: BoundCall | None = None,
        most_copies: int = MOST_COPIES,
    ) -> None:
        places = {k: argument for k in rotated if isinstance(argument := call.arguments[k], BufferPlace)}
        sizes = {k: call.kernel.artifact.buffers[k].nbytes for k in places}
        constants = {k: place.memory.read(place.offset, sizes[k]) for k, place in places.items()}
        rooms = [whole_lines(nbytes) + ALIGN_BYTES for nbytes in sizes.values()]
        self._copies = max(2, min(most_copies, block.nbytes // sum(rooms))) if rooms else WARM_CALLS
        if self._copies * sum(rooms) > block.nbytes:
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
        """The mean of the interludes of the last `bench`: what a run costs besides its own time."""
        self._recording = device.record(calls)
        self._turn = 0

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._recording.bind(inputs, outputs)

    def bench(self, repeats: int) -> Seconds:
        """The seconds of each of `repeats` runs; the rotation continues where it stopped before."""
        seconds = np.concatenate([self._recording.each(calls) for calls in self._turns(repeats)])
        *interludes, runs = seconds.reshape(-1, self._stride).T
        self.interlude_seconds = float(np.mean(interludes)) if interludes else 0.0
        return runs

    def busy(self, repeats: int) -> Seconds:
        """As `bench`, the seconds that threads were computing."""
        busy = np.concatenate([self._recording.account(1, calls).busy.ravel() for calls in self._turns(repeats)])
        return busy[self._stride - 1 :: self._stride]

    def _turns(self, repeats: int) -> Iterator[range]:
        while repeats:
            count = min(repeats, self._copies - self._turn)
            yield range(self._stride * self._turn, self._stride * (self._turn + count))
            self._turn = (self._turn + count) % self._copies
            repeats -= count
