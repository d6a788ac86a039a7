"""A model with open dimensions: a specialised model for each tuple of input shapes.

    model = sd.compile("gpt2.onnx")           # ids: i64[batch, sequence]
    model(ids)                                # compiled for ids.shape, or a rounded shape, at the first call
    model.specialise({"ids": (1, 64)})        # ahead

`Sizes` compiles a new tuple of shapes by `specialise`, once for all threads; other shapes are compiled and run
meanwhile. A model that was read from a file has no `specialise`: an unknown shape is an error. The least recently used
specialised models beyond `most_models` are dropped. Specialised models share packed weights and arenas.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stormdrop.base.arguments import check_arguments, path_of, shapes_by_name
from stormdrop.base.errors import ModelError, UserError
from stormdrop.device.arrays import Array, array_from, copied_out
from stormdrop.device.cpus import warn_if_crowded
from stormdrop.device.device import Seconds
from stormdrop.device.pool.pool import Pool
from stormdrop.device.targets import host_for
from stormdrop.ir.shape import Claim, Padding, valid_part
from stormdrop.model.arena import Arenas
from stormdrop.model.family import Family, Served
from stormdrop.model.fixed_model import FixedModel
from stormdrop.model.image import OpenPort
from stormdrop.model.model import Model
from stormdrop.model.package import load_any, save_family
from stormdrop.model.profile import Profile
from stormdrop.model.shared_weights import WeightChunk, chunk_starts, moved_weights
from stormdrop.model.sizes import Sizes

MOST_MODELS = 64
"""Specialised models that are held at once."""
MOST_SHAPES = 4096
"""Tuples of input shapes that are remembered; many may lead to one model."""

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]
"""One shape for each input, in order."""
_shape_of = attrgetter("shape")


class PaddedModel:
    """A model for larger arrays than the caller's: inputs are padded with zeros, outputs are cut to their valid part.

    `graph.padding` proves that the valid part equals the results of a model of the caller's sizes. The model's last
    inputs are masks of the valid elements.
    """

    def __init__(self, model: Model, masks: Sequence[Padding], outputs: Sequence[Claim]) -> None:
        self.model, self.masks, self.outputs = model, tuple(masks), tuple(outputs)
        count = len(model.inputs) - len(masks)
        self._wanted = model.inputs[:count]
        self._masks = [mask.mask(port.shape[0]) for mask, port in zip(masks, model.inputs[count:])]

    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None) -> Any:
        results = self.model(*self._padded(inputs))
        padded = results if isinstance(results, tuple) else (results,)
        cut = [np.ascontiguousarray(valid_part(array, claim)) for claim, array in zip(self.outputs, padded)]
        arrays = copied_out(out, cut)
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    def bench(self, *inputs: ArrayLike, repeats: int = 100) -> Seconds:
        return self.model.bench(*self._padded(inputs), repeats=repeats)

    def profile(self, *inputs: ArrayLike, repeats: int = 100, standalone: bool = False) -> Profile:
        return self.model.profile(*self._padded(inputs), repeats=repeats, standalone=standalone)

    def _padded(self, inputs: Sequence[ArrayLike]) -> list[Array]:
        arrays: list[Array] = []
        for port, given in zip(self._wanted, inputs):
            array = np.asarray(given)
            if array.shape != port.shape:
                larger = np.zeros(port.shape, array.dtype)
                larger[tuple(map(slice, array.shape))] = array
                array = larger
            arrays.append(array)
        return [*arrays, *self._masks]


Specialised = Model | PaddedModel
Specialise = Callable[[Shapes, bool], Specialised]
"""Compiles a model that can run some shapes; with True, a model of exactly these shapes."""


class OpenModel(Model):
    """A model with open dimensions. It is called like a `Model`, with arrays of any size that the model can take."""

    def __init__(
        self,
        name: str,
        inputs: Sequence[OpenPort],
        outputs: Sequence[OpenPort],
        threads: int,
        specialise: Specialise | None,
        most_models: int = MOST_MODELS,
    ) -> None:
        super().__init__(name, tuple(inputs), tuple(outputs))
        self.threads = threads
        self._ports, self._specialise, self._most_models = tuple(inputs), specialise, most_models
        self._sizes = Sizes[Shapes, Specialised](MOST_SHAPES, ModelError)

    @property
    def models(self) -> tuple[Model, ...]:
        """The specialised models that are held, the least recently used first."""
        return _models_of(self._sizes.items())

    @property
    def shapes(self) -> list[Shapes]:
        """The input shapes that need no compilation, the least recently used first."""
        return [shapes for shapes, _ in self._sizes.items()]

    @property
    def origins(self) -> Mapping[str, str]:
        return {digest: origin for model in self.models for digest, origin in model.origins.items()}

    def attach(self) -> None:
        for model in self.models:
            model.attach()

    def specialise(self, shapes: Mapping[str, Sequence[int]]) -> Model:
        """Returns the model for exactly these shapes of the inputs, compiled if need be. Raises UserError.

        Dimensions of one name need be given once.
        """
        return self._at(complete_shapes(self._ports, shapes), is_exact=True).model

    def __call__(self, *inputs: ArrayLike, out: Array | Sequence[Array] | None = None, **named: ArrayLike) -> Any:
        if named:
            inputs = self._in_order(inputs, named)
        try:
            entry = self._sizes.get(tuple(map(_shape_of, inputs)))
        except AttributeError:  # lists instead of arrays
            entry = None
        if entry is None:
            inputs = tuple(map(array_from, inputs))
            entry = self._at(tuple(map(_shape_of, inputs)))
        return entry(*inputs, out=out)

    def bench(self, *inputs: ArrayLike, repeats: int = 100) -> Seconds:
        arrays = tuple(map(np.asarray, inputs))
        return self._at(tuple(map(_shape_of, arrays))).bench(*arrays, repeats=repeats)

    def profile(self, *inputs: ArrayLike, repeats: int = 100, standalone: bool = False) -> Profile:
        arrays = tuple(map(np.asarray, inputs))
        entry = self._at(tuple(map(_shape_of, arrays)))
        return entry.profile(*arrays, repeats=repeats, standalone=standalone)

    def _at(self, shapes: Shapes, is_exact: bool = False) -> Specialised:
        """Returns the model for these shapes. Raises UserError, which names `shapes=`, for shapes that do not fit."""
        sizes, specialise = self._sizes, self._specialise
        if self._is_closed:  # read after `_sizes`: results that end after `close` go to sizes that no call reads
            raise self._closed()

        def suits(entry: Specialised) -> bool:
            return not is_exact or not isinstance(entry, PaddedModel)

        entry = sizes.get(shapes)
        if entry is not None and (specialise is None or suits(entry)):
            return entry
        self._check(shapes)
        if specialise is None:
            raise self._unknown(shapes)
        try:
            entry = sizes.made(shapes, lambda: specialise(shapes, is_exact), suits)
        except UserError as error:
            text = ", ".join(f"{p.name!r}: {s}" for p, s in zip(self._ports, shapes))
            raise UserError(f"{error} (compiled for shapes={{{text}}})") from error
        self._forget_models(sizes)
        return entry

    def _release(self) -> None:
        models, self._specialise = self.models, None
        self._sizes = Sizes[Shapes, Specialised](MOST_SHAPES, ModelError)
        for model in models:
            model.close()

    def add(self, shapes: Shapes, entry: Specialised) -> None:
        """Adds a callable for some shapes. Drops the least recently used models and shapes beyond the limits."""
        self._sizes.put(shapes, entry)
        self._forget_models(self._sizes)

    def _forget_models(self, sizes: Sizes[Shapes, Specialised]) -> None:
        """Drops the shapes of the least recently used models beyond the limit."""
        entries = sizes.items()
        kept = {id(model) for model in _models_of(entries)[-self._most_models :]}
        for shapes, entry in entries:
            if id(entry.model) not in kept:
                sizes.discard(shapes)

    def check_can_be_saved(self) -> None:
        for model in self.models:
            model.check_can_be_saved()

    def _check(self, shapes: Shapes) -> None:
        if len(shapes) != len(self._ports):
            wanted = ", ".join(map(repr, self._ports)) or "no inputs"
            raise UserError(f"{self.name} takes {len(self._ports)} arrays ({wanted}), not {len(shapes)}")
        sizes: dict[str, tuple[int, str]] = {}
        for port, shape in zip(self._ports, shapes):
            if port.dimensions is None:
                continue
            fits = len(shape) == len(port.dimensions)
            if not fits or any(n != d for n, d in zip(shape, port.dimensions) if isinstance(d, int)):
                raise UserError(
                    f"input for {port!r} has shape {shape}; shapes= and calls can only fill open dimensions"
                )
            for n, d in zip(shape, port.dimensions):
                if isinstance(d, str) and sizes.setdefault(d, (n, port.name))[0] != n:
                    fault = f"the dimension {d} of {self.name} is {sizes[d][0]} in {sizes[d][1]} and {n} in {port.name}"
                    raise UserError(f"{fault}; it must be one number (see shapes=)")

    def _unknown(self, shapes: Shapes) -> UserError:
        known = "; ".join(", ".join(map(str, shapes)) for shapes in self.shapes)
        given = ", ".join(map(str, shapes))
        return UserError(
            f"{self.name} was compiled for the input shapes {known or 'none'}, not for {given}; "
            "sd.compile(…, shapes=[…]) and --shapes add others"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all sizes that are held to a file that `sd.load` opens. Raises UserError, also if there are none.

        The opened model takes these shapes only.
        """
        family, chunks = self.family()
        save_family(path, family, [chunk.memory.read(0, chunk.nbytes) for chunk in chunks])

    def family(self) -> tuple[Family, list[WeightChunk]]:
        """Returns all sizes that are held, with one address space for their weights.

        Raises UserError if no size is held.
        """
        entries = self._sizes.items()
        models = _models_of(entries)
        if not models:
            raise UserError(f"{self.name} is compiled for no size yet; give shapes= to sd.compile, or call it")
        self.check_can_be_saved()
        chunks = list(dict.fromkeys(chunk for model in models for chunk in model.chunks))
        starts = dict(zip(chunks, chunk_starts([chunk.nbytes for chunk in chunks])))
        total = sum(chunk.nbytes for chunk in chunks)
        images = tuple(moved_weights(m.image, m.chunks, [starts[chunk] for chunk in m.chunks], total) for m in models)
        number = {id(model): k for k, model in enumerate(models)}
        served: list[Served] = []
        for shapes, entry in entries:
            if isinstance(entry, PaddedModel):
                served.append(Served(shapes, number[id(entry.model)], entry.masks, entry.outputs))
            else:
                served.append(Served(shapes, number[id(entry.model)]))
        outputs = tuple(port for port in self.outputs if isinstance(port, OpenPort))
        return Family(self.name, self._ports, outputs, images, tuple(served)), chunks

    def _without(self, name: str) -> AttributeError:
        return AttributeError(f"a model with open dimensions has one {name} for each size: specialise(shapes).{name}")

    def __repr__(self) -> str:
        named = dict.fromkeys(d for port in self._ports for d in port.named_dimensions)
        is_open = any(port.open_dimensions for port in self._ports)
        count = len(self.models)
        kind = f"open in {', '.join(named) or 'dimensions without names'}" if is_open else "several shapes"
        return f"<model {self.name}, {kind}, compiled for {count} size{'s' if count != 1 else ''}>"


