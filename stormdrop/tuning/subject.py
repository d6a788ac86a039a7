"""Subjects of tuning: tasks with the number of calls of each, and the model around them, if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stormdrop.graph.partition import Partition
from stormdrop.ir.tensor import Task
from stormdrop.target import Surroundings
from stormdrop.target.machine import Target


@dataclass(frozen=True, slots=True)
class SubjectTask:
    """A task of a subject. `label`, `shapes` and `node` describe its first call."""

    id: str
    task: Task
    count: int
    label: str
    shapes: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """Tasks that are tuned together."""

    name: str
    tasks: tuple[SubjectTask, ...]
    surroundings: Surroundings | None = None
    """The model's memory around each kernel; None for a single task."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    model: Partition | None = None
    """The model to compile and time in the end, so that it accepts the winners; None: winners are kept as proved."""
    size: str = ""
    """The key of this size of a model with open dimensions (`size_key`)."""

    @property
    def is_model(self) -> bool:
        return self.surroundings is not None

    @staticmethod
    def of_task(task: Task) -> Subject:
        return Subject(task.name, (SubjectTask("t0", task, 1, task.name),))

    @staticmethod
    def of_model(parts: Partition, size: str = "", is_timed: bool = True) -> Subject:
        """Returns the subject of a model; with `is_timed`, the model itself is timed after the search."""
        tasks = tuple(
            SubjectTask(use.id, use.task, use.count, call.label, call.shapes_text(), call.node)
            for use in parts.tasks
            for call in use.calls[:1]
        )
        shapes = {v.name: v.shape for v in parts.graph.inputs}
        return Subject(parts.graph.name, tasks, parts.surroundings, shapes, parts if is_timed else None, size)

    def target(self, machine: Target, cold: bool | None) -> Target:
        """Returns the machine at the subject's temperature; compiling a model chooses the same temperature."""
        if self.surroundings is not None:
            machine = machine.with_weights(self.surroundings.constant_bytes)
        return machine.with_cold_weights(cold)
