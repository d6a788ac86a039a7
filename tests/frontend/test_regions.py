"""Images read at places that are data: regions of interest, deformed convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.errors import UnsupportedOperator
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
