"""The events of compiling, and the watcher to which `sd.tune` and `sd.compile` report their progress.

The text of an event is for people.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from stormdrop.base.errors import StormdropError


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


@dataclass(frozen=True, slots=True)
class Planned:
    """A graph was cut into tasks; `Scheduled` follows for each task."""

    model: str
    tasks: int

    def __str__(self) -> str:
        return f"compiling {self.model}"


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The schedule of a task was chosen; `number` counts the tasks of a graph from 1."""

    number: int
    task: str

    def __str__(self) -> str:
        return f"compiling, {self.number} kernels: {self.task}"


@dataclass(frozen=True, slots=True)
class StoreUnreadable:
    """The user's store cannot be read: the remaining tasks get default schedules."""

    error: StormdropError

    def __str__(self) -> str:
        return f"default schedules are used, since the store cannot be read: {self.error}"


class Placed(str):
    """A part of the model was given to another runtime: the text names the runtime, the operators and the reasons."""


Event = Planned | Scheduled | StoreUnreadable | Placed
Listen = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Receives events, and does nothing."""
