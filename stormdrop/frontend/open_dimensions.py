"""What an ONNX model leaves open: the declared inputs and outputs, and the model without its large weights.

    file = parsed("gpt2.onnx")
    interface(file).inputs                  # (ids: i64[batch, sequence],)
    shape_only = skeleton(file)             # imported in milliseconds, at any size

Invariant: the sizes of open dimensions decide nothing here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import Any

from stormdrop.errors import UserError
from stormdrop.frontend.parsed import ParsedModel
from stormdrop.frontend.pointwise import element_type
from stormdrop.frontend.tensors import EXTERNAL, array_of
from stormdrop.graph.graph import Array, shown
from stormdrop.ir.expr import FLOATS, Dtype

Dimension = int | str
"""A number, or the name of an open dimension."""

MOST_SKELETON_ELEMENTS = 4096
"""Constants of more elements are not part of a skeleton: no operator takes that many axes, sizes or bounds."""


@dataclass(frozen=True, slots=True)
class DeclaredPort:
    """An input or output as the file declares it; `dimensions` is None where not even their number is known."""

    name: str
    dimensions: tuple[Dimension, ...] | None
    dtype: Dtype

    @property
    def is_open(self) -> bool:
        return self.dimensions is None or any(isinstance(d, str) for d in self.dimensions)


@dataclass(frozen=True, slots=True)
class Interface:
    """The inputs that a caller gives, and the outputs."""

    name: str
    inputs: tuple[DeclaredPort, ...]
    outputs: tuple[DeclaredPort, ...]


def interface(file: ParsedModel, bound: Collection[str] = ()) -> Interface:
    """What a file declares; inputs that are `bound` or have an initial value are not given by the caller.

    Raises UserError for inputs and outputs that are no tensors, or of a type that is not supported.
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
    dimensions: list[Dimension] = []
    for d, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value"):
            dimensions.append(int(dim.dim_value))
        else:
            dimensions.append(dim.dim_param or f"{value.name}[{d}]")
    return DeclaredPort(value.name, tuple(dimensions), dtype)


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A model whose large float constants are inputs without values. `parameters` are their names."""

    data: bytes
    parameters: frozenset[str]
    label: str

    def parsed(self) -> ParsedModel:
        from onnx import ModelProto

        proto = ModelProto()
        proto.ParseFromString(self.data)
        return ParsedModel(proto, None, self.label)


def skeleton(file: ParsedModel) -> Skeleton:
    """The model without the values of its large float constants, and without external data."""
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
    """The values of constants by their names."""
    wanted = [t for t in file.proto.graph.initializer if t.name in names]
    return {t.name: array_of(t, file.folder, f"constant {shown(t.name)}") for t in wanted}


def external_digest(file: ParsedModel) -> str:
    """The identity of a model's external data. Reads all of it."""
    digest = sha256()
    for tensor in file.proto.graph.initializer:
        if tensor.data_location == EXTERNAL:
            digest.update(array_of(tensor, file.folder, f"constant {shown(tensor.name)}").data)
    return digest.hexdigest()
