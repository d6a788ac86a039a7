"""Optional values. What is there is known when a model is loaded: a value, or nothing."""

from __future__ import annotations

from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer
from stormdrop.graph.graph import Value


def _element(n: NodeReader) -> Value:
    value = n.optional(0)
    if value is None:
        raise n.unsupported("an optional value that is not there")
    return value


def _has_element(n: NodeReader) -> Value:
    return n.build.constant(n.optional(0) is not None)


OPTIONALS: dict[str, Importer] = {
    "Optional": _element,
    "OptionalGetElement": _element,
    "OptionalHasElement": _has_element,
}
