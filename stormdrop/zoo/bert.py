"""BERT's encoder with its pooler, as exporters write it for a fixed sequence length.

Parameters have the transformers library's names. Weights that multiply from the right are stored transposed, (in, out),
and their names end in `.weight.T`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stormdrop.zoo.builder import Network, NetworkBuilder, OnnxValue
from stormdrop.zoo.moments import Moments
from stormdrop.zoo.weights import Normal

EPS = 1e-12
EMBEDDING_DEVIATION = 0.5


@dataclass(frozen=True, slots=True)
class Bert:
    vocabulary: int = 30522
    positions: int = 512
    types: int = 2
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    layers: int = 12
    sequence: int = 128


def bert(net: NetworkBuilder, shape: Bert) -> Network:
    ids = net.input("input_ids", (shape.sequence,), np.int64)
    mask = net.input("attention_mask", (shape.sequence,), np.int64)
    types = net.input("token_type_ids", (shape.sequence,), np.int64)
    x = _embedded(net, shape, ids, types)
    bias = _mask_bias(net, shape, mask)
    for i in range(shape.layers):
        x = _layer(net, shape, x, bias, f"encoder.layer.{i}")
    index = net.constant("pooler.index", np.array(0))
    first = net.node("Gather", "pooler.first", [x, index], (shape.hidden,), x.moments, axis=1)
    pooled = net.tanh(net.linear(first, "pooler.dense", shape.hidden))
    return net.finish(x, pooled, names=("last_hidden_state", "pooler_output"))


def _embedded(net: NetworkBuilder, shape: Bert, ids: OnnxValue, types: OnnxValue) -> OnnxValue:
    positions = net.constant("embeddings.position_ids", np.arange(shape.sequence)[None])
    words = _gathered(net, shape, "word", shape.vocabulary, ids)
    kinds = _gathered(net, shape, "token_type", shape.types, types)
    places = _gathered(net, shape, "position", shape.positions, positions)
    x = net.add("embeddings.add", net.add("embeddings.add_types", words, kinds), places)
    return net.layer_norm(x, "embeddings.LayerNorm", EPS)


def _gathered(net: NetworkBuilder, shape: Bert, kind: str, rows: int, at: OnnxValue | str) -> OnnxValue:
    name = f"embeddings.{kind}_embeddings"
    table = net.parameter(f"{name}.weight", (rows, shape.hidden), Normal(EMBEDDING_DEVIATION))
    expected = Moments(0.0, EMBEDDING_DEVIATION**2)
    return net.node("Gather", name, [table, at], (shape.sequence, shape.hidden), expected, axis=0)


def _mask_bias(net: NetworkBuilder, shape: Bert, mask: OnnxValue) -> OnnxValue:
    """Adds (1 - mask) · lowest, a bias of scores of (heads, query, key)."""
    sizes = (1, 1, shape.sequence)
    axes = net.constant("mask.axes", np.array([1, 2]))
    x = net.node("Unsqueeze", "mask.unsqueeze", [mask, axes], sizes, Moments(1.0, 1.0))
    x = net.node("Cast", "mask.cast", [x], sizes, x.moments, to=1)
    x = net.node("Sub", "mask.sub", [net.scalar("one", 1.0), x], sizes, Moments(0.0, 0.0))
    return net.node("Mul", "mask.mul", [x, net.scalar("lowest", float(np.finfo(np.float32).min))], sizes, x.moments)


def _layer(net: NetworkBuilder, shape: Bert, x: OnnxValue, bias: OnnxValue, at: str) -> OnnxValue:
    y = net.dense(_attention(net, shape, x, bias, f"{at}.attention.self"), f"{at}.attention.output.dense", shape.hidden)
    x = net.layer_norm(net.add(f"{at}.attention.output.add", y, x), f"{at}.attention.output.LayerNorm", EPS)
    y = net.gelu(net.dense(x, f"{at}.intermediate.dense", shape.intermediate))
    y = net.dense(y, f"{at}.output.dense", shape.hidden)
    return net.layer_norm(net.add(f"{at}.output.add", y, x), f"{at}.output.LayerNorm", EPS)


def _attention(net: NetworkBuilder, shape: Bert, x: OnnxValue, bias: OnnxValue, at: str) -> OnnxValue:
    """Adds softmax(q kᵀ / sqrt(width) + bias) v, by heads."""
    width = shape.hidden // shape.heads

    def headed(name: str, order: tuple[int, ...]) -> OnnxValue:
        y = net.dense(x, f"{at}.{name}", shape.hidden)
        y = net.reshape(y, f"{at}.{name}.reshape", (shape.sequence, shape.heads, width))
        return net.transpose(y, f"{at}.{name}.transpose", order)

    q, k, v = headed("query", (0, 2, 1, 3)), headed("key", (0, 2, 3, 1)), headed("value", (0, 2, 1, 3))
    square = (shape.heads, shape.sequence, shape.sequence)
    scores = net.node("MatMul", f"{at}.scores", [q, k], square, Moments(0.0, width), math.prod(square) * width)
    scores = net.node("Div", f"{at}.scaled", [scores, net.scalar("sqrt_width", math.sqrt(width))], square, Moments())
    scores = net.node("Add", f"{at}.masked", [scores, bias], square, scores.moments)
    shares = net.node("Softmax", f"{at}.softmax", [scores], square, scores.moments, axis=-1)
    # Scores of deviation one weigh about sequence / e tokens; the mean of their values varies less.
    levelled = Moments(0.0, math.e / shape.sequence)
    sizes, work = (shape.heads, shape.sequence, width), math.prod(square) * width
    context = net.node("MatMul", f"{at}.context", [shares, v], sizes, levelled, work)
    context = net.transpose(context, f"{at}.context.transpose", (0, 2, 1, 3))
    return net.reshape(context, f"{at}.context.reshape", (shape.sequence, shape.hidden))
