"""Donors of a model's tasks: winners of other tasks, as starting points of a search, by task, class and model.

A donor model has the score Σ over classes of P · √W. P is the class's share of the model's estimated time, and W the
number of the donor model's winners of the class. More winners help, with diminishing returns (transfer-tuning, PACT
2022).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import sqrt

from stormdrop.graph.partition import Partition, TaskUse
from stormdrop.space.rules import RULES, Rule
from stormdrop.store.donors import Donor
from stormdrop.store.store import Store
from stormdrop.target.machine import Target
from stormdrop.tuning.model_task import estimated_seconds


@dataclass(frozen=True, slots=True)
class TaskDonors:
    """One task of a model, and its donors."""

    use: TaskUse
    share: float
    """The share of the model's time, estimated from operations and bytes."""
    known: int
    """The number of trials of the task itself in the store."""
    is_decided: bool
    """The task has a verdict."""
    donors: Sequence[Donor]


@dataclass(frozen=True, slots=True)
class ClassDonors:
    """The tasks of a model that are of one class."""

    class_key: str
    label: str
    tasks: int
    share: float
    donors: int


@dataclass(frozen=True, slots=True)
class DonorModel:
    """A model that was tuned before, and the worth of its winners for another model."""

    name: str
    score: float
    """Σ P · √W over the classes."""
    share: float
    """The share of the other model's time in classes of which this model has winners."""
    schedules: int


def donors_of_model(
    parts: Partition,
    target: Target,
    store: Store,
    models: Collection[str] | None = None,
    rules: Sequence[Rule] = RULES,
) -> list[TaskDonors]:
    """Returns every task of a model with its donors; with `models`, donors of these models or machines only."""
    seconds = {use.task.digest: use.count * estimated_seconds(use.task, target) for use in parts.tasks}
    whole = sum(seconds.values()) or 1.0
    return [
        TaskDonors(
            use,
            seconds[use.task.digest] / whole,
            store.known(use.task, target),
            store.verdict(use.task, target, rules=rules) is not None,
            store.donors(use.task, target, None, models, rules),
        )
        for use in parts.tasks
    ]


def by_class(lines: Sequence[TaskDonors]) -> list[ClassDonors]:
    """Returns the classes of a model, the largest share of its time first."""
    classes: dict[str, list[TaskDonors]] = {}
    for line in lines:
        classes.setdefault(line.use.task.class_key, []).append(line)
    rows: list[ClassDonors] = []
    for key, own in classes.items():
        donors = {d.task.digest for line in own for d in line.donors}
        rows.append(ClassDonors(key, own[0].use.calls[0].label, len(own), sum(line.share for line in own), len(donors)))
    return sorted(rows, key=lambda row: -row.share)


def donor_models(lines: Sequence[TaskDonors]) -> list[DonorModel]:
    """Returns the models that have donors of the class of any task, the best one first."""
    shares: dict[str, float] = {}
    winners: dict[str, dict[str, set[str]]] = {}
    for line in lines:
        key = line.use.task.class_key
        shares[key] = shares.get(key, 0.0) + line.share
        for donor in line.donors:
            if donor.kinship.key == "class" and donor.model:
                winners.setdefault(donor.model, {}).setdefault(key, set()).add(donor.task.digest)
    rows = [
        DonorModel(
            name,
            sum(shares[key] * sqrt(len(digests)) for key, digests in classes.items()),
            sum(shares[key] for key in classes),
            len(set().union(*classes.values())),
        )
        for name, classes in winners.items()
    ]
    return sorted(rows, key=lambda row: (-row.score, row.name))
