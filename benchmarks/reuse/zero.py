"""What compiling would take without measuring: the door from the benchmark to the mechanism."""

from __future__ import annotations

from stormdrop.errors import UserError
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.store import Store
from stormdrop.space.schedule import Schedule
from stormdrop.target.cpu import Cpu


def choose(task: Task, target: Cpu, store: Store) -> Schedule | None:
    """The schedule of a task that the store has no verdict of; None: its default.

    Raises UserError where this version takes nothing unmeasured.
    """
    raise UserError("this version takes no schedule unmeasured")
