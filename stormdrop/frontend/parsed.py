"""ONNX files: their bytes and stored arrays, the version of operators that they use, and their nodes in a valid order.

Declared sizes are untrusted: they are checked before memory is allocated. External data is read only from a regular
file inside the model's folder: no absolute path, no `..`, no link out.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.base.files import opened
from stormdrop.frontend.node_reader import located
from stormdrop.frontend.pointwise import element_type
from stormdrop.frontend.schema import NEWEST, OLDEST, is_unchanged
from stormdrop.graph.builder import MOST_DIMENSIONS, MOST_VALUE
from stormdrop.ir.dtypes import FLOATS, HALVES, ITEMSIZE, NUMPY, Dtype
from stormdrop.operators.node import Array, shown

EXTERNAL = 1
MOST_MODEL_BYTES = 1 << 31
"""The largest protocol buffer: larger weights are stored in files of their own."""
_FIELDS: dict[Dtype, str] = {
    "f32": "float_data",
    "f64": "double_data",
    "i64": "int64_data",
    "u32": "uint64_data",
    "u64": "uint64_data",
}
"""The fields of values that are not raw; all other types share a field of 32-bit integers, halves by their bits."""


def array_of(proto: Any, folder: str | None, what: str) -> Array:
    """Returns a TensorProto as an array. Raises UserError, naming `what`, if its fields contradict each other."""
    dims = [int(d) for d in proto.dims]
    if any(d < 0 for d in dims):
        raise UserError(f"{what} has negative dimensions {dims}")
    if len(dims) > MOST_DIMENSIONS:
        raise UserError(f"{what} has {len(dims)} dimensions; at most {MOST_DIMENSIONS} are supported")
    dtype = element_type(proto.data_type, what)
    if proto.HasField("segment"):
        raise UserError(f"{what} is stored in segments, which is not supported")
    nbytes = prod(dims) * ITEMSIZE[dtype]
    if prod(max(1, d) for d in dims) * ITEMSIZE[dtype] > MOST_VALUE:
        raise UserError(f"{what} would have {prod(dims):,} elements in the shape {dims}")
    stored = np.dtype(NUMPY[dtype]).newbyteorder("<")
    if proto.data_location == EXTERNAL:
        raw = _external(proto, folder, nbytes, what)
    elif proto.HasField("raw_data"):
        raw = proto.raw_data
    else:
        values = getattr(proto, _FIELDS.get(dtype, "int32_data"))
        if len(values) != prod(dims):
            raise UserError(f"{what} holds {len(values):,} values, but its shape is {dims}")
        if dtype in HALVES:
            return np.array(values, np.int32).astype(np.uint16).view(NUMPY[dtype]).reshape(dims)
        # A value that does not fit its type is cut to its bits.
        wide = np.array(values, np.float64 if dtype in FLOATS else np.uint64 if dtype == "u64" else np.int64)
        return wide.astype(NUMPY[dtype]).reshape(dims)
    if len(raw) != nbytes:
        raise UserError(f"{what} holds {len(raw):,} bytes, but its shape {dims} needs {nbytes:,}")
    if dtype == "bool":
        return np.frombuffer(raw, np.uint8).reshape(dims) != 0
    return np.frombuffer(raw, stored).astype(NUMPY[dtype], copy=False).reshape(dims)


def _external(proto: Any, folder: str | None, nbytes: int, what: str) -> bytes:
    entries = {e.key: e.value for e in proto.external_data}
    location = entries.get("location", "")
    if not all(isinstance(text, str) for text in entries.values()):  # bytes are texts that are not UTF-8
        raise UserError(f"{what}: `external_data` must be UTF-8; write the model again with such file names")
    if folder is None:
        raise UserError(f"{what} lies in the file {shown(location)}; load the model by its path")
    try:
        offset, length = int(entries.get("offset", "0") or 0), int(entries.get("length", nbytes) or nbytes)
    except ValueError:
        raise UserError(f"{what}: offset and length in its external file must be numbers") from None
    if offset < 0 or length != nbytes:
        raise UserError(f"{what}: {length:,} bytes at {offset:,} are not the {nbytes:,} that its shape needs")
    path = _inside(folder, location, what)
    with opened(path, f"{what}: its external file", getattr(os, "O_NOFOLLOW", 0)) as file:
        size = os.fstat(file.fileno()).st_size
        if offset + length > size:
            raise UserError(f"{what}: {shown(location)} has {size:,} bytes, but {offset + length:,} are needed")
        file.seek(offset)
        raw = file.read(length)
    if len(raw) != length:
        raise UserError(f"{what}: {shown(location)} has shrunk while it was read")
    return raw


def _inside(folder: str, location: str, what: str) -> str:
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or os.path.isabs(location) or ":" in parts[0] or ".." in parts:
        raise UserError(f"{what}: {shown(location)} is no file inside the model's folder")
    base = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(base, location))
    if os.path.commonpath([base, path]) != base:
        raise UserError(f"{what}: {shown(location)} leads out of the model's folder")
    return path


def read_file(path: str) -> bytes:
    """Returns a model file's bytes. Raises UserError."""
    with opened(path, path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_MODEL_BYTES:
            most = f"no such file has more than {MOST_MODEL_BYTES:,}"
            raise UserError(f"{path} is no ONNX model: it has {size:,} bytes, and {most}")
        try:
            return file.read(MOST_MODEL_BYTES)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error


def subgraphs(node: Any) -> list[Any]:
    """Returns the branches and loop bodies that a node holds."""
    return [g for a in node.attribute for g in (*([a.g] if a.HasField("g") else []), *a.graphs)]


def nested(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yields the nodes and the nodes of their subgraphs, at any depth, without recursion."""
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        stack += [inner for g in subgraphs(node) for inner in g.node]


def label_of(node: Any) -> str:
    return node.name or next((o for o in node.output if o), node.op_type)


def ordered(nodes: Sequence[Any], env: Collection[str]) -> list[Any]:
    """Returns the nodes with producers first, in linear time.

    Raises UserError for cycles and for values without a producer.
    """
    producers: dict[str, int] = {}
    for k, node in enumerate(nodes):
        for o in node.output:
            if o in producers and o:
                first, second = label_of(nodes[producers[o]]), label_of(node)
                raise UserError(f"nodes {shown(first)} and {shown(second)} both compute {shown(o)}")
            producers[o] = k
    waiting: dict[int, list[int]] = {}
    missing = [0] * len(nodes)
    for k, node in enumerate(nodes):
        needed: set[int] = set()
        for name in read_names(node):
            if name in env:
                continue
            if name not in producers:
                raise UserError(f"node {shown(label_of(node))} reads {shown(name)}, which nothing computes")
            needed.add(producers[name])
        missing[k] = len(needed)
        for p in needed:
            waiting.setdefault(p, []).append(k)
    ready = [k for k in range(len(nodes) - 1, -1, -1) if not missing[k]]
    order: list[Any] = []
    while ready:
        k = ready.pop()
        order.append(nodes[k])
        for reader in reversed(waiting.get(k, ())):
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    if len(order) != len(nodes):
        stuck = next(node for k, node in enumerate(nodes) if missing[k])
        raise UserError(f"the graph has a cycle through node {shown(label_of(stuck))}")
    return order


def read_names(node: Any) -> Iterable[str]:
    """Yields every outer name that a node reads, including the names that its branches read."""
    yield from (i for i in node.input if i)
    stack: list[tuple[Any, frozenset[str]]] = [(g, frozenset()) for g in subgraphs(node)]
    while stack:
        g, around = stack.pop()
        own = around.union((v.name for v in (*g.input, *g.initializer)), (o for inner in g.node for o in inner.output))
        for inner in g.node:
            yield from (i for i in inner.input if i and i not in own)
            stack += [(inside, own) for inside in subgraphs(inner)]
        yield from (o.name for o in g.output if o.name not in own)


def check_names(model: Any) -> None:
    """Raises UserError for the first name that is not UTF-8: protocol buffers return such names as bytes."""
    for text in _texts(model):
        if not isinstance(text, str):
            name = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
            raise UserError(f"the name {shown(name)} is no UTF-8; write the model again with names that are")


def _texts(model: Any) -> Iterator[object]:
    yield from (o.domain for o in model.opset_import)
    for f in model.functions:
        yield from (f.name, f.domain, *f.input, *f.output, *f.attribute)
    yield from _graph_texts(model.graph)
    for n in nested([*model.graph.node, *(n for f in model.functions for n in f.node)]):
        yield from (n.name, n.op_type, n.domain, *n.input, *n.output)
        for a in n.attribute:
            yield from (a.name, a.ref_attr_name)
        for g in subgraphs(n):
            yield from _graph_texts(g)


def _graph_texts(g: Any) -> Iterator[object]:
    yield from (g.name, *(t.name for t in g.initializer))
    for v in (*g.input, *g.output):
        yield from (v.name, *(d.dim_param for d in v.type.tensor_type.shape.dim))


@dataclass(frozen=True, slots=True)
class ParsedModel:
    """An onnx.ModelProto, the folder of its external data, and its name in messages."""

    proto: Any
    folder: str | None
    label: str

    @property
    def path(self) -> str | None:
        """The path of the model's file; None if it came from memory."""
        return self.label if self.folder is not None else None


def parsed(model: Any) -> ParsedModel:
    """Returns the parsed model of a path, bytes or an onnx.ModelProto. Raises ModelError for any other argument."""
    with located(file=os.fsdecode(model) if isinstance(model, (str, os.PathLike)) else None):
        return _parsed(model)


def _parsed(model: Any) -> ParsedModel:
    try:
        from google.protobuf.message import DecodeError
        from onnx import ModelProto
    except ImportError as error:
        raise UserError("reading ONNX models needs the package onnx: pip install onnx") from error
    if isinstance(model, ModelProto):
        return ParsedModel(model, None, "model")
    folder: str | None = None
    label = "model"
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if not isinstance(path, str):
            raise UserError("a path must be text")
        folder, label = os.path.dirname(os.path.abspath(path)), path
        model = read_file(path)
    if not isinstance(model, (bytes, bytearray, memoryview)):
        raise UserError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")
    proto = ModelProto()
    try:
        proto.ParseFromString(bytes(model))
    except (DecodeError, ValueError) as error:
        raise UserError(f"{label} is no ONNX model: {error}") from error
    if not proto.HasField("graph") or (not proto.graph.node and not proto.graph.output):
        raise UserError(f"{label} is no ONNX model: it holds no graph")
    return ParsedModel(proto, folder, label)


def is_standard(domain: str) -> bool:
    return domain in ("", "ai.onnx")


def version_of(proto: Any) -> int:
    """Returns the version of the standard operators. Raises UserError if it is missing, ambiguous or not supported.

    A model without standard operators may omit the version. A version before the oldest supported version is accepted
    if all its operators are unchanged in the oldest supported version.
    """
    versions = [int(o.version) for o in proto.opset_import if is_standard(o.domain)]
    standard = {n.op_type for n in nested(proto.graph.node) if is_standard(n.domain)}
    if not versions and proto.opset_import and not standard:
        return NEWEST
    if len(set(versions)) != 1:
        raise UserError(f"versions of the standard operators: {versions or 'none'}; is the file complete?")
    (version,) = set(versions)
    if version < OLDEST and standard and all(is_unchanged(op, version) for op in standard):
        return OLDEST
    if not OLDEST <= version <= NEWEST:
        known = f"{OLDEST} and newer, up to {NEWEST}, are supported"
        raise UserError(f"it uses operator set {version}; {known} (see onnx.version_converter)")
    return version
