"""A graph cut into tasks: what is to be compiled, and in which order it runs.

    parts = partition(optimise(load("model.onnx")))
    for use in parts.tasks: print(use.count, use.task)

A `Call` is one fused kernel: several nodes put together as one task. Equal tasks (same digest) are one `TaskUse` with a count:
they are tuned and compiled once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from stormdrop.graph.graph import Graph, Node, Value
from stormdrop.ir.tensor import Task


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One kernel of the model. `inputs` stand for `task.inputs` in order, constants among them; `nodes` are what it computes."""

    task: Task
    inputs: tuple[Value, ...]
    output: Value
    nodes: tuple[Node, ...]
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class TaskUse:
    """A task and the calls that need it. `id` is "t0", "t1", … in the order of first use."""

    id: str
    task: Task
    calls: tuple[Call, ...]

    @property
    def count(self) -> int:
        return len(self.calls)


@dataclass(frozen=True, eq=False)
class Partition:
    """The optimised graph and its kernels, in the order in which they run."""

    graph: Graph
    calls: tuple[Call, ...]

    @cached_property
    def tasks(self) -> tuple[TaskUse, ...]:
        found: dict[str, list[Call]] = {}
        for call in self.calls:
            found.setdefault(call.task.digest, []).append(call)
        return tuple(TaskUse(f"t{k}", calls[0].task, tuple(calls)) for k, calls in enumerate(found.values()))
