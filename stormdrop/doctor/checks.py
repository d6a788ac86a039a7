"""One finding of `stormdrop doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at; `advice` says what to do where it is not ok."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


def guarded(name: str, look: Callable[[], Check], advice: str) -> Check:
    """A check that may meet anything at all: whatever is raised becomes its finding."""
    try:
        return look()
    except Exception as error:  # that nothing escapes is the point
        return Check(name, False, f"{type(error).__name__}: {error}", advice)
