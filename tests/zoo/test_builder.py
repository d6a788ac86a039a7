"""The describing language: shapes of windows, expected sizes of activations, weights drawn by name."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stormdrop.zoo import moments
from stormdrop.zoo.builder import NetworkBuilder
from stormdrop.zoo.moments import Moments
from stormdrop.zoo.weights import LogUniform, Normal, NormScale, Uniform, generate


@pytest.mark.parametrize(
    ("extent", "kernel", "stride", "pad", "ceil", "windows"),
    [
        (112, 3, 2, 1, False, 56),
        (109, 3, 2, 0, True, 54),
        (27, 3, 2, 0, True, 13),
        (28, 3, 2, 0, True, 14),
        (14, 2, 2, 0, True, 7),
        (14, 3, 1, 1, True, 14),
        (4, 2, 3, 1, True, 2),
        (5, 2, 3, 1, True, 2),
        (6, 2, 3, 1, True, 3),
        (6, 2, 3, 1, False, 3),
    ],
)
def test_pools_have_as_many_windows_as_in_torch(
    extent: int, kernel: int, stride: int, pad: int, ceil: bool, windows: int
) -> None:
    net = NetworkBuilder("pool", 1, 18)
    x = net.input("input", (1, extent, extent))
    assert net.max_pool(net.relu(x), "pool", kernel, stride, pad, ceil).sizes == (1, windows, windows)


def test_two_parameters_of_one_name_are_refused() -> None:
    net = NetworkBuilder("twice", 1, 18)
    x = net.input("input", (4,))
    x = net.linear(x, "fc", 4)
    with pytest.raises(ValueError, match=r"two parameters fc\.weight"):
        net.linear(x, "fc", 4)


@pytest.mark.parametrize(
    "function", [moments.relu, moments.relu6, moments.sigmoid, moments.silu, moments.gelu, np.tanh]
)
def test_moments_through_an_activation_are_those_of_a_sample(function: moments.Function) -> None:
    sample = function(0.3 + 1.5 * np.random.default_rng(0).standard_normal(200_000))
    found = Moments(0.3, 0.3**2 + 1.5**2).through(function)
    assert found.mean == pytest.approx(sample.mean(), abs=0.02)
    assert found.square == pytest.approx((sample**2).mean(), rel=0.03)


def test_moments_of_sums_and_concatenations() -> None:
    stream = np.random.default_rng(0)
    a, b = 1 + stream.standard_normal(100_000), 2 + 3 * stream.standard_normal(100_000)
    both = Moments(1, 2).plus(Moments(2, 13))
    assert (both.mean, both.square) == (
        pytest.approx((a + b).mean(), abs=0.05),
        pytest.approx(((a + b) ** 2).mean(), rel=0.02),
    )
    joined = moments.mixture([(1, Moments(1, 2)), (3, Moments(2, 13))])
    assert (joined.mean, joined.square) == (1.75, 10.25)


def test_weights_are_drawn_by_name_and_seed() -> None:
    first = generate("a", (50,), Normal(1.0), 0)
    assert np.array_equal(first, generate("a", (50,), Normal(1.0), 0))
    assert not np.isin(first, generate("b", (50,), Normal(1.0), 0)).any()
    assert not np.isin(first, generate("a", (50,), Normal(1.0), 1)).any()
    assert first.dtype == np.float32


def test_balanced_weights_sum_to_nothing_for_each_output() -> None:
    weights = generate("w", (7, 20, 3, 3), Normal(0.5, balanced=True), 0)
    np.testing.assert_allclose(weights.sum((1, 2, 3)), 0, atol=1e-4)
    assert weights.std() == pytest.approx(0.5, rel=0.1)


def test_the_scale_of_a_batch_norm_undoes_its_running_variance() -> None:
    variance = LogUniform(0.1, 4.0)
    running = generate("bn.running_var", (300,), variance, 0)
    scale = generate("bn.weight", (300,), NormScale(0.5, 0.25, 2.0, "bn.running_var", variance), 0)
    undone = scale / np.sqrt(running / 2.0)
    assert running.min() < 0.2
    assert running.max() > 2
    assert 0.375 <= undone.min() < 0.4 < 0.6 < undone.max() <= 0.625


def test_uniform_weights_stay_between_their_bounds() -> None:
    values = generate("u", (1000,), Uniform(0.75, 1.25), 0)
    assert 0.75 <= values.min() < 0.8 < 1.2 < values.max() <= 1.25


def test_a_convolution_expects_unit_mean_square_whatever_it_reads() -> None:
    net = NetworkBuilder("scaled", 1, 18)
    x = net.relu(net.input("input", (64, 8, 8)))
    weights = {p.name: p.fill for p in net.finish(net.conv(x, "conv", 32, 3, bias=False)).parameters}
    fill = weights["conv.weight"]
    assert isinstance(fill, Normal)
    # Rectified normal values have variance 1/2 - 1/(2 pi).
    assert fill.deviation == pytest.approx(1 / math.sqrt(64 * 9 * (0.5 - 0.5 / math.pi)), rel=0.03)
