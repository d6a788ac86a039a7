"""The space of a GPU: which points the default schedule is sought among, and what it is."""

from __future__ import annotations

import pytest

from stormdrop.operators.catalogue import build
from stormdrop.space.default import best_point, ranked
from stormdrop.space.knobs import PARTS, likely_parts, parts_knob
from stormdrop.space.sketch import Sketch, sketches
from stormdrop.target.cpu import cross
from stormdrop.target.gpu import gpu

TARGET = gpu("sm_90")
FEW_PIXELS = (1, 7, 7, 512, 512, 3, 1, 1)


def is_staged(sketch: Sketch) -> bool:
    return any(step.rule == "pack" for step in sketch.structure.steps)


def test_parts_that_fill_the_machine_are_likely_ones() -> None:
    split = next(s for s in sketches(build("C2D", FEW_PIXELS), TARGET) if s.structure.splits)
    choices = parts_knob(split.structure.splits, TARGET).choices
    likely = likely_parts(split.structure.splits, TARGET)
    assert set(likely) < set(choices)
    assert min(likely) > min(choices)  # 25 tiles leave most of 132 multiprocessors idle
    assert next(k for k in split.likely().knobs if k.name == PARTS).choices == likely


def test_all_numbers_of_parts_are_likely_on_a_cpu() -> None:
    target = cross("avx2").with_threads(4)
    split = next(s for s in sketches(build("DOT", (1_000_000,)), target) if s.structure.splits)
    assert likely_parts(split.structure.splits, target) == parts_knob(split.structure.splits, target).choices


@pytest.mark.parametrize(("name", "numbers"), [("GMM", (1, 256, 256, 256)), ("C2D", FEW_PIXELS)])
def test_the_default_of_a_product_stages_its_operands(name: str, numbers: tuple[int, ...]) -> None:
    sketch, point = best_point(sketches(build(name, numbers), TARGET))
    assert is_staged(sketch)
    assert sketch.legal(point[None]).all()


def test_sketches_that_the_default_is_not_sought_among_are_ranked_too() -> None:
    found = sketches(build("GMM", (1, 256, 256, 256)), TARGET)
    assert {id(sketch) for sketch, _, _ in ranked(found, 64)} == {id(sketch) for sketch in found}
    assert not all(is_staged(sketch) for sketch in found)
