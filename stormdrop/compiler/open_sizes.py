"""Sizes for the open dimensions of a model: a batch of 1, or sizes that the importer accepts.

    sizes = OpenSizes.of(opened)              # an `OpenSource`
    sizes.batch_of_one()                      # {"image": (1, 3, 224, 224)} if only the batch is open, else None
    sizes.first()                             # the first size that works, and those that do not
    sizes.several()                           # different sizes with the batches 1, 2 and 5, for comparisons

A size is tried by importing the model at it, without large weights and without compiling: milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from stormdrop.base.arguments import shapes_by_name
from stormdrop.base.errors import Unsupported, UserError, warn
from stormdrop.compiler import COMPILED, ZOO
from stormdrop.compiler.specialise import OpenSource, open_source
from stormdrop.frontend.custom import CustomOperator
from stormdrop.frontend.node_reader import NeedsConstant
from stormdrop.frontend.onnx import load_parsed
from stormdrop.frontend.open_dimensions import DeclaredPort, Dimension, Interface
from stormdrop.frontend.parsed import parsed
from stormdrop.graph.graph import Graph
from stormdrop.graph.partition import Partition
from stormdrop.ir.expr import FLOATS
from stormdrop.ir.shape import anonymous, shapes_text
from stormdrop.model.fallback import REFUSALS, Fallback
from stormdrop.pytorch import is_torch

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each input with open dimensions, by name."""
Fits = Callable[[Shapes], UserError | None]
"""Returns the reason for which a model cannot compute with some shapes; None if it can."""


@dataclass(frozen=True, slots=True)
class SizeGuess:
    """Extents to try together, by the kind of an open dimension."""

    image: tuple[int, int, int]
    """Channels, height and width."""
    side: int
    """The height or width of an image of which the other one is fixed."""
    length: int
    """The length of a sequence, and the extent of all other dimensions."""
    batch: int = 1

    @property
    def is_small(self) -> bool:
        """True if a batch of this size takes little time and memory."""
        return max(self.image) <= 320


USUAL = (
    SizeGuess((3, 224, 224), 320, 128),
    SizeGuess((3, 320, 320), 192, 64),
    SizeGuess((3, 640, 640), 224, 32),
    SizeGuess((3, 48, 320), 640, 256),
    SizeGuess((3, 48, 192), 256, 16),
    SizeGuess((3, 32, 320), 128, 512),
    SizeGuess((3, 256, 256), 96, 8),
    SizeGuess((3, 128, 128), 64, 12),
    SizeGuess((3, 64, 64), 32, 4),
    SizeGuess((3, 32, 32), 48, 3),
    SizeGuess((1, 28, 28), 28, 2),
    SizeGuess((1, 32, 128), 100, 1),
    SizeGuess((3, 512, 512), 512, 1024),
    SizeGuess((3, 1024, 1024), 1024, 16000),
)
"""The sizes that most models were trained or exported for, the likeliest first."""
UNEVEN = (
    SizeGuess((3, 65, 97), 97, 33, 2),
    SizeGuess((3, 64, 96), 160, 65, 2),
    SizeGuess((3, 96, 160), 64, 48, 5),
    SizeGuess((3, 48, 100), 100, 24, 5),
    SizeGuess((3, 80, 112), 72, 40, 5),
)
"""Sizes for comparisons. Their kernels have other tails than kernels at the usual sizes."""
BATCHES = (1, 2, 5)
"""The batches of a comparison, in order."""
LARGER_BATCHES = (2, 4, 8, 16, 32, 64, 128)
"""Batches to offer if a model cannot compute with 1."""
CHANNELS = frozenset({1, 3, 4})


@dataclass(frozen=True, slots=True)
class RefusedSize:
    """Shapes that a model cannot compute with, and the reason."""

    shapes: Shapes
    reason: UserError


