"""Reuse (schedule transfer): candidates for a task from the schedules of other tasks.

    seed    the stored winner, the default schedule and re-fitted donors are measured first; then the search
    only    these, and a short droplet from the best of them
    off     nothing comes from other tasks

Donors are winners in the store (`Store.donors`), or winners of shipped stores if the store has none of a class. While a
model is tuned, the leaders of its other tasks (siblings) are donors too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from stormdrop.base.errors import ScheduleError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.store.donors import kinship
from stormdrop.store.shipped import shipped_donors
from stormdrop.store.store import Store
from stormdrop.target.machine import Target

ReuseMode = Literal["seed", "only", "off"]
MOST_DONORS = 16
"""The number of donors that are re-fitted: each gives up to three candidates, in some 20 ms. On one table, the fastest
of three candidates from six donors was 10 % behind the fastest of all. The fastest of ten candidates from sixteen
donors was 4 % behind.
"""

MOST_NAMED = 8
"""Models that a message lists."""

Source = tuple[Task, Schedule]
"""A task and a schedule of it."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """The schedules that a search may reuse from other tasks.

    `models` limits them to measurements made while tuning these models, or on machines of these keys; None: no limit.
    """

    mode: ReuseMode = "seed"
    models: tuple[str, ...] | None = None

    @property
    def wanted(self) -> tuple[str, ...]:
        """The models and machines that are requested by name."""
        return () if self.mode == "off" else self.models or ()


def reuse_of(mode: str, donors: Sequence[str] | None) -> Reuse:
    """Returns the reuse of a mode and donors. Raises UserError for an unknown mode."""
    modes: dict[str, ReuseMode] = {name: name for name in get_args(ReuseMode)}
    if mode not in modes:
        raise UserError(f"reuse={mode!r} is unknown; give {', '.join(modes)}")
    if isinstance(donors, str):
        raise UserError(f"donors={donors!r}: give a list of names of models")
    return Reuse(modes[mode], None if donors is None else tuple(donors))


def absent_donors(names: Collection[str], store: Store | None) -> str:
    """Returns a warning that names the models or machines without any data in the store; empty if there are none.

    Raises UserError if the store has no data of any of them.
    """
    models, machines = (store.models(), store.machines()) if store is not None else (set[str](), set[str]())
    absent = [repr(name) for name in names if name not in models | machines]
    if not absent:
        return ""
    listed = sorted(models)
    known = ", ".join([*listed[:MOST_NAMED], *(["…"] if listed[MOST_NAMED:] else [])]) or "none"
    message = f"the store has nothing of a model or machine {' or '.join(absent)}; models are: {known}"
    if len(absent) == len(names):
        raise UserError(message)
    return message


def stored_sources(task: Task, target: Target, store: Store, reuse: Reuse, rules: Sequence[Rule]) -> list[Source]:
    """Returns the store's donors, the best first. Without donors of the task's class, shipped donors come before these,
    unless the models to reuse are named.
    """
    donors = store.donors(task, target, MOST_DONORS, reuse.models, rules)
    if reuse.models is None and not any(d.kinship.key == "class" for d in donors):
        donors = [*shipped_donors(task, target, MOST_DONORS, tuple(rules)), *donors][:MOST_DONORS]
    return [(d.task, d.schedule) for d in donors]


def related(task: Task, sources: Iterable[Source], most: int = MOST_DONORS) -> list[Source]:
    """Returns the sources that share a key with a task: of the class before the anchor class, near sources first."""
    kin = [(kinship(*source, task), source) for source in sources]
    order = sorted((k.order, n) for n, (k, _) in enumerate(kin) if k is not None)
    return [kin[n][1] for _, n in order[:most]]


def refitted(task: Task, sources: Iterable[Source], target: Target, rules: Sequence[Rule] = RULES) -> list[Schedule]:
    """Returns all candidates that sources give for a task, each once, in the order of the sources."""
    schedules: dict[Schedule, None] = {}
    for origin, schedule in sources:
        try:
            schedules |= dict.fromkeys(refit(schedule, origin, task, target, rules))
        except ScheduleError:
            continue  # a schedule that this version cannot replay
    return list(schedules)
