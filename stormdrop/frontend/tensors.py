"""Arrays stored in a model or beside it. Declared sizes are untrusted: they are checked before memory is allocated.

External data is read only from a regular file inside the model's folder: no absolute path, no `..`, no link out.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any

import numpy as np

from stormdrop.base.errors import UserError
from stormdrop.base.files import opened
from stormdrop.frontend.pointwise import element_type
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
