"""An ONNX model that is read again for each new size, and its open dimensions.

No raw weights are kept between compilations: a file is read again, and must still have the same bytes. A model that
came as bytes or as an onnx.ModelProto is kept as bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from numpy.typing import ArrayLike

from stormdrop.base.errors import UnsupportedOperator, UserError
from stormdrop.compiler.options import Shapes
from stormdrop.frontend.custom import CustomOperator
from stormdrop.frontend.mixed import MixedGraph
from stormdrop.frontend.onnx import check_operators, load_parsed
from stormdrop.frontend.open_dimensions import DeclaredPort, Interface, Skeleton, external_digest, interface, skeleton
from stormdrop.frontend.parsed import ParsedModel, parsed
from stormdrop.frontend.tensors import read_file
from stormdrop.graph.graph import Graph
from stormdrop.model.fallback import REFUSALS, Fallback


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
        """Reads the model. Raises UserError, also for a file that has changed since the first read."""
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


@dataclass(frozen=True, slots=True, eq=False)
class OpenSource:
    """A model that leaves dimensions open, with its inputs and outputs as the file declares them."""

    source: ModelSource
    interface: Interface
    constants: Mapping[str, ArrayLike]
    operators: tuple[CustomOperator, ...]
    skeleton: Skeleton
    fallback: Fallback | None = None

    def imported(self, file: ParsedModel, shapes: Sequence[Sequence[int]]) -> Graph:
        """Returns the graph of a file, the model or its skeleton, at one size. Raises UserError."""
        return load_parsed(file, self._by_name(shapes), self.constants, self.operators)

    def read(self, shapes: Sequence[Sequence[int]]) -> Graph | MixedGraph:
        """Reads the model at one size, in parts if the importers refuse it. Raises UserError."""
        file = self.source.parsed()
        try:
            return self.imported(file, shapes)
        except REFUSALS as refusal:
            if self.fallback is None:
                raise
            return self.fallback.cut(refusal, file, self._by_name(shapes), self.constants, self.operators)

    def _by_name(self, shapes: Sequence[Sequence[int]]) -> dict[str, Sequence[int]]:
        return dict(zip((port.name for port in self.interface.inputs), shapes))

    def key(self, shapes: Sequence[Sequence[int]]) -> str:
        """Returns the identity of the model at one size, from its graph without weights. Raises UserError."""
        return sha256(str(self.imported(self.skeleton.parsed(), shapes)).encode()).hexdigest()[:32]


def open_source(
    model: Any,
    file: ParsedModel,
    shapes: Shapes | None,
    constants: Mapping[str, ArrayLike] | None,
    operators: Sequence[CustomOperator] = (),
    fallback: Fallback | None = None,
) -> OpenSource | None:
    """Returns a model with open dimensions that `shapes` does not close; `file` is the parsed model.

    Returns None if all sizes are known, and if shapes or constants are wrong, which the importer reports. Raises
    UserError for operators that neither the importer nor `fallback` supports.
    """
    fixed = open_interface(file, shapes, constants)
    if fixed is None:
        return None
    try:
        check_operators(file, operators)
    except UnsupportedOperator as refusal:
        if fallback is None:
            raise
        if operators:
            fallback.runtime(refusal)
        else:
            fallback.check(refusal, file)
    source = ModelSource(model)
    source.parsed()  # later reads must find the same bytes
    return OpenSource(source, fixed, dict(constants or {}), tuple(operators), skeleton(file), fallback)


def open_interface(
    file: ParsedModel, shapes: Shapes | None, constants: Mapping[str, ArrayLike] | None
) -> Interface | None:
    """Returns the inputs and outputs of a model that leaves dimensions open beside `shapes`; None as `open_source`."""
    try:
        if not {i.name for i in file.proto.graph.input} >= set(constants or {}):
            return None
        fixed = _fixed(interface(file, constants or {}), shapes or {})
    except (UserError, TypeError):
        return None
    return fixed if any(port.is_open for port in fixed.inputs) else None


def _fixed(declared: Interface, shapes: Shapes) -> Interface:
    """Returns the interface with the given shapes. Raises UserError for shapes of unknown inputs."""
    sizes: dict[str, int] = {}
    if not {port.name for port in declared.inputs} >= set(shapes):
        raise UserError("shapes= names an unknown input")
    for port in declared.inputs:
        if port.name in shapes:
            sizes.update((d, n) for d, n in zip(port.dimensions or (), shapes[port.name]) if isinstance(d, str))

    def fixed(port: DeclaredPort) -> DeclaredPort:
        if port.name in shapes:
            return DeclaredPort(port.name, tuple(shapes[port.name]), port.dtype)
        if port.dimensions is None:
            return port
        return DeclaredPort(
            port.name, tuple(sizes.get(d, d) if isinstance(d, str) else d for d in port.dimensions), port.dtype
        )

    return Interface(declared.name, tuple(map(fixed, declared.inputs)), tuple(map(fixed, declared.outputs)))
