"""Reuse: candidates for a task from the schedules of other tasks.

    seed    the stored winner, the default schedule and re-fitted donors are measured first; then the search
    only    these, and a short droplet from the best of them
    off     nothing comes from other tasks

Donors are winners in the store (`Store.donors`); the schedules of portfolios, where the store has none of a class; and,
while a model is tuned, the leaders of its other tasks: siblings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, get_args

from stormdrop.errors import ScheduleError, UserError
from stormdrop.ir.tensor import Task
from stormdrop.reservoir.donors import kinship
from stormdrop.reservoir.experience import nearest
from stormdrop.reservoir.portfolio import portfolios
from stormdrop.reservoir.store import Store
from stormdrop.space.refit import refit
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

ReuseMode = Literal["seed", "only", "off"]
MOST_DONORS = 16
"""Whose schedules are re-fitted: each gives up to three candidates, in some 20 ms. Of one table's candidates, the
fastest of three from six donors was 10 % behind the fastest of all, the fastest of ten from sixteen donors 4 %."""

MOST_NAMED = 8
"""Models that a message lists."""

Source = tuple[Task, Schedule]
"""A task and a schedule of it."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a search may take from other tasks. `models`: only what was measured while these were tuned, or on machines
    of these keys; None: all.
    """

    mode: ReuseMode = "seed"
    models: tuple[str, ...] | None = None

    @property
    def wanted(self) -> tuple[str, ...]:
        """The models and machines that are asked for by name."""
        return () if self.mode == "off" else self.models or ()


def reuse_of(mode: str, donors: Sequence[str] | None) -> Reuse:
    """Raises UserError for a mode that there is not."""
    modes: dict[str, ReuseMode] = {name: name for name in get_args(ReuseMode)}
    if mode not in modes:
        raise UserError(f"reuse={mode!r}: give one of {', '.join(modes)}")
    if isinstance(donors, str):
        raise UserError(f"donors={donors!r}: give a list of names of models")
    return Reuse(modes[mode], None if donors is None else tuple(donors))


def absent_donors(names: Collection[str], store: Store | None) -> str:
    """What to warn of: the models or machines of which the store has nothing. Empty where it has something of each.

    Raises UserError where it has nothing of any of them.
    """
    models, machines = (store.models(), store.machines()) if store is not None else (set[str](), set[str]())
    absent = [repr(name) for name in names if name not in models | machines]
    if not absent:
        return ""
    listed = sorted(models)
    known = ", ".join([*listed[:MOST_NAMED], *(["…"] if listed[MOST_NAMED:] else [])]) or "none"
    told = f"the store has nothing of a model or machine {' or '.join(absent)}; models are: {known}"
    if len(absent) == len(names):
        raise UserError(told)
    return told


def stored_sources(task: Task, target: Target, store: Store, reuse: Reuse, rules: Sequence[Rule]) -> list[Source]:
    """The store's donors, the best first; where it has none of the task's class, also those of portfolios, unless the
    models to reuse are named.
    """
    found = store.donors(task, target, MOST_DONORS, reuse.models, rules)
    sources = [(d.task, d.schedule) for d in found]
    if reuse.models is None and not any(d.kinship.key == "class" for d in found):
        sources = [*portfolio_sources(task, target), *sources][:MOST_DONORS]
    return sources


def portfolio_sources(task: Task, target: Target) -> list[Source]:
    """Schedules of portfolios that can be carried to a task of their class, in the order of donors."""
    entries = [entry for portfolio in portfolios(target) for entry in portfolio.donors]
    found: list[Source] = []
    for entry in nearest(entries, task, target, MOST_DONORS):
        with suppress(UserError):  # of another version
            found.append(entry.offered.source())
    return found


def related(task: Task, sources: Iterable[Source], most: int = MOST_DONORS) -> list[Source]:
    """Those that share a key with a task: of the class before those of the anchor class, near ones first."""
    kin = [(kinship(*source, task), source) for source in sources]
    found = sorted((k.order, n) for n, (k, _) in enumerate(kin) if k is not None)
    return [kin[n][1] for _, n in found[:most]]


def refitted(task: Task, sources: Iterable[Source], target: Target, rules: Sequence[Rule] = RULES) -> list[Schedule]:
    """All candidates that sources give for a task, each once, in the order of the sources."""
    found: dict[Schedule, None] = {}
    for origin, schedule in sources:
        try:
            found |= dict.fromkeys(refit(schedule, origin, task, target, rules))
        except ScheduleError:
            continue  # a schedule that this version cannot replay
    return list(found)
