"""Vectors along a reduced axis."""

from __future__ import annotations

from stormdrop.ir import build as sd
from stormdrop.ir.tensor import Task, axis, compute, reduce_axis, tensor
from tests.support import crew
from tests.support.trials import Given


def test_a_reduced_vector_axis_may_be_declared_before_other_reduced_axes() -> None:
    """The contiguous axis k comes first in the sum, so that it would be the outer loop."""
    x = tensor("X", (5, 7, 19))
    i, j, k = axis(5, "i"), reduce_axis(7, "j"), reduce_axis(19, "k")
    outcome = crew.check([Given("sum", Task([compute("Y", i, sd.sum(x[i, j, k], k, j))]), points=4)])
    assert outcome.paths["tile SSRS reduced vector"] == outcome.points
    assert not outcome.failures, "\n\n".join(outcome.failures[:3])
