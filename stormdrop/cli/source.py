"""The model of a command: a file, `zoo:NAME` or a compiled model, with the options for reading and compiling it.

A model is read once, so that a warning of its import is printed once. `compile_model` of `stormdrop.compiler.compile`
compiles all models; the functions here only print its events.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from stormdrop.base.arguments import shape_from
from stormdrop.base.errors import UserError
from stormdrop.cli import options
from stormdrop.compiler import COMPILED, ZOO
from stormdrop.report.console import notes, say
from stormdrop.report.text import clean, one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stormdrop.compiler.choose import Choose
    from stormdrop.compiler.options import CompileOptions, Event, Listen
    from stormdrop.compiler.specialise import OpenSource
    from stormdrop.device.arrays import Wanted
    from stormdrop.frontend.mixed import MixedGraph
    from stormdrop.frontend.open_dimensions import Interface
    from stormdrop.graph.graph import Graph
    from stormdrop.graph.partition import Partition
    from stormdrop.model.fallback import Fallback
    from stormdrop.model.image import Image
    from stormdrop.model.model import Model
    from stormdrop.space.rules import Rule
    from stormdrop.target.machine import Target

    Array = NDArray[Any]

Schedules = Literal["verdicts", "trials", "defaults"]
LONGEST = 500
"""Characters of a remark, which may quote a name of any length."""


def shape_of(value: str) -> tuple[str, tuple[int, ...]]:
    """Parses an input and its shape: input=1x3x224x224. The name may contain anything, also another `=`."""
    name, _, extents = value.rpartition("=")
    try:
        if name:
            return name, shape_from(extents)
    except UserError:
        pass
    raise click.BadParameter(f"{value!r} is not a shape; write input=1x3x224x224")


@dataclass(frozen=True, slots=True)
class Source:
    """A model as named on the command line, and the options of its command."""

    model: str
    shapes: Mapping[str, tuple[int, ...]]
    bound: tuple[str, ...]
    """NAME=FILE, not yet read."""
    winograd: bool = True
    own_rules: tuple[str, ...] = ()
    """package.module:Class, not yet imported."""
    own_operators: tuple[str, ...] = ()
    """package.module:NAME, not yet imported."""
    sizes: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    """The shapes of each size, if `--shapes` gives an input several shapes; `shapes` is empty then."""
    fallback: Fallback | None = None
    """The other runtime; without one, operators that are not supported are refused."""
    target_name: str | None = None
    threads: int | None = None
    schedules: Schedules = "verdicts"
    """The schedules to use: verdicts of tuning, else the fastest trials, or defaults alone."""
    compiled: str | None = None
    """The compiled model to run in place of this model."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that schedules may follow. Raises click.UsageError."""
        return options.rules_with(self.own_rules)

    @property
    def is_compiled(self) -> bool:
        return not self.model.startswith(ZOO) and self.model.endswith(COMPILED)

    @property
    def is_built(self) -> bool:
        """True if the command runs a model that was compiled before."""
        return self.compiled is not None or self.is_compiled

    @property
    def stem(self) -> str:
        """The stem of the names of files made of the model."""
        return self.model.removeprefix(ZOO) if self.model.startswith(ZOO) else Path(self.model).stem

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> Source:
        """Returns the model at one size."""
        return replace(self, shapes=shapes, sizes=())

    def each_size(self) -> tuple[Source, ...]:
        """Returns the model at each size that `--shapes` gives; without several sizes, the model itself."""
        return tuple(map(self.at, self.sizes)) or (self,)

    def origin(self) -> Any:
        """Returns the model for other parts of Stormdrop: a path, or a network of the zoo as an ONNX model."""
        from stormdrop.compiler.compile import network

        return network(self.model, self.shapes, bool(self.sizes)) if self.model.startswith(ZOO) else self.model

    @property
    def operators(self) -> tuple[Any, ...]:
        """The operators of `--operator`. Raises click.UsageError."""
        return options.operators_of(self.own_operators)

    def target(self) -> Target:
        """Returns the target of `--target` and `--threads`. Raises UserError."""
        return options.machine(self.target_name, self.threads)

    def unsettled(self) -> OpenSource | None:
        """Returns the model if it leaves dimensions open that `--shapes` does not give, else None. Raises UserError."""
        from stormdrop.compare.inputs import read_bound
        from stormdrop.compiler.specialise import open_source
        from stormdrop.frontend.parsed import parsed

        if self.model.startswith(ZOO) and not self.sizes:
            return None
        if not self.model.startswith(ZOO) and not os.path.exists(self.model):
            return None  # an error when it is opened
        origin = self.origin()
        return open_source(origin, parsed(origin), self.shapes, read_bound(self.bound), self.operators, self.fallback)

    def settings(self) -> dict[str, Any]:
        """Returns the options by which another process compiles the model; modules and files are named."""
        return {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "bound": list(self.bound),
            "winograd": self.winograd,
            "schedules": self.schedules,
            "rules": list(self.own_rules),
            "operators": list(self.own_operators),
        }

    def compile_options(self, **reading: Any) -> CompileOptions:
        """Returns the options of compiling; `reading` has the options of a model that is not read yet."""
        from stormdrop.compiler.options import CompileOptions, MachineOptions, ReadOptions

        return CompileOptions(
            read=ReadOptions(winograd=self.winograd, **reading),
            machine=MachineOptions(target=self.target()),
            rules=self.rules,
            schedules=(lambda task: None) if self.schedules == "defaults" else None,
            unproved=self.schedules == "trials",
        )

    def choices(self, parts: Partition, target: Target) -> Choose:
        """Returns the choices of compiling for a model's tasks."""
        from stormdrop.compiler.compile import choices

        return choices(parts, target, self.compile_options(), announce)

    def open(self, is_any_size: bool = False) -> Opened:
        """Reads the model. An open batch is 1, with a note; with `is_any_size`, other open dimensions get the first
        size that works.

        Raises UserError, for other open dimensions with a size that works; click.UsageError for an unknown network, or
        a model that is compiled already.
        """
        from stormdrop.compare.inputs import read_bound
        from stormdrop.compiler.compile import load_parts
        from stormdrop.compiler.specialise import open_source
        from stormdrop.frontend.mixed import MixedGraph
        from stormdrop.frontend.node_reader import NeedsConstant
        from stormdrop.frontend.parsed import parsed
        from stormdrop.operators.node import shown
        from stormdrop.zoo import describe, names

        if self.is_compiled:
            raise click.UsageError(f"{clean(self.model)} is compiled already: this needs the model it was made of")
        in_zoo = self.model.startswith(ZOO)
        if in_zoo:
            with options.wrong_usage():
                describe(self.model.removeprefix(ZOO))
        if self.sizes:
            raise click.UsageError("--shapes gives several shapes of one input; this takes one size")
        bound, origin, operators = read_bound(self.bound), self.origin(), self.operators
        try:
            opened = open_source(origin, parsed(origin), self.shapes, bound, operators, self.fallback)
            chosen = {} if opened is None else self._chosen(opened, is_any_size)
            read = load_parts(origin, {**self.shapes, **chosen}, bound, operators, fallback=self.fallback)
            graph, mixed = (read.native, read) if isinstance(read, MixedGraph) else (read, None)
            return Opened(graph, origin, bound, self.winograd, mixed, chosen, opened and opened.interface)
        except NeedsConstant as error:
            inputs = {i.name for i in parsed(origin).proto.graph.input}
            hint = f" (here: --bind {shown(error.value)}=FILE.npy)" if error.value in inputs else ""
            raise UserError(f"{error}{hint}") from error
        except UserError as error:
            if in_zoo or os.path.exists(self.model):
                raise
            hint = f"; the zoo has one: {ZOO}{self.stem}" if self.stem in names() else ""
            raise UserError(f"{error}{hint}") from error

    def _chosen(self, opened: OpenSource, is_any_size: bool) -> Mapping[str, tuple[int, ...]]:
        """Returns shapes for the open dimensions, with a note."""
        from stormdrop.compiler.open_sizes import OpenSizes, batch_text
        from stormdrop.ir.shape import shapes_text

        sizes = OpenSizes.of(opened)
        shapes = sizes.batch_of_one()
        if shapes is not None:
            text = batch_text(self.model, shapes)
        elif is_any_size:
            (shapes,) = sizes.first().sizes
            text = f"dimensions are open: {shapes_text(shapes)} is taken"
        else:
            command = functools.partial(options.command_with, model=self.model)
            raise sizes.needed(self.model, lambda shapes: command(options.shape_arguments(shapes)))
        remark(f"{text}; --shapes gives another size")
        return shapes

    def open_images(self) -> tuple[Image, ...]:
        """Returns the images of a compiled model, by size, whether or not it runs here."""
        from stormdrop.model.image import Image
        from stormdrop.model.package import load_any

        self._check_settled()
        loaded = load_any(self.model, self.threads)[0]
        return (loaded,) if isinstance(loaded, Image) else loaded.images

    def open_compiled(self) -> Model:
        """Opens the compiled model of `--compiled`, or of the command."""
        from stormdrop.model.open_model import load

        if self.compiled is None:
            self._check_settled()
        elif not self.compiled.endswith(COMPILED):
            raise click.UsageError(f"--compiled takes a file that ends in {COMPILED}")
        name, _, precision = (self.target_name or "").partition("/")
        if precision:
            raise click.UsageError("the precision of a compiled model is settled: leave it out")
        _, _, which = name.partition(":")
        if which.startswith("sm_"):
            raise click.UsageError("the target of a compiled model is settled: --target takes cuda:NUMBER here")
        return load(self.compiled or self.model, self.threads, int(which or 0))

    def _check_settled(self) -> None:
        """Raises click.UsageError if options for reading or building are given with a compiled model."""
        if self.shapes or self.sizes or self.bound or self.own_operators:
            fault = "shapes, constants and operators of a compiled model are settled"
            raise click.UsageError(f"{fault}: leave out --shapes, --bind and --operator")
        if not self.winograd or self.own_rules:
            raise click.UsageError("how a compiled model is computed is settled: leave out --no-winograd and --rule")


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A model as a graph, and where another runtime finds it: a path, or an ONNX model in memory.

    The graph of a model in parts (`mixed`) holds the native parts side by side.
    """

    graph: Graph
    origin: Any
    bound: Mapping[str, Array]
    winograd: bool = True
    mixed: MixedGraph | None = None
    chosen: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """The shapes that this command chose for inputs with open dimensions."""
    declared: Interface | None = None
    """The inputs and outputs of a model with open dimensions."""

    @property
    def inputs(self) -> Sequence[Wanted]:
        """The inputs of the model. Raises UserError for texts and sequences, which no file can hold."""
        from stormdrop.model.mixed import ForeignPort, port_of

        ports = self.graph.inputs if self.mixed is None else [port_of(p) for p in self.mixed.inputs]
        for p in ports:
            if isinstance(p, ForeignPort):
                raise UserError(f"the input {p!r} cannot be given on the command line")
        return ports

    @property
    def output_count(self) -> int:
        return len((self.mixed or self.graph).outputs)

    @property
    def parts(self) -> Partition:
        """The tasks of the model; the graph passes run each time."""
        from stormdrop.compiler.compile import tasks_of

        return tasks_of(self.graph, self.winograd)

    @property
    def tuned_parts(self) -> Partition:
        """The tasks of the model. Raises UserError if another runtime computes everything."""
        if self.mixed is not None and not self.mixed.own:
            raise UserError(f"{self.mixed.summary}: nothing is left to tune")
        return self.parts

    @property
    def onnx(self) -> str | bytes:
        """The model for another runtime: a path, or the bytes of a network of the zoo."""
        return self.origin if isinstance(self.origin, str) else self.origin.SerializeToString()

    def size_key(self, source: Source) -> str:
        """Returns the key of this size, if the model leaves dimensions open; else an empty key."""
        from stormdrop.compiler.compile import size_key

        return size_key(source.model, self.graph, self.bound, source.operators)


def source_options(command: Callable[..., Any], several: bool = False) -> Any:
    """Adds the argument MODEL and its options, from `--shapes` to `--rule`, given to the command as one `source`.

    With `several`, one or more MODELs with the same options, given as `sources`.
    """

    @functools.wraps(command)
    def bundled(
        *args: Any,
        model: str | tuple[str, ...],
        shapes: tuple[tuple[str, tuple[int, ...]], ...],
        fallback: str,
        **rest: Any,
    ) -> Any:
        sizes = _sizes(shapes)
        given: dict[str, Any] = {name: rest.pop(name) for name in ("bound", "winograd", "own_rules", "own_operators")}
        given |= {"shapes": sizes[0], "sizes": ()} if len(sizes) == 1 else {"shapes": {}, "sizes": sizes}
        models = (model,) if isinstance(model, str) else model
        given["fallback"] = _fallback(fallback, models, rest.get("target_name"))
        sources = tuple(Source(one, **given) for one in models)
        return command(*args, **({"sources": sources} if several else {"source": sources[0]}), **rest)

    text = "The shape of an input that leaves it open; may be repeated, and an input named again begins another size."
    shape = click.option("--shapes", type=shape_of, multiple=True, metavar="NAME=1x3x224x224", help=text)
    text = "An input that is always this array: it becomes a constant; may be repeated."
    bind = click.option("--bind", "bound", multiple=True, metavar="NAME=FILE.npy", help=text)
    text = "Sum 3x3 convolutions directly: slower, but rounds less."
    direct = click.option("--no-winograd", "winograd", flag_value=False, default=True, help=text)
    more: Any = {"nargs": -1, "required": True} if several else {}
    return click.argument("model", **more)(
        shape(bind(direct(options.rule(options.operator(options.fallback(bundled))))))
    )


def schedule_options(command: Any) -> Any:
    """Adds `--untuned` and `--unproved`, which `machine_options` puts into the `source`."""
    text = "Take the fastest trial, although unproved, for kernels without a verdict of tuning."
    command = click.option("--unproved", "schedules", flag_value="trials", help=text)(command)
    text = "Take default schedules for all kernels, regardless of the store."
    return click.option("--untuned", "schedules", flag_value="defaults", help=text)(command)


def machine_options(command: Callable[..., Any]) -> Any:
    """Adds the options of `options.on_models`, given to the command as a part of its `source`, and `as_json`."""

    @functools.wraps(command)
    def bundled(
        *args: Any,
        source: Source,
        target_name: str | None,
        threads: int | None,
        schedules: Schedules | None = None,
        compiled: str | None = None,
        **rest: Any,
    ) -> Any:
        machine: dict[str, Any] = {"target_name": target_name, "threads": threads}
        changed = replace(source, schedules=schedules or "verdicts", compiled=compiled, **machine)
        return command(*args, source=changed, **rest)

    return options.on_models(bundled)


def _fallback(name: str, models: Sequence[str], target_name: str | None) -> Fallback | None:
    """Returns the other runtime; None for compiled models and for GPUs. Raises UserError if the runtime is missing."""
    is_compiled, is_for_gpu = all(model.endswith(COMPILED) for model in models), (target_name or "host") != "host"
    if name == "onnxruntime" and (is_compiled or is_for_gpu):
        fault = "a compiled model has no other runtime in it" if is_compiled else "a GPU has no other runtime"
        raise click.UsageError(f"{fault}: leave out --fallback")
    if is_compiled or is_for_gpu:
        return None
    from stormdrop.model.fallback import fallback_of

    return fallback_of(name, remark)


def _sizes(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Returns the shapes of each size: an input that is named again begins the next size. Without any, one
    empty size.
    """
    sizes: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in shapes:
        if name in sizes[-1]:
            sizes.append({})
        sizes[-1][name] = shape
    return tuple(sizes)


