"""Schedules from the user's store: verdicts of a whole model, else verdicts of each task.

A verdict names the code that was measured. If its schedule lowers to other code in this version, the kernel is proved
again before its use. The verdict is renewed with the new code, and its timing is marked as old.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stormdrop.base.errors import StormdropError, warn
from stormdrop.builder.building import code_of
from stormdrop.compiler.choose import Choice, Choose, choice_of
from stormdrop.ir.tensor import Task
from stormdrop.measure.measurer import Measurer
from stormdrop.measure.result import Failure
from stormdrop.measure.settings import MeasureSettings
from stormdrop.space.default import resolve
from stormdrop.space.rules import RULES, Rule
from stormdrop.space.schedule import Schedule
from stormdrop.store.record import versions
from stormdrop.store.store import Store, default_path
from stormdrop.store.verdict import Verdict
from stormdrop.target.machine import Target

_log = logging.getLogger("stormdrop.compile")
_PROOFS = MeasureSettings(final_seconds=MeasureSettings().min_seconds)


Proof = tuple[Task, Schedule, str]
"""A task with the schedule and the code of a new proof."""


def _raised(error: StormdropError) -> None:
    raise error


@dataclass(slots=True)
class StoredSchedules:
    """Schedules of a store for a target: verdicts at the target's temperature, else at the other temperature.

    `model` is the digest of the partition that is compiled. Verdicts that the partition accepted as a whole come first.
    `unproved` takes the fastest trial of a task without a verdict.
    """

    store: Store
    target: Target
    rules: Sequence[Rule] = RULES
    model: str = ""
    unproved: bool = False
    unreadable: Callable[[StormdropError], None] = _raised
    """Receives the error of a store that cannot be read. If `unreadable` returns, default schedules follow."""
    _has_failed: bool = False
    _verdicts: dict[str, Verdict] = field(default_factory=dict[str, Verdict])

    def __call__(self, task: Task) -> Choice:
        try:
            return choice_of(None if self._has_failed else self._given(task))
        except StormdropError as error:
            self.unreadable(error)
            self._has_failed = True
            return Choice()

    def _given(self, task: Task) -> Schedule | Verdict | None:
        temperatures = self.target.is_cold, not self.target.is_cold
        for cold in temperatures:
            for model in dict.fromkeys((self.model, "")):
                if verdict := self.store.verdict(task, self.target, cold, self.rules, model):
                    self._verdicts[task.digest] = verdict
                    return verdict
        for cold in temperatures if self.unproved else ():
            if best := self.store.best(task, self.target, cold, rules=self.rules):
                return best.schedule
        return None

    def renew(self, proofs: Sequence[Proof]) -> None:
        """Keeps the verdicts of tasks that were proved again. Timings of other code are old."""
        renewed: list[tuple[Verdict, Verdict]] = []
        proof = f"{_PROOFS.final_points} reference values, after its code had changed"
        for task, schedule, code in proofs:
            old = self._verdicts[task.digest]
            against = schedule if old.against == old.schedule else old.against
            of_proof = {"code": code, "proof": proof, "versions": versions(self.target), "is_timing_old": True}
            renewed.append((old, replace(old, schedule=schedule, against=against, **of_proof)))
        try:
            self.store.renew_verdicts(renewed, self.rules)
        except StormdropError as error:
            _log.info("verdicts that were proved again are not kept, and will be proved once more: %s", error)


def stored_schedules(
    target: Target,
    rules: Sequence[Rule] = RULES,
    model: str = "",
    unproved: bool = False,
    unreadable: Callable[[StormdropError], None] = _raised,
) -> Choose:
    """Returns the choices of the user's store; defaults if there is no store."""
    path = default_path()
    try:
        if path.exists():
            return StoredSchedules(Store.view(path), target, rules, model, unproved, unreadable)
    except StormdropError as error:
        unreadable(error)
    return lambda task: Choice()


def proved_again(chosen: Sequence[tuple[Task, Choice]], target: Target, rules: Sequence[Rule]) -> list[Proof]:
    """Returns a proof for each kernel that agrees with the reference interpreter. Warns of other kernels."""
    proofs: list[Proof] = []
    with Measurer(target, _PROOFS, builders=1, shared_proofs=True, rules=rules) as measurer:
        for task, choice in chosen:
            sketch, point = resolve(task, choice.schedule, target, rules)
            schedule = sketch.schedule(point)  # another schedule if the old values are no legal point any more
            result = measurer.prove(task, choice.schedule or schedule)
            if isinstance(result, Failure):
                warn(f"{task.name} is computed by default: the code of its verdict has changed, and fails: {result}")
                continue
            proofs.append((task, schedule, code_of(task, schedule, target, rules)))
    return proofs
