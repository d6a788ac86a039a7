"""Fourier transforms and mel filters against NumPy, onnxruntime and ONNX's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.base.errors import UserError
from tests.support.one_node import OneNode, assert_alike

RNG = np.random.default_rng(5)


def signal(*shape: int) -> NDArray[Any]:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("length", [None, 5, 16])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("inverse", [0, 1])
def test_a_transform_cuts_or_fills_its_signal_to_the_length_asked_for(
    length: int | None, parts: int, inverse: int
) -> None:
    x = signal(2, 9, 3, parts)
    known = None if length is None else np.array(length)
    node = OneNode("DFT", [x, known, np.array(1)], known=(1, 2) if length else (2,), inverse=inverse)
    whole = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    y = (np.fft.ifft if inverse else np.fft.fft)(whole, length, axis=1)
    assert_alike(node.compiled(), [np.stack([y.real, y.imag], -1).astype(np.float32)], atol=1e-4)


@pytest.mark.parametrize("count", [8, 9])
def test_one_side_of_a_spectrum_gives_the_real_signal_back(count: int) -> None:
    x = signal(3, count, 1)
    there = OneNode("DFT", [x], axis=1, opset=19, onesided=1).compiled()
    half = np.fft.rfft(x[..., 0], axis=1)
    assert_alike(there, [np.stack([half.real, half.imag], -1).astype(np.float32)], atol=1e-4)
    back = OneNode("DFT", [there[0], np.array(count)], known=(1,), axis=1, opset=19, onesided=1, inverse=1)
    assert_alike(back.compiled(), [x], atol=1e-5)


@pytest.mark.parametrize("onesided", [0, 1])
def test_frames_of_a_signal_are_transformed_as_by_onnxruntime(onesided: int) -> None:
    window = np.hanning(16).astype(np.float32)
    inputs = [signal(2, 100, 1), np.array(7), window]
    node = OneNode("STFT", inputs, known=(1, 2), opset=17, onesided=onesided)
    assert_alike(node.compiled(), node.on_onnxruntime(), atol=1e-4)


def test_a_window_known_only_at_run_time_weighs_the_frames_too() -> None:
    inputs = [signal(1, 64, 1), np.array(8), signal(16)]
    node = OneNode("STFT", inputs, known=(1,), opset=17)
    assert_alike(node.compiled(), node.on_onnxruntime(), atol=1e-4)


@pytest.mark.parametrize(("bins", "length", "high"), [(8, 16, 4000.0), (20, 400, 7600.0)])
def test_mel_filters_are_those_of_the_reference(bins: int, length: int, high: float) -> None:
    numbers = [np.array(v, np.int32) for v in (bins, length, 16000)]
    edges = [np.array(v, np.float32) for v in (20.0, high)]
    node = OneNode("MelWeightMatrix", [*numbers, *edges], range(5))
    assert_alike(node.compiled(), node.on_reference())


def test_a_transform_along_the_parts_of_complex_numbers_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be transformed"):
        OneNode("DFT", [signal(2, 5, 2)], axis=2, opset=19).compiled()
