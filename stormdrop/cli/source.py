"""The model that a command names: a file, `zoo:NAME` or one compiled before, and options for reading and building it.

A model is read once, so whatever reading it warns of is said once.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stormdrop.cli import options
from stormdrop.driver import COMPILED, ZOO
from stormdrop.errors import StormdropError, UserError
from stormdrop.report.console import notes, say
from stormdrop.report.text import clean, one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

    from stormdrop.driver.stored import Schedules
    from stormdrop.graph.graph import Graph
    from stormdrop.graph.partition import Partition
    from stormdrop.ir.tensor import Task
    from stormdrop.reservoir.verdict import Verdict
    from stormdrop.runtime.model import Model
    from stormdrop.space.rules import Rule
    from stormdrop.space.schedule import Schedule
    from stormdrop.target.machine import Target

    Array = NDArray[Any]


def shape_of(value: str) -> tuple[str, tuple[int, ...]]:
    """An input and its shape: input=1x3x224x224. The name may hold anything, also another `=`."""
    name, found, extents = value.rpartition("=")
    if not found or not name or not re.fullmatch(r"(\d+([x×,]\d+)*)?", extents):
        raise click.BadParameter(f"{value!r} is not a shape; write input=1x3x224x224")
    return name, tuple(int(n) for n in re.split("[x×,]", extents) if n)


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

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What its schedules may follow. Raises click.UsageError."""
        return options.rules_with(self.own_rules)

    @property
    def is_compiled(self) -> bool:
        return not self.model.startswith(ZOO) and self.model.endswith(COMPILED)

    @property
    def stem(self) -> str:
        """What a file made of it is called."""
        return self.model.removeprefix(ZOO) if self.model.startswith(ZOO) else Path(self.model).stem

    def open(self) -> Opened:
        """Read it. Raises UserError; click.UsageError for an unknown network, or a model that is compiled already."""
        from stormdrop.compare.inputs import read_bound
        from stormdrop.driver.compile import load, network
        from stormdrop.frontend.node_reader import NeedsConstant
        from stormdrop.graph.graph import shown
        from stormdrop.zoo import names
        from stormdrop.zoo.catalogue import describe

        if self.is_compiled:
            raise click.UsageError(f"{clean(self.model)} is compiled already: this needs the model it was made of")
        in_zoo = self.model.startswith(ZOO)
        if in_zoo:
            with options.wrong_usage():
                describe(self.model.removeprefix(ZOO))
        bound = read_bound(self.bound)
        origin: Any = network(self.model, self.shapes) if in_zoo else self.model
        try:
            graph = load(origin, self.shapes, bound, options.operators_of(self.own_operators))
            return Opened(graph, origin, bound, self.winograd)
        except NeedsConstant as error:
            raise UserError(f"{error} (here: --bind {shown(error.value)}=FILE.npy)") from error
        except UserError as error:
            if in_zoo or os.path.exists(self.model):
                raise
            hint = f"; the zoo has one: {ZOO}{self.stem}" if self.stem in names() else ""
            raise UserError(f"{error}{hint}") from error

    def open_compiled(self, threads: int | None) -> Model:
        """Read a model that was compiled before; what says how to read another one has no place beside it."""
        from stormdrop.runtime.open_model import load_compiled

        if self.shapes or self.bound or self.own_operators:
            told = "shapes, constants and operators of a compiled model are settled"
            raise click.UsageError(f"{told}: leave out --shapes, --bind and --operator")
        if not self.winograd or self.own_rules:
            raise click.UsageError("how a compiled model is computed is settled: leave out --no-winograd and --rule")
        return load_compiled(self.model, threads)


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A model as a graph, and where another runtime finds it: a path, or an ONNX model in memory."""

    graph: Graph
    origin: Any
    bound: Mapping[str, Array]
    winograd: bool = True

    @property
    def parts(self) -> Partition:
        """Its kernels; the graph passes run each time."""
        from stormdrop.driver.compile import tasks_of

        return tasks_of(self.graph, self.winograd)

    @property
    def onnx(self) -> str | bytes:
        return self.origin if isinstance(self.origin, str) else self.origin.SerializeToString()


def source_options(command: Callable[..., Any], several: bool = False) -> Any:
    """The argument MODEL and its options, from `--shapes` to `--rule`, given to the command as one `source`.

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
        **rest: Any,
    ) -> Any:
        if len(dict(shapes)) < len(shapes):
            raise click.UsageError("--shapes gives the shape of one input twice")
        models = (model,) if isinstance(model, str) else model
        found = tuple(Source(one, dict(shapes), bound, not no_winograd, own_rules, own_operators) for one in models)
        return command(*args, **({"sources": found} if several else {"source": found[0]}), **rest)

    told = "The shape of an input that leaves it open; may be repeated."
    shape = click.option("--shapes", type=shape_of, multiple=True, metavar="NAME=1x3x224x224", help=told)
    told = "An input that is always this array: it becomes a constant; may be repeated."
    bind = click.option("--bind", "bound", multiple=True, metavar="NAME=FILE.npy", help=told)
    direct = click.option("--no-winograd", is_flag=True, help="Sum 3x3 convolutions directly: slower, but rounds less.")
    more: Any = {"nargs": -1, "required": True} if several else {}
    return click.argument("model", **more)(shape(bind(direct(options.rule(options.operator(bundled))))))