def _models_of(entries: Sequence[tuple[Shapes, Specialised]]) -> tuple[Model, ...]:
    """Returns each model of the entries once, in the order of the last entries of the models."""
    last = {id(entry.model): entry.model for _, entry in reversed(entries)}
    return tuple(reversed(last.values()))


def complete_shapes(inputs: Sequence[OpenPort], given: Mapping[str, Sequence[int]]) -> Shapes:
    """Returns the shapes of all inputs, from the shapes of some: dimensions of one name have one size.

    Raises UserError.
    """
    names = ", ".join(repr(port.name) for port in inputs) or "none"
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f"shapes= takes shapes by name, {{{names}: shape}}, not {type(given).__name__}")
    ports = {port.name: port for port in inputs}
    sizes: dict[str, int] = {}
    shapes: dict[str, Shape] = {}
    for name, shape in shapes_by_name(given).items():
        if name not in ports:
            raise UserError(f"shapes= names {name!r}, which is no input; the inputs are {names}")
        try:
            shapes[name] = tuple(map(index, shape))
        except TypeError as error:
            raise UserError(f"shapes= gives no shape for {name!r}: {error}") from error
        sizes.update((d, n) for d, n in zip(ports[name].dimensions or (), shapes[name]) if isinstance(d, str))
    for port in inputs:
        if port.name in shapes:
            continue
        missing = [d for d in port.open_dimensions if d not in sizes]
        if missing or port.dimensions is None:
            named = [d for d in missing if d in port.named_dimensions]
            raise UserError(f"shapes= leaves open {', '.join(named) or 'dimensions'} of the input {port!r}")
        shapes[port.name] = tuple(d if isinstance(d, int) else sizes[d] for d in port.dimensions)
    return tuple(shapes[port.name] for port in inputs)


