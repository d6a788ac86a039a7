"""The events of compiling. The text of an event is for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stormdrop.base.errors import StormdropError


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
