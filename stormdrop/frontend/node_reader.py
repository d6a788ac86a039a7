"""One node of the file as its importer sees it: bindings, checked attributes, known constants, errors with its place.

A name of a file is bound to a value of the graph, a sequence or an empty optional value; graphs have values alone.
Sequences are lists of values, written out like loops: their length is known when the model is loaded. Every UserError
becomes a ModelError with the file and the node (`located`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from stormdrop.base.errors import ModelError, Unsupported, UnsupportedOperator, UserError
from stormdrop.graph.builder import GraphBuilder
from stormdrop.ir.dtypes import Dtype
from stormdrop.operators.node import Array, AttributeReader, Value, shown

EXTRA = "pip install '.[onnxruntime]'"
RUNTIME_REMEDY = f'onnxruntime can run it: {EXTRA}, with --fallback auto (fallback="auto")'
REMEDIES = f"{RUNTIME_REMEDY}; or give an operator of your own: --operator (operators=)"
"""The remedies for an operator that is not supported."""


@contextmanager
def with_remedies() -> Generator[None]:
    """Appends the remedies to the message of an UnsupportedOperator."""
    try:
        yield
    except UnsupportedOperator as error:
        error.args = (f"{error}; {REMEDIES}",)
        raise


@contextmanager
def located(
    prefix: str = "", *, file: str | None = None, node: str | None = None, operator: str = ""
) -> Generator[None]:
    """Puts a prefix before the message of an error, and notes its place; a node inside another node keeps its own.

    A message that already names a node gets no prefix from an outer node. An unsupported property of a node becomes an
    error of its operator.
    """
    try:
        yield
    except UserError as error:
        message = str(error)
        is_of_operator = type(error) is Unsupported and bool(operator)
        if prefix and (node is None or is_of_operator or "node " not in message):
            message = f"{prefix}: {message}"
        if is_of_operator:
            placed: ModelError = UnsupportedOperator(message, [operator])
        else:
            placed = error if isinstance(error, ModelError) else ModelError(message)
        placed.args = (message,)
        placed.file, placed.node = placed.file or file, placed.node or node
        if placed is error:
            raise
        raise placed from error


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


def qualified(domain: str, op: str) -> str:
    """Returns an operator's name for errors and reports: standard operators have no domain."""
    return shown(op) if domain in ("", "ai.onnx") else f"{shown(domain)}.{shown(op)}"


class NeedsConstant(ModelError):
    """A value that decides shapes is computed at run time; `value` names it."""

    def __init__(self, message: str, value: str) -> None:
        super().__init__(message)
        self.value = value


@dataclass(frozen=True, slots=True)
class NodeReader(AttributeReader):
    """A node and its inputs. Omitted optional inputs are None in `inputs`; unused results are empty in `outputs`."""

    op: str
    name: str
    version: int
    inputs: Sequence[Binding | None]
    outputs: Sequence[str]
    attributes: Mapping[str, Any]
    build: GraphBuilder
    domain: str = ""

    def fail(self, message: str) -> UserError:
        return UserError(f"{self.op} node {shown(self.name)}: {message}")

    def unsupported(self, what: str) -> UnsupportedOperator:
        """Returns the error for a valid node that needs an unsupported feature."""
        operator = qualified(self.domain, self.op)
        return UnsupportedOperator(f"{self.op} node {shown(self.name)}: {what}: not supported", [operator])

    # Inputs

    def binding(self, k: int) -> Binding | None:
        """Returns an input of any kind."""
        return self.inputs[k] if k < len(self.inputs) else None

    def sequence(self, k: int) -> ValueSequence:
        binding = self.binding(k)
        if not isinstance(binding, ValueSequence):
            raise self.fail(f"input {k} must be a sequence, got {binding or 'nothing'}")
        return binding

    def optional(self, k: int) -> Value | None:
        binding = self.binding(k)
        if isinstance(binding, ValueSequence):
            raise self.fail(f"input {k} must be a tensor, got {binding}")
        return binding if isinstance(binding, Value) else None

    def input(self, k: int) -> Value:
        value = self.optional(k)
        if value is None:
            raise self.fail(f"input {k} is missing")
        return value

    def given(self) -> list[Value]:
        return [v for k in range(len(self.inputs)) if (v := self.optional(k)) is not None]

    def array(self, k: int) -> Array:
        """Returns the value of an input that must be constant."""
        value = self.input(k)
        array = self.build.array(value)
        if array is None:
            message = f"node {shown(self.name)}: {self.op} needs input {k} ({value}) when the model is loaded"
            raise NeedsConstant(f"{message}; bind it with constants={{'{shown(value.name)}': array}}", value.name)
        return array

    def scalar(self, k: int) -> Any:
        """Returns the single number of an input, which must be constant."""
        array = self.array(k)
        if array.size != 1:
            raise self.fail(f"input {k} ({self.input(k)}) must hold one number")
        return array.reshape(()).item()

    def vector(self, k: int) -> list[Any]:
        """Returns the numbers of an input of one dimension, which must be constant."""
        array = self.array(k)
        if array.ndim != 1:
            raise self.fail(f"input {k} ({self.input(k)}) must have one dimension")
        return array.tolist()

    def optional_array(self, k: int) -> Array | None:
        return None if self.optional(k) is None else self.array(k)

    def wanted(self, k: int) -> bool:
        return k < len(self.outputs) and self.outputs[k] != ""

    # Attributes

    def has(self, key: str) -> bool:
        return key in self.attributes

    def number(self, key: str, default: float | None = None) -> float:
        """Returns a float attribute in f32, as ONNX stores it; defaults are rounded too, for operands of any type."""
        with np.errstate(over="ignore"):
            return float(np.float32(AttributeReader.number(self, key, default)))

    def integers_of(self, key: str, k: int) -> Sequence[int] | None:
        """Returns integers from an attribute (older versions) or from input k (newer versions); None without both."""
        if self.has(key):
            return self.integers(key)
        array = self.optional_array(k)
        if array is None:
            return None
        if array.dtype.kind not in "iu":
            raise self.fail(f"input {k} must hold integers")
        return [int(v) for v in np.ravel(array)]

    # Dimensions

    def dim(self, value: int, rank: int) -> int:
        if not -rank <= value < rank:
            raise self.fail(f"there is no dimension {value} of {rank}")
        return value % rank

    def dims(self, values: Sequence[int], rank: int) -> list[int]:
        dims = [self.dim(v, rank) for v in values]
        if len(set(dims)) != len(dims):
            raise self.fail(f"dimensions {list(values)} come twice")
        return dims

    def axis(self, default: int, rank: int) -> int:
        return self.dim(self.integer("axis", default), rank)
