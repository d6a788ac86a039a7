"""Compiling a model with open dimensions for one tuple of input shapes after another.

    model = open_model(source, threads, host, build, ahead)

`build` makes a model of a graph, with weights and arenas that all specialised models share. Nothing is compiled before
it is asked for, but operators that no size could make supported are refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from numpy.typing import ArrayLike

from stormdrop.base.errors import UnsupportedOperator, UserError
from stormdrop.compiler.kept_kernels import KeptKernels
from stormdrop.compiler.model_source import ModelSource
from stormdrop.compiler.packings import Packings
from stormdrop.device.host_device import HostDevice
from stormdrop.frontend.custom import CustomOperator
from stormdrop.frontend.onnx import check_operators, load_parsed
from stormdrop.frontend.open_dimensions import DeclaredPort, Interface, Skeleton, interface, parameters, skeleton
from stormdrop.frontend.parsed import ParsedModel
from stormdrop.graph.graph import Graph
from stormdrop.graph.padding import PaddedGraph, padded
from stormdrop.ir.padding import Padding
from stormdrop.model.arenas import Arenas
from stormdrop.model.fallback import REFUSALS, Fallback, Refusal
from stormdrop.model.image import OpenPort
from stormdrop.model.model import Model
from stormdrop.model.open_model import OpenModel, Shapes, Specialised
from stormdrop.model.padded_model import PaddedModel
from stormdrop.model.shared_weights import SharedWeights
from stormdrop.model.sizes import KeyLocks
from stormdrop.operators.node import Array

Given = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """What specialised models of one model have in common."""

    weights: SharedWeights
    arenas: Arenas
    packings: Packings
    kept: KeptKernels


Build = Callable[[list[Graph], Sharing], Model]
"""Makes a model of a graph, which it takes out of a list: so its constants are freed as they are packed."""
BuildParts = Callable[[Refusal, ParsedModel, Given, Sharing], Model]
"""Makes a model in parts where the importers refuse the file at these shapes."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenSource:
    """A model that leaves dimensions open, and what is known of its inputs."""

    source: ModelSource
    interface: Interface
    constants: Mapping[str, ArrayLike]
    operators: tuple[CustomOperator, ...]
    skeleton: Skeleton
    fallback: Fallback | None = None

    def imported(self, file: ParsedModel, shapes: Shapes) -> Graph:
        """The graph of a file, the model or its skeleton, at one size. Raises UserError."""
        names = [port.name for port in self.interface.inputs]
        return load_parsed(file, dict(zip(names, shapes)), self.constants, self.operators)

    def key(self, shapes: Shapes) -> str:
        """The identity of the model at exactly these shapes, from its graph without weights. Raises UserError."""
        return sha256(str(self.imported(self.skeleton.parsed(), shapes)).encode()).hexdigest()[:32]


