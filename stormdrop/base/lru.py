"""A bounded cache: the least recently used entries go first.

    benches = Lru[int, Workbench](256 << 20)
    bench = benches.get(number)
    benches.put(number, bench, weight=bench.nbytes)

A hit takes no lock: a hit reads a dictionary and stamps the entry with the time of its use. An OrderedDict would move
the entry instead. Concurrent moves are unsafe for keys with an `__eq__` in Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class _Entry(Generic[K, V]):
    key: K
    value: V
    weight: int
    used: int


_by_use = attrgetter("used")


class Lru(Generic[K, V]):
    """Values by key. The weights add up to at most `most`, but the newest entry always stays.

    Threads may share a cache.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._entries: dict[K, _Entry[K, V]] = {}
        self._clock = count()
        self._lock = Lock()  # of changes

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Returns the value of a key, which counts as a use; None for an unknown key."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry.used = next(self._clock)
        return entry.value

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Adds or replaces a value, then drops the least recently used entries until the rest fits."""
        with self._lock:
            new = self._entries[key] = _Entry(key, value, weight, next(self._clock))
            total = sum(entry.weight for entry in self._entries.values())
            while total > self.most and len(self._entries) > 1:
                oldest = min((entry for entry in self._entries.values() if entry is not new), key=_by_use)
                del self._entries[oldest.key]
                total -= oldest.weight

    def items(self) -> list[tuple[K, V]]:
        """Returns all entries, the least recently used first. Listing an entry is no use of the entry."""
        with self._lock:
            entries = list(self._entries.values())
        return [(entry.key, entry.value) for entry in sorted(entries, key=_by_use)]

    def discard(self, key: K) -> None:
        """Drops the entry of a key, if the cache has an entry for the key."""
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        """Drops all entries."""
        with self._lock:
            self._entries.clear()
