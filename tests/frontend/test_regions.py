"""Images read at places that are data: regions of interest, deformed convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.base.errors import UnsupportedOperator, UserError
from stormdrop.frontend.onnx import load
from tests.support.one_node import OneNode, assert_alike

RNG = np.random.default_rng(9)


def image(*shape: int) -> NDArray[Any]:
    return RNG.standard_normal(shape).astype(np.float32)


def regions(count: int, size: int) -> NDArray[Any]:
    """Some inside, some across the border, some outside."""
    corners = RNG.uniform(-size / 2, size, (count, 2, 2))
    found = np.concatenate([corners[:, 0], corners[:, 0] + RNG.uniform(0, size, (count, 2))], axis=1)
    return found.astype(np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
def test_regions_across_the_border_are_sampled_as_by_onnxruntime(mode: str, transformation: str) -> None:
    inputs = [image(2, 3, 11, 13), regions(17, 12), RNG.integers(0, 2, 17)]
    attributes: dict[str, Any] = {
        "output_height": 3,
        "output_width": 2,
        "sampling_ratio": 3,
        "spatial_scale": 0.75,
        "mode": mode,
    }
    node = OneNode("RoiAlign", inputs, opset=16, coordinate_transformation_mode=transformation, **attributes)
    assert_alike(node.compiled(), node.on_onnxruntime())


def test_samples_that_a_region_decides_are_not_supported() -> None:
    node = OneNode("RoiAlign", [image(1, 1, 5, 5), regions(2, 5), np.zeros(2, np.int64)], opset=16)
    with pytest.raises(UnsupportedOperator, match="sampling_ratio 0") as caught:
        node.compiled()
    assert caught.value.operators == ("RoiAlign",)


def numbered(batch: int, corners: NDArray[Any]) -> NDArray[Any]:
    """Regions with the number of their image before their corners."""
    return np.concatenate([RNG.integers(0, batch, (len(corners), 1)), corners], axis=1).astype(np.float32)


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.3])
@pytest.mark.parametrize("pooled", [(1, 1), (3, 2), (7, 7)])
def test_the_largest_pixels_of_regions_are_those_of_onnxruntime(pooled: tuple[int, int], scale: float) -> None:
    """Regions inside, across the border, outside, inverted, and with corners half way between pixels."""
    drawn, halves = regions(17, 12), np.round(regions(17, 12) * 2) / 2
    inverted = regions(5, 12)[:, [2, 3, 0, 1]]
    rois = numbered(2, np.concatenate([drawn, halves, inverted, drawn[:3] + 60]))
    node = OneNode("MaxRoiPool", [image(2, 3, 11, 13), rois], pooled_shape=pooled, spatial_scale=scale)
    wanted = node.on_onnxruntime()
    assert 0 < np.mean(wanted[0] == 0) < 1  # bins outside the image, and others
    assert_alike(node.compiled(), wanted)
    assert_alike(node.interpreted(), wanted)


def test_a_bin_outside_the_image_is_zero_where_all_pixels_are_negative() -> None:
    rois = np.array([[0, -9, -9, -5, -5], [0, 1, 1, 2, 2], [0, 9, 9, 20, 20]], np.float32)
    node = OneNode("MaxRoiPool", [np.full((1, 1, 4, 4), -2, np.float32), rois], pooled_shape=[1, 1])
    np.testing.assert_array_equal(node.compiled()[0].ravel(), [0, -2, 0])


def test_no_region_reads_outside_the_images() -> None:
    """Regions and numbers of images that are no numbers, infinite or too large."""
    values = [np.nan, np.inf, -np.inf, 1e30, -1e30, 99.0]
    rois = np.array([[v, v, 0, v, v] for v in values] + [[0, 0, v, 3, 9] for v in values], np.float32)
    x = image(2, 2, 5, 6)
    (y,) = OneNode("MaxRoiPool", [x, rois], pooled_shape=[2, 2]).compiled()
    assert np.isin(y, [0.0, *x.ravel()]).all()


def test_halves_are_pooled_over_regions() -> None:
    x, rois = image(1, 2, 6, 6).astype(np.float16), numbered(1, regions(6, 6)).astype(np.float16)
    (y,) = OneNode("MaxRoiPool", [x, rois], pooled_shape=[2, 3]).compiled()
    wide = OneNode("MaxRoiPool", [x.astype(np.float32), rois.astype(np.float32)], pooled_shape=[2, 3])
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, wide.on_onnxruntime()[0])


@pytest.mark.parametrize(
    ("shape", "width", "pooled", "fault"),
    [
        ((1, 1, 5, 5), 4, [2, 2], "do not fit"),
        ((1, 5, 5), 5, [2, 2], "do not fit"),
        ((1, 1, 5, 5), 5, [2], "two positive integers, got .2."),
        ((1, 1, 5, 5), 5, [2, 0], "two positive integers"),
    ],
)
def test_regions_of_other_forms_are_refused(shape: tuple[int, ...], width: int, pooled: list[int], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        load(OneNode("MaxRoiPool", [image(*shape), np.zeros((2, width), np.float32)], pooled_shape=pooled).model)


@pytest.mark.parametrize(("groups", "sets"), [(1, 1), (2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_deformed_convolution_reads_zeros_outside_the_image(groups: int, sets: int, masked: bool) -> None:
    x, w = image(2, 4, 7, 6), image(6, 4 // groups, 3, 2)
    out = (4, 5)
    offsets, mask = 2 * image(2, sets * 12, *out), image(2, sets * 6, *out)
    inputs = [x, w, offsets, image(6), mask if masked else None]
    attributes: dict[str, Any] = {"strides": [2, 1], "pads": [1, 1, 1, 0], "dilations": [1, 2]}
    node = OneNode("DeformConv", inputs, opset=22, group=groups, offset_group=sets, **attributes)
    assert_alike(node.compiled(), node.on_reference(), atol=1e-4)
