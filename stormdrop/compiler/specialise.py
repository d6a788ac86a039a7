"""Compilation of a model with open dimensions for one tuple of input shapes after another.

    model = open_model(source, threads, host, build, sizes)

`build` makes a model of a graph, with weights and arenas that all specialised models share. A size is compiled when it
is first called, or ahead. Operators that no size can make supported are refused at once.

An ONNX model that is read again for each new size, and its open dimensions.

No raw weights are kept between compilations: a file is read again, and must still have the same bytes. A model that
came as bytes or as an onnx.ModelProto is kept as bytes.

The packing layouts of a model's constants at several sizes. The first size fixes them, and later sizes follow.

A kernel that gains more than 3 % by a layout of its own (`lower.packed_layout`) may have this layout while all such
layouts together take at most a quarter of the bytes of the first layouts. A verdict's schedule keeps its layout.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import prod
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from numpy.typing import ArrayLike

from stormdrop.base.errors import UnsupportedOperator, UserError
from stormdrop.builder.building import Packing
from stormdrop.compiler.kept_kernels import KeptKernels
from stormdrop.compiler.options import Shapes as NamedShapes
from stormdrop.device.artifact import Artifact
from stormdrop.device.host_device import HostDevice
from stormdrop.frontend.custom import CustomOperator
from stormdrop.frontend.mixed import MixedGraph
from stormdrop.frontend.onnx import check_operators, load_parsed
from stormdrop.frontend.open_dimensions import (
    DeclaredPort,
    Interface,
    Skeleton,
    external_digest,
    interface,
    parameters,
    skeleton,
)
from stormdrop.frontend.parsed import ParsedModel, parsed, read_file
from stormdrop.graph.graph import Graph
from stormdrop.graph.padding import PaddedGraph, padded
from stormdrop.graph.partition import TaskCall
from stormdrop.ir.shape import Padding
from stormdrop.lower.packed_layout import PackedLayout
from stormdrop.model.arena import Arenas
from stormdrop.model.fallback import REFUSALS, Fallback
from stormdrop.model.image import OpenPort
from stormdrop.model.model import Model
from stormdrop.model.open_model import OpenModel, PaddedModel, Shapes, Specialised
from stormdrop.model.shared_weights import SharedWeights
from stormdrop.model.sizes import KeyLocks
from stormdrop.operators.node import Array
from stormdrop.target.structures import Scope

OWN_SHARE = 0.25
MOST_GROWTH = 4
"""The most growth of constants by packing: Winograd's filters of 6x6 for 3x3."""

Names = tuple[str, ...]
"""The names of the constants that a kernel packs together."""


class Packings:
    """The packed layouts by the names of constants in the graph, which do not depend on sizes."""

    def __init__(self) -> None:
        self._known: dict[Names, list[PackedLayout]] = {}
        self._first_bytes = 0
        self._own_bytes = 0
        self._lock = Lock()  # threads compile several sizes at once

    def begin(self) -> PackingRound:
        """Begins the kernels of another size."""
        return PackingRound(self)

    def known(self, names: Names) -> Sequence[PackedLayout]:
        return self._known.get(names, ())

    @property
    def room_bytes(self) -> int:
        """The bytes left for layouts beyond the first."""
        return int(OWN_SHARE * self._first_bytes) - self._own_bytes

    def note(self, call: TaskCall, layout: PackedLayout, artifact: Artifact) -> None:
        nbytes = sum(b.nbytes for b in artifact.buffers if b.scope is Scope.PACKED and b.resident)
        with self._lock:
            layouts = self._known.setdefault(constant_names(call), [])
            if layout in layouts:
                return
            if layouts:
                self._own_bytes += nbytes
            else:
                self._first_bytes += nbytes
            layouts.append(layout)


class PackingRound:
    """The kernels of one size. They are built together, so the bytes left are divided before."""

    def __init__(self, packings: Packings) -> None:
        self._packings, self._room_bytes = packings, packings.room_bytes

    def packing(self, calls: Sequence[TaskCall], is_scheduled: bool) -> Packing:
        """Returns the packing of a kernel that serves these calls; a kernel with a given schedule keeps its layout."""
        known = tuple(self._packings.known(constant_names(calls[0])))
        if not known:
            return Packing()
        raw_bytes = sum(v.nbytes for call in calls for t, v in zip(call.task.inputs, call.inputs) if t.constant)
        most_bytes = raw_bytes * (MOST_GROWTH if len(calls[0].task.variants) > 1 else 1)
        if is_scheduled:
            return Packing(known)
        may_own = most_bytes <= self._room_bytes
        self._room_bytes -= most_bytes if may_own else 0
        return Packing(known, may_own)


