"""Indices as data, compiled: negative ones, wild ones, equal ones; and orders among ties and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stormdrop.base.errors import UserError
from tests.support.one_node import Array, OneNode, assert_alike

pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(13)


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def on_both(op: str, *inputs: Array, **options: Any) -> None:
    node = OneNode(op, inputs, **options)
    assert_alike(node.compiled(), node.on_onnxruntime())


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_indices_count_from_the_end_in_every_dimension_they_choose(batch: int) -> None:
    x = draw(2, 3, 4, 5)
    shape = (*x.shape[:batch], 6)
    for depth in range(1, 5 - batch):
        indices = np.stack([RNG.integers(-n, n, shape) for n in x.shape[batch : batch + depth]], -1)
        on_both("GatherND", x, indices, batch_dims=batch)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_updates_of_one_element_are_combined(reduction: str, dtype: Any) -> None:
    x, updates = (RNG.integers(-9, 9, shape).astype(dtype) for shape in ((4, 5), (7, 5)))
    indices = RNG.integers(-4, 4, (7, 1))
    on_both("ScatterND", x, indices, updates, reduction=reduction)
    on_both("ScatterElements", x, np.broadcast_to(indices, (7, 5)).copy(), updates, axis=0, reduction=reduction)


def test_indices_out_of_range_are_refused_where_they_are_known_and_harmless_where_not() -> None:
    x, indices = draw(3, 4), np.array([[0, 4], [1, -5]])
    with pytest.raises(UserError, match="outside a dimension of 4"):
        OneNode("GatherND", [x, indices], known=(1,)).compiled()
    with pytest.raises(UserError, match="outside a dimension of 4"):
        OneNode("ScatterND", [x, indices, draw(2)], known=(1,)).compiled()
    (y,) = OneNode("GatherND", [x, indices]).compiled()
    np.testing.assert_array_equal(y, x[[0, 1], [3, 0]])
    (y,) = OneNode("ScatterND", [x, indices, draw(2)]).compiled()
    np.testing.assert_array_equal(y, x)


def test_a_hot_position_outside_the_depth_is_off_and_a_fraction_is_cut_off() -> None:
    values = np.array([2.0, 5.0], np.float32)
    indices = np.array([-5, -4, -1, 0, 3, 4, 2**40, -(2**40)])
    on_both("OneHot", indices, np.array(4), values, known=(1,), opset=11)
    (y,) = OneNode(
        "OneHot", [np.array([1.9, -0.5, -1.5], np.float32), np.array(4), values], known=(1,), opset=11
    ).compiled()
    assert y.argmax(1).tolist() == [1, 0, 3]


@pytest.mark.parametrize("largest", [0, 1])
def test_nan_is_ranked_above_all_numbers_and_equal_values_as_they_stand(largest: int) -> None:
    x = np.array([[2, np.nan, 1, 2, np.inf, np.nan, 1, -np.inf], [3, 3, 3, 3, 3, 3, 3, 3]], np.float32)
    order = [[1, 5, 4, 0, 3, 2, 6, 7], list(range(8))] if largest else [[7, 2, 6, 0, 3, 4, 1, 5], list(range(8))]
    values, positions = OneNode("TopK", [x, np.array([7])], known=(1,), outputs=2, largest=largest).compiled()
    np.testing.assert_array_equal(positions, np.array(order)[:, :7])
    np.testing.assert_array_equal(values, np.take_along_axis(x, positions, 1))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_the_extreme_of_values_with_nan_is_a_nan(op: str, last: int) -> None:
    x = np.array([[1, np.nan, 5, np.nan, 0], [4, 4, 0, 0, 2]], np.float32)
    (y,) = OneNode(op, [x], axis=1, keepdims=0, select_last_index=last).compiled()
    tied = {("ArgMax", 0): 0, ("ArgMax", 1): 1, ("ArgMin", 0): 2, ("ArgMin", 1): 3}[op, last]
    assert y.tolist() == [3 if last else 1, tied]


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_a_running_sum_keeps_an_infinity_where_it_has_been_met(exclusive: int, reverse: int) -> None:
    x = draw(3, 6)
    x[1, 2] = np.inf
    on_both("CumSum", x, np.array(1), known=(1,), exclusive=exclusive, reverse=reverse)


def test_a_sequence_is_reversed_as_far_as_it_goes() -> None:
    x, lengths = draw(4, 5), np.array([0, 1, 3, 9, -2])
    (y,) = OneNode("ReverseSequence", [x, lengths], time_axis=0, batch_axis=1).compiled()
    for b, n in enumerate([0, 1, 3, 4, 0]):
        np.testing.assert_array_equal(y[:, b], [*x[:n, b][::-1], *x[n:, b]])