def load(
    path: str | os.PathLike[str],
    threads: int | None = None,
    ordinal: int = 0,
    *,
    spin: float | None = None,
    affinity: str | Sequence[int] | None = None,
    pool: Pool | str | None = None,
) -> Model:
    """Opens a compiled model, a file that `Model.save` wrote; a file with several sizes is an `OpenModel`.

    A model for a GPU runs on the GPU with the number `ordinal`. `threads`, `spin`, `affinity` and `pool` are as for
    `sd.compile`. The file holds native code: load only files that you trust. Raises ModelError for any other or a
    damaged file, UserError for code that this machine cannot run.
    """
    path = path_of(path)
    check_arguments(threads=threads, spin=spin, pool=pool)
    if threads is None and isinstance(pool, Pool):
        threads = pool.threads
    try:
        loaded, weights = load_any(path, threads)
    except UserError as error:
        raise ModelError(str(error), os.fsdecode(path)) from error
    first = loaded.images[0] if isinstance(loaded, Family) else loaded
    if not first.is_for_gpu:
        warn_if_crowded(first.threads)
    host = host_for(first.threads, first.is_for_gpu, spin, affinity, pool)
    if not isinstance(loaded, Family):
        model = FixedModel(loaded, weights, None if first.is_for_gpu else host, ordinal=ordinal)
        model.attach()
        return model
    if first.is_for_gpu:
        models = [FixedModel(image, weights, ordinal=ordinal) for image in loaded.images]
    else:
        chunk, arenas = WeightChunk(host.adopt(weights)), Arenas(host)
        models = [FixedModel(image, [chunk], host, arenas=arenas) for image in loaded.images]
    opened = OpenModel(loaded.name, loaded.inputs, loaded.outputs, first.threads, None, max(MOST_MODELS, len(models)))
    for s in loaded.served:
        model = models[s.image]
        opened.add(s.shapes, PaddedModel(model, s.masks, s.outputs) if s.is_padded else model)
    return opened
