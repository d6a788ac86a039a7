"""Sums of products as matrix products."""

from __future__ import annotations

import numpy as np
import pytest

import stormdrop as sd
from stormdrop.ir.contraction import contracted, contraction_boxes, factors_of
from stormdrop.ir.interp import evaluate
from stormdrop.ir.tensor import Compute, Task
from stormdrop.operators.contract import matmul_nd
from stormdrop.operators.window import Window, conv_nd, conv_transpose_nd

RNG = np.random.default_rng(0)


def body(task: Task) -> Compute:
    (found,) = [t.compute for t in task.variants[0].stages if t.compute is not None and t.compute.combiner]
    return found


@pytest.mark.parametrize(
    ("a", "b", "shape", "inner"),
    [
        ((4, 1, 5), (1, 3, 5), (4, 3), (5,)),
        ((2, 4, 1, 5, 2), (2, 1, 3, 5, 2), (2, 4, 3), (5, 2)),
        ((4, 1, 1, 5), (1, 3, 6, 1), (4, 3, 6), (5,)),
        ((3, 1, 4), (3, 1, 4), (3, 1), (4,)),
        ((5,), (1, 3, 5), (2, 3), (5,)),
        ((), (), (2, 2), (3,)),
        ((4, 2), (4, 2), (4, 2), ()),
    ],
)
def test_factors_that_broadcast_are_summed_as_their_product(
    a: tuple[int, ...], b: tuple[int, ...], shape: tuple[int, ...], inner: tuple[int, ...]
) -> None:
    x, y = RNG.standard_normal(a), RNG.standard_normal(b)
    over = tuple(range(len(shape), len(shape) + len(inner)))
    wanted = np.broadcast_to(x * y, shape + inner).sum(axis=over)
    np.testing.assert_allclose(contracted(x, y, shape, inner), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_convolution_in_f64_is_the_plain_interpreters_up_to_the_order_of_its_sums(
    groups: int, is_transposed: bool
) -> None:
    w = Window.uniform(2, 3, stride=2, pad=1)
    x = sd.tensor("x", (2, 4, 7, 6))
    weights = sd.tensor("w", (4, 4 // groups, 3, 3))
    y = (
        conv_transpose_nd(x, weights, w, (13, 11), groups, "NCHW")
        if is_transposed
        else conv_nd(x, weights, w, groups, "NCHW")
    )
    task = Task([y])
    arrays = {t.name: RNG.standard_normal(t.shape).astype(np.float32) for t in task.inputs}
    assert any(t.compute is not None and factors_of(t.compute) for t in task.variants[0].stages)
    np.testing.assert_allclose(
        evaluate(task, arrays, precision="f64")["Y"], evaluate(task, arrays)["Y"], rtol=1e-4, atol=1e-5
    )


def test_boxes_cover_the_output_once_and_bound_each_factor() -> None:
    task = Task([conv_nd(sd.tensor("x", (2, 8, 9, 9)), sd.tensor("w", (16, 8, 3, 3)), Window.uniform(2, 3), 1, "NCHW")])
    c = body(task)
    factors = factors_of(c)
    assert factors is not None
    hits = np.zeros(task.outputs[0].shape, np.int64)
    boxes = list(contraction_boxes(c, factors, 1000))
    for n, co, h, w in boxes:
        hits[n, co, h, w] += 1
        lengths = [part.stop - part.start for part in (n, co, h, w)]
        assert lengths[0] * lengths[2] * lengths[3] * 72 <= 1000 or lengths[0] * lengths[2] * lengths[3] == 1
        assert lengths[1] * 72 <= 1000
    assert (hits == 1).all()
    assert len(boxes) > 4


def test_sums_of_integers_and_of_nothing_stay_with_the_plain_interpreter() -> None:
    a, b = sd.tensor("a", (2, 3), "i64"), sd.tensor("b", (3, 2), "i64")
    assert factors_of(body(Task([matmul_nd(a, b)]))) is None
    empty = Task([matmul_nd(sd.tensor("a", (2, 0)), sd.tensor("b", (0, 3)))])
    assert factors_of(body(empty)) is None
    arrays = {"a": np.zeros((2, 0), np.float32), "b": np.zeros((0, 3), np.float32)}
    assert (evaluate(empty, arrays, precision="f64")[empty.outputs[0].name] == 0).all()


def test_infinities_and_nans_pass_through_a_matrix_product() -> None:
    task = Task([matmul_nd(sd.tensor("a", (3, 2)), sd.tensor("b", (2, 2)))])
    arrays = {
        "a": np.array([[np.inf, 1], [np.nan, 1], [1, 1]], np.float32),
        "b": np.array([[1, 0], [1, 1]], np.float32),
    }
    wide = evaluate(task, arrays, precision="f64")[task.outputs[0].name]
    np.testing.assert_array_equal(wide, evaluate(task, arrays)[task.outputs[0].name])
