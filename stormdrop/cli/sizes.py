"""The sizes at which a command runs a model: one size if all shapes are settled, else the sizes of its options.

Open dimensions take their sizes from `--input` files, else from each `--shapes`, else from `compiler.open_sizes`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stormdrop.base.errors import UserError
from stormdrop.cli import options
from stormdrop.cli.source import Built, Opened, Source, built
from stormdrop.report.console import notes, say
from stormdrop.report.text import one_line

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

    `told` names the shapes if they are not the model's own.
    """

    opened: Opened | None
    arrays: Arrays
    make: Callable[[], Built]
    told: str = ""
    is_tried: bool = False
    """True if the size was chosen here. Such a size is skipped if the model cannot compute with it."""

    @property
    def shown(self) -> str:
        """Behind a title."""
        return f" at {self.told}" if self.told else ""


def one_or_sizes(trees: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the JSON of a command: the tree of its one size, or of each size."""
    return trees[0] if len(trees) == 1 else {"sizes": list(trees)}


def sizes_of(
    source: Source,
    given: tuple[str, ...],
    seed: int,
    compiled: str | None,
    target_name: str | None,
    threads: int | None,
    taken: str | None,
    is_one: bool = False,
) -> Iterator[Sized]:
    """Yields each size in turn; with `is_one`, one size if several would be tried.

    Wrong inputs are refused before anything is compiled.
    """
    from stormdrop.compare.inputs import read_inputs
    from stormdrop.device.arrays import random_inputs
    from stormdrop.ir.shape import shapes_text
    from stormdrop.model.open_model import OpenModel

    is_before = compiled is not None or source.is_compiled
    before = built(source, None, compiled, target_name, threads, taken) if is_before else None
    unsettled = None if source.is_compiled else source.unsettled()
    is_tried = False
    if before is not None and (isinstance(before.model, OpenModel) or unsettled is not None):
        model, ports = before.model, before.model.inputs
        wanted = model.shapes if isinstance(model, OpenModel) else [tuple(port.shape for port in ports)]
    elif unsettled is not None:
        ports, is_tried = _declared(unsettled), not source.sizes and not given
        wanted = [] if given else _wanted(source, unsettled, is_one)
    else:
        opened = None if source.is_compiled else source.open()
        inputs = before.model.inputs if opened is None and before is not None else opened.inputs if opened else ()
        arrays = read_inputs(given, inputs) if given else random_inputs(inputs, seed, _ranges(opened))
        told = shapes_text(source.shapes)
        yield Sized(opened, arrays, lambda: before or built(source, opened, None, target_name, threads, taken), told)
        return

    @cache
    def make() -> Built:
        return before or _open_model(source, target_name, threads, taken)

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
        say(notes(), f"skipped: {one_line(str(error), 500)}")
        return None


def refuse_no_size(trees: Sequence[object]) -> None:
    """Raises UserError if all sizes were skipped."""
    if not trees:
        raise UserError("every size was skipped: give a size with --shapes or --input")


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


def _wanted(source: Source, unsettled: OpenSource, is_one: bool = False) -> list[tuple[tuple[int, ...], ...]]:
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
    say(notes(), f"dimensions are open: the {word} {sizes_text(tried.sizes)}; --shapes or --input give others")
    if tried.refused and not is_one:
        say(notes(), f"skipped, since the model cannot compute with them: {one_line(refused_text(tried.refused), 500)}")
    closed = {port.name: port.shape for port in ports}
    return [tuple({**closed, **shapes}[port.name] for port in ports) for shapes in tried.sizes]


def compile_sizes(source: Source, target_name: str | None, threads: int | None, taken: str | None) -> Built:
    """Compiles a model for each size of `--shapes`, the largest first. Raises UserError if no dimension is open."""
    unsettled = source.unsettled()
    if unsettled is None:
        raise click.UsageError("--shapes gives several shapes of one input, and the model has no open dimensions")
    began = time.perf_counter()
    wanted = _wanted(source, unsettled)
    with notes().status("compiling"):
        made = _open_model(source, target_name, threads, taken)
        names = [port.name for port in made.model.inputs]
        for shapes in sorted(wanted, key=lambda shapes: -sum(map(prod, shapes))):
            specialised(made.model, dict(zip(names, shapes)))
    return replace(made, seconds=time.perf_counter() - began)


def specialised(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    from stormdrop.model.open_model import OpenModel

    return model.specialise(shapes) if isinstance(model, OpenModel) else model


def models_of(model: Model) -> tuple[Model, ...]:
    """Returns a model for each compiled size."""
    from stormdrop.model.open_model import OpenModel

    return model.models if isinstance(model, OpenModel) else (model,)


def _open_model(source: Source, target_name: str | None, threads: int | None, taken: str | None) -> Built:
    """Returns a model that is compiled for each size with which it runs."""
    from stormdrop.compare.inputs import read_bound
    from stormdrop.compiler.compile import compile

    model = compile(
        source.origin(),
        schedules=(lambda task: None) if taken == "defaults" else None,
        shapes=source.shapes or None,
        constants=read_bound(source.bound),
        target=options.machine(target_name, threads),
        winograd=source.winograd,
        rules=source.rules,
        unproved=taken == "trials",
        operators=options.operators_of(source.own_operators),
        fallback=source.fallback or "none",
    )
    return Built(model, is_open=True)