def taken_option(command: Any) -> Any:
    """Which schedules are taken: `--untuned` or `--unproved`, given to the command as one `taken`."""
    told = "Take default schedules for all kernels, whatever the store knows."
    untuned = click.option("--untuned", "taken", flag_value="defaults", help=told)
    told = "Where tuning has decided nothing, take the fastest trial, though nobody proved it."
    return untuned(click.option("--unproved", "taken", flag_value="trials", help=told)(command))


_told = "Run this file, made of MODEL with `stormdrop compile`, instead of compiling."
compiled_option = click.option("--compiled", type=click.Path(), metavar="FILE.sd", help=_told)


def input_options(command: Any) -> Any:
    told = "An input; or FILE.npz with several by name; may be repeated.  [default: random]"
    given = click.option("--input", "given", multiple=True, metavar="NAME=FILE.npy", help=told)
    return given(options.seed("random inputs")(command))


@dataclass(slots=True)
class Chosen:
    """Schedules for a model's tasks, and how many the store knew; a store that cannot be read is told of once."""

    target: Target
    taken: str | None
    """`defaults`, `trials`, or None: verdicts."""
    console: Console
    rules: tuple[Rule, ...]
    model: str
    """The digest of the partition."""
    tell: Callable[[str], None] = lambda _: None
    asked: int = 0
    known: set[str] = field(default_factory=set[str])
    _stored: Schedules | None = None

    def __call__(self, task: Task) -> Schedule | Verdict | None:
        self.asked += 1
        self.tell(f"{self.asked} kernels: {task.name}")
        if self.taken == "defaults":
            return None
        try:
            if self._stored is None:
                from stormdrop.driver.stored import stored_schedules

                self._stored = stored_schedules(self.target, self.rules, self.model, self.taken == "trials")
            found = self._stored(task)
        except StormdropError as error:
            self.taken = "defaults"
            say(self.console, f"default schedules are used, since the store cannot be read: {one_line(str(error))}")
            return None
        if found is not None:
            self.known.add(task.digest)
        return found

    def renew(self, verdicts: Sequence[Verdict]) -> None:
        from stormdrop.driver.stored import Renews

        if isinstance(self._stored, Renews):
            self._stored.renew(verdicts)


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A model that runs, and what is known of how it was made: nothing, where it was compiled before."""

    model: Model
    tasks: int | None = None
    stored: int | None = None
    seconds: float | None = None

    @property
    def told(self) -> str:
        """Where its schedules come from."""
        if self.tasks is None:
            return "compiled before"
        if not self.stored:
            return "all kernels by default, none is in the store"
        if self.stored == self.tasks:
            return "all kernels as the store knows them"
        return f"{self.stored} of {self.tasks} tasks from the store, the others by default"


def built(source: Source, opened: Opened | None, compiled: str | None, threads: int | None, taken: str | None) -> Built:
    """Compile a model, or read what was compiled: `compiled`, or the source itself where it is that."""
    if compiled is not None:
        if not compiled.endswith(COMPILED):
            raise click.UsageError(f"--compiled takes a file that ends in {COMPILED}")
        return Built(Source(compiled, {}, ()).open_compiled(threads))
    if opened is None and source.is_compiled:
        return Built(source.open_compiled(threads))
    return compile_model(source.open() if opened is None else opened, threads, taken, source.rules)


def compile_model(opened: Opened, threads: int | None, taken: str | None, rules: tuple[Rule, ...]) -> Built:
    """With a line on the terminal that says how far it is."""
    from rich.text import Text

    from stormdrop.driver.compile import build_model, suited
    from stormdrop.runtime.host import detect

    console = notes()
    target = detect(threads)
    began = time.perf_counter()
    with console.status("compiling") as status:
        parts = opened.parts

        def tell(text: str) -> None:
            status.update(Text(f"compiling, {one_line(text)}"))

        chosen = Chosen(suited(target, parts), taken, console, rules, parts.digest, tell)
        model = build_model(parts, target, chosen, rules)
    return Built(model, chosen.asked, len(chosen.known), time.perf_counter() - began)
