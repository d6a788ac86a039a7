"""The model of a command: a file, `zoo:NAME` or a compiled model, and options for reading and building it.

A model is read once, so that a warning of its import is printed once.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stormdrop.base.arguments import shape_from
from stormdrop.base.errors import StormdropError, UserError
from stormdrop.cli import options
from stormdrop.cli.one_size import first_size, only_size
from stormdrop.compiler import COMPILED, ZOO
from stormdrop.report.console import notes, say
from stormdrop.report.text import clean, one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stormdrop.compiler.choose import Choose
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


def shape_of(value: str) -> tuple[str, tuple[int, ...]]:
    """Parses an input and its shape: input=1x3x224x224. The name may hold anything, also another `=`."""
    name, _, extents = value.rpartition("=")
    try:
        if name:
            return name, shape_from(extents)
    except UserError:
        pass
    raise click.BadParameter(f"{value!r} is not a shape; write input=1x3x224x224")


@dataclass(frozen=True, slots=True)
class Source:
    """A model as named on the command line."""

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

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that its schedules may follow. Raises click.UsageError."""
        return options.rules_with(self.own_rules)

    @property
    def is_compiled(self) -> bool:
        return not self.model.startswith(ZOO) and self.model.endswith(COMPILED)

    @property
    def stem(self) -> str:
        """The stem of names of files made of it."""
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

    def unsettled(self) -> OpenSource | None:
        """Returns the model if it leaves dimensions open that `--shapes` does not give, else None. Raises UserError."""
        from stormdrop.compare.inputs import read_bound
        from stormdrop.compiler.specialise import open_source
        from stormdrop.frontend.parsed import parsed

        if self.model.startswith(ZOO) and not self.sizes:
            return None
        if not self.model.startswith(ZOO) and not os.path.exists(self.model):
            return None  # an error when it is opened
        origin, operators = self.origin(), options.operators_of(self.own_operators)
        return open_source(origin, parsed(origin), self.shapes, read_bound(self.bound), operators, self.fallback)

    def settings(self, taken: str | None) -> dict[str, Any]:
        """Returns the options by which another process compiles it; modules and files are named."""
        return {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "bound": list(self.bound),
            "winograd": self.winograd,
            "taken": taken,
            "rules": list(self.own_rules),
            "operators": list(self.own_operators),
        }

    @property
    def onnx(self) -> str | bytes:
        """The model as another runtime takes it: a path, or the bytes of a network of the zoo."""
        origin = self.origin()
        return origin if isinstance(origin, str) else origin.SerializeToString()

    def open(self) -> Opened:
        """Reads the model. An open batch is 1, with a note.

        Raises UserError, for other open dimensions with sizes that work; click.UsageError for an unknown network, or a
        model that is compiled already.
        """
        return self._opened(only_size)

    def open_somewhere(self) -> Opened:
        """Reads the model as `open` does, a model with open dimensions at the first size that works."""
        return self._opened(first_size)

    def _opened(self, settled: Callable[[str, OpenSource], Mapping[str, tuple[int, ...]]]) -> Opened:
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
        bound, origin = read_bound(self.bound), self.origin()
        operators = options.operators_of(self.own_operators)
        try:
            opened = open_source(origin, parsed(origin), self.shapes, bound, operators, self.fallback)
            chosen = {} if opened is None else settled(self.model, opened)
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

    def open_images(self, threads: int | None) -> tuple[Image, ...]:
        """Returns the images of a compiled model, by size, whether or not it runs here."""
        from stormdrop.model.image import Image
        from stormdrop.model.package import load_any

        self._check_settled()
        found = load_any(self.model, threads)[0]
        return (found,) if isinstance(found, Image) else found.images

    def open_compiled(self, threads: int | None, target_name: str | None = None) -> Model:
        """Reads a model that was compiled before."""
        from stormdrop.model.open_model import load_compiled

        self._check_settled()
        name, _, precision = (target_name or "").partition("/")
        if precision:
            raise click.UsageError("the precision of a compiled model is settled: leave it out")
        _, _, which = name.partition(":")
        if which.startswith("sm_"):
            raise click.UsageError("the target of a compiled model is settled: --target takes cuda:NUMBER here")
        return load_compiled(self.model, threads, int(which or 0))

    def _check_settled(self) -> None:
        """Raises click.UsageError if options for reading or building are given with a compiled model."""
        if self.shapes or self.sizes or self.bound or self.own_operators:
            told = "shapes, constants and operators of a compiled model are settled"
            raise click.UsageError(f"{told}: leave out --shapes, --bind and --operator")
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
    """The shapes that were chosen here, of inputs with open dimensions."""
    declared: Interface | None = None
    """The inputs and outputs of a model with open dimensions."""

    @property
    def inputs(self) -> Sequence[Wanted]:
        """The inputs of the model. Raises UserError for texts and sequences, which no file can give."""
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
        """Its kernels; the graph passes run each time."""
        from stormdrop.compiler.compile import tasks_of

        return tasks_of(self.graph, self.winograd)

    @property
    def tuned_parts(self) -> Partition:
        """Its kernels. Raises UserError where it has none, since another runtime computes everything."""
        if self.mixed is not None and not self.mixed.own:
            raise UserError(f"{self.mixed.summary}: nothing is left to tune")
        return self.parts

    @property
    def onnx(self) -> str | bytes:
        return self.origin if isinstance(self.origin, str) else self.origin.SerializeToString()

    def size_key(self, source: Source) -> str:
        """Returns the key of this size, if the model leaves dimensions open; else an empty key."""
        from stormdrop.compiler.compile import size_key

        return size_key(source.model, self.graph, self.bound, options.operators_of(source.own_operators))


