"""A measurement as the store keeps it: the task, the machine, the method, its origin, and the result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stormdrop.base.version import __version__
from stormdrop.codegen.llvm import llvm_version
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Result
from stormdrop.space.judge import judge_of
from stormdrop.space.schedule import Schedule
from stormdrop.target.machine import Target

DONOR = "donor"
"""The strategy, in records, and the phase of a candidate that was re-fitted from another task's schedule."""
DEFAULT = "default"
"""The strategy, in records, of a task's default schedule at that time."""


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions on which a record's meaning depends."""

    stormdrop: str
    llvm: str
    features: int


def versions(target: Target) -> Versions:
    """Returns the versions that records of a target have now."""
    return Versions(__version__, llvm_version(), judge_of(target).features.version)


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
    """The number of the trial within its search, from 1."""
    elapsed: float = 0.0
    """Seconds since its search began."""
    model: str = ""
    """The model during whose tuning the trial was measured; empty for a single operator."""
    verified: bool = False
    created: float = 0.0
    """Unix time, by the wall clock, which may jump: only eviction looks at it."""
    features: NDArray[np.float32] | None = None
    """The features of version `versions.features`; None if the schedule could not be replayed."""


def group_name(digest: str, cold: bool) -> str:
    """Returns a cost model's name for a task at a temperature."""
    return f"{digest}/{'cold' if cold else 'warm'}"
