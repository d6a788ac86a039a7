"""The plan of a model's arena: the offsets of buffers with limited lifetimes in one block of memory.

    offsets, total_bytes = plan([Lifetime(4096, first=0, last=2), Lifetime(1024, first=3, last=5)])

Greedy by size: the largest buffer is placed first. Each buffer goes into the smallest fitting gap between the placed
buffers that live at the same time, or behind all of them. If the end is above the lower bound (`least_bytes`), other
orders are tried. Then, a few times, the buffer with the highest end is placed first.

Invariant: buffers that live at some common step do not overlap.

Arenas that several models share: working memory of the largest needed size, one block for each concurrent call.

    arena = arenas.take(nbytes)
    ...
    arenas.give(arena)

A model compiled for many sizes is many models, of which few run at once. A block is lent for the duration of a call.
Recordings for a block stay with it, and are dropped with the block or with the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from stormdrop.device.device import Device, Recording
from stormdrop.target import ALIGN_BYTES


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


PLACED_AT_MOST = 40_000
"""The most placements of buffers, over all tries but the first. A placement takes about 10 µs, and 50 µs among 10,000
buffers.
"""
TRIES = 40

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A buffer that holds something from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


def plan(lifetimes: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """Returns the offset of each buffer, and the bytes of the block that holds them all."""
    wanted = [k for k, life in enumerate(lifetimes) if life.nbytes]
    if not wanted:
        return (0,) * len(lifetimes), 0
    bound = least_bytes(lifetimes)
    best: tuple[int, ...] = ()
    total = -1
    order = wanted
    for n in range(max(1, min(TRIES, PLACED_AT_MOST // len(wanted)))):
        if n < len(_ORDERS):
            rank = _ORDERS[n]
            order = sorted(wanted, key=lambda k: (rank(lifetimes[k]), k))
        offsets = _placed(lifetimes, order)
        top = max(order, key=lambda k: offsets[k] + lifetimes[k].nbytes)
        end = offsets[top] + lifetimes[top].nbytes
        if end < total or total < 0:
            best, total = offsets, end
        if total <= bound:
            break
        order = [top, *(k for k in order if k != top)]
    return best, total


def least_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """Returns a lower bound of every plan: the most bytes that live at one step."""
    changes: dict[int, int] = {}
    for life in lifetimes:
        changes[life.first] = changes.get(life.first, 0) + life.nbytes
        changes[life.last + 1] = changes.get(life.last + 1, 0) - life.nbytes
    live = most = 0
    for step in sorted(changes):
        live += changes[step]
        most = max(most, live)
    return most


_ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda life: (-life.nbytes, life.first),
    lambda life: (life.first - life.last, -life.nbytes),
    lambda life: (-life.nbytes * (life.last - life.first + 1), life.first),
)


def _placed(lifetimes: Sequence[Lifetime], order: Sequence[int]) -> tuple[int, ...]:
    """Returns offsets of the buffers of `order`, placed one by one; 0 for all other buffers."""
    offsets = [0] * len(lifetimes)
    # What is placed, by offset: begin and end in bytes, first and last step.
    placed: Ints = np.empty((4, len(order)), np.int64)
    for n, k in enumerate(order):
        life = lifetimes[k]
        begins, ends, firsts, lasts = placed[:, :n]
        near = (firsts <= life.last) & (lasts >= life.first)
        at = _gap(begins[near], ends[near], life.nbytes)
        offsets[k] = at
        slot = int(np.searchsorted(begins, at))
        placed[:, slot + 1 : n + 1] = placed[:, slot:n].copy()
        placed[:, slot] = at, at + life.nbytes, life.first, life.last
    return tuple(offsets)


def _gap(begins: Ints, ends: Ints, nbytes: int) -> int:
    """Returns the begin of the smallest gap for `nbytes` bytes; the end of all buffers if there is none.
    `begins` rise.
    """
    if not len(begins):
        return 0
    # Neighbours in offset may overlap: they only share steps with the new buffer, not with each other.
    free = np.empty(len(begins) + 1, np.int64)
    free[0] = 0
    np.maximum.accumulate(ends, out=free[1:])
    free += -free % ALIGN_BYTES
    room = begins - free[:-1]
    fits = np.flatnonzero(room >= nbytes)
    return int(free[fits[np.argmin(room[fits])]] if len(fits) else free[-1])
