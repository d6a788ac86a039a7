"""The loop programs of a few tiny tasks, as text.

`pytest --update-golden` writes them anew: read the difference before you commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from stormdrop.lower.lower import lower
from stormdrop.lower.program import Program
from stormdrop.operators.catalogue import build
from stormdrop.space.derive import derive
from stormdrop.space.sketch import Sketch
from stormdrop.space.structure import DerivationStep
from stormdrop.target.cpu import cross

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Example:
    """A task, the steps of its sketch, and some knob values; the others are as small as they can be."""

    operator: str
    args: Sequence[int]
    steps: Sequence[tuple[str, str, *tuple[str | int, ...]]]
    values: Mapping[str, int]

    def point(self) -> tuple[Sketch, dict[str, int]]:
        task = build(self.operator, self.args)
        steps = [DerivationStep(rule, 1, stage, tuple(args)) for rule, stage, *args in self.steps]
        sketch = Sketch(task, 0, derive(task.variants[0], steps), cross("avx2"))
        return sketch, sketch.values(sketch.fit(self.values)[0])

    def program(self) -> Program:
        sketch, values = self.point()
        return lower(sketch.task, sketch.at(values), sketch.tilings(values))


EXAMPLES = {
    "gmm_tails": Example(
        "GMM",
        (1, 7, 19, 5),
        [("tile", "s0", "SSRSRS", "a2"), ("pack", "s0", 1, "load")],
        {"s0.a1.1": 2, "s0.a1.3": 3, "s0.a2.3": 2, "s0.r0.1": 3, "s0.unroll": 2},
    ),
    "den_packed_in_scratch": Example(
        "DEN",
        (2, 5, 17, 4),
        [("tile", "s0", "SSRSRS", "a2"), ("pack", "s0", 1, "thread")],
        {"s0.a1.1": 5, "s0.a1.3": 2, "s0.a2.1": 3, "s0.r0.1": 4, "s0.unroll": 4},
    ),
    "c2d_border": Example(
        "C2D",
        (1, 5, 6, 3, 9, 3, 1, 1),
        [("inline", "s0"), ("tile", "s1", "SSRSRS", "a3"), ("pack", "s1", 1, "load")],
        {"s1.a2.3": 4, "s1.a3.3": 2, "s1.r0.1": 3, "s1.r1.1": 3, "s1.r2.1": 3, "s1.peel": 1},
    ),
    "c2d_pad_copied_per_thread": Example(
        "C2D",
        (1, 5, 6, 3, 9, 3, 2, 1),
        [
            ("place", "s0", "thread"),
            ("tile", "s1", "SSRSRS", "a3"),
            ("tile", "s0", "SSS", "a3"),
            ("pack", "s1", 1, "load"),
        ],
        {"s1.a2.3": 3, "s1.r0.1": 3, "s1.r1.1": 3, "s1.r2.1": 3},
    ),
    "sfm_in_one_phase": Example(
        "SFM",
        (3, 21),
        [
            ("inline", "s3"),
            ("place", "s2", "thread"),
            ("place", "s1", "thread"),
            ("place", "s0", "thread"),
            ("tile", "s4", "SSS", "a1"),
            ("tile", "s2", "SSRS", "r0"),
            ("tile", "s1", "SSS", "a1"),
            ("tile", "s0", "SSRS", "r0"),
        ],
        {"s4.a0.1": 2, "s4.a1.2": 2, "s2.r0.v": 2, "s0.unroll": 2},
    ),
    "dot_in_parts": Example(
        "DOT",
        (37,),
        [("rfactor", "s0", "r0", 4), ("tile", "s0", "SSRS", "r0"), ("tile", "s0p", "SSRS", "r0")],
        {"s0p.unroll": 2},
    ),
}


def program_text(example: Example) -> str:
    sketch, values = example.point()
    steps = [f"  {step}" for step in sketch.structure.steps]
    lines = [sketch.task.name, *steps, *(f"  {name} = {value}" for name, value in values.items())]
    return "\n".join([*lines, "", str(example.program()), ""])


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_loop_program_is_the_golden_one(name: str, update_golden: bool) -> None:
    path, text = GOLDEN / f"{name}.txt", program_text(EXAMPLES[name])
    if update_golden:
        path.write_text(text)
    assert text == path.read_text()


def test_every_golden_file_has_its_example() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(EXAMPLES)
