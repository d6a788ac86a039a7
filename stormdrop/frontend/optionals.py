"""Optional values. The presence of an element is a constant when a model is loaded."""

from __future__ import annotations

from stormdrop.frontend.bindings import Binding, EmptyOptional
from stormdrop.frontend.node_reader import NodeReader
from stormdrop.frontend.pointwise import Importer
from stormdrop.graph.graph import Value


def _optional(n: NodeReader) -> Binding:
    return n.binding(0) or EmptyOptional()


def _element(n: NodeReader) -> Binding:
    binding = n.binding(0)
    if binding is None or isinstance(binding, EmptyOptional):
        raise n.unsupported("an optional value that is not there")
    return binding


def _has_element(n: NodeReader) -> Value:
    return n.build.constant(not isinstance(n.binding(0), EmptyOptional | None))


OPTIONALS: dict[str, Importer] = {
    "Optional": _optional,
    "OptionalGetElement": _element,
    "OptionalHasElement": _has_element,
}
