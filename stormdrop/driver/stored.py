"""Schedules from the user's store: what a model accepted as a whole, else what tuning decided for each task.

A verdict names the code that was measured. Where its schedule lowers to other code by now (another version), the kernel
is proved again before it is used, once: the verdict is renewed with the new code, and its timing is marked as old.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from stormdrop.errors import StormdropError
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure
from stormdrop.measure.settings import MeasureSettings
from stormdrop.reservoir.store import Store, default_path
from stormdrop.reservoir.verdict import Verdict
from stormdrop.runtime.building import code_of
from stormdrop.space.default import resolve
from stormdrop.space.offer import Offer
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

_log = logging.getLogger("stormdrop.compile")

Schedules = Callable[[Task], Schedule | Verdict | Offer | None]
"""How to compute a task; None: by its default schedule. The code of a verdict is compared with what is built. Of an
offer something is taken where enough gain is predicted; else the default schedule is.
"""
Offers = Callable[[Task], Offer | None]


@runtime_checkable
class Renews(Protocol):
    """Schedules that keep verdicts whose kernels were proved again: each as it was, and as it holds now."""

    def renew(self, verdicts: Sequence[tuple[Verdict, Verdict]]) -> None: ...


def scheduled(found: Schedule | Verdict | Offer | None) -> Schedule | None:
    """The schedule that was named; None: what an offer comes to, or the default."""
    if isinstance(found, Offer):
        return None
    return found.schedule if isinstance(found, Verdict) else found


DEFAULT, VERDICT, GIVEN = "default", "verdict", "given"
"""Where a schedule came from, besides an offer's origin; given: by whoever compiles, or an unproved trial."""


def origin_of(found: Schedule | Verdict | Offer | None) -> str:
    """Where a schedule came from, if nothing was taken of an offer."""
    if isinstance(found, Verdict):
        return VERDICT
    return GIVEN if isinstance(found, Schedule) else DEFAULT


@dataclass(frozen=True, slots=True)
class StoredSchedules:
    """What a store knows for a target: verdicts at its temperature, else at the other one.

    `model` is the digest of the partition that is compiled: what it accepted as a whole comes first. `unproved` takes
    the fastest trial of a task without a verdict. `offers` is asked for tasks of which nothing is known.
    """

    store: Store
    target: Target
    rules: Sequence[Rule] = RULES
    model: str = ""
    unproved: bool = False
    offers: Offers | None = None

    def __call__(self, task: Task) -> Schedule | Verdict | Offer | None:
        temperatures = self.target.is_cold, not self.target.is_cold
        for cold in temperatures:
            for model in dict.fromkeys((self.model, "")):
                if found := self.store.verdict(task, self.target, cold, self.rules, model):
                    return found
        for cold in temperatures if self.unproved else ():
            if best := self.store.best(task, self.target, cold, rules=self.rules):
                return best.schedule
        return self.offers(task) if self.offers is not None else None

    def renew(self, verdicts: Sequence[tuple[Verdict, Verdict]]) -> None:
        try:
            self.store.renew_verdicts(verdicts, self.rules)
        except StormdropError as error:
            _log.info("verdicts that were proved again are not kept, and will be proved once more: %s", error)


def stored_schedules(
    target: Target,
    rules: Sequence[Rule] = RULES,
    model: str = "",
    unproved: bool = False,
    offers: Offers | None = None,
) -> Schedules:
    """What the user's store knows; `offers`, if any, for what it does not."""
    path = default_path()
    if not path.exists():
        return offers or (lambda task: None)
    return StoredSchedules(Store.view(path), target, rules, model, unproved, offers)


def proved_again(verdicts: Sequence[Verdict], target: Target, rules: Sequence[Rule]) -> list[tuple[Verdict, Verdict]]:
    """Those whose kernels, as they are built now, compute what the reference interpreter does; the others are told of.

    Each as it was, and with the schedule, the code and the versions that were proved; its timing is old.
    """
    from stormdrop.search.tune import versions  # whoever compiles does not search: not before it is needed

    held: list[tuple[Verdict, Verdict]] = []
    settings = MeasureSettings(final_seconds=MeasureSettings().min_seconds)
    with Measurer(target, settings, builders=1, shared_proofs=True, rules=rules) as measurer:
        for verdict in verdicts:
            result = measurer.prove(verdict.task, verdict.schedule)
            if isinstance(result, Failure):
                told = "%s is computed by default: what tuning decided is other code by now, and that fails: %s"
                _log.warning(told, verdict.task.name, result)
                continue
            sketch, point = resolve(verdict.task, verdict.schedule, target, rules)
            schedule = sketch.schedule(point)  # another where the old values are no legal point any more
            now = replace(
                verdict,
                schedule=schedule,
                against=schedule if verdict.against == verdict.schedule else verdict.against,
                code=code_of(verdict.task, schedule, target, rules),
                proof=f"{settings.final_points} reference values, after its code had changed",
                versions=versions(target),
                is_timing_old=True,
            )
            held.append((verdict, now))
    return held
