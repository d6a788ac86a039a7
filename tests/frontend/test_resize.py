"""Resize at its edges, compiled, against onnxruntime or ONNX's reference evaluator, whichever follows ONNX's text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stormdrop.errors import UserError
from tests.support.one_node import Array, OneNode, assert_alike

pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(11)
MODES = ["nearest", "linear", "cubic"]


def resized(
    x: Array,
    roi: list[float] | None = None,
    scales: list[float] | None = None,
    sizes: list[int] | None = None,
    opset: int = 19,
    **attributes: Any,
) -> OneNode:
    inputs = [
        x,
        None if roi is None else np.array(roi, np.float32),
        None if scales is None else np.array(scales, np.float32),
        None if sizes is None else np.array(sizes),
    ]
    return OneNode("Resize", inputs, known=(1, 2, 3), opset=opset, **attributes)


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("sizes", [[7, 9], [3, 2]])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_integers_are_interpolated_as_numbers_and_rounded(mode: str, sizes: list[int], dtype: Any) -> None:
    x = RNG.integers(-50, 50, (1, 2, 5, 4)).astype(dtype)
    node = resized(x, sizes=sizes, axes=[2, 3], mode=mode)
    (y,), (wanted,) = node.compiled(), node.on_reference()
    assert y.dtype == dtype
    assert np.any(wanted)
    assert np.max(np.abs(y - wanted)) <= 1  # a half may fall to either side
    assert np.mean(y != wanted) < 0.1


def test_truth_values_are_not_interpolated() -> None:
    x = np.ones((1, 1, 2, 2), bool)
    with pytest.raises(UserError, match="cannot be interpolated"):
        resized(x, sizes=[4, 4], axes=[2, 3], mode="linear").compiled()
    (y,) = resized(x, sizes=[4, 4], axes=[2, 3], mode="nearest").compiled()
    assert y.all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("sizes", [[7, 9], [3, 2], [1, 1]])
def test_corners_are_aligned_where_sizes_are_given(sizes: list[int], policy: str, mode: str) -> None:
    node = resized(
        draw(1, 2, 5, 4),
        sizes=sizes,
        axes=[2, 3],
        mode=mode,
        keep_aspect_ratio_policy=policy,
        coordinate_transformation_mode="align_corners",
    )
    assert_alike(node.compiled(), node.on_onnxruntime(), atol=1e-4)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scales", [[0.6], [1.3], [2.6]])
def test_corners_are_aligned_by_the_fraction_of_a_length_that_comes_from_a_scale(
    scales: list[float], mode: str
) -> None:
    node = resized(draw(1, 1, 4, 3), scales=scales, axes=[2], mode=mode, coordinate_transformation_mode="align_corners")
    assert_alike(node.compiled(), node.on_reference(), atol=1e-4)


@pytest.mark.parametrize("scales", [[0.6, 2.3], [1.3, 0.8]])
@pytest.mark.parametrize("mode", MODES)
def test_a_crop_is_spread_over_the_whole_pixels_of_the_result(mode: str, scales: list[float]) -> None:
    node = resized(
        draw(1, 2, 5, 4),
        roi=[0.1, -0.2, 0.7, 1.1],
        scales=scales,
        axes=[2, 3],
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.5,
    )
    assert_alike(node.compiled(), node.on_onnxruntime(), atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_a_crop_of_unchanged_size_is_still_a_crop(mode: str) -> None:
    node = resized(
        draw(1, 1, 3, 3),
        roi=[0.3, 0.8],
        sizes=[3],
        axes=[2],
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
    )
    assert_alike(node.compiled(), node.on_reference(), atol=1e-4)


COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric"]


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "nearest", "nearest_mode": "ceil"},
        {"mode": "linear"},
        {"mode": "linear", "antialias": 1},
        {"mode": "cubic", "exclude_outside": 1},
        {"mode": "cubic", "antialias": 1, "cubic_coeff_a": -0.5},
    ],
)
def test_images_of_one_pixel_and_images_that_become_one(attributes: dict[str, Any], coordinates: str) -> None:
    for shape, sizes in (((1, 1, 1, 5), [4, 2]), ((1, 1, 5, 3), [1, 7]), ((1, 1, 1, 1), [1, 3])):
        node = resized(draw(*shape), sizes=sizes, axes=[2, 3], coordinate_transformation_mode=coordinates, **attributes)
        assert_alike(node.compiled(), node.on_onnxruntime(), atol=1e-4)


@pytest.mark.parametrize("scales", [[1, 1, 0.6, 0.5], [1, 1, 1.5, 0.7], [1, 1, 2, 3]])
def test_the_first_version_takes_the_pixel_above_where_it_shrinks(scales: list[float]) -> None:
    node = OneNode("Resize", [draw(1, 2, 5, 4), np.array(scales, np.float32)], known=(1,), opset=10, mode="nearest")
    assert_alike(node.compiled(), node.on_onnxruntime())
