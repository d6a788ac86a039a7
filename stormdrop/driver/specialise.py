"""Compiling a model with open dimensions for one tuple of input shapes after another.

    model = open_model(source, constants, machine.threads, build, pinned)

`build` makes a model of a graph, with weights and arenas that all specialised models share. Nothing is compiled before
it is asked for, but operators that no size could make supported are refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from stormdrop.driver.model_source import ModelSource
from stormdrop.errors import UserError
from stormdrop.frontend.onnx import ParsedModel, check_operators, load_parsed
from stormdrop.frontend.open_dimensions import DeclaredPort, Interface, interface
from stormdrop.graph.graph import Graph
from stormdrop.runtime.arenas import Arenas
from stormdrop.runtime.host_device import host_device
from stormdrop.runtime.model import Model
from stormdrop.runtime.open_model import OpenModel, OpenPort, Shapes, Specialised
from stormdrop.runtime.shared_weights import SharedWeights

Given = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """What specialised models of one model have in common."""

    weights: SharedWeights
    arenas: Arenas


Build = Callable[[list[Graph], Sharing], Model]
"""Makes a model of a graph, which it takes out of a list: so its constants are freed as they are packed."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenSource:
    """A model that leaves dimensions open, and what is known of its inputs."""

    source: ModelSource
    interface: Interface
    constants: Mapping[str, ArrayLike]


def open_source(
    model: Any, file: ParsedModel, shapes: Given | None, constants: Mapping[str, ArrayLike] | None
) -> OpenSource | None:
    """A model with open dimensions that `shapes` does not fix; `file` is the model as it was parsed.

    None where all sizes are known, and where the importer has something to refuse. Raises UserError for operators that
    are not supported.
    """
    try:
        fixed = _fixed(interface(file, constants or {}), shapes or {})
    except (UserError, TypeError):
        return None
    if not any(port.is_open for port in fixed.inputs):
        return None
    check_operators(file)
    source = ModelSource(model)
    source.parsed()  # what is read later must be the same
    return OpenSource(source, fixed, dict(constants or {}))


def _fixed(declared: Interface, shapes: Given) -> Interface:
    """The interface with what `shapes` says of its inputs. Raises UserError for what does not fit."""
    sizes: dict[str, int] = {}
    if not {port.name for port in declared.inputs} >= set(shapes):
        raise UserError("shapes= names what is no input")
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


def open_model(opened: OpenSource, threads: int, build: Build, ahead: Sequence[Given] = ()) -> OpenModel:
    """A model that is compiled for each size it meets, and for those of `ahead` at once."""
    specialiser = Specialiser(opened, threads, build)
    inputs, outputs = (
        [OpenPort.of(p.name, p.dimensions, p.dtype) for p in ports]
        for ports in (opened.interface.inputs, opened.interface.outputs)
    )
    model = OpenModel(opened.interface.name, inputs, outputs, threads, specialiser)
    for shapes in ahead:
        model.specialise(shapes)
    return model


class Specialiser:
    """Makes specialised models that share weights and arenas."""

    def __init__(self, opened: OpenSource, threads: int, build: Build) -> None:
        self._opened, self._build = opened, build
        device = host_device(threads)
        self._sharing = Sharing(SharedWeights(device), Arenas(device))

    def __call__(self, shapes: Shapes) -> Specialised:
        names = [port.name for port in self._opened.interface.inputs]
        given = dict(zip(names, shapes))
        return self._build([load_parsed(self._opened.source.parsed(), given, self._opened.constants)], self._sharing)
