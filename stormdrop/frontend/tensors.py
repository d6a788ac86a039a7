"""Arrays stored in a model or beside it. Nothing is believed: sizes are compared before memory is taken.

External data is read only from a regular file inside the model's folder: no absolute path, no `..`, no link that leads out.
"""

from __future__ import annotations

import os
import stat
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stormdrop.errors import UserError
from stormdrop.frontend.pointwise import ELEMENT_TYPES, type_name
from stormdrop.graph.graph import shown
from stormdrop.ir.expr import ITEMSIZE, NUMPY, Dtype

Array = NDArray[Any]
EXTERNAL = 1
MOST_BYTES = 1 << 36
_FIELDS: dict[Dtype, str] = {"f32": "float_data", "f64": "double_data", "i32": "int32_data", "i64": "int64_data", "bool": "int32_data"}


def array_of(proto: Any, folder: str | None, what: str) -> Array:
    """A TensorProto as an array. Raises UserError, naming `what`, for anything that does not fit."""
    dims = [int(d) for d in proto.dims]
    if any(d < 0 for d in dims):
        raise UserError(f"{what} has negative dimensions {dims}")
    if proto.data_type not in ELEMENT_TYPES:
        raise UserError(f"{what} has element type {type_name(proto.data_type)}; supported are {', '.join(ELEMENT_TYPES.values())}")
    if proto.HasField("segment"):
        raise UserError(f"{what} is stored in segments, which is not supported")
    dtype = ELEMENT_TYPES[proto.data_type]
    nbytes = prod(dims) * ITEMSIZE[dtype]
    if nbytes > MOST_BYTES:
        raise UserError(f"{what} would have {prod(dims):,} elements")
    stored = np.dtype(NUMPY[dtype]).newbyteorder("<")
    if proto.data_location == EXTERNAL:
        raw = _external(proto, folder, nbytes, what)
    elif proto.HasField("raw_data"):
        raw = proto.raw_data
    else:
        return _typed(getattr(proto, _FIELDS[dtype]), dims, dtype, what)
    if len(raw) != nbytes:
        raise UserError(f"{what} holds {len(raw):,} bytes, but its shape {dims} needs {nbytes:,}")
    if dtype == "bool":
        return np.frombuffer(raw, np.uint8).reshape(dims) != 0
    return np.frombuffer(raw, stored).astype(NUMPY[dtype], copy=False).reshape(dims)


def _typed(values: Any, dims: list[int], dtype: Dtype, what: str) -> Array:
    if len(values) != prod(dims):
        raise UserError(f"{what} holds {len(values):,} values, but its shape is {dims}")
    return np.array(values, NUMPY[dtype]).reshape(dims)


def _external(proto: Any, folder: str | None, nbytes: int, what: str) -> bytes:
    entries = {e.key: e.value for e in proto.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise UserError(f"{what} lies in the file {shown(location)}; load the model by its path so that it can be found")
    try:
        offset, length = int(entries.get("offset", "0") or 0), int(entries.get("length", nbytes) or nbytes)
    except ValueError:
        raise UserError(f"{what}: offset and length in its external file must be numbers") from None
    if offset < 0 or length != nbytes:
        raise UserError(f"{what}: {length:,} bytes at {offset:,} are not the {nbytes:,} that its shape needs")
    path = _inside(folder, location, what)
    with _opened(path, what) as file:
        size = os.fstat(file.fileno()).st_size
        if offset + length > size:
            raise UserError(f"{what}: {shown(location)} has {size:,} bytes, but {offset + length:,} are needed")
        file.seek(offset)
        return file.read(length)


def _inside(folder: str, location: str, what: str) -> str:
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or os.path.isabs(location) or ":" in parts[0] or ".." in parts:
        raise UserError(f"{what}: {shown(location)} is no file inside the model's folder")
    base = os.path.realpath(folder)
    path = os.path.realpath(os.path.join(base, location))
    if os.path.commonpath([base, path]) != base:
        raise UserError(f"{what}: {shown(location)} leads out of the model's folder")
    return path


def _opened(path: str, what: str) -> Any:
    """A regular file, opened so that neither a pipe nor a link put there in the meantime can trap us."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        raise UserError(f"{what}: its external file cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UserError(f"{what}: its external file is no regular file")
    return os.fdopen(handle, "rb")


def read_file(path: str) -> bytes:
    """A model file's bytes."""
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UserError(f"{path} is no regular file")
            return file.read()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
