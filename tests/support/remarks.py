"""The warnings of a test, as texts."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterable
from contextlib import contextmanager

from stormdrop.base.errors import StormdropWarning


def remarks(recorded: Iterable[warnings.WarningMessage]) -> list[str]:
    """Returns the texts of all warnings of this package so far, in order."""
    return [str(w.message) for w in recorded if issubclass(w.category, StormdropWarning)]


@contextmanager
def every_remark() -> Generator[list[warnings.WarningMessage]]:
    """Records all warnings, also those that Python's filter would show once for each line."""
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        yield recorded
