"""Compiled results by size. Any number of threads may ask for a size, and a single thread compiles.

    sizes = Sizes[Shapes, Model](4096)
    model = sizes.made(shapes, lambda: compiled(shapes))

An error that refuses a size is remembered: the next request raises a copy of the error and compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from stormdrop.base.errors import UserError
from stormdrop.base.lru import Lru

K = TypeVar("K")
R = TypeVar("R")


class KeyLocks(Generic[K]):
    """A lock for each key. A lock exists while a thread holds the lock or waits for the lock."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[K, Lock] = WeakValueDictionary()
        self._lock = Lock()

    def of(self, key: K) -> Lock:
        with self._lock:
            return self._locks.setdefault(key, Lock())


class Sizes(Generic[K, R]):
    """Results by key. A hit takes no lock; a miss compiles once per key, under a lock of that key.

    Threads that miss one key wait for a single compilation; other keys are compiled and served meanwhile. At most
    `most` results are held, and as many refusals: errors of the class `refusals`. Other errors are not remembered.
    """

    def __init__(self, most: int, refusals: type[UserError] = UserError) -> None:
        self._held = Lru[K, R](most)
        self._refused = Lru[K, UserError](most)
        self._refusals = refusals
        self._locks = KeyLocks[K]()

    def get(self, key: K) -> R | None:
        """Returns the result of a key, which counts as a use; None for a new and for a refused key."""
        return self._held.get(key)

    def made(self, key: K, make: Callable[[], R], suits: Callable[[R], bool] = lambda _: True) -> R:
        """Returns the result of a key; `make` compiles a new result, and replaces a result that does not suit.

        Raises the errors of `make`, and a copy of a remembered refusal.
        """
        held = self._known(key, suits)
        if held is not None:
            return held
        with self._locks.of(key):
            held = self._known(key, suits)  # another thread may have compiled
            if held is None:
                try:
                    held = make()
                except self._refusals as error:
                    self._refused.put(key, _copied(error))
                    raise
                self._held.put(key, held)
            return held

    def _known(self, key: K, suits: Callable[[R], bool]) -> R | None:
        held = self._held.get(key)
        if held is not None:
            return held if suits(held) else None
        refusal = self._refused.get(key)
        if refusal is not None:
            raise _copied(refusal)
        return None

    def put(self, key: K, result: R) -> None:
        """Adds or replaces a result that was compiled elsewhere."""
        self._held.put(key, result)

    def discard(self, key: K) -> None:
        """Drops the result of a key."""
        self._held.discard(key)

    def items(self) -> list[tuple[K, R]]:
        """Returns all results with their keys, the least recently used first."""
        return self._held.items()


def _copied(error: UserError) -> UserError:
    """Returns the error without traceback and cause: their frames hold the arrays of a compilation."""
    kind = type(error)
    copied = kind.__new__(kind, *error.args)  # `__init__` may take other arguments than the message
    copied.__dict__.update(error.__dict__)
    return copied
