"""One measurement as it is kept: what was measured, where, how, by whom, and what came out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Result
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

DONOR = "donor"
"""The strategy, in records, and the phase of a candidate that was re-fitted from another task's schedule."""
DEFAULT = "default"
"""The strategy, in records, of a task's default schedule at that time."""


@dataclass(frozen=True, slots=True)
class Versions:
    """What a record's meaning depends on."""

    stormdrop: str
    llvm: str
    features: int


@dataclass(frozen=True, slots=True)
class Record:
    """A trial, or a winner (`verified`: re-measured in a fresh process and compared with the reference there)."""

    task: Task
    schedule: Schedule
    target: Target
    """The machine, at the temperature at which it was timed."""
    result: Result
    versions: Versions
    strategy: str = ""
    seed: int = 0
    number: int = 0
    """Of the trial within its search, from 1."""
    elapsed: float = 0.0
    """Seconds since its search began."""
    model: str = ""
    """The model whose tuning measured it; empty for a single operator."""
    verified: bool = False
    created: float = 0.0
    """Unix time, by the wall clock, which may jump: only eviction looks at it."""
    features: NDArray[np.float32] | None = None
    """Of `versions.features`; None where the schedule could not be replayed."""


def group_name(digest: str, cold: bool) -> str:
    """The name under which a cost model knows a task at a temperature."""
    return f"{digest}/{'cold' if cold else 'warm'}"
