"""Arenas that several models share: working memory of the largest needed size, one block for each concurrent call.

    arena = arenas.take(nbytes)
    ...
    arenas.give(arena)

A model compiled for many sizes is many models, of which few run at once. A block is lent for the duration of a call.
Recordings for a block stay with it, and are dropped with the block or with the model.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from stormdrop.device.device import Device, Recording


class Arena:
    """A block of working memory, and by model the recording with pointers into it."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.memory, self.nbytes = device.allocate(nbytes), nbytes
        self.recordings: WeakKeyDictionary[Any, Recording] = WeakKeyDictionary()


class Arenas:
    """Blocks without a running call. Raises MemoryError if there is no memory for another block."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._idle: list[Arena] = []  # list.pop and append are atomic
        self._largest = 0

    def take(self, nbytes: int) -> Arena:
        """Returns a block of at least `nbytes` bytes, for one call. An idle block that is too small is replaced by a
        larger one.
        """
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
        """Drops a model's recordings in idle blocks."""
        for arena in list(self._idle):
            arena.recordings.pop(model, None)

    def give(self, arena: Arena) -> None:
        """Returns a block to the idle blocks. A block that is not returned, after an error, is freed with its last
        reference.
        """
        self._idle.append(arena)
