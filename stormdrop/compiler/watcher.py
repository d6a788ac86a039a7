"""The progress of `sd.tune` and `sd.compile`, for a view of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Watcher(Protocol):
    """Shows events of tuning, and in between a line of text."""

    @property
    def is_shown(self) -> bool:
        """A person sees the view."""
        ...

    def hear(self, event: Any) -> None: ...
    def tell(self, text: str) -> None: ...


Progress = Watcher | bool | None
"""The option of users, True, False or None; or the watcher that `sd.tune` and `sd.compile` put in its place."""


def silent(text: str) -> None:
    """Receives a line of text, and shows nothing."""


def told_by(progress: Progress) -> Callable[[str], None]:
    """Returns the receiver of lines of text."""
    return progress.tell if isinstance(progress, Watcher) else silent
