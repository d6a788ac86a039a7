"""What a model could take from what was tuned before: donors of each task, the gain to expect, and which model helps.

    transfers(parts, target, store)          for each task, its donors and the best re-fitted schedule
    donor_models(found)                      models in the order in which they are worth asking

A donor model is worth Σ over classes of P · √W, where P is the class's share of the model's estimated time and W the
number of the donor model's winners of the class: more winners help, with diminishing returns (transfer-tuning, PACT
2022).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import sqrt

from stormdrop.driver.unmeasured import LEAST_SHARE
from stormdrop.errors import StormdropError
from stormdrop.graph.partition import Partition, TaskUse
from stormdrop.reservoir.donors import Donor
from stormdrop.reservoir.experience import Experience, promising
from stormdrop.reservoir.store import Store
from stormdrop.search.model_task import least_seconds
from stormdrop.space.default import default_point
from stormdrop.space.offer import Refitted, predictions
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.machine import Target


@dataclass(frozen=True, slots=True)
class TaskTransfer:
    """One task of a model, and what it could take from others."""

    use: TaskUse
    share: float
    """Of the model's time, by the task's operations and bytes."""
    known: int
    """Trials of the task itself in the store."""
    is_decided: bool
    """It has a verdict: compiling asks nobody else."""
    donors: Sequence[Donor]
    best: Refitted | None = None
    """The re-fitted schedule with the largest predicted gain; None where nothing predicts, or there is nothing."""
    margin: float | None = None
    """The predicted gain from which compiling takes it unmeasured."""

    @property
    def is_taken(self) -> bool:
        """Compiling takes the best one unmeasured."""
        best, margin = self.best, self.margin
        return not self.is_decided and best is not None and margin is not None and best.predicted >= margin

    @property
    def gain(self) -> float:
        """How many times faster the task is expected to be: as by default where nothing better is predicted."""
        return max(1.0, self.best.predicted) if self.best is not None else 1.0


def transfers(
    parts: Partition,
    target: Target,
    store: Store,
    experience: Experience | None = None,
    models: Collection[str] | None = None,
    rules: Sequence[Rule] = RULES,
    tell: Callable[[str], None] = lambda _: None,
) -> list[TaskTransfer]:
    """Every task of a model. With an experience that is current, gains are predicted for those with a noticeable share
    of the time; with `models`, donors are those of these models or machines only. `tell` hears what is done.
    """
    seconds = {use.task.digest: use.count * least_seconds(use.task, target) for use in parts.tasks}
    whole = sum(seconds.values()) or 1.0
    is_current = experience is not None and experience.is_current(target, rules)
    found: list[TaskTransfer] = []
    for use in parts.tasks:
        tell(use.calls[0].label)
        donors = store.donors(use.task, target, None, models, rules)
        share = seconds[use.task.digest] / whole
        known, verdict = store.known(use.task, target), store.verdict(use.task, target, rules=rules)
        best: Refitted | None = None
        if experience is not None and is_current and donors and share >= LEAST_SHARE:
            best = _best(use, donors, target, experience, rules)
        margin = experience.margin if experience is not None and is_current else None
        found.append(TaskTransfer(use, share, known, verdict is not None, donors, best, margin))
    return found


def _best(
    use: TaskUse, donors: Sequence[Donor], target: Target, experience: Experience, rules: Sequence[Rule]
) -> Refitted | None:
    if experience.scorer is None:
        return None
    known = {d.task.digest for d in donors}
    entries = [entry for entry in experience.donors if entry.digest in known]
    offered = [entry.offered for entry in promising(entries, use.task, target)]  # as compiling offers them
    try:
        default = default_point(use.task, target, rules)
        return next(iter(predictions(use.task, offered, experience.scorer, default, rules)), None)
    except StormdropError:
        return None


@dataclass(frozen=True, slots=True)
class ClassTransfer:
    """The tasks of a model that are of one class."""

    class_key: str
    label: str
    tasks: int
    share: float
    donors: int
    gain: float | None
    """Predicted, over all its tasks; None where nothing predicts."""


def by_class(found: Sequence[TaskTransfer]) -> list[ClassTransfer]:
    """The classes of a model, those with the largest share of its time first."""
    classes: dict[str, list[TaskTransfer]] = {}
    for line in found:
        classes.setdefault(line.use.task.class_key, []).append(line)
    rows: list[ClassTransfer] = []
    for key, lines in classes.items():
        share = sum(line.share for line in lines)
        donors = len({d.task.digest for line in lines for d in line.donors})
        gain = share / sum(line.share / line.gain for line in lines) if any(line.best for line in lines) else None
        rows.append(ClassTransfer(key, lines[0].use.calls[0].label, len(lines), share, donors, gain))
    return sorted(rows, key=lambda row: -row.share)


@dataclass(frozen=True, slots=True)
class DonorModel:
    """A model that was tuned before, and what it has for another one."""

    name: str
    score: float
    """Σ P · √W over the classes."""
    share: float
    """Of the other's time, in classes of which it has winners."""
    schedules: int


def donor_models(found: Sequence[TaskTransfer]) -> list[DonorModel]:
    """The models that have donors of the class of any task, the best one first."""
    shares: dict[str, float] = {}
    winners: dict[str, dict[str, set[str]]] = {}
    for line in found:
        key = line.use.task.class_key
        shares[key] = shares.get(key, 0.0) + line.share
        for donor in line.donors:
            if donor.kinship.key == "class" and donor.model:
                digests = winners.setdefault(donor.model, {}).setdefault(key, set())
                digests.add(donor.task.digest)
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