@dataclass(frozen=True, slots=True)
class TriedSizes:
    """Sizes that work, and sizes that were tried without success."""

    sizes: tuple[Shapes, ...]
    refused: tuple[RefusedSize, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OpenSizes:
    """The sizes that suit a model with open dimensions; `fits` decides whether one works."""

    interface: Interface
    fits: Fits

    @staticmethod
    def of(opened: OpenSource) -> OpenSizes:
        return OpenSizes(opened.interface, _importing(opened))

    @property
    def ports(self) -> tuple[DeclaredPort, ...]:
        """The inputs with open dimensions."""
        return tuple(port for port in self.interface.inputs if port.is_open)

    @property
    def is_batch_alone(self) -> bool:
        """True if no dimension is open but the batch: the first dimension of inputs, and dimensions of its name."""
        batches = self._batches()
        return all(port.dimensions is not None and _open_of(port) <= batches for port in self.ports)

    def batch_of_one(self) -> Shapes | None:
        """Returns the shapes at batch 1 if only the batch is open and the model can compute with 1."""
        if not self.is_batch_alone:
            return None
        shapes = self._at(USUAL[0], 1)
        return shapes if self.fits(shapes) is None else None

    def first(self) -> TriedSizes:
        """Returns the first size that works, with batch 1 if possible. Raises UserError if no size does."""
        return self._tried(self._usual(), 1)

    def several(self) -> TriedSizes:
        """Returns different sizes with batches of 1, 2 and 5 for comparisons. Raises UserError if no size works."""
        if self.is_batch_alone and (first := self.batch_of_one()) is not None:
            others = self._tried((self._at(USUAL[0], batch) for batch in BATCHES[1:]), len(BATCHES), needs_one=False)
            return TriedSizes((first, *others.sizes), others.refused)
        usual = self.first()
        uneven = self._uneven(usual.sizes)
        return TriedSizes((*usual.sizes, *uneven.sizes), (*usual.refused, *uneven.refused))

    def needed(self, label: str, command: Callable[[Shapes], str]) -> UserError:
        """Returns the error for a use that takes one size; its text has a command with a size that works.

        Raises UserError if no size works.
        """
        (shapes,) = self.first().sizes
        ports = ", ".join(map(str, self.ports))
        return UserError(f"{label} leaves dimensions open: {ports}. Give a size; this one works: {command(shapes)}")

    def _uneven(self, usual: Sequence[Shapes]) -> TriedSizes:
        """Returns a size for each further batch that differs from the usual sizes in more than the batch."""
        sizes: list[Shapes] = []
        refused: list[RefusedSize] = []
        for batch in BATCHES[1:]:
            guesses = (*(g for g in UNEVEN if g.batch == batch), *(g for g in USUAL if g.is_small))
            wanted = (self._at(guess, batch) for guess in guesses)
            new = (shapes for shapes in wanted if not any(_is_same_but_batch(shapes, s) for s in (*usual, *sizes)))
            tried = self._tried(new, 1, needs_one=False)
            sizes += tried.sizes
            refused += tried.refused
        return TriedSizes(tuple(sizes), tuple(refused))

    def _usual(self) -> Iterator[Shapes]:
        yield from (self._at(guess, 1) for guess in USUAL)
        if self.is_batch_alone:
            yield from (self._at(USUAL[0], batch) for batch in LARGER_BATCHES)

    def _tried(self, candidates: Iterable[Shapes], most: int, needs_one: bool = True) -> TriedSizes:
        sizes: list[Shapes] = []
        refused: list[RefusedSize] = []
        for shapes in candidates:
            if shapes in sizes or any(r.shapes == shapes for r in refused):
                continue
            reason = self.fits(shapes)
            if reason is not None:
                refused.append(RefusedSize(shapes, reason))
                if isinstance(reason, NeedsConstant):
                    break
                continue
            sizes.append(shapes)
            if len(sizes) == most:
                break
        if needs_one and not sizes:
            raise _no_size(refused)
        return TriedSizes(tuple(sizes), tuple(refused))

    def _batches(self) -> set[Dimension]:
        """The names of dimensions that are the first of an input."""
        return {port.dimensions[0] for port in self.ports if port.dimensions and isinstance(port.dimensions[0], str)}

    def _at(self, guess: SizeGuess, batch: int) -> Shapes:
        """Returns the shapes of all open inputs; a dimension has one size in all of them."""
        dimensions = {port.name: _assumed(port) for port in self.ports}
        extents: dict[Dimension, int] = {}
        batches = self._batches() | {dims[0] for dims in dimensions.values() if dims and isinstance(dims[0], str)}
        for dims in dimensions.values():
            for k, d in enumerate(dims):
                if isinstance(d, str):
                    extents.setdefault(d, batch if d in batches else _extent(guess, dims, k))
        for d in extents:
            parts = [part.strip() for part in d.split("+")] if isinstance(d, str) else []
            if len(parts) > 1 and all(part in extents or part.isdecimal() for part in parts):
                extents[d] = sum(extents[part] if part in extents else int(part) for part in parts)
        return {name: tuple(extents[d] if isinstance(d, str) else d for d in dims) for name, dims in dimensions.items()}


def _open_of(port: DeclaredPort) -> set[Dimension]:
    return {d for d in port.dimensions or () if isinstance(d, str)}


def _assumed(port: DeclaredPort) -> tuple[Dimension, ...]:
    """Returns the dimensions of an input; without a shape, the dimensions of images (floats) or words (integers)."""
    if port.dimensions is not None:
        return port.dimensions
    return tuple(anonymous(port.name, k) for k in range(4 if port.dtype in FLOATS else 2))


def _extent(guess: SizeGuess, dims: Sequence[Dimension], position: int) -> int:
    """Returns the extent of an open dimension by its place in an input's shape."""
    sides = _sides(dims)
    if position in sides:
        is_alone = sum(isinstance(dims[k], str) for k in sides) == 1
        return guess.side if is_alone else guess.image[1 + sides.index(position)]
    return guess.image[0] if sides else guess.length


def _sides(dims: Sequence[Dimension]) -> tuple[int, ...]:
    """Returns the positions of height and width in the shape of an image or a batch of them; none of other shapes."""
    if len(dims) == 3 and dims[0] in CHANNELS and all(isinstance(d, str) for d in dims[1:]):
        return 1, 2
    if len(dims) != 4:
        return ()
    if dims[3] in CHANNELS and dims[1] not in CHANNELS:
        return 1, 2
    is_image = dims[1] in CHANNELS or isinstance(dims[1], str) or all(isinstance(d, str) for d in dims[2:])
    return (2, 3) if is_image else ()


def _is_same_but_batch(first: Shapes, second: Shapes) -> bool:
    return all(shape[1:] == second[name][1:] for name, shape in first.items())


def _importing(opened: OpenSource) -> Fits:
    """Returns the test whether the importer accepts shapes. Large weights take part only if shapes depend on them."""
    closed = {p.name: p.dimensions for p in opened.interface.inputs if p.dimensions is not None and not p.is_open}

    def fits(shapes: Shapes) -> UserError | None:
        given: dict[str, Any] = {**closed, **shapes}
        try:
            try:
                load_parsed(opened.skeleton.parsed(), given, opened.constants, opened.operators)
            except NeedsConstant:
                load_parsed(opened.source.parsed(), given, opened.constants, opened.operators)
        except REFUSALS as refusal:
            if opened.fallback is None:
                return refusal
            try:
                file = opened.source.parsed()
                opened.fallback.cut(refusal, file, given, opened.constants, opened.operators)
            except UserError as error:
                return error
        except UserError as error:
            return error
        return None

    return fits


def _no_size(refused: Sequence[RefusedSize]) -> UserError:
    """Returns the error of a model that none of the sizes suits: that of the first size, which it names.

    The error of a model that no size could make supported is returned as it is.
    """
    first = refused[0]
    is_of_every_size = isinstance(first.reason, (NeedsConstant, Unsupported))
    if is_of_every_size or (len(refused) > 1 and len({str(r.reason) for r in refused}) == 1):
        return first.reason
    others = f", and {len(refused) - 1} other sizes fail as well" if len(refused) > 1 else ""
    first.reason.args = (f"{first.reason} (at {shapes_text(first.shapes)}{others}; --shapes and shapes= give sizes)",)
    return first.reason


# Texts


def sizes_text(sizes: Iterable[Shapes]) -> str:
    return "; ".join(map(shapes_text, sizes))


def refused_text(refused: Sequence[RefusedSize], most: int = 4) -> str:
    """Returns the sizes that a model cannot compute with, and the reason of the first one."""
    listed = sizes_text(r.shapes for r in refused[:most]) + (f" and {len(refused) - most} more" * (len(refused) > most))
    return f"{listed}: {refused[0].reason}"


def batch_text(label: str, shapes: Shapes) -> str:
    """Returns the remark about a model that is read with batch 1."""
    return f"{label} leaves the batch open: 1 is taken ({shapes_text(shapes)})"


@contextmanager
def at_size(
    shapes: Mapping[str, Sequence[int]], opened: Callable[[], OpenSource | None] | None = None
) -> Generator[None]:
    """Names the shapes in the text of every UserError that is raised inside.

    `opened` gives the model with its dimensions open: a size that works is then named as well.
    """
    try:
        yield
    except UserError as error:
        given: Any = shapes  # of users, and perhaps no mapping
        is_right = isinstance(given, Mapping) and all(isinstance(shape, (tuple, list)) for shape in shapes.values())
        text = shapes_text(shapes) if is_right else ""
        if text and text not in str(error):
            instead = None if opened is None or isinstance(error, NeedsConstant) else _working(opened)
            error.args = (f"{error} (at {text}{f'; {shapes_text(instead)} works' if instead else ''})",)
        raise


def _working(opened: Callable[[], OpenSource | None]) -> Shapes | None:
    """Returns a size that works, if there is one."""
    try:
        source = opened()
        return None if source is None else OpenSizes.of(source).first().sizes[0]
    except UserError:
        return None


# Python


def settled(
    model: Any,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, ArrayLike] | None = None,
    operators: Sequence[CustomOperator] = (),
    *,
    fallback: Fallback | None = None,
    caller: str = "sd.tune",
    **reading: Any,
) -> dict[str, Any]:
    """Returns the given options for reading a model, with shapes for all dimensions that are open.

    An open batch is 1, with a warning. Raises UserError for other open dimensions, with the call of `caller` to write.
    """
    shapes = shapes_by_name(shapes)
    given = {"shapes": shapes, "constants": constants, "operators": operators, **reading}
    is_named = isinstance(model, str) and (model.startswith(ZOO) or model.endswith(COMPILED))
    if isinstance(model, (Graph, Partition)) or is_named or is_torch(model):
        return given
    opened = open_source(model, parsed(model), shapes, constants, operators, fallback)
    if opened is None:
        return given
    sizes, is_path = OpenSizes.of(opened), isinstance(model, (str, os.PathLike))
    label, spelled = (os.fsdecode(model), repr(os.fsdecode(model))) if is_path else (opened.interface.name, "model")
    batch = sizes.batch_of_one()
    if batch is None:
        raise sizes.needed(label, lambda size: f"{caller}({spelled}, shapes={ {**(shapes or {}), **size} })")
    warn(f"{batch_text(label, batch)}; shapes= gives another size")
    return {**given, "shapes": {**(shapes or {}), **batch}}
