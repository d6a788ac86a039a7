"""BERT's encoder with its pooler, as exporters write it for a fixed sequence length.

Parameters have the transformers library's names. A dense layer computes x w: the weight w is the transpose, (in, out),
of the library's weight, and its name ends in `.weight.T`. Sizes leave out the batch, as in `OnnxValue`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stormdrop.zoo.builder import Network, NetworkBuilder, OnnxValue
from stormdrop.zoo.moments import Moments
from stormdrop.zoo.weights import Normal

EPSILON = 1e-12
"""The addend to the variance in layer norms."""
EMBEDDING_DEVIATION = 0.5
"""The standard deviation of the random embedding tables."""


@dataclass(frozen=True, slots=True)
class Bert:
    """The sizes of a model; the defaults are BERT base with 128 tokens.

    `positions` is the longest sequence of the position table, `types` the number of token types, and `intermediate` the
    width inside a feed-forward block.
    """

    vocabulary: int = 30522
    positions: int = 512
    types: int = 2
    hidden: int = 768
    heads: int = 12
    intermediate: int = 3072
    layers: int = 12
    sequence: int = 128


def bert(net: NetworkBuilder, shape: Bert) -> Network:
    """Builds the network: token ids, mask and token types to the last hidden state and the pooler's output."""
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
    """Returns the layer norm of the sum of word, token type and position embeddings."""
    positions = net.constant("embeddings.position_ids", np.arange(shape.sequence)[None])
    words = _embedding(net, shape, "word", shape.vocabulary, ids)
    kinds = _embedding(net, shape, "token_type", shape.types, types)
    places = _embedding(net, shape, "position", shape.positions, positions)
    x = net.add("embeddings.add", net.add("embeddings.add_types", words, kinds), places)
    return net.layer_norm(x, "embeddings.LayerNorm", EPSILON)


def _embedding(net: NetworkBuilder, shape: Bert, kind: str, rows: int, indices: OnnxValue | str) -> OnnxValue:
    """Returns rows of a table of embeddings; `kind` is part of its name."""
    name = f"embeddings.{kind}_embeddings"
    table = net.parameter(f"{name}.weight", (rows, shape.hidden), Normal(EMBEDDING_DEVIATION))
    expected = Moments(0.0, EMBEDDING_DEVIATION**2)
    return net.node("Gather", name, [table, indices], (shape.sequence, shape.hidden), expected, axis=0)


def _mask_bias(net: NetworkBuilder, shape: Bert, mask: OnnxValue) -> OnnxValue:
    """Returns (1 - mask) · lowest f32, which adds to scores (heads, query, key): masked keys get a share of zero."""
    sizes = (1, 1, shape.sequence)
    axes = net.constant("mask.axes", np.array([1, 2]))
    x = net.node("Unsqueeze", "mask.unsqueeze", [mask, axes], sizes, Moments(1.0, 1.0))
    x = net.node("Cast", "mask.cast", [x], sizes, x.moments, to=1)
    x = net.node("Sub", "mask.sub", [net.scalar("one", 1.0), x], sizes, Moments(0.0, 0.0))
    return net.node("Mul", "mask.mul", [x, net.scalar("lowest", float(np.finfo(np.float32).min))], sizes, x.moments)


def _layer(net: NetworkBuilder, shape: Bert, x: OnnxValue, bias: OnnxValue, prefix: str) -> OnnxValue:
    """Returns an encoder layer: attention and a feed-forward block, each added to its input and normalised."""
    attended = _attention(net, shape, x, bias, f"{prefix}.attention.self")
    y = net.dense(attended, f"{prefix}.attention.output.dense", shape.hidden)
    x = net.layer_norm(net.add(f"{prefix}.attention.output.add", y, x), f"{prefix}.attention.output.LayerNorm", EPSILON)
    y = net.gelu(net.dense(x, f"{prefix}.intermediate.dense", shape.intermediate))
    y = net.dense(y, f"{prefix}.output.dense", shape.hidden)
    return net.layer_norm(net.add(f"{prefix}.output.add", y, x), f"{prefix}.output.LayerNorm", EPSILON)


def _attention(net: NetworkBuilder, shape: Bert, x: OnnxValue, bias: OnnxValue, prefix: str) -> OnnxValue:
    """Returns softmax(q kᵀ / √width + bias) v for each head, the heads side by side: (sequence, hidden)."""
    width = shape.hidden // shape.heads

    def headed(name: str, order: tuple[int, ...]) -> OnnxValue:
        y = net.dense(x, f"{prefix}.{name}", shape.hidden)
        y = net.reshape(y, f"{prefix}.{name}.reshape", (shape.sequence, shape.heads, width))
        return net.transpose(y, f"{prefix}.{name}.transpose", order)

    q, k, v = headed("query", (0, 2, 1, 3)), headed("key", (0, 2, 3, 1)), headed("value", (0, 2, 1, 3))
    pairs = (shape.heads, shape.sequence, shape.sequence)
    scores = net.node("MatMul", f"{prefix}.scores", [q, k], pairs, Moments(0.0, width), math.prod(pairs) * width)
    scores = net.node("Div", f"{prefix}.scaled", [scores, net.scalar("sqrt_width", math.sqrt(width))], pairs, Moments())
    scores = net.node("Add", f"{prefix}.masked", [scores, bias], pairs, scores.moments)
    shares = net.node("Softmax", f"{prefix}.softmax", [scores], pairs, scores.moments, axis=-1)
    # Scores of deviation one weigh about sequence / e tokens; the mean of their values varies less.
    of_means = Moments(0.0, math.e / shape.sequence)
    sizes, work = (shape.heads, shape.sequence, width), math.prod(pairs) * width
    context = net.node("MatMul", f"{prefix}.context", [shares, v], sizes, of_means, work)
    context = net.transpose(context, f"{prefix}.context.transpose", (0, 2, 1, 3))
    return net.reshape(context, f"{prefix}.context.reshape", (shape.sequence, shape.hidden))
