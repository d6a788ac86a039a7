"""Operators of the domain ai.onnx.ml that are a line of arithmetic."""

from __future__ import annotations

from math import prod

from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer
from stormdrop.graph.graph import Value


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
