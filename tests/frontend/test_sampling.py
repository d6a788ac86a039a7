"""GridSample at its edges, compiled, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.one_node import Array, OneNode, assert_alike

pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(3)
MODES = ["nearest", "linear", "cubic"]
PADDINGS = ["zeros", "border", "reflection"]


def sampled(x: Array, grid: Array, mode: str, padding: str, align: int) -> OneNode:
    return OneNode("GridSample", [x, grid], mode=mode, padding_mode=padding, align_corners=align)


def pixels(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("sizes", [(3, 4), (1, 4), (1, 1)])
def test_positions_inside_and_far_outside_the_image(
    sizes: tuple[int, int], padding: str, mode: str, align: int
) -> None:
    inside, outside = RNG.uniform(-1, 1, (2, 4, 3, 2)), RNG.uniform(-20, 20, (2, 4, 3, 2))
    node = sampled(pixels(2, 2, *sizes), np.concatenate([inside, outside], 1).astype(np.float32), mode, padding, align)
    assert_alike(node.compiled(), node.on_onnxruntime(), atol=2e-3)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_volumes_are_sampled_too(mode: str, padding: str, align: int) -> None:
    node = sampled(pixels(1, 2, 1, 3, 4), RNG.uniform(-3, 3, (1, 2, 3, 4, 3)).astype(np.float32), mode, padding, align)
    assert_alike(node.compiled(), node.on_onnxruntime(), atol=1e-3)


@pytest.mark.parametrize("padding", PADDINGS)
def test_halfway_between_two_pixels_the_even_one_is_nearest(padding: str) -> None:
    at = np.arange(-4, 8) + 0.5
    grid = np.stack([(2 * at + 1) / 4 - 1, np.zeros_like(at)], -1).reshape(1, 1, -1, 2).astype(np.float32)
    node = sampled(pixels(1, 1, 1, 4), grid, "nearest", padding, 0)
    assert_alike(node.compiled(), node.on_onnxruntime())


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_a_position_that_is_no_number_counts_as_the_first_corner(mode: str, padding: str) -> None:
    grid = np.array([[np.nan, 0.2], [0.2, np.nan], [np.nan, np.nan], [0.3, 0.4]], np.float32).reshape(1, 1, 4, 2)
    x = pixels(1, 2, 3, 4)
    replaced = np.where(np.isnan(grid), np.float32(-1), grid)
    assert_alike(sampled(x, grid, mode, padding, 1).compiled(), sampled(x, replaced, mode, padding, 1).on_onnxruntime())


@pytest.mark.parametrize("mode", MODES)
def test_an_infinite_position_lies_outside_the_image(mode: str) -> None:
    grid = np.array([[np.inf, 0], [-np.inf, 0], [1e30, 0], [-1e30, 0]], np.float32).reshape(1, 1, 4, 2)
    x = pixels(1, 1, 1, 4)
    (zeros,) = sampled(x, grid, mode, "zeros", 1).compiled()
    (border,) = sampled(x, grid, mode, "border", 1).compiled()
    (reflection,) = sampled(x, grid, mode, "reflection", 1).compiled()
    np.testing.assert_array_equal(zeros.ravel(), [0, 0, 0, 0])
    np.testing.assert_allclose(border.ravel(), x.ravel()[[3, 0, 3, 0]], rtol=1e-6)
    assert np.isfinite(reflection).all()
