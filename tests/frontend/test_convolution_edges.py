"""Convolutions at their edges, compiled: infinite pixels, pads that are computed, kernels smaller than their stride."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.support.one_node import Array, OneNode, assert_alike

RNG = np.random.default_rng(9)


def draw(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def scattered(x: Array, w: Array, stride: int, pads: list[int]) -> Array:
    """The definition of a transposed convolution: every pixel times the whole kernel, added where it falls."""
    sizes = [(n - 1) * stride + k for n, k in zip(x.shape[2:], w.shape[2:])]
    y = np.zeros((x.shape[0], w.shape[1], *sizes), np.float32)
    kh, kw = w.shape[2:]
    for i, j in product(range(x.shape[2]), range(x.shape[3])):
        part = np.einsum("nc,cokl->nokl", x[:, :, i, j], w)
        y[:, :, i * stride : i * stride + kh, j * stride : j * stride + kw] += part
    return y[:, :, pads[0] : sizes[0] - pads[2], pads[1] : sizes[1] - pads[3]]


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize(
    ("kernel", "stride", "pads"),
    [((3, 3), 2, 0), ((3, 3), 2, 1), ((2, 2), 4, 0), ((4, 3), 2, 1), ((4, 4), 2, 1), ((5, 5), 3, 2), ((1, 1), 3, 0)],
)
def test_an_infinite_pixel_reaches_only_the_outputs_of_its_kernel(
    kernel: tuple[int, int], stride: int, pads: int, value: float
) -> None:
    x, w = draw(1, 3, 4, 5), draw(3, 2, *kernel)
    x[0, 1, 2, 2] = value
    node = OneNode("ConvTranspose", [x, w], known=(1,), strides=[stride, stride], pads=[pads] * 4)
    with np.errstate(invalid="ignore"):
        wanted = scattered(x, w, stride, [pads] * 4)
    assert not np.isfinite(wanted).all()
    assert_alike(node.compiled(), [wanted], atol=1e-4)


def test_an_infinite_pixel_reaches_only_the_windows_that_hold_it() -> None:
    x, w = draw(1, 16, 6, 6), draw(16, 16, 3, 3)
    x[0, 3, 0, 5] = np.inf
    node = OneNode("Conv", [x, w], known=(1,), pads=[1, 1, 1, 1])
    (y,) = node.compiled(winograd=False)
    touched = np.zeros((6, 6), bool)
    touched[:2, 4:] = True
    np.testing.assert_array_equal(np.isfinite(y), np.broadcast_to(~touched, y.shape))


SAME = ["SAME_UPPER", "SAME_LOWER"]


@pytest.mark.parametrize("auto", SAME)
def test_pads_are_never_negative(auto: str) -> None:
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 9)
    attributes: dict[str, Any] = {"strides": [3], "auto_pad": auto}
    (pooled,) = OneNode("MaxPool", [x], kernel_shape=[1], **attributes).compiled()
    (mean,) = OneNode("AveragePool", [x], kernel_shape=[1], **attributes).compiled()
    (summed,) = OneNode("Conv", [x, np.ones((1, 1, 1), np.float32)], known=(1,), **attributes).compiled()
    for y in (pooled, mean, summed):
        np.testing.assert_array_equal(y.ravel(), [0, 3, 6])


@pytest.mark.parametrize("auto", SAME)
def test_a_transposed_convolution_of_the_same_size_has_as_many_pixels_as_its_strides_say(auto: str) -> None:
    x, w = np.ones((1, 1, 3), np.float32), np.ones((1, 1, 1), np.float32)
    node = OneNode("ConvTranspose", [x, w], known=(1,), strides=[3], auto_pad=auto)
    node.model.graph.output[0].type.tensor_type.ClearField("shape")  # ONNX's shape inference says 7
    (y,) = node.compiled()
    np.testing.assert_array_equal(y.ravel(), [1, 0, 0, 1, 0, 0, 1, 0, 0])