def constant_names(call: TaskCall) -> Names:
    return tuple(v.name for t, v in zip(call.task.inputs, call.inputs) if t.constant)


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
    shapes: NamedShapes | None,
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
    file: ParsedModel, shapes: NamedShapes | None, constants: Mapping[str, ArrayLike] | None
) -> Interface | None:
    """Returns the inputs and outputs of a model that leaves dimensions open beside `shapes`; None as `open_source`."""
    try:
        if not {i.name for i in file.proto.graph.input} >= set(constants or {}):
            return None
        fixed = _fixed(interface(file, constants or {}), shapes or {})
    except (UserError, TypeError):
        return None
    return fixed if any(port.is_open for port in fixed.inputs) else None


def _fixed(declared: Interface, shapes: NamedShapes) -> Interface:
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


@dataclass(frozen=True, slots=True, eq=False)
class Sharing:
    """The common parts of specialised models of one model."""

    weights: SharedWeights
    arenas: Arenas
    packings: Packings
    kept: KeptKernels


Build = Callable[[list[Graph | MixedGraph], Sharing], Model]
"""Makes a model of a graph, which it takes out of a list: so its constants are freed as they are packed."""


def open_model(
    opened: OpenSource,
    threads: int,
    host: HostDevice,
    build: Build,
    sizes: Sequence[NamedShapes] = (),
    is_tuned: Callable[[str], bool] = lambda _: False,
) -> OpenModel:
    """Returns a model that is compiled for `sizes` ahead, and for each other size at its first call.

    `is_tuned` takes the key of a size (`OpenSource.key`).
    """
    specialiser = Specialiser(opened, host, build, is_tuned)
    inputs, outputs = (
        [OpenPort(p.name, p.dtype, p.dimensions) for p in ports]
        for ports in (opened.interface.inputs, opened.interface.outputs)
    )
    model = OpenModel(opened.interface.name, inputs, outputs, threads, specialiser)
    for shapes in sorted(sizes, key=_elements, reverse=True):  # the largest fixes how constants are packed
        model.specialise(shapes)
    return model


def _elements(shapes: NamedShapes) -> int:
    return sum(prod(shape) for shape in shapes.values())


class Specialiser:
    """A compiler of specialised models that share weights and arenas.

    Open dimensions other than the batch are rounded up if `graph.padding` proves that the results stay the same: many
    sizes share one model then. A tuned size has a model of exactly this size with the tuned tasks.

    Threads may compile different sizes at the same time; sizes that share a rounded size wait for one compilation.
    """

    def __init__(
        self,
        opened: OpenSource,
        host: HostDevice,
        build: Build,
        is_tuned: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._opened, self._build, self._is_tuned = opened, build, is_tuned
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
        return self._compiled([self._opened.read(shapes)])

    def _was_tuned(self, shapes: Shapes) -> bool:
        try:
            return bool(self._candidates) and self._is_tuned(self._opened.key(shapes))
        except UserError:  # the skeleton has no values that decide shapes: no size is rounded
            return False

    def _compiled(self, graphs: list[Graph | MixedGraph]) -> Model:
        with self._lock:
            self.compilations += 1
        return self._build(graphs, self._sharing)

    def _rounded_up(self, shapes: Shapes) -> Specialised | None:
        """Returns a model for larger shapes with proved equal results; None without such a proof.

        Later calls round the dimensions for which the first proof succeeds.
        """
        with self._locks.of(shapes):
            model = self._rounded.get(shapes)
        if model is not None:
            masks = [Padding(1, extent, extent) for port in model.inputs[len(shapes) :] for extent in port.shape]
            return PaddedModel(model, masks, [{} for _ in model.outputs])
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
                    graphs: list[Graph | MixedGraph] = [_bound(plan.graph, values)]
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
    """Returns sets of open dimensions to round up, in the order of the tries: all dimensions that are never an input's
    first, then each of them.
    """
    firsts = {port.dimensions[0] for port in declared.inputs if port.dimensions}
    names = tuple(
        dict.fromkeys(
            d for port in declared.inputs for d in port.dimensions or () if isinstance(d, str) and d not in firsts
        )
    )
    return (names, *((name,) for name in names)) if len(names) > 1 else (names,) if names else ()


def rounded_size(n: int) -> int:
    """Returns the next of two sizes in each octave: 16, 24, 32, 48, 64, 96, …; 0 and 1 stay.

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
    """Returns the graph with some of its inputs as constants."""
    bound = {v: values[v.name] for v in graph.inputs if v.name in values}
    inputs = tuple(v for v in graph.inputs if v not in bound)
    return replace(graph, inputs=inputs, constants={**graph.constants, **bound})
