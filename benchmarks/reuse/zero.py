"""The schedules that compiling would take unmeasured, given a store without the held-out models."""

from __future__ import annotations

from collections.abc import Callable

from stormdrop.ir.tensor import Task
from stormdrop.reservoir.learning import learned
from stormdrop.reservoir.store import Store
from stormdrop.space.offer import pick
from stormdrop.space.schedule import Schedule
from stormdrop.target.cpu import Cpu

Choose = Callable[[Task], Schedule | None]
"""The schedule that a held-out task takes; None: its default."""
Learn = Callable[[Store, Cpu], Choose]
"""What learns from a store how to choose."""


def learn(store: Store, target: Cpu) -> Choose:
    """Learn as the end of tuning does; the result chooses as compiling does afterwards."""
    experience = learned(store, target)

    def choose(task: Task) -> Schedule | None:
        offer = None if experience is None else experience.offer(task, target, "donor")
        taken = None if offer is None else pick(task, offer, target)[2]
        return None if taken is None else taken.schedule

    return choose
