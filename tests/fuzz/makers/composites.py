"""Operators that ONNX defines by a body of other operators: attention, rotary embedding, losses, windows of signals."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.draft import INTEGERS, Draft, Maker, Refused, Shape
from tests.fuzz.makers.operands import affordable, anything, moderate, signed, size, types_of


def _attention(d: Draft) -> list[str]:
    """Of three or four dimensions, with fewer heads of keys than of queries, masks, a past, and up to four results."""
    if d.special:
        raise Refused("how masks meet infinities is not said")
    dtype = np.dtype(d.type_among(types_of(d, "Attention")))
    b, kv, group, c, v_size = d.among(1, 2), d.among(1, 2), d.among(1, 1, 2, 3), d.dim(9), d.dim(9)
    heads, t, s, past = kv * group, d.dim(9), d.dim(9), d.dim(5) if d.chance(0.3) else 0
    if not c * v_size * t * s:
        raise Refused("attention to nothing")
    affordable(2 * b * heads * t * (s + past) * max(c, v_size))
    flat = d.chance(0.4)
    shapes = [(heads, t, c), (kv, s, c), (kv, s, v_size)]
    q, k, v = (moderate(d, d.value((b, n, h * w) if flat else (b, h, n, w), dtype)) for h, n, w in shapes)
    attributes: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": kv} if flat else {}
    if not past and d.chance(0.4):  # with a past, ONNX's text and its body mask differently
        attributes["is_causal"] = d.whole(0, 1)
    if dtype == np.float64:  # ONNX's body has the scale's root in f32
        attributes["scale"] = float(d.among(1.0, 0.25, 4.0))
    elif d.chance(0.3):
        attributes["scale"] = float(d.among(1.0, 0.3, 0.01))
    if d.chance(0.2):
        attributes["softcap"] = float(d.among(0.0, 1.0, 5.0))
    inputs = [q, k, v]
    if past or d.chance(0.5):
        inputs.append(_attention_mask(d, dtype, (b, heads, t, s + past)))
    if past:
        inputs += [moderate(d, d.value((b, kv, past, w), dtype)) for w in (c, v_size)]
    results = d.among(1, 1, 3, 4) if past else 1
    if results == 4:
        attributes["qk_matmul_output_mode"] = d.whole(0, 3)
    return d.emit("Attention", *inputs, results=results, **attributes)


def _attention_mask(d: Draft, dtype: np.dtype[Any], shape: Shape) -> str:
    """No mask, one that is added, or one that chooses and leaves something of every row."""
    b, heads, t, s = shape
    mine: Shape = d.among((t, s), (1, 1, t, s), (b, 1, t, s), (b, heads, t, s), (heads, t, s) if b == 1 else (t, s))
    match d.among("none", "added", "chosen"):
        case "added":
            return moderate(d, d.value(mine, dtype))
        case "chosen":
            kept = d.rng.random(mine) < 0.7
            kept[..., 0] = True
            return d.constant(kept) if d.chance(0.5) else d.input(mine, array=kept)
        case _:
            return ""


def _rotary(d: Draft) -> str:
    """Of three or four dimensions, all of a head or its front, in halves or interleaved, with positions or without."""
    dtype = np.dtype(d.type_among(types_of(d, "RotaryEmbedding")))
    b, heads, t, half, rest = d.among(1, 2), d.among(1, 2, 3), d.dim(9), d.among(1, 2, 3, 8), d.among(0, 0, 2, 4)
    if not t:
        raise Refused("a sequence of nothing")
    flat = d.chance(0.5)
    width = 2 * half + rest
    x = moderate(d, d.value((b, t, heads * width) if flat else (b, heads, t, width), dtype))
    attributes: dict[str, int] = {"num_heads": heads} if flat else {}
    if rest or d.chance(0.3):
        attributes["rotary_embedding_dim"] = 2 * half
    if d.chance(0.6):
        attributes["interleaved"] = d.whole(0, 1)
    by_position = d.chance(0.5)
    rows = d.whole(t, 2 * t)
    cos, sin = (moderate(d, d.value((rows, half) if by_position else (b, t, half), dtype)) for _ in range(2))
    positions = [d.within((b, t), 0, rows, np.int64)] if by_position else []
    return d.one("RotaryEmbedding", x, cos, sin, *positions, **attributes)


def _labelled(d: Draft, op: str) -> tuple[list[str], dict[str, Any]]:
    """Scores of classes, labels, perhaps weights of classes; attributes."""
    x = moderate(d, anything(d, types_of(d, op), least_rank=2, most_rank=4))
    n, classes, *rest = d.shape(x)
    if not size(d.shape(x)):
        raise Refused("a loss of nothing")
    labels = np.asarray(d.rng.integers(0, classes, (n, *rest)))
    attributes: dict[str, Any] = {}
    if d.chance(0.4):
        ignored = d.among(0, classes - 1, -1)
        if ignored < 0:
            labels = np.where(d.rng.random(labels.shape) < 0.3, ignored, labels)
        attributes["ignore_index"] = ignored
        if (labels == ignored).all():
            raise Refused("all labels are ignored")
    if d.chance(0.7):
        attributes["reduction"] = d.among("none", "sum", "mean")
    labels = labels.astype(d.among(*INTEGERS))
    inputs = [x, d.constant(labels) if d.chance(0.5) else d.input(labels.shape, array=labels)]
    if d.chance(0.4):
        weights = np.asarray(d.rng.uniform(0.2, 2.0, classes)).astype(d.dtype(x))
        inputs.append(d.constant(weights) if d.chance(0.6) else d.input((classes,), array=weights))
    return inputs, attributes


def _cross_entropy(d: Draft) -> list[str]:
    inputs, attributes = _labelled(d, "SoftmaxCrossEntropyLoss")
    return d.emit("SoftmaxCrossEntropyLoss", *inputs, results=d.whole(1, 2), **attributes)


def _log_likelihood(d: Draft) -> str:
    inputs, attributes = _labelled(d, "NegativeLogLikelihoodLoss")
    return d.one("NegativeLogLikelihoodLoss", *inputs, **attributes)


def _window(op: str) -> Maker:
    """A constant of the model, and something that it is multiplied with. ONNX computes it in f32; f64 is not drawn."""

    def maker(d: Draft) -> str:
        if d.special:
            raise Refused("the sign of an end that cancels decides what an infinity becomes")
        n = d.whole(2, 33)
        count = d.constant(np.asarray(n, d.type_among(types_of(d, op))))
        attributes: dict[str, int] = {"periodic": d.whole(0, 1)} if d.chance(0.6) else {}
        window = d.one(op, count, **attributes, **d.among({}, {"output_datatype": 1}))
        return d.one("Mul", d.value((*d.dims(d.whole(0, 2), 30), n), np.float32), window)

    return maker


def _crop_or_pad(d: Draft) -> str:
    """To a size that is smaller or larger, in the middle."""
    x = anything(d, types_of(d, "CenterCropPad"), least_rank=1)
    rank = d.rank(x)
    if d.chance(0.4):
        return d.one("CenterCropPad", x, d.integers([d.dim(13) for _ in range(rank)]))
    axes = [int(a) for a in d.rng.permutation(rank)[: d.whole(1, rank)]]
    return d.one("CenterCropPad", x, d.integers([d.dim(13) for _ in axes]), axes=[signed(d, a, rank) for a in axes])


MAKERS: dict[str, tuple[float, Maker]] = {
    "Attention": (1.0, _attention),
    "BlackmanWindow": (0.2, _window("BlackmanWindow")),
    "CenterCropPad": (0.4, _crop_or_pad),
    "HammingWindow": (0.2, _window("HammingWindow")),
    "HannWindow": (0.2, _window("HannWindow")),
    "NegativeLogLikelihoodLoss": (0.4, _log_likelihood),
    "RotaryEmbedding": (0.6, _rotary),
    "SoftmaxCrossEntropyLoss": (0.4, _cross_entropy),
}
