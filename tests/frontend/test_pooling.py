"""Pools at their edges, compiled: NaN, infinities, ties, windows that hang over; and what puts windows back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stormdrop.base.errors import UserError
from tests.support.one_node import Array, OneNode, assert_alike
from tests.support.windows import max_pool

pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(5)
WINDOWS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((7,), {"kernel_shape": [3], "pads": [2, 1], "strides": [2]}),
    ((5, 4), {"kernel_shape": [2, 3], "pads": [1, 2, 1, 2]}),
    ((5, 4), {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}),
    ((6, 5), {"kernel_shape": [2, 2], "dilations": [2, 3], "auto_pad": "SAME_LOWER"}),
    ((1, 3), {"kernel_shape": [1, 3], "auto_pad": "SAME_UPPER"}),
    ((3, 2, 4), {"kernel_shape": [2, 2, 2], "pads": [0, 1, 1, 1, 0, 1]}),
]


def images(sizes: tuple[int, ...]) -> dict[str, Array]:
    x = RNG.standard_normal((2, 2, *sizes)).astype(np.float32)
    holes = RNG.random(x.shape) < 0.3
    return {
        "random": x,
        "ties": RNG.integers(0, 2, x.shape).astype(np.float32),
        "nan": np.where(holes, np.float32("nan"), x),
        "low": np.where(holes, np.float32("-inf"), x),
        "lowest": np.full(x.shape, -np.inf, np.float32),
    }


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize(("sizes", "attributes"), WINDOWS)
def test_the_position_of_a_maximum_is_that_of_the_first_one_in_row_major_order(
    sizes: tuple[int, ...], attributes: dict[str, Any], order: int
) -> None:
    for x in images(sizes).values():
        node = OneNode("MaxPool", [x], outputs=2, storage_order=order, **attributes)
        assert_alike(node.compiled(), max_pool(x, {**attributes, "storage_order": order}))


@pytest.mark.parametrize(("sizes", "attributes"), [w for w in WINDOWS if "dilations" not in w[1]])
def test_positions_of_maxima_are_those_of_onnxruntime(sizes: tuple[int, ...], attributes: dict[str, Any]) -> None:
    given = images(sizes)
    for kind in ("random", "ties", "low", "lowest"):
        for order in (0, 1):
            node = OneNode("MaxPool", [given[kind]], outputs=2, storage_order=order, **attributes)
            assert_alike(node.compiled(), node.on_onnxruntime())


def test_a_window_in_the_padding_only_has_a_position_in_the_image() -> None:
    x = RNG.standard_normal((1, 2, 3)).astype(np.float32)
    values, positions = OneNode("MaxPool", [x], outputs=2, kernel_shape=[2], dilations=[4], pads=[2, 3]).compiled()
    wanted = max_pool(x, {"kernel_shape": [2], "dilations": [4], "pads": [2, 3]})
    assert np.isneginf(wanted[0]).any()
    assert_alike([values, positions], wanted)
    assert positions.min() >= 0
    assert positions.max() < x.size


AVERAGES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((5, 4), {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1, "pads": [1, 1, 1, 0], "count_include_pad": 1}),
    ((5, 4), {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1, "pads": [1, 1, 1, 0]}),
    ((7,), {"kernel_shape": [3], "dilations": [2], "pads": [2, 1], "count_include_pad": 1}),
    ((4, 1), {"kernel_shape": [4, 1]}),
    ((6, 7), {"kernel_shape": [2, 3], "strides": [3, 3], "auto_pad": "SAME_UPPER"}),
]


@pytest.mark.parametrize(("sizes", "attributes"), AVERAGES)
def test_means_and_norms_of_windows_are_those_of_onnxruntime(
    sizes: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    x = RNG.standard_normal((2, 3, *sizes)).astype(np.float32)
    mean = OneNode("AveragePool", [x], **attributes)
    assert_alike(mean.compiled(), mean.on_onnxruntime())
    plain = {k: v for k, v in attributes.items() if k != "count_include_pad"}
    for p in (1, 2, 3):
        norm = OneNode("LpPool", [x], p=p, **plain)
        assert_alike(norm.compiled(), norm.on_onnxruntime())


@pytest.mark.parametrize(
    ("image", "block", "attributes"),
    [
        ([5, 6], [2, 3], {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 0, 0, 1]}),
        ([12, 11], [9, 9], {}),  # more than 64 elements a block
        ([7], [3], {"strides": [2]}),
        ([3, 4, 2], [2, 2, 1], {"pads": [1, 0, 0, 1, 1, 0]}),
    ],
)
def test_an_infinite_element_of_a_column_stays_where_it_belongs(
    image: list[int], block: list[int], attributes: dict[str, Any]
) -> None:
    rank = len(image)
    pads, ones = attributes.get("pads", [0] * 2 * rank), [1] * rank
    reach = [d * (k - 1) + 1 for d, k in zip(attributes.get("dilations", ones), block)]
    whole = [n + pads[d] + pads[d + rank] for d, n in enumerate(image)]
    counts = [(w - r) // s + 1 for w, r, s in zip(whole, reach, attributes.get("strides", ones))]
    x = RNG.standard_normal((2, 2 * int(np.prod(block)), int(np.prod(counts)))).astype(np.float32)
    x[1, -1, -1] = np.inf
    node = OneNode("Col2Im", [x, np.array(image), np.array(block)], known=(1, 2), **attributes)
    (y,) = node.compiled()
    assert np.isinf(y).sum() <= 1
    assert_alike([y], node.on_reference())


def test_unpooling_into_a_smaller_shape_is_refused() -> None:
    x = RNG.standard_normal((1, 1, 2, 2)).astype(np.float32)
    positions = np.array([5, 7, 13, 15]).reshape(x.shape)
    inputs = [x, positions, np.array([1, 1, 5, 5])]
    node = OneNode("MaxUnpool", inputs, known=(2,), kernel_shape=[2, 2], strides=[2, 2])
    assert_alike(node.compiled(), node.on_reference())
    inputs[2] = np.array([1, 1, 3, 5])
    with pytest.raises(UserError, match="does not hold"):
        OneNode("MaxUnpool", inputs, known=(2,), kernel_shape=[2, 2], strides=[2, 2]).compiled()
