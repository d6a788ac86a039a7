"""The things that a name of a file stands for during import: values of the graph, and two kinds that no graph has.

Sequences are lists of values, written out like loops: their length is known when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stormdrop.base.errors import Unsupported
from stormdrop.graph.graph import Value
from stormdrop.ir.dtypes import Dtype


@dataclass(frozen=True, slots=True)
class ValueSequence:
    """A sequence of tensors with one element type and shapes of their own."""

    elements: tuple[Value, ...]
    dtype: Dtype

    def __str__(self) -> str:
        return f"a sequence of {len(self.elements)} {self.dtype} tensors"


@dataclass(frozen=True, slots=True)
class EmptyOptional:
    """An optional value without an element."""

    def __str__(self) -> str:
        return "an optional value without an element"


Binding = Value | ValueSequence | EmptyOptional
"""Names of a file to bindings: the environment of its nodes."""


def tensor_of(binding: Binding, what: str) -> Value:
    """Returns a binding as a tensor. Raises Unsupported for sequences and empty optional values."""
    if isinstance(binding, Value):
        return binding
    raise Unsupported(f"{what} is {binding}, which is not supported here; only tensors are")


def tensors_of(bindings: Sequence[Binding], what: str) -> list[Value]:
    return [tensor_of(v, what) for v in bindings]
