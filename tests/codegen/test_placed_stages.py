"""Stages that are computed inside the parallel loop of what reads them: how much of them, and from where on."""

from __future__ import annotations

import pytest

from stormdrop.ir import build as sd
from stormdrop.ir.tensor import Task, Tensor, axis, compute, reduce_axis, tensor
from stormdrop.operators.window import Window, conv_nd
from tests.support import crew
from tests.support.trials import Given

N, M, K = 12, 40, 9


def sums() -> Tensor:
    i, j, k = axis(N), axis(M), reduce_axis(K)
    return compute("S", (i, j), sd.sum(tensor("X", (N, K, M))[i, k, j], k))


def _conv(x: Tensor) -> Tensor:
    return conv_nd(x, tensor("W", (3, 3, 3, 20), constant=True), Window.uniform(2, 3, pad=1), 1, "NHWC")


def check(title: str, output: Tensor) -> None:
    outcome = crew.check([Given(title, Task([output]), points=4)])
    assert outcome.paths["place thread"]
    assert not outcome.failures, "\n\n".join(outcome.failures[:3])


@pytest.mark.parametrize("along", [0, 1])
def test_a_stage_that_is_read_at_two_places_holds_both(along: int) -> None:
    s = sums()
    axes = [axis(n - 1 if d == along else n) for d, n in enumerate((N, M))]
    second = [a + 1 if d == along else a for d, a in enumerate(axes)]
    check("next", compute("Y", axes, s[tuple(axes)] - s[tuple(second)]))


def test_a_stage_that_is_read_forwards_and_backwards_holds_both() -> None:
    s = sums()
    i, j = axis(N), axis(M)
    check("backwards", compute("Y", (i, j), s[i, j] * s[N - 1 - i, j]))


def test_a_stage_that_is_read_along_a_row_and_in_one_column_holds_both() -> None:
    s = sums()
    i, j = axis(N), axis(M)
    check("column", compute("Y", (i, j), s[i, j] - s[i, 3]))


@pytest.mark.parametrize("first", [0, 3])
def test_channels_that_begin_inside_a_panel_of_packed_weights_are_right(first: int) -> None:
    y = _conv(tensor("X", (2, 5, 5, 3)))
    n, h, w, c = axis(2), axis(5), axis(5), axis(5)
    check("channels", compute("Z", (n, h, w, c), y[n, h, w, c * 3 + first] + 1.0))


def test_channels_that_are_read_by_shorter_vectors_or_across_them_are_right() -> None:
    """Two reads, so that the convolution is not finished in registers."""
    y = _conv(tensor("X", (1, 4, 5, 3)))
    n, h, w, c = axis(1), axis(4), axis(4), axis(20)
    step = y[n, h, w, c] - y[n, h, w + 1, c]
    check("wider", compute("Z", (n, h, w, c), sd.cast(sd.cast(step, "f64") * tensor("B", (20,), "f64")[c], "f32")))
    check("turned", compute("Z", (n, c, h, w), step * tensor("B", (20,))[c]))