def source_options(command: Callable[..., Any], several: bool = False) -> Any:
    """Adds the argument MODEL and its options, from `--shapes` to `--rule`, given to the command as one `source`.

    With `several`, one or more MODELs with the same options, given as `sources`.
    """

    @functools.wraps(command)
    def bundled(
        *args: Any,
        model: str | tuple[str, ...],
        shapes: tuple[tuple[str, tuple[int, ...]], ...],
        bound: tuple[str, ...],
        no_winograd: bool,
        own_rules: tuple[str, ...],
        own_operators: tuple[str, ...],
        fallback: str,
        **rest: Any,
    ) -> Any:
        sizes = _sizes(shapes)
        one_size, several_sizes = (sizes[0], ()) if len(sizes) == 1 else ({}, sizes)
        models = (model,) if isinstance(model, str) else model
        other = _fallback(fallback, models, rest.get("target_name"))
        found = tuple(
            Source(one, one_size, bound, not no_winograd, own_rules, own_operators, several_sizes, other)
            for one in models
        )
        return command(*args, **({"sources": found} if several else {"source": found[0]}), **rest)

    told = "The shape of an input that leaves it open; may be repeated, and an input named again begins another size."
    shape = click.option("--shapes", type=shape_of, multiple=True, metavar="NAME=1x3x224x224", help=told)
    told = "An input that is always this array: it becomes a constant; may be repeated."
    bind = click.option("--bind", "bound", multiple=True, metavar="NAME=FILE.npy", help=told)
    direct = click.option("--no-winograd", is_flag=True, help="Sum 3x3 convolutions directly: slower, but rounds less.")
    more: Any = {"nargs": -1, "required": True} if several else {}
    return click.argument("model", **more)(
        shape(bind(direct(options.rule(options.operator(options.fallback(bundled))))))
    )


def _fallback(name: str, models: Sequence[str], target_name: str | None) -> Fallback | None:
    """Returns the other runtime; None for compiled models and for GPUs. Raises UserError if the runtime is missing."""
    is_compiled, is_for_gpu = all(model.endswith(COMPILED) for model in models), (target_name or "host") != "host"
    if name == "onnxruntime" and (is_compiled or is_for_gpu):
        told = "a compiled model has no other runtime in it" if is_compiled else "a GPU has no other runtime"
        raise click.UsageError(f"{told}: leave out --fallback")
    if is_compiled or is_for_gpu:
        return None
    from stormdrop.model.fallback import fallback_of

    return fallback_of(name, lambda line: say(notes(), one_line(line, 500)))


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


