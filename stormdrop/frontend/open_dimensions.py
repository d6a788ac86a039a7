"""The open dimensions of an ONNX model: its declared inputs and outputs, and the model without its large weights.

    file = parsed("gpt2.onnx")
    interface(file).inputs                  # (ids: i64[batch, sequence],)
    shape_only = skeleton(file)             # imported in milliseconds, at any size

Invariant: results here do not depend on the sizes of open dimensions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import Any

from stormdrop.base.errors import UserError
from stormdrop.frontend.parsed import EXTERNAL, ParsedModel, array_of
from stormdrop.frontend.pointwise import element_type
from stormdrop.ir.expr import FLOATS, Dtype
from stormdrop.ir.shape import anonymous, dimensions_text
from stormdrop.operators.node import Array, shown

Dimension = int | str
"""A number, or the name of an open dimension."""

NAMELESS = frozenset({"", "?", "-1", "None"})
"""Texts that exporters write in place of the name of an open dimension."""

MOST_SKELETON_ELEMENTS = 4096
"""The largest constant, in elements, that a skeleton keeps: axes, sizes and bounds are smaller."""


@dataclass(frozen=True, slots=True)
class DeclaredPort:
    """An input or output as the file declares it; `dimensions` is None if even their number is unknown."""

    name: str
    dimensions: tuple[Dimension, ...] | None
    dtype: Dtype

    @property
    def is_open(self) -> bool:
        return self.dimensions is None or any(isinstance(d, str) for d in self.dimensions)

    def __str__(self) -> str:
        inside = "…" if self.dimensions is None else ", ".join(dimensions_text(self.name, self.dimensions))
        return f"{self.name}: {self.dtype}[{inside}]"


@dataclass(frozen=True, slots=True)
class Interface:
    """The inputs that a caller gives, and the outputs."""

    name: str
    inputs: tuple[DeclaredPort, ...]
    outputs: tuple[DeclaredPort, ...]


def interface(file: ParsedModel, bound: Collection[str] = ()) -> Interface:
    """Returns the declarations of a file. Excluded are inputs that are `bound` or have an initial value.

    Raises UserError for inputs and outputs that are not tensors, or of a type that is not supported.
    """
    graph = file.proto.graph
    known = {tensor.name for tensor in graph.initializer} | set(bound)
    inputs = tuple(_declared(i, "input", file.label) for i in graph.input if i.name not in known)
    outputs = tuple(_declared(o, "output", file.label) for o in graph.output)
    return Interface(graph.name or "model", inputs, outputs)


def _declared(value: Any, what: str, label: str) -> DeclaredPort:
    if not value.type.HasField("tensor_type"):
        raise UserError(f"{label}: {what} {shown(value.name)} is no tensor")
    tensor = value.type.tensor_type
    if what == "output" and not tensor.elem_type:
        raise UserError(f"{label}: {what} {shown(value.name)} has no type")
    dtype = element_type(tensor.elem_type, f"{label}: {what} {shown(value.name)}")
    if not tensor.HasField("shape"):
        return DeclaredPort(value.name, None, dtype)
    return DeclaredPort(value.name, declared_dimensions(value.name, tensor.shape), dtype)


def declared_dimensions(name: str, shape: Any) -> tuple[Dimension, ...]:
    """Returns the dimensions of the onnx.TensorShapeProto of an input or output.

    Negative numbers, `?` and their like are dimensions without a name. They are independent of each other.
    """

    def dimension(position: int, dim: Any) -> Dimension:
        if dim.HasField("dim_value"):
            return int(dim.dim_value) if dim.dim_value >= 0 else anonymous(name, position)
        return anonymous(name, position) if dim.dim_param in NAMELESS else str(dim.dim_param)

    return tuple(dimension(k, dim) for k, dim in enumerate(shape.dim))


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A model with its large float constants turned into inputs without values. `parameters` are their names."""

    data: bytes
    parameters: frozenset[str]
    label: str

    def parsed(self) -> ParsedModel:
        from onnx import ModelProto

        proto = ModelProto()
        proto.ParseFromString(self.data)
        return ParsedModel(proto, None, self.label)


def skeleton(file: ParsedModel) -> Skeleton:
    """Returns the model without the values of its large float constants, and without external data."""
    from onnx import ModelProto

    proto = file.proto
    small = ModelProto()
    for field, value in proto.ListFields():
        if field.name == "graph":
            continue
        target = getattr(small, field.name)
        if hasattr(target, "MergeFrom"):
            target.MergeFrom(value)
        else:
            setattr(small, field.name, value)
    graph = proto.graph
    large = {t.name: t for t in graph.initializer if _is_large(t, file.label)}
    small.graph.name = graph.name
    small.graph.node.extend(graph.node)
    small.graph.output.extend(graph.output)
    small.graph.input.extend(i for i in graph.input if i.name not in large)
    small.graph.initializer.extend(t for t in graph.initializer if t.name not in large)
    for name, tensor in large.items():
        added = small.graph.input.add(name=name)
        added.type.tensor_type.elem_type = tensor.data_type
        for n in tensor.dims:
            added.type.tensor_type.shape.dim.add(dim_value=n)
    return Skeleton(small.SerializeToString(), frozenset(large), file.label)


def _is_large(tensor: Any, label: str) -> bool:
    if tensor.data_location == EXTERNAL:
        return True
    is_float = element_type(tensor.data_type, f"{label}: constant {shown(tensor.name)}") in FLOATS
    return is_float and prod(tensor.dims) > MOST_SKELETON_ELEMENTS


def parameters(file: ParsedModel, names: Collection[str]) -> Mapping[str, Array]:
    """Returns the values of constants by their names."""
    wanted = [t for t in file.proto.graph.initializer if t.name in names]
    return {t.name: array_of(t, file.folder, f"constant {shown(t.name)}") for t in wanted}


def external_digest(file: ParsedModel) -> str:
    """Returns the identity of a model's external data. Reads all of it."""
    digest = sha256()
    for tensor in file.proto.graph.initializer:
        if tensor.data_location == EXTERNAL:
            digest.update(array_of(tensor, file.folder, f"constant {shown(tensor.name)}").data)
    return digest.hexdigest()
