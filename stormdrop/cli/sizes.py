"""The sizes at which a command runs a model: one size if all shapes are settled, else the sizes of its options.

Open dimensions take their sizes from `--input` files, else from each `--shapes`, else from `compiler.open_sizes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stormdrop.base.errors import UserError
from stormdrop.cli import options
from stormdrop.cli.source import Built, Opened, Source, built, built_open, remark

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stormdrop.compiler.specialise import OpenSource
    from stormdrop.model.image import OpenPort, Port
    from stormdrop.model.model import Model

    Arrays = Mapping[str, NDArray[Any]]


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """A model at one size: its graph if there is one, arrays for its inputs, and the function that compiles it.

    `shapes_text` names the shapes if they are not the model's own.
    """

    opened: Opened | None
    arrays: Arrays
    make: Callable[[], Built]
    shapes_text: str = ""
    is_tried: bool = False
    """True if the size was chosen here. Such a size is skipped if the model cannot compute with it."""

    @property
    def suffix(self) -> str:
        """The end of a title."""
        return f" at {self.shapes_text}" if self.shapes_text else ""


def sizes_of(source: Source, given: tuple[str, ...], seed: int, is_one: bool = False) -> Iterator[Sized]:
    """Yields each size in turn; with `is_one`, one size if several would be tried.

    Wrong inputs are refused before anything is compiled.
    """
    from stormdrop.compare.inputs import read_inputs
    from stormdrop.device.arrays import random_inputs
    from stormdrop.ir.shape import shapes_text
    from stormdrop.model.open_model import OpenModel

    before = built(source) if source.is_built else None
    unsettled = None if source.is_compiled else source.unsettled()
    is_tried = False
    if before is not None and (isinstance(before.model, OpenModel) or unsettled is not None):
        model, ports = before.model, before.model.inputs
        wanted = model.shapes if isinstance(model, OpenModel) else [tuple(port.shape for port in ports)]
    elif unsettled is not None:
        ports, is_tried = _declared(unsettled), not source.sizes and not given
        wanted = [] if given else wanted_shapes(source, unsettled, is_one)
    else:
        opened = None if source.is_compiled else source.open()
        inputs = before.model.inputs if opened is None and before is not None else opened.inputs if opened else ()
        arrays = read_inputs(given, inputs) if given else random_inputs(inputs, seed, _ranges(opened))
        yield Sized(opened, arrays, lambda: before or built(source, opened), shapes_text(source.shapes))
        return

    @cache
    def make() -> Built:
        return before or built_open(source)

    if given:
        arrays = read_inputs(given, ports)
        shapes = {name: array.shape for name, array in arrays.items()}
        yield Sized(None if source.is_compiled else source.at(shapes).open(), arrays, make)
        return
    for shapes in wanted:
        named = {port.name: shape for port, shape in zip(ports, shapes)}
        opened = None if source.is_compiled else source.at(named).open()
        arrays = random_inputs([_at(p, s) for p, s in zip(ports, shapes)], seed, _ranges(opened))
        yield Sized(opened, arrays, make, shapes_text(named), is_tried)


def judged_at(sized: Sized, outputs: Callable[[], T]) -> T | None:
    """Returns the result of `outputs`. Errors name the size. A size that was chosen here is skipped, with a note."""
    from stormdrop.compiler.open_sizes import at_size

    try:
        with at_size({name: array.shape for name, array in sized.arrays.items()}):
            return outputs()
    except UserError as error:
        if not sized.is_tried:
            raise
        remark(f"skipped: {error}")
        return None


def _ranges(opened: Opened | None) -> Mapping[str, tuple[int, int]]:
    """Returns the integers that the model can use, by input; nothing without a graph."""
    from stormdrop.graph.index_ranges import index_ranges

    return index_ranges(opened.graph) if opened is not None else {}


def _at(port: Port, shape: tuple[int, ...]) -> Port:
    from stormdrop.model.image import Port

    return Port(port.name, shape, port.dtype)


def _declared(unsettled: OpenSource) -> Sequence[OpenPort]:
    from stormdrop.model.image import OpenPort

    return [OpenPort(p.name, p.dtype, p.dimensions) for p in unsettled.interface.inputs]


def wanted_shapes(source: Source, unsettled: OpenSource, is_one: bool = False) -> list[tuple[tuple[int, ...], ...]]:
    """Returns the shapes of all inputs, for each `--shapes`, or for sizes that work, which are printed."""
    from stormdrop.compiler.open_sizes import OpenSizes, refused_text, sizes_text
    from stormdrop.model.open_model import complete_shapes

    ports = _declared(unsettled)
    if source.sizes:
        with options.wrong_usage():
            return [complete_shapes(ports, shapes) for shapes in source.sizes]
    sizes = OpenSizes.of(unsettled)
    tried = sizes.first() if is_one else sizes.several()
    word = "size is" if len(tried.sizes) == 1 else "sizes are"
    remark(f"dimensions are open: the {word} {sizes_text(tried.sizes)}; --shapes or --input give others")
    if tried.refused and not is_one:
        remark(f"skipped, since the model cannot compute with them: {refused_text(tried.refused)}")
    closed = {port.name: port.shape for port in ports}
    return [tuple({**closed, **shapes}[port.name] for port in ports) for shapes in tried.sizes]


def built_sizes(source: Source) -> Built:
    """Compiles a model for each size of `--shapes`. Raises click.UsageError if no dimension is open."""
    unsettled = source.unsettled()
    if unsettled is None:
        raise click.UsageError("--shapes gives several shapes of one input, and the model has no open dimensions")
    wanted_shapes(source, unsettled)  # wrong shapes are wrong usage
    return built_open(source, source.sizes)


def models_of(model: Model) -> tuple[Model, ...]:
    """Returns a model for each compiled size."""
    from stormdrop.model.open_model import OpenModel

    return model.models if isinstance(model, OpenModel) else (model,)
