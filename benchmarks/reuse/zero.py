"""What compiling would take without measuring, from a store of what may be known."""

from __future__ import annotations

from collections.abc import Callable

from stormdrop.ir.tensor import Task
from stormdrop.reservoir.learning import learned
from stormdrop.reservoir.store import Store
from stormdrop.space.offer import pick
from stormdrop.space.schedule import Schedule
from stormdrop.target.cpu import Cpu

Choose = Callable[[Task], Schedule | None]
"""The schedule of a task that nothing is known of; None: its default."""
Learn = Callable[[Store, Cpu], Choose]


def learn(store: Store, target: Cpu) -> Choose:
    """As tuning does when it ends, and compiling afterwards."""
    experience = learned(store, target)

    def choose(task: Task) -> Schedule | None:
        offer = None if experience is None else experience.offer(task, target, "donor")
        taken = None if offer is None else pick(task, offer, target)[2]
        return None if taken is None else taken.schedule

    return choose
