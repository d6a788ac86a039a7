"""The choice of a schedule for each task of a model. `choice_of` is the border to callers of `compile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from stormdrop.base.arguments import check_arguments
from stormdrop.ir.tensor import Task
from stormdrop.space.schedule import Schedule
from stormdrop.store.verdict import Verdict


class Origin(StrEnum):
    """The origin of a schedule. A given schedule comes from the caller of `compile`, or is an unproved trial."""

    DEFAULT = "default"
    VERDICT = "verdict"
    GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule for a task with its origin; without a schedule, the default.

    `code` is the fingerprint of the code that tuning proved. A kernel with other code is proved again. None: no proof
    is demanded.
    """

    schedule: Schedule | None = None
    origin: Origin = Origin.DEFAULT
    code: str | None = None


Choose = Callable[[Task], Choice]
Schedules = Callable[[Task], Schedule | Verdict | None]
"""A function of a caller of `compile`; None stands for the default schedule."""


def choice_of(given: Schedule | Verdict | None) -> Choice:
    """Returns a verdict, a schedule or None as a choice. Raises UserError for other types."""
    match given:
        case None:
            return Choice()
        case Verdict():
            return Choice(given.schedule, Origin.VERDICT, given.code)
        case _:
            check_arguments(schedule=given)
            return Choice(given, Origin.GIVEN)
