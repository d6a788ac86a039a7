"""The attention operators of com.microsoft, onnxruntime's fused forms.

Attention, MultiHeadAttention, GroupQueryAttention and RotaryEmbedding are supported.

All of them use `_attend`, on queries [batch, heads, queries, size] and keys and values [batch, key heads, keys, size];
several heads of queries may share one head of keys. Caches are read and returned as values: the file decides their
lengths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer, Results
from stormdrop.graph.builder import GraphBuilder
from stormdrop.operators.node import Value


def _heads(b: GraphBuilder, x: Value, heads: int) -> Value:
    """Returns a value [batch, length, heads · size] as [batch, heads, length, size]."""
    batch, length, hidden = x.shape
    return b.transpose(b.reshape(x, (batch, length, heads, hidden // heads)), (0, 2, 1, 3))


def _without_heads(b: GraphBuilder, x: Value) -> Value:
    batch, heads, length, size = x.shape
    return b.reshape(b.transpose(x, (0, 2, 1, 3)), (batch, length, heads * size))


@dataclass(frozen=True, slots=True)
class _Scores:
    """The changes of the scores [batch, heads, queries, keys] between the product and the softmax.

    All of `biases` are added; keys where `mask` is false are hidden. With `sinks` every head has one more key of this
    score and no value. `cap` bounds scores by a scaled tanh.
    """

    scale: float
    biases: Sequence[Value | None] = ()
    mask: Value | None = None
    cap: float = 0.0
    sinks: Value | None = None


def _attend(n: NodeReader, q: Value, k: Value, v: Value, s: _Scores) -> tuple[Value, Value]:
    """Returns softmax(q · kᵀ · scale) · v as [batch, queries, heads · size], and the softmax."""
    b = n.build
    batch, heads, queries, size = q.shape
    shared = k.shape[1]
    if heads % shared or k.shape[0] != batch or k.shape[3] != size or v.shape[:3] != k.shape[:3]:
        raise n.fail(f"queries {q}, keys {k} and values {v} do not fit")
    if shared != heads:  # several heads of queries read one head of keys, by broadcasting
        q = b.reshape(q, (batch, shared, heads // shared, queries, size))
        k, v = (b.reshape(x, (batch, shared, 1, *x.shape[2:])) for x in (k, v))
    scores = b.emit("MatMul", b.emit("Mul", q, b.number(s.scale, q)), k, transpose_b=1)
    scores = b.reshape(scores, (batch, heads, queries, k.shape[-2]))
    if s.cap > 0:
        scores = b.emit("Tanh", b.emit("Mul", scores, b.number(1 / s.cap, scores)))
        scores = b.emit("Mul", scores, b.number(s.cap, scores))
    for bias in s.biases:
        scores = scores if bias is None else b.emit("Add", scores, bias)
    if s.mask is not None:
        scores = b.emit("Where", s.mask, scores, b.number(-math.inf, scores))
    if s.sinks is None:
        weights = b.emit("Softmax", scores, axis=3)
    else:
        sinks = b.expand(b.reshape(s.sinks, (1, heads, 1, 1)), (batch, heads, queries, 1))
        weights = b.emit("Softmax", b.concat([scores, sinks], 3), axis=3)
        weights = b.cut(weights, {3: (0, 1, scores.shape[3])})
    shape = (*q.shape[:-1], weights.shape[3])
    y = b.emit("MatMul", b.reshape(weights, shape), v)
    return _without_heads(b, b.reshape(y, (batch, heads, queries, v.shape[-1]))), weights


def _causal(b: GraphBuilder, queries: int, keys: int) -> Value:
    """Returns the causal mask [queries, keys]: the last query sees all keys."""
    return b.constant(np.arange(keys)[None, :] <= np.arange(queries)[:, None] + (keys - queries))


def _key_mask(n: NodeReader, given: Value | None, batch: int, queries: int, keys: int) -> Value | None:
    """Returns the mask of keys that each query may see, broadcastable to the scores.

    The forms of onnxruntime's masks:

    - One dimension: the length of each sequence or, with twice as many entries, the end and the start of each sequence.
    - Two dimensions: [batch, keys].
    - Three dimensions: [batch, queries, keys].
    - Four dimensions: the lower right corner of a square for longer sequences.
    """
    if given is None:
        return None
    b = n.build
    at = b.reshape(b.constant(np.arange(keys)), (1, 1, 1, keys))

    def column(part: Value) -> Value:
        return b.reshape(b.cast(part, "i64"), (batch, 1, 1, 1))

    match given.shape:
        case (count,) if count == batch:
            return b.emit("Less", at, column(given))
        case (count,) if count == 2 * batch:
            end, start = (b.cut(given, {0: (first, 1, batch)}) for first in (0, batch))
            return b.emit("And", b.emit("Less", at, column(end)), b.emit("GreaterOrEqual", at, column(start)))
        case (rows, columns) if rows == batch and columns == keys:
            mask = b.reshape(given, (batch, 1, 1, keys))
        case (rows, count, columns) if (rows, count, columns) == (batch, queries, keys):
            mask = b.reshape(given, (batch, 1, queries, keys))
        case (rows, 1, most, most_keys) if rows == batch and most >= keys and most_keys >= keys:
            mask = b.cut(given, {2: (keys - queries, 1, queries), 3: (0, 1, keys)})
        case _:
            raise n.unsupported(f"a mask of shape {list(given.shape)}")
    return b.emit("Greater", mask, b.number(0, mask)) if mask.dtype != "bool" else mask


def _scale(n: NodeReader, size: int) -> float:
    given = n.number("scale", 0.0)
    return given if given else 1 / math.sqrt(size)


def _unused(n: NodeReader, *inputs: int) -> None:
    for k in inputs:
        if n.optional(k) is not None:
            raise n.unsupported(f"its input {k}")


def _attention(n: NodeReader) -> Results:
    """Imports Attention: the projections of one input, and its attention to itself and to earlier keys."""
    b, x, weights, bias, past = n.build, n.input(0), n.input(1), n.optional(2), n.optional(4)
    heads = n.integer("num_heads")
    if n.integer("do_rotary", 0) or n.integer("past_present_share_buffer", 0):
        raise n.unsupported("do_rotary or past_present_share_buffer")
    _unused(n, 6)
    if x.rank != 3 or weights.rank != 2:
        raise n.fail(f"{x} and weights {weights} do not fit")
    third = weights.shape[1] // 3
    sizes = n.integers("qkv_hidden_sizes", (third,) * 3)
    if len(sizes) != 3 or sum(sizes) != weights.shape[1] or heads < 1 or any(s % heads for s in sizes):
        raise n.fail(f"{heads} heads of {sizes} do not fit weights {weights}")
    projected = b.emit("MatMul", x, weights)
    projected = projected if bias is None else b.emit("Add", projected, bias)
    starts = (0, sizes[0], sizes[0] + sizes[1])
    q, k, v = (_heads(b, b.cut(projected, {2: (at, 1, size)}), heads) for at, size in zip(starts, sizes))
    if past is not None:
        if past.rank != 5 or past.shape[0] != 2:
            raise n.fail(f"{past} holds no keys and values")
        old = [b.reshape(b.cut(past, {0: (side, 1, 1)}), past.shape[1:]) for side in (0, 1)]
        k, v = b.concat([old[0], k], 2), b.concat([old[1], v], 2)
    present: Value | None = None
    if n.wanted(1):
        present = b.concat([b.reshape(side, (1, *side.shape)) for side in (k, v)], 0)
    y, _ = _attend(n, q, k, v, _masks(n, q, k, n.optional(3), n.optional(5)))
    return [y, present]


def _masks(n: NodeReader, q: Value, k: Value, mask: Value | None, bias: Value | None) -> _Scores:
    """Returns the score changes for masked keys.

    Keys of padding get a low score, so that a query that sees only padding still has weights.
    """
    b, (batch, _, queries, size), keys = n.build, q.shape, k.shape[2]
    given = _key_mask(n, mask, batch, queries, keys)
    padding: Value | None = None
    if given is not None:
        low = b.number(n.number("mask_filter_value", -10000.0), q)
        padding = b.emit("Where", given, b.number(0.0, q), low)
    causal = _causal(b, queries, keys) if n.integer("unidirectional", 0) else None
    return _Scores(_scale(n, size), (padding, bias), causal)


def _multi_head(n: NodeReader) -> Results:
    b, query, heads = n.build, n.input(0), n.integer("num_heads")
    _unused(n, 8, 9)
    q, k, v = _operands(n, query, heads)
    past_key, past_value = n.optional(6), n.optional(7)
    if past_key is not None and past_value is not None:
        k, v = b.concat([past_key, k], 2), b.concat([past_value, v], 2)
    y, weights = _attend(n, q, k, v, _masks(n, q, k, n.optional(4), n.optional(5)))
    return [y, k, v, weights]


def _operands(n: NodeReader, query: Value, heads: int) -> tuple[Value, Value, Value]:
    """Returns queries, keys and values by heads, from separate or packed inputs, with the bias of their projections."""
    b, key, value, bias = n.build, n.optional(1), n.optional(2), n.optional(3)
    if query.rank == 5 and key is None:
        parts = [b.reshape(b.cut(query, {3: (at, 1, 1)}), _flat(query)) for at in range(3)]
    elif key is not None and key.rank == 5 and value is None:
        parts = [query, *(b.reshape(b.cut(key, {3: (at, 1, 1)}), _flat(key)) for at in range(2))]
    elif key is not None and value is not None:
        parts = [query, key, value]
    else:
        raise n.fail("keys or values are missing")
    if heads < 1 or any(p.rank == 3 and p.shape[2] % heads for p in parts) or parts[0].rank != 3:
        raise n.fail(f"{heads} heads do not fit {', '.join(map(str, parts))}")
    if bias is not None:
        at = 0
        for k, p in enumerate(parts):
            width = p.shape[2] if p.rank == 3 else p.shape[1] * p.shape[3]
            if p.rank == 3:
                parts[k] = b.emit("Add", p, b.cut(bias, {0: (at, 1, width)}))
            at += width
    q, k, v = (p if p.rank == 4 else _heads(b, p, heads) for p in parts)
    return q, k, v


def _flat(packed: Value) -> tuple[int, int, int]:
    batch, length, heads, _, size = packed.shape
    return batch, length, heads * size


def _rotated(b: GraphBuilder, x: Value, cosine: Value, sine: Value, interleaved: bool) -> Value:
    """Returns x [batch, heads, length, size] rotated by angles [batch or 1, 1, length, turned / 2].

        (x, y) -> (x · cos - y · sin, y · cos + x · sin)

    Elements beyond `turned` stay unchanged. Pairs are neighbours if `interleaved`, else half of `turned` apart.
    """
    half = cosine.shape[-1]
    step, second = (2, 1) if interleaved else (1, half)
    one, other = (b.cut(x, {3: (start, step, half)}) for start in (0, second))

    def combined(op: str, left: Value, right: Value) -> Value:
        return b.emit(op, b.emit("Mul", left, cosine), b.emit("Mul", right, sine))

    turned = [combined("Sub", one, other), combined("Add", other, one)]
    if interleaved:
        pairs = [b.reshape(t, (*t.shape, 1)) for t in turned]
        turned = [b.reshape(b.concat(pairs, 4), (*x.shape[:3], 2 * half))]
    rest = [b.cut(x, {3: (2 * half, 1, x.shape[3] - 2 * half)})] if x.shape[3] > 2 * half else []
    return b.concat([*turned, *rest], 3)


def _angles(b: GraphBuilder, positions: Value, tables: tuple[Value, Value]) -> tuple[Value, Value]:
    """Returns the rows of cosines and sines at positions [batch or 1, length], to be broadcast over heads."""
    batch, length = positions.shape
    cosine, sine = (b.emit("Gather", t, positions, axis=0) for t in tables)
    return b.reshape(cosine, (batch, 1, length, cosine.shape[2])), b.reshape(sine, (batch, 1, length, sine.shape[2]))


def _rotary(n: NodeReader) -> Value:
    b, x, positions, tables = n.build, n.input(0), n.input(1), (n.input(2), n.input(3))
    heads, turned = n.integer("num_heads", 0), n.integer("rotary_embedding_dim", 0)
    if n.integer("is_packed_batching", 0) or n.number("scale", 1.0) not in (0.0, 1.0):
        raise n.unsupported("is_packed_batching or a scale")
    if x.rank not in (3, 4) or any(t.rank != 2 for t in tables):
        raise n.fail(f"{x} and tables {tables[0]} and {tables[1]} do not fit")
    if x.rank == 3:
        heads = heads if turned and heads else x.shape[2] // (2 * tables[0].shape[1])
        if heads < 1 or x.shape[2] % heads:
            raise n.fail(f"{heads} heads do not fit {x}")
        by_heads = _heads(b, x, heads)
    else:
        by_heads = x
    length = by_heads.shape[2]
    if positions.size == 1 and positions.rank == 1:
        steps = b.constant(np.arange(length)[None, :])
        positions = b.emit("Add", steps, b.reshape(b.cast(positions, "i64"), (1, 1)))
    y = _rotated(b, by_heads, *_angles(b, positions, tables), bool(n.integer("interleaved", 0)))
    return y if x.rank == 4 else _without_heads(b, y)


_GROUP_FLAGS = ("kv_cache_bit_width", "sliding_window_cache", "qk_output")


def _group_query(n: NodeReader) -> Results:
    """Imports GroupQueryAttention: causal attention to a cache, into which each sequence appends its new keys.

    Sequence b has seqlens_k[b] + 1 keys afterwards, so its new keys begin at seqlens_k[b] + 1 - length: at 0 if the
    whole sequence is new. The greatest number of keys decides shapes, and must be constant.
    """
    b, query = n.build, n.input(0)
    heads, shared = n.integer("num_heads"), n.integer("kv_num_heads")
    if any(n.integer(flag, 0) for flag in _GROUP_FLAGS) or not n.integer("causal", 1):
        raise n.unsupported("a quantised or sliding cache, causal=0 or qk_output")
    _unused(n, 12, 13, 14, 15)
    if query.rank != 3 or heads < 1 or shared < 1:
        raise n.fail(f"{heads} heads do not fit {query}")
    batch, length = query.shape[:2]
    if n.optional(1) is None:
        size = query.shape[2] // (heads + 2 * shared)
        starts = (0, heads * size, (heads + shared) * size)
        parts = [b.cut(query, {2: (at, 1, c * size)}) for at, c in zip(starts, (heads, shared, shared))]
    else:
        parts = [query, n.input(1), n.input(2)]
    if any(p.shape[2] % count or not p.shape[2] for p, count in zip(parts, (heads, shared, shared))):
        raise n.fail(f"{heads} and {shared} heads do not fit {', '.join(map(str, parts))}")
    q, k, v = (_heads(b, p, count) for p, count in zip(parts, (heads, shared, shared)))
    total = int(n.scalar(6))
    if total < length:
        raise n.fail(f"{total} keys are fewer than the {length} new keys")
    lengths = b.reshape(b.cast(n.input(5), "i64"), (batch,))
    is_prompt = total == length
    zero = b.constant(0, "i64")
    old = b.emit("Sub", b.emit("Add", lengths, b.constant(1, "i64")), b.constant(length, "i64"))
    first = b.expand(zero, (batch,)) if is_prompt else b.emit("Max", old, zero)
    places = b.emit("Add", b.reshape(first, (batch, 1)), b.constant(np.arange(length)[None, :]))
    if n.integer("do_rotary", 0):
        at = n.optional(9)
        at = places if at is None or is_prompt else at
        angles = _angles(b, at, (n.input(7), n.input(8)))
        q, k = (_rotated(b, x, *angles, bool(n.integer("rotary_interleaved", 0))) for x in (q, k))
    present = [_written(n, past, new, first, total) for past, new in ((n.optional(3), k), (n.optional(4), v))]
    keys, values = (b.cut(cache, {2: (0, 1, total)}) for cache in present)
    at_query, at_key = b.reshape(places, (batch, 1, length, 1)), b.constant(np.arange(total))
    mask = b.emit("LessOrEqual", at_key, at_query)
    window = n.integer("local_window_size", -1)
    if window >= 0:
        near = b.emit("Greater", at_key, b.emit("Sub", at_query, b.constant(window, "i64")))
        mask = b.emit("And", mask, near)
    sinks = n.optional(11)
    if sinks is None and n.integer("smooth_softmax", 0) == 1:
        sinks = b.expand(b.number(0, q), (heads,))
    scores = _Scores(_scale(n, q.shape[3]), (n.optional(10),), mask, n.number("softcap", 0.0), sinks)
    return [_attend(n, q, keys, values, scores)[0], *present]


def _written(n: NodeReader, past: Value | None, new: Value, first: Value, total: int) -> Value:
    """Returns the cache with the new keys or values, in its old length or in the length it needs."""
    b = n.build
    batch, heads, _, size = new.shape
    if past is not None and (past.rank != 4 or past.shape[:2] != (batch, heads) or past.shape[3] != size):
        raise n.fail(f"the cache {past} does not fit {new}")
    held = 0 if past is None else past.shape[2]
    extent = max(held, total)
    if past is None or not held:
        cache = b.expand(b.number(0, new), (batch, heads, extent, size))
    elif extent > held:
        after = (0, 0, extent - held, 0)
        cache = b.emit("Pad", past, before=(0, 0, 0, 0), after=after, mode="constant", value=0.0)
    else:
        cache = past
    return b.emit("WriteAt", cache, new, first, axis=2, circular=0)


ATTENTION: dict[str, Importer] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _group_query,
    "RotaryEmbedding": _rotary,
}
