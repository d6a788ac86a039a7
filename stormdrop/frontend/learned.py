"""Operators that prepare features: TfIdfVectorizer, and arithmetic of the domain ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

import numpy as np

from stormdrop.frontend.movement import bounded
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer
from stormdrop.operators.node import Array, Value


def _binarizer(n: NodeReader) -> Value:
    x = n.input(0)
    return n.build.cast(n.build.emit("Greater", x, n.build.number(n.number("threshold", 0.0), x)), x.dtype)


def _feature_extractor(n: NodeReader) -> Value:
    """Imports ArrayFeatureExtractor: columns of the last dimension."""
    x, indices = n.input(0), n.input(1)
    if x.rank == 0 or indices.dtype != "i64":
        raise n.fail(f"columns {indices} cannot be taken of {x}")
    y = n.build.emit("Gather", x, n.build.reshape(indices, (indices.size,)), axis=x.rank - 1)
    return n.build.reshape(y, (1, indices.size)) if x.rank == 1 else y


def _scaler(n: NodeReader) -> Value:
    """Imports Scaler: (x - offset) · scale, for each column or for all."""
    b, x = n.build, n.input(0)
    given = [b.constant(list(n.attributes.get(key, default)), "f32") for key, default in _SCALES]
    if any(v.size not in (1, x.shape[-1] if x.rank else 1) for v in given):
        raise n.fail(f"offsets and scales of {prod(given[0].shape)} and {prod(given[1].shape)} do not fit {x}")
    return b.emit("Mul", b.emit("Sub", b.cast(x, "f32"), given[0]), given[1])


_SCALES = (("offset", (0.0,)), ("scale", (1.0,)))

LEARNED: dict[str, Importer] = {
    "Binarizer": _binarizer,
    "ArrayFeatureExtractor": _feature_extractor,
    "Scaler": _scaler,
}


def _grams(n: NodeReader) -> dict[int, tuple[Array, Array]]:
    """Returns for each length the n-grams [count, length] of the pool, and their output columns."""
    if not n.has("pool_int64s"):
        raise n.unsupported("n-grams of texts")
    pool, starts, columns = (n.integers(key) for key in ("pool_int64s", "ngram_counts", "ngram_indexes"))
    grams: dict[int, tuple[Array, Array]] = {}
    used = 0
    for length, (start, stop) in enumerate(zip(starts, [*starts[1:], len(pool)]), 1):
        count, rest = divmod(stop - start, length)
        if rest or count < 0 or used + count > len(columns):
            raise n.fail(f"ngram_counts {starts} do not fit a pool of {len(pool)} and {len(columns)} columns")
        grams[length] = (
            np.array(pool[start:stop], np.int64).reshape(count, length),
            np.array(columns[used : used + count], np.int64),
        )
        used += count
    return grams


def _count(n: NodeReader, x: Value, grams: Array, skip: int) -> Value | None:
    """Returns the count of each n-gram in the rows of x [rows, extent], `skip` elements apart; None if none fits."""
    b = n.build
    count, length = grams.shape
    places = x.shape[1] - (length - 1) * (skip + 1)
    if places < 1 or not count:
        return None
    bounded(n, x.shape[0] * places * count)

    def hits(k: int) -> Value:
        part = b.cut(x, {1: (k * (skip + 1), 1, places)})
        return b.emit("Equal", b.reshape(part, (*part.shape, 1)), b.constant(grams[:, k]))

    every = reduce(lambda a, c: b.emit("And", a, c), [hits(k) for k in range(length)])
    return b.reduce("Sum", b.cast(every, "f32"), [1], False)


def _total(n: NodeReader, counts: Sequence[Value | None], shape: tuple[int, int]) -> Value:
    given = [c for c in counts if c is not None]
    if not given:
        return n.build.expand(n.build.constant(0.0, "f32"), shape)
    return reduce(lambda a, c: n.build.emit("Add", a, c), given)


def _tf_idf(n: NodeReader) -> Value:
    """Imports TfIdfVectorizer: columns are counts or, by the mode, presence, each times its weight."""
    b, source = n.build, n.input(0)
    mode = n.text("mode")
    if mode not in ("TF", "IDF", "TFIDF") or source.rank not in (1, 2):
        raise n.fail(f"mode must be TF, IDF or TFIDF and the input a vector or matrix, got {mode} and {source}")
    x = b.cast(b.reshape(source, (1, *source.shape)) if source.rank == 1 else source, "i64")
    least, most, skips = (n.integer(key) for key in ("min_gram_length", "max_gram_length", "max_skip_count"))
    width = max(n.integers("ngram_indexes"), default=-1) + 1
    parts: list[Value] = []
    columns: list[int] = []
    for length, (grams, places) in _grams(n).items():
        if least <= length <= most and len(grams):
            steps = range(skips + 1 if length > 1 else 1)
            parts.append(_total(n, [_count(n, x, grams, skip) for skip in steps], (x.shape[0], len(grams))))
            columns += places.tolist()
    bounded(n, width * max(1, len(columns)))
    chosen = np.zeros((len(columns), width), np.float32)
    chosen[np.arange(len(columns)), columns] = 1
    if not parts:
        y = b.expand(b.constant(0.0, "f32"), (x.shape[0], width))
    else:
        y = b.emit("MatMul", b.concat(parts, 1), b.constant(chosen))
    if mode != "TF":
        listed: Sequence[float] = n.attributes.get("weights") or [1.0] * len(n.integers("ngram_indexes"))
        weights = np.zeros(width, np.float32)
        weights[list(n.integers("ngram_indexes"))] = listed
        y = b.emit("Min", y, b.constant(1.0, "f32")) if mode == "IDF" else y
        y = b.emit("Mul", y, b.constant(weights))
    return b.reshape(y, (width,) if source.rank == 1 else y.shape)


NGRAMS: dict[str, Importer] = {"TfIdfVectorizer": _tf_idf}
