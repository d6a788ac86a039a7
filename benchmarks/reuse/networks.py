"""The models of a table: which of their tasks are recorded, and their time with the best known schedules."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from benchmarks.reuse.table import ModelWorth, Table, recipient_id
from stormdrop import zoo
from stormdrop.compiler.compile import read_graph, tasks_of
from stormdrop.graph.partition import Partition
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.settings import MeasureSettings
from stormdrop.target import Surroundings
from stormdrop.target.cpu import Cpu
from stormdrop.tuning.in_model import REVERTED, accept
from stormdrop.tuning.model_task import estimated_seconds
from stormdrop.tuning.resources import Measures
from stormdrop.tuning.tuned import Tuned, TunedTask

RACE_SECONDS = 2.0
"""Seconds for which a model is timed, with the best known schedules and with defaults each."""


@dataclass(frozen=True, slots=True)
class Network:
    """What recording needs of a model: the tasks that take a share worth recording, and how often it calls each."""

    name: str
    is_cold: bool
    tasks: tuple[tuple[Task, int], ...]
    surroundings: Surroundings | None = None
    """The surroundings in which its tasks are timed, as when it is tuned; None: a kernel's runs follow each other."""


def partition_of(name: str) -> Partition:
    return tasks_of(read_graph(zoo.build(name)))


def network_of(name: str, parts: Partition, target: Cpu, share: float) -> Network:
    """The network of a model, with the tasks that take at least `share` of its estimated time."""
    own = target.with_weights(parts.constant_bytes)
    seconds = {use.id: use.count * estimated_seconds(use.task, own) for use in parts.tasks}
    least = share * sum(seconds.values())
    found = [(use.task, use.count) for use in parts.tasks if seconds[use.id] >= least]
    return Network(name, own.is_cold, tuple(found), parts.surroundings)


def measurers_for(target: Cpu, networks: Sequence[Network], stack: ExitStack) -> dict[bool, Measures]:
    """A measurer for each temperature that the networks need, with the surroundings of the largest model, as if all
    were tuned at once.
    """
    found: dict[bool, Measures] = {}
    for is_cold in sorted({n.is_cold for n in networks}):
        around = [n.surroundings for n in networks if n.is_cold == is_cold and n.surroundings is not None]
        largest = max(around, key=lambda model: model.touched_bytes, default=None)
        settings = MeasureSettings(final_seconds=0.05, surroundings=largest)
        found[is_cold] = stack.enter_context(Measurer(target.with_cold_weights(is_cold), settings, shared_proofs=True))
    return found


def worth_in_model(name: str, target: Cpu, table: Table) -> ModelWorth:
    """A model with the best known schedules against the same with defaults, decided as at the end of tuning: timed in
    turns, and kernels that make the model slower are reverted.
    """
    parts = partition_of(name)
    own = target.with_weights(parts.constant_bytes)
    tasks: list[TunedTask] = []
    for use in parts.tasks:
        best = table.best.get(recipient_id(use.task.digest, own.is_cold))
        schedule = None if best is None or best.is_default else best.schedule
        about = use.id, use.calls[0].label, use.count, use.task.flops
        tasks.append(TunedTask(*about, task=use.task, schedule=schedule, default=None, verified=schedule is not None))
    tuned = Tuned(name, own, "recorded", 0, tuple(tasks), 0.0, "recorded")
    accepted = accept(parts, tuned, seconds=RACE_SECONDS)
    worth = accepted.in_model
    assert worth is not None
    offered = [t for t in accepted.tasks if t.schedule is not None]
    changed = sum(t.phase != REVERTED for t in offered)
    return ModelWorth(name, worth.seconds, worth.default_seconds, changed, len(offered))