def open_source(
    model: Any,
    file: ParsedModel,
    shapes: Given | None,
    constants: Mapping[str, ArrayLike] | None,
    operators: Sequence[CustomOperator] = (),
    fallback: Fallback | None = None,
) -> OpenSource | None:
    """A model with open dimensions that `shapes` does not fix; `file` is the model as it was parsed.

    None where all sizes are known, and where the importer has something to refuse. Raises UserError for operators that
    neither the importer nor `fallback` supports.
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
    source.parsed()  # what is read later must be the same
    return OpenSource(source, fixed, dict(constants or {}), tuple(operators), skeleton(file), fallback)


def open_interface(
    file: ParsedModel, shapes: Given | None, constants: Mapping[str, ArrayLike] | None
) -> Interface | None:
    """The inputs and outputs of a model that leaves dimensions open, `shapes` given; None as `open_source` says."""
    try:
        if not {i.name for i in file.proto.graph.input} >= set(constants or {}):
            return None
        fixed = _fixed(interface(file, constants or {}), shapes or {})
    except (UserError, TypeError):
        return None
    return fixed if any(port.is_open for port in fixed.inputs) else None


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


def open_model(
    opened: OpenSource,
    threads: int,
    host: HostDevice,
    build: Build,
    ahead: Sequence[Given] = (),
    build_parts: BuildParts | None = None,
    is_tuned: Callable[[str], bool] = lambda _: False,
) -> OpenModel:
    """A model that is compiled for each size it meets, and for those of `ahead` at once. `is_tuned` takes the key of a
    size.
    """
    specialiser = Specialiser(opened, host, build, build_parts, is_tuned)
    inputs, outputs = (
        [OpenPort(p.name, p.dtype, p.dimensions) for p in ports]
        for ports in (opened.interface.inputs, opened.interface.outputs)
    )
    model = OpenModel(opened.interface.name, inputs, outputs, threads, specialiser)
    for shapes in sorted(ahead, key=_elements, reverse=True):  # the largest fixes how constants are packed
        model.specialise(shapes)
    return model


def _elements(shapes: Given) -> int:
    return sum(prod(shape) for shape in shapes.values())


class Specialiser:
    """Makes specialised models that share weights and arenas.

    Where `graph.padding` proves it right, open dimensions that are no batch are rounded up, so that many sizes share
    one model. A tuned size has a model of exactly this size with the tuned tasks.

    Threads may compile different sizes at the same time; sizes that share a rounded size wait for one compilation.
    """

    def __init__(
        self,
        opened: OpenSource,
        host: HostDevice,
        build: Build,
        build_parts: BuildParts | None = None,
        is_tuned: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._opened, self._build, self._build_parts, self._is_tuned = opened, build, build_parts, is_tuned
        self._sharing = Sharing(SharedWeights(host), Arenas(host), Packings(), KeptKernels())
        self._candidates = _roundings(opened.interface)
        self._rounded: WeakValueDictionary[Shapes, Model] = WeakValueDictionary()
        self._locks = KeyLocks[Shapes]()
        """Held while a model for rounded shapes is compiled."""
        self._lock = Lock()
        self.compilations = 0

    def __call__(self, shapes: Shapes, is_exact: bool = False) -> Specialised:
        rounded = None if is_exact or self._was_tuned(shapes) else self._rounded_up(shapes)
        if rounded is not None:
            return rounded
        file = self._opened.source.parsed()
        try:
            graph = [self._opened.imported(file, shapes)]
        except REFUSALS as refusal:
            if self._build_parts is None:
                raise
            self._count()
            given = dict(zip((port.name for port in self._opened.interface.inputs), shapes))
            return self._build_parts(refusal, file, given, self._sharing)
        del file
        return self._compiled(graph)

    def _was_tuned(self, shapes: Shapes) -> bool:
        try:
            return bool(self._candidates) and self._is_tuned(self._opened.key(shapes))
        except UserError:  # the skeleton has no values that decide shapes: no size is rounded
            return False

    def _compiled(self, graph: list[Graph]) -> Model:
        self._count()
        return self._build(graph, self._sharing)

    def _count(self) -> None:
        with self._lock:
            self.compilations += 1

    def _rounded_up(self, shapes: Shapes) -> Specialised | None:
        """A model for larger shapes that is proved to give the same; None where there is no such proof.

        The dimensions for which the first proof succeeds are those that are rounded from then on.
        """
        with self._locks.of(shapes):
            whole = self._rounded.get(shapes)
        if whole is not None:
            masks = [Padding(1, extent, extent) for port in whole.inputs[len(shapes) :] for extent in port.shape]
            return PaddedModel(whole, masks, [{} for _ in whole.outputs])
        for names in self._candidates:
            larger = _rounded_shapes(self._opened.interface, shapes, names)
            plan = None if larger == shapes else self._proved(larger, shapes)
            if plan is None:
                continue
            self._candidates = (names,)
            with self._locks.of(larger):
                model = self._rounded.get(larger)
                if model is None:
                    values = parameters(self._opened.source.parsed(), self._opened.skeleton.parameters)
                    graphs = [_bound(plan.graph, values)]
                    del values
                    model = self._rounded[larger] = self._compiled(graphs)
            return PaddedModel(model, plan.masks, plan.outputs)
        return None

    def _proved(self, larger: Shapes, shapes: Shapes) -> PaddedGraph | None:
        skeleton = self._opened.skeleton
        try:
            graphs = [self._opened.imported(skeleton.parsed(), sizes) for sizes in (larger, shapes)]
        except UserError:  # a value that decides shapes, or more rows than a table of positions has
            return None
        return padded(*graphs)


def _roundings(declared: Interface) -> tuple[tuple[str, ...], ...]:
    """Sets of open dimensions to round up, to be tried in turn: all that are never an input's first, then each."""
    firsts = {port.dimensions[0] for port in declared.inputs if port.dimensions}
    names = tuple(
        dict.fromkeys(
            d for port in declared.inputs for d in port.dimensions or () if isinstance(d, str) and d not in firsts
        )
    )
    return (names, *((name,) for name in names)) if len(names) > 1 else (names,) if names else ()


def rounded_size(n: int) -> int:
    """A size at least `n` of which there are two in each octave: 16, 24, 32, 48, 64, 96, …; 0 and 1 are kept.

    Half an octave costs at most half as much work again, and 128 sizes in a row need at most 8 models.
    """
    if n <= 1:
        return n
    octave = 1 << max(4, (n - 1).bit_length())
    return octave * 3 // 4 if 16 < n <= octave * 3 // 4 else octave


def _rounded_shapes(declared: Interface, shapes: Shapes, names: Sequence[str]) -> Shapes:
    return tuple(
        tuple(rounded_size(n) if d in names else n for n, d in zip(shape, port.dimensions))
        if port.dimensions is not None
        else shape
        for port, shape in zip(declared.inputs, shapes)
    )


def _bound(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """The graph with some of its inputs as constants."""
    bound = {v: values[v.name] for v in graph.inputs if v.name in values}
    inputs = tuple(v for v in graph.inputs if v not in bound)
    return replace(graph, inputs=inputs, constants={**graph.constants, **bound})
