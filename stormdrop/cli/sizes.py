"""The sizes at which a command runs a model: one where all shapes are settled, else what its options say.

Open dimensions take their sizes from `--input` files, else from each `--shapes`, else three sizes are tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import click

from stormdrop.cli import options
from stormdrop.cli.source import Built, Opened, Source, built, built_mixed, closed_ports
from stormdrop.report.console import notes, say

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stormdrop.driver.mixed import MixedModel
    from stormdrop.driver.specialise import OpenSource
    from stormdrop.runtime.image import OpenPort, Port
    from stormdrop.runtime.model import Model
    from stormdrop.runtime.open_model import OpenModel

    Arrays = Mapping[str, NDArray[Any]]

FIRST_SIZES = (1, 2, 5)
"""Of an input's first dimension, which is a batch more often than not."""
OTHER_SIZES = (32, 48, 65)


@dataclass(frozen=True, slots=True, eq=False)
class Sized:
    """A model at one size: its graph where there is one, arrays for its inputs, and what makes the model that runs.

    `told` names the shapes where there is more than one size.
    """

    opened: Opened | None
    arrays: Arrays
    make: Callable[[], Built]
    told: str = ""

    @property
    def shown(self) -> str:
        """Behind a title."""
        return f" at {self.told}" if self.told else ""


@dataclass(frozen=True, slots=True, eq=False)
class MixedBuilt:
    """A model of which another runtime may run a part."""

    model: Model | MixedModel


@dataclass(frozen=True, slots=True, eq=False)
class MixedSized:
    """Such a model at its one size, used as a `Sized` is."""

    arrays: Arrays
    built: MixedBuilt
    opened: None = None
    told: str = ""
    shown: str = ""

    def make(self) -> MixedBuilt:
        return self.built


def one_or_sizes(trees: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The JSON of a command: that of its one size, or that of each."""
    return trees[0] if len(trees) == 1 else {"sizes": list(trees)}


def sizes_of(
    source: Source,
    given: tuple[str, ...],
    seed: int,
    compiled: str | None,
    target_name: str | None,
    threads: int | None,
    taken: str | None,
) -> Iterator[Sized]:
    """Each size in turn. What is wrong with the inputs is told before anything is compiled."""
    from stormdrop.compare.inputs import read_inputs
    from stormdrop.runtime.arrays import random_inputs
    from stormdrop.runtime.open_model import OpenModel

    is_before = compiled is not None or source.is_compiled
    before = built(source, None, compiled, target_name, threads, taken) if is_before else None
    unsettled = None if source.is_compiled else source.unsettled()
    if before is not None and isinstance(before.model, OpenModel):
        ports, wanted = _ports(before.model), None if given else before.model.shapes
    elif unsettled is not None:
        ports, wanted = _declared(unsettled), None if given else _wanted(source, unsettled)
    else:
        opened = None if source.is_compiled else source.open()
        inputs = before.model.inputs if opened is None and before is not None else opened.graph.inputs if opened else ()
        arrays = read_inputs(given, inputs) if given else random_inputs(inputs, seed)
        yield Sized(opened, arrays, lambda: before or built(source, opened, None, target_name, threads, taken))
        return

    @cache
    def make() -> Built:
        return before or _open_model(source, target_name, threads, taken)

    if given:
        arrays = read_inputs(given, ports)
        shapes = {name: array.shape for name, array in arrays.items()}
        yield Sized(None if source.is_compiled else source.at(shapes).open(), arrays, make)
        return
    for shapes in wanted or ():
        named = {port.name: shape for port, shape in zip(ports, shapes)}
        opened = None if source.is_compiled else source.at(named).open()
        told = ", ".join(f"{name}={'x'.join(map(str, shape))}" for name, shape in named.items())
        yield Sized(opened, random_inputs([_at(p, s) for p, s in zip(ports, shapes)], seed), make, told)


def mixed_size(
    source: Source, given: tuple[str, ...], seed: int, threads: int | None, taken: str | None, fallback: str
) -> MixedSized:
    """A model of which `fallback` may run a part, at its one size."""
    from stormdrop.compare.inputs import read_inputs
    from stormdrop.runtime.arrays import random_inputs

    model = built_mixed(source, threads, taken, fallback)
    ports = closed_ports(model.inputs)
    arrays = read_inputs(given, ports) if given else random_inputs(ports, seed)
    return MixedSized(arrays, MixedBuilt(model))


def _at(port: OpenPort, shape: tuple[int, ...]) -> Port:
    from stormdrop.runtime.image import Port

    return Port(port.name, shape, port.dtype)


def _ports(model: OpenModel) -> Sequence[OpenPort]:
    from stormdrop.runtime.image import OpenPort

    return [port for port in model.inputs if isinstance(port, OpenPort)]


def _declared(unsettled: OpenSource) -> Sequence[OpenPort]:
    from stormdrop.runtime.image import OpenPort

    return [OpenPort.of(p.name, p.dimensions, p.dtype) for p in unsettled.interface.inputs]


def _wanted(source: Source, unsettled: OpenSource) -> list[tuple[tuple[int, ...], ...]]:
    """The shapes of all inputs, for each `--shapes`, or for three sizes that are told."""
    from stormdrop.runtime.open_model import complete_shapes

    ports = _declared(unsettled)
    if source.sizes:
        with options.wrong_usage():
            return [complete_shapes(ports, shapes) for shapes in source.sizes]
    unknown = [port.name for port in ports if port.dimensions is None]
    if unknown:
        raise click.UsageError(f"the input {unknown[0]} has no shape; give one with --shapes, or an array with --input")
    firsts = {port.dimensions[0] for port in ports if port.dimensions}
    say(notes(), "dimensions are open: three sizes are tried; --shapes or --input give others")

    def size(d: int | str, k: int) -> int:
        return d if isinstance(d, int) else FIRST_SIZES[k] if d in firsts else OTHER_SIZES[k]

    return [tuple(tuple(size(d, k) for d in p.dimensions or ()) for p in ports) for k in range(len(FIRST_SIZES))]


def compile_sizes(source: Source, target_name: str | None, threads: int | None, taken: str | None) -> Built:
    """A model compiled for each size that `--shapes` gives, the largest first. Raises UserError where none is open."""
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
    from stormdrop.runtime.open_model import OpenModel

    return model.specialise(shapes) if isinstance(model, OpenModel) else model


def models_of(model: Model) -> tuple[Model, ...]:
    """A model for each size that is compiled."""
    from stormdrop.runtime.open_model import OpenModel

    return model.models if isinstance(model, OpenModel) else (model,)


def _open_model(source: Source, target_name: str | None, threads: int | None, taken: str | None) -> Built:
    """A model that is compiled for each size it is run with."""
    from stormdrop.compare.inputs import read_bound
    from stormdrop.driver.compile import compile

    model = compile(
        source.origin(),
        schedules=(lambda task: None) if taken == "defaults" else None,
        shapes=source.shapes or None,
        constants=read_bound(source.bound),
        target=options.machine(target_name, threads),
        winograd=source.winograd,
        rules=source.rules,
        unproved=taken == "trials",
        reuse="off" if taken == "verdicts" else "predicted",
        operators=options.operators_of(source.own_operators),
    )
    return Built(model, is_open=True)
