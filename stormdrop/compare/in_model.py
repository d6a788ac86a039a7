"""What tuning is worth where it counts: a model with the schedules that were found and one with defaults, timed in
turns.

Kernels are tuned one at a time, on memory of their own; in the model they share caches and follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stormdrop.compare.inputs import random_inputs
from stormdrop.compare.race import Budget, race
from stormdrop.driver.compile import build_model
from stormdrop.driver.stored import Schedules
from stormdrop.graph.partition import Partition
from stormdrop.space.rules import RULES, Rule
from stormdrop.target.machine import Target


@dataclass(frozen=True, slots=True)
class InModel:
    """Seconds of one run, the medians of many."""

    seconds: float
    default_seconds: float

    def to_json(self) -> dict[str, float]:
        return {"seconds": self.seconds, "default_seconds": self.default_seconds}


def in_model(
    parts: Partition,
    target: Target,
    schedules: Schedules,
    defaults: Schedules = lambda _: None,
    seconds: float = 1.0,
    tell: Callable[[str], None] = lambda _: None,
    rules: Sequence[Rule] = RULES,
) -> InModel:
    """Compile with found and with default schedules, and time each about so long; `tell` hears what is done.

    Raises as compiling does.
    """
    tell("compiling with what was found")
    found = build_model(parts, target, schedules, rules)
    tell("compiling with defaults")
    default = build_model(parts, target, defaults, rules)
    arrays = list(random_inputs(found.inputs).values())
    tell("timing both in turns")
    runs = race({"found": lambda: found(*arrays), "default": lambda: default(*arrays)}, Budget(seconds=seconds))
    return InModel(runs["found"].seconds, runs["default"].seconds)
