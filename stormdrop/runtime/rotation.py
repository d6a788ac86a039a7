"""Timing a kernel with cold weights: every run reads its constants from another copy.

A kernel that is run again and again finds its constants in the cache; in a model whose weights exceed the caches it
does not. A rotation records one call for each of many copies, which together exceed the cache: until a copy's turn
comes again, all others were read. Inputs, outputs, workspace and code stay as warm as they are: in a model they have
just been used, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stormdrop.runtime.device import Array, BoundCall, BufferPlace, Device, Memory, Seconds
from stormdrop.target import ALIGN_BYTES, whole_lines

MOST_COPIES = 2048
"""Each is a recorded call. More would be needed of small constants only, which arrive in no time."""
MOST_BYTES = 1 << 30


def rotation_bytes(cache_bytes: int) -> int:
    """The memory of copies that together exceed a cache of so many bytes."""
    return min(2 * cache_bytes, MOST_BYTES)


class Rotation:
    """A bench of one call whose arguments `rotated` (numbers of places) are another copy in every run.

    The copies are made in `block`, or in a block of their own where two of them do not fit into it. Keep a block for
    the next rotation: page faults cost more than copying.
    """

    def __init__(self, device: Device, call: BoundCall, rotated: Sequence[int], block: Memory) -> None:
        places = {k: argument for k in rotated if isinstance(argument := call.arguments[k], BufferPlace)}
        sizes = {k: call.kernel.artifact.buffers[k].nbytes for k in places}
        constants = {k: place.memory.read(place.offset, sizes[k]) for k, place in places.items()}
        rooms = [whole_lines(nbytes) + ALIGN_BYTES for nbytes in sizes.values()]
        self._copies = max(2, min(MOST_COPIES, block.nbytes // sum(rooms)))
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
            calls.append(BoundCall(call.kernel, tuple(arguments)))
        self._recording = device.record(calls)
        self._turn = 0

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self._recording.bind(inputs, outputs)

    def bench(self, repeats: int) -> Seconds:
        """The seconds of each of so many runs; the first one reads the copy after that of the last run before."""
        found: list[Seconds] = []
        while repeats:
            count = min(repeats, self._copies - self._turn)
            found.append(self._recording.profile(1, range(self._turn, self._turn + count)).ravel())
            self._turn = (self._turn + count) % self._copies
            repeats -= count
        return np.concatenate(found)
