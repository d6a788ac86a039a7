"""Resize at its edges, compiled, against onnxruntime or ONNX's reference evaluator, whichever follows ONNX's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from stormdrop.base.errors import UserError
from stormdrop.compiler.compile import compile as compile_model
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


def cropped(x: Array, roi: list[float], known: tuple[int, ...], dtype: Any = np.float32, **attributes: Any) -> OneNode:
    """A crop of the last two dimensions to 4x5, whose region is input 1."""
    inputs = [x, np.array(roi, dtype), None, np.array([4, 5])]
    crop: dict[str, Any] = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 7.5}
    return OneNode("Resize", inputs, known=known, opset=19, axes=[2, 3], **crop, **attributes)


ROIS = [[0.13, -0.21, 0.71, 1.08], [0.0, 0.25, 1.0, 1.0], [0.93, 0.81, 0.21, 0.12], [-2.0, 0.3, -1.0, 0.3]]
"""Across the border, along it, mirrored, and outside."""
CROPS: list[dict[str, Any]] = [
    *({"mode": "nearest", "nearest_mode": f} for f in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    *({"mode": mode, "antialias": k} for mode in ("linear", "cubic") for k in (0, 1)),
    {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
]


def at_run_time(node: OneNode, rois: Sequence[Sequence[float]]) -> list[Array]:
    """The results of one compiled model for several regions."""
    model = compile_model(node.model, schedules=lambda task: None)
    return [np.asarray(model.run({**node.feeds, "x1": np.array(roi, np.float32)})["y0"]) for roi in rois]


@pytest.mark.parametrize("attributes", CROPS)
def test_a_region_may_be_computed_at_run_time(attributes: dict[str, Any]) -> None:
    x = draw(1, 2, 6, 3)
    for roi, y in zip(ROIS, at_run_time(cropped(x, ROIS[0], known=(3,), **attributes), ROIS)):
        node = cropped(x, roi, known=(3,), **attributes)
        assert_alike([y], node.on_reference(), atol=1e-4)
        assert_alike([y], node.on_onnxruntime(), atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_a_constant_region_gives_what_one_at_run_time_gives(mode: str) -> None:
    x, roi = draw(1, 2, 6, 3), ROIS[0]
    (y,), (folded,) = (cropped(x, roi, known=known, mode=mode).compiled() for known in ((3,), (1, 3)))
    np.testing.assert_allclose(y, folded, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_one_pixel_of_a_region_is_its_centre(mode: str) -> None:
    inputs = [draw(1, 1, 5, 5), np.array([0.1, 0.2, 0.7, 1.0], np.float32), None, np.array([1, 1])]
    attributes: dict[str, Any] = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": mode}
    node = OneNode("Resize", inputs, known=(3,), opset=19, axes=[2, 3], **attributes)
    assert_alike(node.compiled(), node.on_onnxruntime())


def test_a_region_along_the_last_pixel_is_not_outside() -> None:
    """Roundings of the positions must not exceed the last pixel: every start, f32, up to an end of 1."""
    rois = [[float(start), 0.0, 1.0, 1.0] for start in RNG.uniform(0, 1, 50)]
    node = cropped(np.ones((1, 1, 97, 3), np.float32), rois[0], known=(3,), mode="linear")
    for y in at_run_time(node, rois):
        np.testing.assert_allclose(y, 1.0, rtol=1e-6)


def test_integers_and_truth_values_are_cropped() -> None:
    x = RNG.integers(-50, 50, (1, 1, 6, 3)).astype(np.int32)
    roi = [0.0, 0.5, 1.0, 1.5]
    numbers = cropped(x, roi, known=(3,), mode="nearest")
    np.testing.assert_array_equal(numbers.compiled()[0], cropped(x, roi, known=(1, 3), mode="nearest").compiled()[0])
    (y,) = cropped(x > 0, roi, known=(3,), mode="nearest").compiled()
    assert y.dtype == bool


def test_a_region_that_is_no_number_or_infinite_reads_inside_the_image() -> None:
    x = draw(1, 1, 6, 3)
    rois = [[value, 0.0, 1.0, value] for value in (np.nan, np.inf, -np.inf, 1e30)]
    for y in at_run_time(cropped(x, rois[0], known=(3,), mode="nearest"), rois):
        assert np.isin(y, [7.5, *x.ravel()]).all()


def test_a_region_of_another_rank_is_refused() -> None:
    with pytest.raises(UserError, match="has 4 numbers, got"):
        cropped(draw(1, 1, 6, 3), [0.0, 1.0], known=(3,), mode="nearest").compiled()


def test_a_region_that_no_mode_reads_may_be_computed_at_run_time() -> None:
    inputs = [draw(1, 1, 6, 3), np.zeros(4, np.float32), None, np.array([4, 5])]
    node = OneNode("Resize", inputs, known=(3,), opset=19, axes=[2, 3], mode="linear")
    assert_alike(node.compiled(), node.on_onnxruntime())


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
