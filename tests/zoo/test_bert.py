"""BERT against the same encoder written once more, in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from stormdrop import zoo
from stormdrop.zoo.bert import Bert, bert
from stormdrop.zoo.builder import NetworkBuilder
from stormdrop.zoo.export import model

Array = NDArray[Any]
Runs = Callable[..., list[NDArray[np.float32]]]
TINY = Bert(vocabulary=50, positions=20, hidden=24, heads=3, intermediate=40, layers=2, sequence=11)
EPS = 1e-12


def tiny(batch: int | None = 2, opset: int = 18) -> onnx.ModelProto:
    return model(bert(NetworkBuilder("tiny", batch, opset), TINY), seed=3)


def tokens(batch: int = 2) -> dict[str, Array]:
    stream = np.random.default_rng(1)
    shape = (batch, TINY.sequence)
    mask = (np.arange(TINY.sequence) < np.array([[TINY.sequence], [7], [1]][:batch])).astype(np.int64)
    return {
        "input_ids": stream.integers(0, 50, shape),
        "attention_mask": mask,
        "token_type_ids": stream.integers(0, 2, shape),
    }


def encoder(weights: Mapping[str, Array], given: Mapping[str, Array]) -> tuple[Array, Array]:
    """The definition, in float64: einsum over heads, masked keys left out of the softmax instead of lowered."""

    def linear(x: Array, name: str) -> Array:
        return x @ weights[f"{name}.weight.T"] + weights[f"{name}.bias"]

    def normal(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS) * weights[f"{name}.weight"]
            + weights[f"{name}.bias"]
        )

    def heads(x: Array) -> Array:
        return np.stack(np.split(x, TINY.heads, axis=-1), axis=1)

    table = {kind: weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")}
    x = (
        table["word"][given["input_ids"]]
        + table["token_type"][given["token_type_ids"]]
        + table["position"][: TINY.sequence]
    )
    x = normal(x, "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(TINY.layers)):
        q, k, v = (heads(linear(x, f"{layer}.attention.self.{part}")) for part in ("query", "key", "value"))
        scores = np.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(TINY.hidden // TINY.heads)
        shares = np.exp(scores) * given["attention_mask"][:, None, None, :]
        context = np.einsum("bhqk,bhkd->bhqd", shares / shares.sum(-1, keepdims=True), v)
        context = np.concatenate(list(context.swapaxes(0, 1)), axis=-1)
        x = normal(x + linear(context, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        wide = linear(x, f"{layer}.intermediate.dense")
        wide = wide * np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in wide.flat]).reshape(wide.shape)
        x = normal(x + linear(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x, np.tanh(x[:, 0] @ weights["pooler.dense.weight"].T + weights["pooler.dense.bias"])


# Gelu is one node since 20.
@pytest.mark.parametrize(("batch", "opset"), [(2, 18), (None, 18), (2, 17), (2, 20)])
def test_bert_computes_what_its_definition_says(batch: int | None, opset: int, run: Runs) -> None:
    built = tiny(batch, opset)
    onnx.checker.check_model(built, full_check=True)
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in built.graph.initializer}
    for found, expected in zip(run(built, tokens()), encoder(weights, tokens()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_masked_tokens_are_not_seen(run: Runs) -> None:
    given = tokens()
    other = {**given, "input_ids": np.where(given["attention_mask"] == 1, given["input_ids"], 49 - given["input_ids"])}
    hidden, pooled = run(tiny(), given)
    changed, pooled_again = run(tiny(), other)
    seen = given["attention_mask"] == 1
    np.testing.assert_array_equal(pooled, pooled_again)
    np.testing.assert_array_equal(hidden[seen], changed[seen])
    assert not np.array_equal(hidden, changed)


def test_bert_base_reads_three_integer_inputs_and_gives_states_and_pooled_output() -> None:
    graph = zoo.skeleton("bert_base_seq128", batch=4).graph
    found = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input[:3], *graph.output)}
    assert found == {
        "input_ids": [4, 128],
        "attention_mask": [4, 128],
        "token_type_ids": [4, 128],
        "last_hidden_state": [4, 128, 768],
        "pooler_output": [4, 768],
    }
    assert {i.type.tensor_type.elem_type for i in graph.input[:3]} == {onnx.TensorProto.INT64}
