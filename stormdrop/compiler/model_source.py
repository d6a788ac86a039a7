"""An ONNX model that is read again for every new size.

Raw weights are not kept between compilations: a file is read again, and must still have the bytes it had. A model that
came as bytes or as an onnx.ModelProto is kept as bytes, since nobody else keeps it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import sha256
from typing import Any

from stormdrop.base.errors import UserError
from stormdrop.frontend.open_dimensions import external_digest
from stormdrop.frontend.parsed import ParsedModel, parsed
from stormdrop.frontend.tensors import read_file


class ModelSource:
    """A model by its path, or its bytes. Raises UserError for anything else."""

    def __init__(self, model: Any) -> None:
        self._path: str | None = None
        self._data: bytes | None = None
        self._digest: tuple[str, str] | None = None
        if isinstance(model, (str, os.PathLike)):
            path = os.fspath(model)
            if not isinstance(path, str):
                raise UserError("a path must be text")
            self._path = os.path.abspath(path)
            self._label = path
        elif isinstance(model, (bytes, bytearray, memoryview)):
            self._data = bytes(model)
        else:
            self._data = parsed(model).proto.SerializeToString()

    def parsed(self) -> ParsedModel:
        """Read the model. Raises UserError, also where a file is not what it was when it was first read."""
        if self._path is None:
            return parsed(self._data)
        data = read_file(self._path)
        file = parsed(data)
        file = replace(file, folder=os.path.dirname(self._path), label=self._label)
        digest = sha256(data).hexdigest(), external_digest(file)
        if self._digest not in (None, digest):
            raise UserError(f"{self._label} has changed since the model was opened; compile it again")
        self._digest = digest
        return file
