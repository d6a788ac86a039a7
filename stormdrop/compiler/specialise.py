"""Compilation of a model with open dimensions for one tuple of input shapes after another.

    model = open_model(source, threads, host, build, sizes)

`build` makes a model of a graph, with weights and arenas that all specialised models share. A size is compiled when it
is first called, or ahead. Operators that no size can make supported are refused at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from threading import Lock
from weakref import WeakValueDictionary

from stormdrop.base.errors import UserError
from stormdrop.compiler.kept_kernels import KeptKernels
from stormdrop.compiler.model_source import OpenSource
from stormdrop.compiler.options import Shapes as NamedShapes
from stormdrop.compiler.packings import Packings
from stormdrop.device.host_device import HostDevice
from stormdrop.frontend.mixed import MixedGraph
from stormdrop.frontend.open_dimensions import Interface, parameters
from stormdrop.graph.graph import Array, Graph
from stormdrop.graph.padding import PaddedGraph, padded
from stormdrop.ir.padding import Padding
from stormdrop.model.arenas import Arenas
from stormdrop.model.image import OpenPort
from stormdrop.model.model import Model
from stormdrop.model.open_model import OpenModel, PaddedModel, Shapes, Specialised
from stormdrop.model.shared_weights import SharedWeights
from stormdrop.model.sizes import KeyLocks


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
