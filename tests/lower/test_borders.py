"""Selections by an index condition around what a kernel reads: on both sides, around sums, around copies."""

from __future__ import annotations

from stormdrop.ir import build as sd
from stormdrop.ir.tensor import Task, Tensor, axis, compute, reduce_axis, tensor
from stormdrop.operators.broadcast import elementwise
from tests.support import crew
from tests.support.trials import Given

N, M, P, Q = 5, 19, 7, 6


def check(title: str, *outputs: Tensor, points: int = 2) -> None:
    outcome = crew.check([Given(title, Task(outputs), points=points, most=12)])
    assert outcome.points
    assert not outcome.failures, "\n\n".join(outcome.failures[:3])


def joined(a: Tensor, b: Tensor, along: int) -> Tensor:
    """Two matrices side by side or one below the other."""
    shape = [x + y if d == along else x for d, (x, y) in enumerate(zip(a.shape, b.shape))]
    axes = [axis(n) for n in shape]
    behind = tuple(i - a.shape[along] if d == along else i for d, i in enumerate(axes))
    return compute("J", axes, sd.where(axes[along] < a.shape[along], a[tuple(axes)], b[behind]))


def product(x: Tensor, w: Tensor) -> Tensor:
    i, j, k = axis(x.shape[0]), axis(w.shape[1]), reduce_axis(w.shape[0])
    return compute("C", (i, j), sd.sum(x[i, k] * w[k, j], k))


def sums(n: int) -> Tensor:
    i, j, k = axis(n), axis(M), reduce_axis(P)
    return compute("S", (i, j), sd.sum(tensor("X", (n, P, M))[i, k, j], k))


def test_a_triangle_of_sums_is_right() -> None:
    i, j = axis(N), axis(M)
    check("triangle", compute("Y", (i, j), sd.where(j - i >= 2, sums(N)[i, j], -1.0)))


def test_sums_with_rows_below_them_are_written_with_these_rows() -> None:
    """The sums are fewer than what reads them: whatever finishes them must also write the rest."""
    check("below", joined(sums(2), tensor("B", (Q, M)), 0))
    check("above", joined(tensor("B", (Q, M)), sums(2), 0))
    i, j = axis(N), axis(M)
    check("padded", compute("Y", (i, j), sd.where(i < 2, sums(2)[i, j], 0.0)))


def test_both_parts_of_a_joined_left_factor_are_read_only_where_they_are() -> None:
    check("left", product(joined(tensor("A", (N, P)), tensor("B", (N, Q)), 1), tensor("W", (P + Q, M))))


def test_both_parts_of_a_joined_right_factor_are_packed_only_where_they_are() -> None:
    check("right", product(tensor("X", (N, P + Q)), joined(tensor("A", (P, M)), tensor("B", (Q, M)), 0)))


def test_an_operand_read_under_two_conditions_is_packed_for_both() -> None:
    x, w = tensor("X", (N, 9)), tensor("W", (9, M))
    i, j, k = axis(N), axis(M), reduce_axis(9)
    taken = sd.where(k < 4, w[k, j], 1.0) + sd.where(k >= 6, w[k, j] * 2.0, 3.0)
    check("twice", compute("C", (i, j), sd.sum(x[i, k] * taken, k)))


def test_an_operand_read_under_a_condition_on_another_axis_is_read_there_only() -> None:
    """X ends before i + k does: for a large i few of its rows are read."""
    x, w = tensor("X", (P, M)), tensor("W", (N, P))
    i, j, k = axis(N), axis(M), reduce_axis(P)
    check("tied", compute("C", (i, j), sd.sum(w[i, k] * sd.where(i + k < P, x[i + k, j] * 2.0, 0.0), k)))


def test_a_stage_that_is_read_behind_another_is_computed_where_it_is_read() -> None:
    """exp is too dear to be computed for every use: it gets a place of its own."""
    exponential = elementwise(lambda e: sd.exp(e[0]), [tensor("B", (N, Q))], "E")
    check("placed", product(joined(tensor("A", (N, P)), exponential, 1), tensor("W", (P + Q, M))))


def test_constants_chosen_by_data_are_not_packed_when_the_kernel_is_loaded() -> None:
    x, w, mask = tensor("X", (N, P)), tensor("W", (P, M), constant=True), tensor("B", (P, M), "bool")
    i, j, k = axis(N), axis(M), reduce_axis(P)
    check("chosen", compute("C", (i, j), sd.sum(x[i, k] * sd.where(mask[k, j], w[k, j], 0.0), k)))


def test_the_page_of_a_border_is_as_long_as_what_is_read_of_it() -> None:
    """A row of 15 is some steps of one vector, written out: all of them read the border's value."""
    x = tensor("X", (4, N, 15))
    i, j, k = axis(4), reduce_axis(N + 1), reduce_axis(15)
    check("page", compute("Y", i, sd.sum(sd.where(j < N, x[i, j, k], -2.0), j, k)), points=16)
