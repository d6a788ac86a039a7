"""Attention as exporters write it: heads, masks, shared keys, rotary positions."""

from __future__ import annotations

import numpy as np

from tests.fuzz.draft import FLOATS, Draft, Maker, Refused
from tests.fuzz.makers.layers import linear, sequence
from tests.fuzz.makers.operands import affordable, narrower, scalar, swapped


def _heads(d: Draft, x: str, heads: int, perm: list[int]) -> str:
    b, t, c = d.shape(x)
    split = d.one("Reshape", x, d.integers([d.among(b, 0) if b else b, t, heads, c // heads if c else 0]))
    return d.one("Transpose", split, perm=perm)


def _attention(d: Draft) -> str:
    """softmax(Q Kᵀ) V, perhaps masked, in heads, of another sequence, with keys that are transposed at once."""
    x = sequence(d)
    b, t, c = d.shape(x)
    if not b * t * c:
        raise Refused("attention to nothing")
    heads = d.among(1, *(h for h in (2, 3, 4) if c % h == 0))
    source = x
    if d.chance(0.25):
        source = d.value((b, d.dim(17), c), d.dtype(x))
    s = d.shape(source)[1]
    if not s:
        raise Refused("attention to nothing")
    affordable(3 * b * t * c * c + 2 * b * t * s * c)
    q = _heads(d, linear(d, x, c), heads, [0, 2, 1, 3])
    k = linear(d, source, c)
    if d.chance(0.5):
        k = _heads(d, k, heads, [0, 2, 3, 1])
    else:
        k = d.one("Transpose", _heads(d, k, heads, [0, 2, 1, 3]), perm=[0, 1, 3, 2])
    v = _heads(d, linear(d, source, c), heads, [0, 2, 1, 3])
    p = d.one("Softmax", _masked(d, _scores(d, q, k, (c / heads) ** -0.5), b, t, s), axis=d.among(-1, 3))
    if d.chance(0.1):
        p = d.one("Dropout", p)
    y = d.one("Transpose", d.one("MatMul", p, v), perm=[0, 2, 1, 3])
    y = d.one("Reshape", y, d.integers([b, d.among(t, -1), c]))
    return d.one("Add", *swapped(d, x, linear(d, y, c) if d.chance(0.5) else y))


def _scores(d: Draft, q: str, k: str, scale: float) -> str:
    dtype = d.dtype(q)
    match d.among("after", "before", "both", "divide"):
        case "after":
            return d.one("Mul", d.one("MatMul", q, k), scalar(d, scale, dtype))
        case "before":
            return d.one("MatMul", d.one("Mul", q, scalar(d, scale, dtype)), k)
        case "both":
            root = scalar(d, scale**0.5, dtype)
            return d.one("MatMul", d.one("Mul", q, root), d.one("Mul", k, root))
        case _:
            return d.one("Div", d.one("MatMul", q, k), scalar(d, 1 / scale, dtype))


def _masked(d: Draft, scores: str, b: int, t: int, s: int) -> str:
    """No mask, a triangle that is added, a mask of the input that is added or chooses."""
    dtype = d.dtype(scores)
    match d.among("none", "triangle", "where", "added", "input"):
        case "triangle":
            upper = np.triu(np.full((t, s), -1e4), 1).astype(dtype)
            return d.one("Add", scores, d.constant(upper))
        case "where":
            kept = d.rng.random((b, 1, 1, s)) < 0.7
            mask = d.constant(kept) if d.chance(0.4) else d.input(kept.shape, array=kept)
            return d.one("Where", mask, scores, scalar(d, -1e4, dtype))
        case "added":
            kept = np.asarray(d.rng.random((b, 1, d.among(1, t), s)) < 0.7).astype(dtype)
            mask = d.one("Sub", scalar(d, 1, dtype), d.input(kept.shape, array=kept))
            return d.one("Add", scores, d.one("Mul", mask, scalar(d, -1e4, dtype)))
        case "input":
            return d.one("Add", scores, d.value(narrower(d, d.shape(scores)), dtype))
        case _:
            return scores


def _shared_keys(d: Draft) -> str:
    """Several heads of queries read one head of keys, which is expanded or broadcast."""
    b, heads, t, s, c = d.among(1, 2), d.among(2, 3, 4), d.dim(9), d.dim(9), d.dim(9)
    dtype = d.type_among(FLOATS)
    q, k, v = d.value((b, heads, t, c), dtype), d.value((b, 1, s, c), dtype), d.value((b, 1, s, c), dtype)
    if d.chance(0.5):
        k, v = (d.one("Expand", z, d.integers([b, heads, s, c])) for z in (k, v))
    p = d.one("Softmax", _scores(d, q, d.one("Transpose", k, perm=[0, 1, 3, 2]), max(c, 1) ** -0.5), axis=-1)
    return d.one("MatMul", p, v)


def _rotary(d: Draft) -> str:
    """x cos + rotated(x) sin, where halves or neighbours are rotated."""
    n, dtype = 2 * d.among(1, 2, 4, 8), d.type_among(FLOATS)
    x = d.take(
        lambda: (d.among(1, 2), d.among(1, 3), d.dim(9), n),
        [dtype],
        lambda s: len(s) >= 2 and s[-1] > 0 and s[-1] % 2 == 0,
    )
    *lead, t, n = d.shape(x)
    turns = np.asarray(np.arange(t)[:, None] * 10.0 ** -np.arange(n // 2))
    cos, sin = (np.concatenate([f(turns)] * 2, -1).astype(d.dtype(x)) for f in (np.cos, np.sin))
    if d.chance(0.6):
        if d.chance(0.5):
            a, b = d.emit("Split", x, d.integers([n // 2] * 2), results=2, axis=d.among(-1, len(lead) + 1))
        else:
            ends, last = d.integers([2**62]), d.integers([-1])
            a = d.one("Slice", x, d.integers([0]), d.integers([n // 2]), last)
            b = d.one("Slice", x, d.integers([n // 2]), ends, last)
        rotated = d.one("Concat", d.one("Neg", b), a, axis=-1)
    else:
        pairs = d.one("Reshape", x, d.integers([*lead, t, n // 2, 2]))
        a = d.one("Gather", pairs, d.constant(np.int64(0)), axis=-1)
        b = d.one("Gather", pairs, d.constant(np.int64(1)), axis=-1)
        a, b = (d.one("Unsqueeze", z, d.integers([-1])) for z in (a, b))
        rotated = d.one("Reshape", d.one("Concat", d.one("Neg", b), a, axis=-1), d.integers([*lead, t, n]))
    return d.one("Add", d.one("Mul", x, d.constant(cos)), d.one("Mul", rotated, d.constant(sin)))


MAKERS: dict[str, tuple[float, Maker]] = {
    "attention": (1.5, _attention),
    "rotary by hand": (0.8, _rotary),
    "shared keys": (0.5, _shared_keys),
}
