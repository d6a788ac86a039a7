"""Operators written out as a few nodes: determinants, n-grams, caches, optimisers, optional values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import stormdrop as sd
from tests.support.one_node import OneNode, assert_alike

RNG = np.random.default_rng(11)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_determinants_need_pivots_only_where_elements_are_zero(rows: int) -> None:
    x = RNG.standard_normal((5, rows, rows))
    x[0, :, 0] = 0  # singular
    x[1, 0, 0] = 0  # the first row is no pivot
    node = OneNode("Det", [x])
    np.testing.assert_allclose(node.compiled()[0], np.linalg.det(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 2])
def test_ngrams_are_counted_as_by_onnxruntime(mode: str, skips: int) -> None:
    x = RNG.integers(0, 4, (3, 40))
    pool = [0, 1, 3, 1, 1, 2, 3, 0, 1, 1, 2, 3]
    attributes: dict[str, Any] = {
        "pool_int64s": pool,
        "ngram_counts": [0, 3, 9],
        "ngram_indexes": [5, 0, 1, 2, 3, 4, 7],
    }
    node = OneNode(
        "TfIdfVectorizer",
        [x],
        mode=mode,
        min_gram_length=1,
        max_gram_length=3,
        max_skip_count=skips,
        weights=[0.5, 2.0, 1.5, 3.0, 0.25, 1.0, 4.0],
        **attributes,
    )
    assert_alike(node.compiled(), node.on_onnxruntime())


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_each_sequence_of_a_batch_is_written_at_its_own_place(mode: str) -> None:
    cache, new = RNG.standard_normal((3, 2, 9, 5)), RNG.standard_normal((3, 2, 4, 5))
    node = OneNode("TensorScatter", [cache, new, np.array([0, 5, 2 if mode == "linear" else 7])], opset=24, mode=mode)
    assert_alike(node.compiled(), node.on_reference())


@pytest.mark.parametrize("is_sorted", [0, 1])
@pytest.mark.parametrize("axis", [{}, {"axis": 1}])
def test_distinct_elements_of_a_constant_are_known(is_sorted: int, axis: dict[str, Any]) -> None:
    x = RNG.integers(0, 3, (2, 9))
    node = OneNode("Unique", [x], known=[0], outputs=4, sorted=is_sorted, **axis)
    assert_alike(node.compiled(), node.on_onnxruntime())


def test_a_model_of_an_old_version_will_do_where_its_operators_have_not_changed() -> None:
    x = RNG.standard_normal((4, 4)) > 0
    assert_alike(OneNode("Not", [x], opset=1).compiled(), [~x])
    with pytest.raises(sd.UserError, match="operator set 1"):
        OneNode("Abs", [RNG.standard_normal(3)], opset=1).compiled()


@pytest.mark.parametrize(
    ("op", "attributes"), [("Binarizer", {"threshold": 0.25}), ("Scaler", {"offset": [0.5] * 5, "scale": [2.0] * 5})]
)
def test_lines_of_arithmetic_of_learned_models(op: str, attributes: dict[str, Any]) -> None:
    node = OneNode(op, [RNG.standard_normal((3, 5)).astype(np.float32)], domain="ai.onnx.ml", **attributes)
    assert_alike(node.compiled(), node.on_onnxruntime())


@pytest.mark.parametrize("shape", [(7,), (3, 7)])
def test_features_are_columns(shape: tuple[int, ...]) -> None:
    inputs = [RNG.standard_normal(shape).astype(np.float32), np.array([[4, 0, 4]])]
    node = OneNode("ArrayFeatureExtractor", inputs, domain="ai.onnx.ml")
    assert_alike(node.compiled(), node.on_onnxruntime())
