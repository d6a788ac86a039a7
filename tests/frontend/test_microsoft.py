"""Operators of the domain com.microsoft, against onnxruntime, which defines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stormdrop.base.errors import UnsupportedOperator
from tests.support.one_node import OneNode, assert_alike

RNG = np.random.default_rng(13)
Array = NDArray[Any]


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def node(op: str, inputs: Sequence[Array | None], **options: Any) -> OneNode:
    return OneNode(op, inputs, domain="com.microsoft", opset=17, **options)


def assert_as_onnxruntime(op: str, inputs: Sequence[Array | None], **options: Any) -> None:
    one = node(op, inputs, **options)
    assert_alike(one.compiled(), one.on_onnxruntime())


@pytest.mark.parametrize(
    ("op", "bias", "attributes"),
    [
        ("Gelu", False, {}),
        ("BiasGelu", True, {}),
        ("FastGelu", False, {}),
        ("FastGelu", True, {}),
        ("QuickGelu", False, {}),
        ("QuickGelu", False, {"alpha": 0.5}),
    ],
)
def test_activations(op: str, bias: bool, attributes: dict[str, float]) -> None:
    assert_as_onnxruntime(op, [2 * floats(3, 5, 24), *([floats(24)] if bias else [])], **attributes)


@pytest.mark.parametrize("inputs", [3, 4, 5])
@pytest.mark.parametrize("skip", [(2, 5, 24), (5, 24)])
def test_a_norm_of_a_sum_gives_the_sum_as_well(inputs: int, skip: tuple[int, ...]) -> None:
    given = [floats(2, 5, 24), floats(*skip), floats(24), floats(24), floats(24)][:inputs]
    one = node("SkipLayerNormalization", given, outputs=4, epsilon=1e-5)
    del one.model.graph.output[1:3]  # onnxruntime's CPU kernel does not compute these
    one.model.graph.node[0].output[1:3] = ["", ""]
    assert_alike(one.compiled(), one.on_onnxruntime())


def test_a_norm_without_a_mean_takes_a_bias() -> None:
    assert_as_onnxruntime(
        "SkipSimplifiedLayerNormalization", [floats(2, 5, 24), floats(2, 5, 24), floats(24), floats(24)]
    )


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_norm_of_a_sum_gives_the_statistics_of_its_rows(op: str, dtype: Any) -> None:
    """In f32 beside halves. A norm without a mean has the mean 0 in onnxruntime."""
    given = [floats(2, 5, 24).astype(dtype), floats(2, 5, 24).astype(dtype), floats(24).astype(dtype)]
    one = node(op, given, outputs=4, epsilon=1e-5)
    results, wanted = one.compiled(), one.on_onnxruntime()
    tolerance = 1e-5 if dtype == np.float32 else 1e-2
    assert [a.shape for a in results[1:3]] == [(2, 5, 1)] * 2
    assert [a.dtype for a in results[1:3]] == [np.float32] * 2
    assert_alike(results[:1] + results[2:], wanted[:1] + wanted[2:], rtol=tolerance, atol=tolerance)
    mean = (
        np.zeros((2, 5, 1)) if "Simplified" in op else (given[0] + given[1]).astype(np.float64).mean(2, keepdims=True)
    )
    np.testing.assert_allclose(results[1], mean, atol=tolerance)


def test_a_norm_without_a_mean_gives_the_factor_of_its_rows() -> None:
    one = node("SimplifiedLayerNormalization", [floats(2, 5, 24), floats(24)], outputs=2, epsilon=1e-5)
    x = one.feeds["x0"].astype(np.float64)
    _, factor = one.compiled()
    np.testing.assert_allclose(factor, 1 / np.sqrt(np.mean(x * x, 2, keepdims=True) + 1e-5), rtol=1e-5)


def test_embeddings_of_words_positions_and_segments_are_summed() -> None:
    ids, segments = (RNG.integers(0, 7, (2, 6)).astype(np.int32) for _ in range(2))
    mask = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 0]], np.int32)
    tables = [floats(7, 16), floats(9, 16), floats(7, 16), floats(16), floats(16)]
    assert_as_onnxruntime("EmbedLayerNormalization", [ids, segments, *tables, mask], outputs=2, epsilon=1e-5)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [("Relu", []), ("Sigmoid", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.75]), ("HardSigmoid", [0.3, 0.4])],
)
@pytest.mark.parametrize("residual", [False, True])
def test_a_convolution_adds_a_residual_before_its_activation(
    activation: str, parameters: list[float], residual: bool
) -> None:
    given = [floats(1, 4, 7, 7), floats(6, 2, 3, 3), floats(6), floats(1, 6, 7, 7) if residual else None]
    attributes: dict[str, Any] = {"activation_params": parameters} if parameters else {}
    assert_as_onnxruntime("FusedConv", given, activation=activation, group=2, pads=[1] * 4, **attributes)


def test_an_unknown_activation_is_not_supported() -> None:
    with pytest.raises(UnsupportedOperator, match="activation Wobble") as caught:
        node("FusedConv", [floats(1, 4, 7, 7), floats(6, 4, 3, 3)], activation="Wobble").compiled()
    assert caught.value.operators == ("com.microsoft.FusedConv",)


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Tanh"])
def test_a_product_with_an_activation(activation: str) -> None:
    options = {"activation_alpha": 0.3} if activation == "LeakyRelu" else {}
    assert_as_onnxruntime(
        "FusedGemm", [floats(5, 8), floats(3, 8), floats(3)], activation=activation, transB=1, **options
    )


@pytest.mark.parametrize(
    ("a", "b", "attributes"),
    [
        ((2, 3, 5, 4), (2, 3, 4, 6), {"alpha": 0.25}),
        ((2, 3, 4, 5), (2, 3, 6, 4), {"transA": 1, "transB": 1}),
        ((5, 2, 3, 4), (6, 2, 3, 4), {"transBatchA": 1, "transBatchB": 1, "transB": 1}),
        ((4, 2, 3, 5), (2, 3, 4, 6), {"transBatchA": 1, "transA": 1}),
        ((4,), (4, 6), {"transA": 1}),
    ],
)
def test_a_product_transposes_its_factors_also_across_leading_dimensions(
    a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    assert_as_onnxruntime("FusedMatMul", [floats(*a), floats(*b)], **attributes)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [np.array([3]), RNG.integers(0, 20, (2, 5))])
@pytest.mark.parametrize("shape", [(2, 5, 32), (2, 4, 5, 8)])
def test_rotary_embeddings(shape: tuple[int, ...], positions: Array, interleaved: int) -> None:
    tables = [floats(20, 4), floats(20, 4)]
    assert_as_onnxruntime("RotaryEmbedding", [floats(*shape), positions, *tables], interleaved=interleaved)


def test_a_part_of_each_head_is_turned() -> None:
    given = [floats(2, 5, 32), np.array([0]), floats(20, 2), floats(20, 2)]
    assert_as_onnxruntime("RotaryEmbedding", given, num_heads=4, rotary_embedding_dim=4)


MASKS: dict[str, Array | None] = {
    "none": None,
    "lengths": np.array([3, 5], np.int32),
    "ends and starts": np.array([5, 4, 2, 0], np.int32),
    "keys": np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32),
    "pairs": np.tril(np.ones((2, 5, 5), np.int32)),
}


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_attention_with_masks_of_all_forms(mask: str, causal: int) -> None:
    given = [floats(2, 5, 12), floats(12, 48), floats(48), MASKS[mask]]
    assert_as_onnxruntime("Attention", given, num_heads=4, unidirectional=causal)


def test_attention_to_the_past_returns_it_extended() -> None:
    given = [floats(2, 3, 12), floats(12, 48), floats(48), None, floats(2, 2, 4, 6, 4)]
    assert_as_onnxruntime("Attention", given, outputs=2, num_heads=4, unidirectional=1)


def test_values_of_another_size_than_keys() -> None:
    given = [floats(2, 3, 12), floats(12, 40), floats(40), None, None, floats(1, 4, 3, 3)]
    assert_as_onnxruntime("Attention", given, num_heads=4, qkv_hidden_sizes=[16, 16, 8], scale=0.7)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("packed", [0, 2, 3])
def test_attention_of_many_heads_takes_packed_operands(packed: int, causal: int) -> None:
    """Which onnxruntime has no CPU kernels for: the last operands are packed by heads, or, with 0, none."""
    apart = [floats(2, 5, 16) for _ in range(3)]
    bias = floats(48) if packed != 2 else None
    together = np.stack([x.reshape(2, 5, 4, 4) for x in apart[3 - packed :]], 3) if packed else None
    operands = [*apart[: 3 - packed], *([] if together is None else [together])]
    given = [*operands, *[None] * (3 - len(operands)), bias]
    options = {"num_heads": 4, "unidirectional": causal}
    right = node("MultiHeadAttention", [*apart, bias], **options).on_onnxruntime()
    assert_alike(node("MultiHeadAttention", given, **options).compiled(), right)


@pytest.mark.parametrize("mask", [np.array([[1] * 9, [1] * 7 + [0] * 2], np.int32), None])
def test_attention_of_many_heads_to_a_cache(mask: Array | None) -> None:
    past = [floats(2, 4, 6, 4), floats(2, 4, 6, 4)]
    operands = [floats(2, 3, 16) for _ in range(3)]
    given = [*operands, None, mask, floats(1, 1, 3, 9), *past]
    assert_as_onnxruntime("MultiHeadAttention", given, outputs=3, num_heads=4)


def test_keys_and_values_of_another_sequence_may_come_by_heads() -> None:
    given = [floats(2, 3, 16), floats(2, 4, 7, 4), floats(2, 4, 7, 4)]
    assert_as_onnxruntime("MultiHeadAttention", given, num_heads=4)


def grouped(new: int, total: int, lengths: list[int], cached: int, packed: bool = False) -> list[Array | None]:
    """Operands of eight heads of queries and two of keys, of size 16."""
    operands = [floats(2, new, 192)] if packed else [floats(2, new, 128), floats(2, new, 32), floats(2, new, 32)]
    operands += [None] * (3 - len(operands))  # pyright: ignore[reportArgumentType]
    cache = [floats(2, 2, cached, 16), floats(2, 2, cached, 16)]
    return [*operands, *cache, np.array(lengths, np.int32) - 1, np.array(total, np.int32)]


@pytest.mark.parametrize("options", [{}, {"local_window_size": 3}, {"softcap": 2.0}, {"smooth_softmax": 1}])
@pytest.mark.parametrize("packed", [False, True])
def test_a_token_attends_to_the_cache_of_its_own_sequence(options: dict[str, Any], packed: bool) -> None:
    given = grouped(1, 7, [7, 4], 9, packed)
    tables = [floats(20, 8), floats(20, 8)]
    one = node(
        "GroupQueryAttention",
        [*given, *tables],
        known=[6],
        outputs=3,
        num_heads=8,
        kv_num_heads=2,
        do_rotary=1,
        **options,
    )
    found, right = one.compiled(), one.on_onnxruntime()
    assert_alike(found[:1], right[:1])
    for cache, expected in zip(found[1:], right[1:]):
        assert cache.shape == expected.shape
        for b, length in enumerate((7, 4)):  # what lies behind a sequence means nothing
            np.testing.assert_allclose(cache[b, :, :length], expected[b, :, :length], rtol=1e-5, atol=1e-5)


def test_a_prompt_fills_an_empty_cache() -> None:
    given = grouped(5, 5, [5, 5], 0)
    one = node("GroupQueryAttention", given, known=[6], outputs=3, num_heads=8, kv_num_heads=2)
    assert_alike(one.compiled(), one.on_onnxruntime())


def test_a_cache_grows_where_a_file_gives_each_step_its_own() -> None:
    given = grouped(1, 7, [7, 7], 6)
    one = node("GroupQueryAttention", given, known=[6], outputs=3, num_heads=8, kv_num_heads=2)
    assert_alike(one.compiled(), one.on_onnxruntime())
