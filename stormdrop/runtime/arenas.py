"""Arenas that several models share: working memory as large as the largest needs, one block for each concurrent call.

    arena = arenas.take(nbytes)
    ...
    arenas.give(arena)

A model compiled for many sizes is many models, of which few run at once. A block is lent for the duration of a call;
what was recorded for it stays with it, and is forgotten with the block or with the model.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from stormdrop.runtime.device import Device, Recording


class Arena:
    """A block of working memory, and by model the recording whose pointers lead into it."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.memory, self.nbytes = device.allocate(nbytes), nbytes
        self.recordings: WeakKeyDictionary[Any, Recording] = WeakKeyDictionary()


class Arenas:
    """Blocks that no call is using. Raises MemoryError where there is no memory for another one."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._idle: list[Arena] = []  # list.pop and append are atomic
        self._largest = 0

    def take(self, nbytes: int) -> Arena:
        """A block of at least so many bytes, for one call. An idle one that is too small gives way to a larger one."""
        try:
            arena = self._idle.pop()
        except IndexError:
            arena = None
        if arena is None or arena.nbytes < nbytes:
            arena = None  # freed before the larger one is allocated
            self._largest = max(self._largest, nbytes)
            arena = Arena(self.device, self._largest)
        return arena

    def forget(self, model: object) -> None:
        """Drop what was recorded for a model in idle blocks."""
        for arena in list(self._idle):
            arena.recordings.pop(model, None)

    def give(self, arena: Arena) -> None:
        """Hand a block back. One that is not handed back, after an error, is freed with its last reference."""
        self._idle.append(arena)
