"""Stores of vectors that are partly alive: nothing beside the live lanes changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from stormdrop.ir import build as sd
from stormdrop.ir.dtypes import FLOATS, INTEGERS, Dtype
from stormdrop.ir.tensor import Task, axis, compute, tensor
from stormdrop.space.derive import derive
from stormdrop.space.sketch import Sketch
from stormdrop.space.structure import DerivationStep
from tests.support import crew
from tests.support.trials import Case, Given, targets

DTYPES: tuple[Dtype, ...] = (*FLOATS, *INTEGERS, "bool")
SHAPES = [(4, 32, 1), (3, 9), (5, 17)]


def cast(shape: tuple[int, ...], source: Dtype, to: Dtype) -> Task:
    x, axes = tensor("X", shape, source), tuple(axis(n) for n in shape)
    return Task([compute("Y", axes, sd.cast(x[axes], to))], name=f"{source} to {to}")


class AlongTheLast(Given):
    """Vectors along the last dimension, however short it is: what a schedule found at another shape may ask for."""

    def cases(self) -> Iterator[Case]:
        rng = np.random.default_rng(1)
        last = f"a{len(self.task.outputs[0].shape) - 1}"
        structure = derive(self.task.variants[0], [DerivationStep("tile", 1, "s0", ("SSS", last))])
        found = [Sketch(self.task, 0, structure, machine.with_threads(1)) for machine in targets()]
        drawn = [(sketch, point) for sketch in found for point in sketch.sample_legal(1, rng)]
        for number, (sketch, point) in enumerate(drawn):
            yield Case(self, number, sketch, tuple(int(x) for x in point), {})


@pytest.mark.parametrize("to", DTYPES)
def test_a_conversion_writes_its_live_lanes_and_nothing_else(to: Dtype) -> None:
    shapes: dict[Dtype, tuple[int, ...]] = {
        source: SHAPES[(DTYPES.index(source) + DTYPES.index(to)) % len(SHAPES)] for source in DTYPES
    }
    tasks = {f"{source} to {to} {shape}": cast(shape, source, to) for source, shape in shapes.items()}
    outcome = crew.check([AlongTheLast(title, task) for title, task in tasks.items()])
    assert outcome.points
    assert not outcome.failures, "\n\n".join(outcome.failures[:3])
