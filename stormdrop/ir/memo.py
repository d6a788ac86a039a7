"""Results of functions of expressions, kept while there is work to do.

    @memoised()
    def affine(e: Expr) -> Affine: ...

    with at_work():                 # compiling a model, building a kernel, tuning
        ...

Every axis is its own, so the expressions of one compilation are never asked for by the next one, even if the model is
the same; but whoever holds a result holds the expressions in it. Results stay while anybody is at work. When the last
one is done, they are dropped if more than a few expressions have come to be since they were dropped before: building
one task again and again finds them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from typing import ParamSpec, TypeVar, cast

from stormdrop.ir.expr import interned_count

P = ParamSpec("P")
T = TypeVar("T")

MOST_RESULTS = 16384
"""Of each function: what one task of a model needs, many times over."""
MOST_EXPRESSIONS = 2048
"""So many more than after the last time are kept; with all that is remembered of them about 6 MB."""


class _Results:
    """What is remembered of all functions, and how many are at work."""

    def __init__(self) -> None:
        self.forget: list[Callable[[], None]] = []
        self.lock = threading.Lock()
        self.at_work = 0
        self.expressions_kept = 0


_results = _Results()


def memoised(most: int = MOST_RESULTS) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Remember the results of a function of hashable arguments, at most so many."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        remembering = lru_cache(maxsize=most)(function)
        _results.forget.append(remembering.cache_clear)
        return cast("Callable[P, T]", remembering)

    return decorate


@contextmanager
def at_work() -> Generator[None]:
    """Keep what is remembered until this, and whatever else is at work then, is done. It may be nested."""
    with _results.lock:
        _results.at_work += 1
    try:
        yield
    finally:
        with _results.lock:
            _results.at_work -= 1
            if not _results.at_work and interned_count() > _results.expressions_kept + MOST_EXPRESSIONS:
                forget()
                _results.expressions_kept = interned_count()


def forget() -> None:
    """Drop all results; they are computed again when they are asked for."""
    for one in _results.forget:
        one()
