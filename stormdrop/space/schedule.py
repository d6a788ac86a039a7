"""A schedule: pure data that describes the computation of a task. It prints, hashes and goes through JSON.

Search, the store, reuse and code generation exchange nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stormdrop.base.errors import UserError
from stormdrop.ir.keys import former_class_key, is_class_key
from stormdrop.ir.tensor import Task
from stormdrop.space.structure import DerivationStep


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: the class of its variant, the variant's number, the derivation, and knob values by name.

    `class_key` is empty if the class is unknown: early versions wrote the class of a whole task.
    """

    class_key: str
    """The class of the variants that the schedule is for; empty if unknown."""
    variant: int
    """The index of the variant among the task's."""
    steps: tuple[DerivationStep, ...]
    """The derivation steps from the variant to the structure of loops."""
    values: tuple[tuple[str, int], ...]
    """The value of each knob, with the knob's name."""

    @property
    def by_name(self) -> Mapping[str, int]:
        """The value of each knob, by the knob's name."""
        return dict(self.values)

    def of(self, task: Task) -> Schedule:
        """Returns the schedule with the class of its variant in `task`.

        An unknown class and the class key of an early version are replaced; any other class stays.
        """
        if not 0 <= self.variant < len(task.variants):
            return self
        variant = task.variants[self.variant]
        if self.class_key == variant.class_key or self.class_key not in ("", former_class_key(variant)):
            return self
        return replace(self, class_key=variant.class_key)

    def __str__(self) -> str:
        lines = [f"schedule of class {self.class_key or 'unknown'}, variant {self.variant}"]
        lines += [f"  {step}" for step in self.steps]
        lines += [f"  {name} = {value}" for name, value in self.values]
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """Returns the schedule as a tree for `json.dumps`; `from_json` reads it."""
        return {
            "class": self.class_key,
            "variant": self.variant,
            "steps": [[s.rule, s.version, s.stage, *s.args] for s in self.steps],
            "values": dict(self.values),
        }

    @staticmethod
    def from_json(data: Any) -> Schedule:
        """Raises UserError on anything that is not a schedule."""
        try:
            steps = tuple(_step(s) for s in data["steps"])
            values = tuple((str(k), int(v)) for k, v in data["values"].items())
            key = str(data["class"])
            return Schedule(key if is_class_key(key) else "", int(data["variant"]), steps, values)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
            raise UserError(f"not a schedule: {error!r}") from error


def _step(data: Any) -> DerivationStep:
    rule, version, stage, *args = data
    return DerivationStep(str(rule), int(version), str(stage), tuple(a if isinstance(a, int) else str(a) for a in args))
