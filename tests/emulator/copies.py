"""cp.async: copies from global to shared memory that land at some time between their issue and the wait for them.

From its issue to its thread's wait a copy's destination must not be touched by anyone, its own thread included; after
the wait its own thread may read it, and others after a barrier as well. The log of races therefore gets the copy as a
write of its thread both when it is issued and when it is waited for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.emulator.accesses import GLOBAL, SHARED, Accesses
from tests.emulator.faults import Fault, FaultKind
from tests.emulator.llvm_types import Array
from tests.emulator.reading import Instruction
from tests.emulator.threads import Frame

_WORD = np.dtype(np.uint32)


@dataclass(slots=True)
class _Copies:
    """One execution of an instruction: an entry per thread."""

    instruction: Instruction
    nbytes: int
    lanes: Array
    to: Array
    source: Array
    size: Array
    """Bytes that are read; the others become zero."""
    group: Array
    has_landed: bool

    def part(self, keep: Array) -> _Copies:
        lanes, to, source, size, group = (c[keep] for c in (self.lanes, self.to, self.source, self.size, self.group))
        return _Copies(self.instruction, self.nbytes, lanes, to, source, size, group, self.has_landed)


class CopyQueue:
    """The copies of the threads of one frame that were not yet waited for."""

    def __init__(self, accesses: Accesses, threads: int, lands_early: Callable[[], bool]) -> None:
        self.accesses, self.lands_early = accesses, lands_early
        self._queue: list[_Copies] = []
        self._committed = np.zeros(threads, np.int64)
        """Groups that each thread has committed."""

    def issue(self, f: Frame, i: Instruction, nbytes: int, to: Any, source: Any, size: Any) -> None:
        lanes = f.lanes if f.lanes is not None else np.arange(f.threads.count)
        to, source, size = (np.broadcast_to(x, (f.threads.count,))[lanes] for x in (to, source, size))
        memory = self.accesses.memory
        self.accesses.check(f, i, to, lanes, nbytes, is_write=True, align=nbytes, space=SHARED)
        self._read(f, i, nbytes, lanes, source, size)
        self.accesses.copy_names.append(i)
        number = len(self.accesses.copy_names)
        granules = _granules(to, nbytes, memory.shift)
        self.accesses.pending[granules] = number
        self.accesses.pending_count += len(lanes)
        batch = _Copies(i, nbytes, lanes, to, source, size, self._committed[lanes], self.lands_early())
        if batch.has_landed:
            self._land(batch)
        self._queue.append(batch)

    def commit(self, f: Frame) -> None:
        self._committed[slice(None) if f.lanes is None else f.lanes] += 1

    def wait(self, f: Frame, groups: int) -> None:
        """All copies of the present threads are done but those of the newest `groups` groups."""
        active = np.ones(f.threads.count, np.bool_) if f.mask is None else f.mask
        rest: list[_Copies] = []
        for batch in self._queue:
            done = active[batch.lanes] & (batch.group < self._committed[batch.lanes] - groups)
            if done.any():
                self._complete(f, batch.part(done))
            if not done.all():
                rest.append(batch.part(~done))
        self._queue = rest

    def _complete(self, f: Frame, batch: _Copies) -> None:
        memory = self.accesses.memory
        self.accesses.pending[_granules(batch.to, batch.nbytes, memory.shift)] = 0
        self.accesses.pending_count -= len(batch.lanes)
        if not batch.has_landed:
            self._land(batch)
        i = batch.instruction
        self._read(f, i, batch.nbytes, batch.lanes, batch.source, batch.size)
        self.accesses.check(f, i, batch.to, batch.lanes, batch.nbytes, is_write=True, align=batch.nbytes, space=SHARED)

    def _read(self, f: Frame, i: Instruction, nbytes: int, lanes: Array, source: Array, size: Array) -> None:
        """Check what a copy reads, which is nothing where its size is zero."""
        if ((size < 0) | (size > nbytes)).any():
            raise Fault(FaultKind.OUT_OF_BOUNDS, f"the size of a copy is not between 0 and {nbytes}\n  {i}")
        for some in np.unique(size):
            if some:
                chosen = size == some
                self.accesses.check(
                    f, i, source[chosen], lanes[chosen], int(some), is_write=False, align=nbytes, space=GLOBAL
                )

    def _land(self, batch: _Copies) -> None:
        memory, nbytes = self.accesses.memory, batch.nbytes
        words = memory.rows(_WORD, nbytes // 4)
        data = words.take(batch.source // nbytes, axis=0, mode="clip")
        live = np.arange(nbytes) < batch.size[:, None]
        data = (data.view(np.uint8) * live).astype(np.uint8).view(_WORD)
        words[batch.to // nbytes] = data


def _granules(addresses: Array, nbytes: int, shift: int) -> Array:
    return ((addresses >> shift)[:, None] + np.arange(max(1, nbytes >> shift))).reshape(-1)
