"""Memoised functions of expressions: results are kept while compilations run.

    @memoised()
    def affine(e: Expr) -> Affine: ...

    with at_work():                 # compiling a model, building a kernel, tuning
        ...

Each axis is a distinct object, so expressions of one compilation never recur in the next, even for the same model. A
kept result also keeps its expressions in memory.

Results stay inside every `at_work` block. After the last block, `forget` drops the results if more than
`MOST_EXPRESSIONS` expressions are new since the last drop: repeated builds of one small task reuse them.
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
"""The most results kept per function: one task of a model needs fewer, many times over."""
MOST_EXPRESSIONS = 2048
"""The number of new expressions below which results are kept; with these results about 6 MB."""


class _Results:
    """The cache-clearing functions of all memoised functions, and the number of open `at_work` blocks."""

    def __init__(self) -> None:
        self.forget: list[Callable[[], None]] = []
        self.lock = threading.Lock()
        self.at_work = 0
        self.expressions_kept = 0


_results = _Results()


def memoised(most: int = MOST_RESULTS) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Memoises a function of hashable arguments; at most `most` results are kept."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        remembering = lru_cache(maxsize=most)(function)
        _results.forget.append(remembering.cache_clear)
        return cast("Callable[P, T]", remembering)

    return decorate


@contextmanager
def at_work() -> Generator[None]:
    """Keeps results until this block and all concurrent blocks end. Blocks may be nested."""
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
    """Drops all results; later calls compute them again."""
    for clear in _results.forget:
        clear()