def taken_option(command: Any) -> Any:
    """Adds `--untuned` and `--unproved`, given to the command as one `taken`: the choice of schedules."""
    told = "Take the fastest trial, although unproved, for kernels without a verdict of tuning."
    command = click.option("--unproved", "taken", flag_value="trials", help=told)(command)
    told = "Take default schedules for all kernels, regardless of the store."
    return click.option("--untuned", "taken", flag_value="defaults", help=told)(command)


_told = "Run this file, made of MODEL with `stormdrop compile`, instead of compiling."
compiled_option = click.option("--compiled", type=click.Path(), metavar="FILE.sd", help=_told)


def input_options(command: Any) -> Any:
    told = "An input; or FILE.npz with several by name; may be repeated.  [default: random]"
    given = click.option("--input", "given", multiple=True, metavar="NAME=FILE.npy", help=told)
    return given(options.seed("random inputs")(command))


def choices_for(parts: Partition, target: Target, taken: str | None, rules: tuple[Rule, ...]) -> Choose:
    """Returns the choices for a model's tasks. A line names a store that cannot be read; defaults follow.

    `taken` is `defaults`, `trials`, or None: verdicts.
    """
    from stormdrop.compiler.choose import Choice
    from stormdrop.compiler.stored import stored_schedules

    def unreadable(error: StormdropError) -> None:
        say(notes(), f"default schedules are used, since the store cannot be read: {one_line(str(error))}")

    if taken == "defaults":
        return lambda task: Choice()
    return stored_schedules(target, rules, parts.digest, taken == "trials", unreadable)


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A model that runs, and figures of its compilation; None for a model that was compiled before."""

    model: Model
    tasks: int | None = None
    stored: int | None = None
    seconds: float | None = None
    is_open: bool = False
    """It is compiled for each size when it is run."""

    @property
    def told(self) -> str:
        """The source of its schedules, as text."""
        if self.is_open:
            return "compiled for each size"
        if self.tasks is None:
            return "compiled before"
        if self.stored == self.tasks:
            return "all kernels as the store knows them"
        if not self.stored:
            return "all kernels by default, none is in the store"
        return f"{self.stored} of {self.tasks} tasks from the store, the others by default"


def built(
    source: Source,
    opened: Opened | None,
    compiled: str | None,
    target_name: str | None,
    threads: int | None,
    taken: str | None,
) -> Built:
    """Compiles a model, or reads a compiled model: `compiled`, or the source itself if it is compiled."""
    if compiled is not None:
        if not compiled.endswith(COMPILED):
            raise click.UsageError(f"--compiled takes a file that ends in {COMPILED}")
        return Built(Source(compiled, {}, ()).open_compiled(threads, target_name))
    if opened is None and source.is_compiled:
        return Built(source.open_compiled(threads, target_name))
    target = options.machine(target_name, threads)
    return compile_model(source.open() if opened is None else opened, target, taken, source.rules)


def compile_model(opened: Opened, target: Target, taken: str | None, rules: tuple[Rule, ...]) -> Built:
    """Compiles a model, with a line on the terminal that shows the progress."""
    from rich.text import Text

    from stormdrop.compiler.choose import Origin
    from stormdrop.compiler.compile import tasks_of
    from stormdrop.compiler.model_build import build_model
    from stormdrop.model.mixed import mixed_model

    console = notes()
    began = time.perf_counter()
    asked, known = 0, 0
    with console.status("compiling") as status:

        def tell(text: str) -> None:
            status.update(Text(one_line(text)))

        def build(parts: Partition) -> Model:
            nonlocal asked, known
            choose = choices_for(parts, target.with_weights(parts.constant_bytes), taken, rules)
            model = build_model(parts, target, choose, rules, tell=tell)
            asked += len(model.origins)
            known += sum(origin != Origin.DEFAULT for origin in model.origins.values())
            return model

        if opened.mixed is None:
            model = build(opened.parts)
        else:
            model = mixed_model(opened.mixed, target.threads, lambda graph: build(tasks_of(graph, opened.winograd)))
    return Built(model, asked, known, time.perf_counter() - began)
