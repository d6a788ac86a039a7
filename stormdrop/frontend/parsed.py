"""ONNX files: their bytes parsed, and the version of operators that they use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from stormdrop.base.errors import UserError
from stormdrop.frontend.located import located
from stormdrop.frontend.nodes import nested
from stormdrop.frontend.schema import NEWEST, OLDEST, is_unchanged
from stormdrop.frontend.tensors import read_file


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