_text = "Run this file, made of MODEL with `stormdrop compile`, instead of compiling."
compiled_option = click.option("--compiled", type=click.Path(), metavar="FILE.sd", help=_text)


def input_options(command: Any) -> Any:
    text = "An input; or FILE.npz with several by name; may be repeated.  [default: random]"
    given = click.option("--input", "given", multiple=True, metavar="NAME=FILE.npy", help=text)
    return given(options.seed("random inputs")(command))


def remark(text: str) -> None:
    """Prints a remark in one line."""
    say(notes(), one_line(text, LONGEST))


def announce(event: Event) -> None:
    """Prints the events of compiling that are no progress."""
    from stormdrop.compiler.options import Placed, StoreUnreadable

    if isinstance(event, (Placed, StoreUnreadable)):
        remark(str(event))


@contextmanager
def status() -> Generator[Listen]:
    """Shows the progress of compiling in a line on the terminal, and prints other events."""
    from rich.text import Text

    with notes().status("compiling") as line:

        def listen(event: Event) -> None:
            line.update(Text(one_line(str(event))))
            announce(event)

        yield listen


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A model that runs; `seconds` is the time of its compilation, None for a model that was compiled before."""

    model: Model
    seconds: float | None = None
    is_open: bool = False
    """True if the model is compiled for each size when it is run."""

    @property
    def tasks(self) -> int:
        return len(self.model.origins)

    @property
    def stored(self) -> int:
        """The number of tasks with a schedule of the store."""
        from stormdrop.compiler.choose import Origin

        return sum(origin != Origin.DEFAULT for origin in self.model.origins.values())

    @property
    def schedules_text(self) -> str:
        """The source of the schedules, as text."""
        if self.is_open:
            return "compiled for each size"
        if self.seconds is None:
            return "compiled before"
        if self.stored == self.tasks:
            return "all kernels as the store knows them"
        if not self.stored:
            return "all kernels by default, none is in the store"
        return f"{self.stored} of {self.tasks} tasks from the store, the others by default"


def built(source: Source, opened: Opened | None = None) -> Built:
    """Compiles a model at one size, which may be read already. A compiled model, or `--compiled`, is opened instead."""
    from stormdrop.compiler.compile import compile_model

    if source.is_built:
        return Built(source.open_compiled())
    opened = source.open() if opened is None else opened
    began = time.perf_counter()
    with status() as listen:
        model = compile_model(opened.mixed or opened.graph, source.compile_options(), listen)
    return Built(model, time.perf_counter() - began)


def built_open(source: Source, ahead: Sequence[Mapping[str, tuple[int, ...]]] = ()) -> Built:
    """Compiles a model for the sizes of `ahead`; the model is compiled for other sizes when it is run."""
    from stormdrop.compare.inputs import read_bound
    from stormdrop.compiler.compile import compile_model

    reading: dict[str, Any] = {"constants": read_bound(source.bound), "operators": source.operators}
    reading |= {"shapes": list(ahead) or source.shapes or None, "fallback": source.fallback or "none"}
    began = time.perf_counter()
    with status() as listen:
        model = compile_model(source.origin(), source.compile_options(**reading), listen)
    return Built(model, time.perf_counter() - began, is_open=True)
