"""The model that a command names: a file, `zoo:NAME` or one compiled before, and options for reading and building it.

A model is read once, so whatever reading it warns of is said once.
"""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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

    from stormdrop.driver.mixed import ForeignPort, MixedModel
    from stormdrop.driver.specialise import OpenSource
    from stormdrop.driver.stored import Schedules
    from stormdrop.graph.graph import Graph
    from stormdrop.graph.partition import Partition
    from stormdrop.ir.tensor import Task
    from stormdrop.reservoir.verdict import Verdict
    from stormdrop.runtime.image import Image, Port
    from stormdrop.runtime.model import Model
    from stormdrop.space.offer import Offer, Taken
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
    sizes: tuple[Mapping[str, tuple[int, ...]], ...] = ()
    """Where `--shapes` gives an input several shapes: those of each size; `shapes` is empty then."""

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

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> Source:
        """The model at one size."""
        return replace(self, shapes=shapes, sizes=())

    def origin(self) -> Any:
        """What other parts of Stormdrop read: a path, or a network of the zoo as an ONNX model."""
        from stormdrop.driver.compile import network

        return network(self.model, self.shapes, bool(self.sizes)) if self.model.startswith(ZOO) else self.model

    def unsettled(self) -> OpenSource | None:
        """The model where it leaves dimensions open that `--shapes` does not give. Raises UserError."""
        from stormdrop.compare.inputs import read_bound
        from stormdrop.driver.specialise import open_source
        from stormdrop.frontend.parsed import parsed

        if self.model.startswith(ZOO) and not self.sizes:
            return None
        if not self.model.startswith(ZOO) and not os.path.exists(self.model):
            return None  # told of when it is opened
        origin, operators = self.origin(), options.operators_of(self.own_operators)
        return open_source(origin, parsed(origin), self.shapes, read_bound(self.bound), operators)

    @property
    def onnx(self) -> str | bytes:
        """The model as another runtime takes it: a path, or the bytes of a network of the zoo."""
        origin = self.origin()
        return origin if isinstance(origin, str) else origin.SerializeToString()

    def open(self) -> Opened:
        """Read it. Raises UserError; click.UsageError for an unknown network, or a model that is compiled already."""
        from stormdrop.compare.inputs import read_bound
        from stormdrop.driver.compile import load
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
        if self.sizes:
            raise click.UsageError("--shapes gives several shapes of one input; this takes one size")
        bound, origin = read_bound(self.bound), self.origin()
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

    def open_images(self, threads: int | None) -> tuple[Image, ...]:
        """What a model that was compiled before is made of, by size, whether or not it runs here."""
        from stormdrop.runtime.image import Image
        from stormdrop.runtime.package import load_any

        self._check_settled()
        found = load_any(self.model, threads)[0]
        return (found,) if isinstance(found, Image) else found.images

    def open_compiled(self, threads: int | None, target_name: str | None = None) -> Model:
        """Read a model that was compiled before."""
        from stormdrop.runtime.open_model import load_compiled

        self._check_settled()
        name, _, precision = (target_name or "").partition("/")
        if precision:
            raise click.UsageError("the precision of a compiled model is settled: leave out --precision")
        _, _, which = name.partition(":")
        if which.startswith("sm_"):
            raise click.UsageError("what a compiled model is for is settled: --target takes cuda:NUMBER here")
        return load_compiled(self.model, threads, int(which or 0))

    def _check_settled(self) -> None:
        """What says how to read another model has no place beside one that is compiled."""
        if self.shapes or self.sizes or self.bound or self.own_operators:
            told = "shapes, constants and operators of a compiled model are settled"
            raise click.UsageError(f"{told}: leave out --shapes, --bind and --operator")
        if not self.winograd or self.own_rules:
            raise click.UsageError("how a compiled model is computed is settled: leave out --no-winograd and --rule")


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
        sizes = _sizes(shapes)
        one_size, several_sizes = (sizes[0], ()) if len(sizes) == 1 else ({}, sizes)
        models = (model,) if isinstance(model, str) else model
        found = tuple(
            Source(one, one_size, bound, not no_winograd, own_rules, own_operators, several_sizes) for one in models
        )
        return command(*args, **({"sources": found} if several else {"source": found[0]}), **rest)

    told = "The shape of an input that leaves it open; may be repeated, and an input named again begins another size."
    shape = click.option("--shapes", type=shape_of, multiple=True, metavar="NAME=1x3x224x224", help=told)
    told = "An input that is always this array: it becomes a constant; may be repeated."
    bind = click.option("--bind", "bound", multiple=True, metavar="NAME=FILE.npy", help=told)
    direct = click.option("--no-winograd", is_flag=True, help="Sum 3x3 convolutions directly: slower, but rounds less.")
    more: Any = {"nargs": -1, "required": True} if several else {}
    return click.argument("model", **more)(shape(bind(direct(options.rule(options.operator(bundled))))))


def _sizes(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[dict[str, tuple[int, ...]], ...]:
    """The shapes of each size: an input that is named again begins the next one. Without any, one empty size."""
    sizes: list[dict[str, tuple[int, ...]]] = [{}]
    for name, shape in shapes:
        if name in sizes[-1]:
            sizes.append({})
        sizes[-1][name] = shape
    return tuple(sizes)


REUSED = ("donor", "portfolio")
"""Where schedules come from that were taken unmeasured."""


def taken_option(command: Any) -> Any:
    """Which schedules are taken: `--untuned`, `--no-reuse` or `--unproved`, given to the command as one `taken`."""
    told = "Where tuning has decided nothing, take the fastest trial, though nobody proved it."
    command = click.option("--unproved", "taken", flag_value="trials", help=told)(command)
    told = "Where tuning has decided nothing, take default schedules, whatever related tasks' schedules promise."
    command = click.option("--no-reuse", "taken", flag_value="verdicts", help=told)(command)
    told = "Take default schedules for all kernels, whatever the store knows."
    return click.option("--untuned", "taken", flag_value="defaults", help=told)(command)


_told = "Run this file, made of MODEL with `stormdrop compile`, instead of compiling."
compiled_option = click.option("--compiled", type=click.Path(), metavar="FILE.sd", help=_told)


def input_options(command: Any) -> Any:
    told = "An input; or FILE.npz with several by name; may be repeated.  [default: random]"
    given = click.option("--input", "given", multiple=True, metavar="NAME=FILE.npy", help=told)
    return given(options.seed("random inputs")(command))


def chosen_for(
    parts: Partition,
    target: Target,
    taken: str | None,
    rules: tuple[Rule, ...],
    tell: Callable[[str], None] = lambda _: None,
) -> Chosen:
    """The schedules of a model's tasks."""
    from stormdrop.driver.unmeasured import worth_reuse

    return Chosen(target, taken, notes(), rules, parts.digest, worth_reuse(parts, target), tell)


@dataclass(slots=True)
class Chosen:
    """Schedules for a model's tasks, and how many the store knew; a store that cannot be read is told of once."""

    target: Target
    taken: str | None
    """`defaults`, `verdicts`, `trials`, or None: verdicts, and what is predicted to be faster than the default."""
    console: Console
    rules: tuple[Rule, ...]
    model: str
    """The digest of the partition."""
    worth: frozenset[str]
    """The tasks that may take a related one's schedule unmeasured. The partition is not held: it has the constants."""
    tell: Callable[[str], None] = lambda _: None
    asked: int = 0
    known: set[str] = field(default_factory=set[str])
    _stored: Schedules | None = None

    def __call__(self, task: Task) -> Schedule | Verdict | Offer | None:
        from stormdrop.driver.stored import scheduled

        self.asked += 1
        self.tell(f"{self.asked} kernels: {task.name}")
        if self.taken == "defaults":
            return None
        try:
            if self._stored is None:
                from stormdrop.driver.stored import stored_schedules
                from stormdrop.driver.unmeasured import Unmeasured

                offers = None if self.taken == "verdicts" else Unmeasured(self.worth, self.target, self.rules)
                is_unproved = self.taken == "trials"
                self._stored = stored_schedules(self.target, self.rules, self.model, is_unproved, offers)
            found = self._stored(task)
        except StormdropError as error:
            self.taken = "defaults"
            say(self.console, f"default schedules are used, since the store cannot be read: {one_line(str(error))}")
            return None
        if scheduled(found) is not None:
            self.known.add(task.digest)
        return found

    def settled(self, task: Task) -> tuple[Schedule | None, str, Taken | None]:
        """The schedule (None: the default), where it came from, and what was taken of an offer, as compiling would."""
        from stormdrop.driver.stored import DEFAULT, origin_of, scheduled
        from stormdrop.space.offer import Offer, pick

        found = self(task)
        if not isinstance(found, Offer):
            return scheduled(found), origin_of(found), None
        _, _, taken = pick(task, found, self.target, self.rules)
        return (None, DEFAULT, None) if taken is None else (taken.schedule, taken.origin, taken)

    def renew(self, verdicts: Sequence[tuple[Verdict, Verdict]]) -> None:
        from stormdrop.driver.stored import Renews

        if isinstance(self._stored, Renews):
            self._stored.renew(verdicts)


@dataclass(frozen=True, slots=True, eq=False)
class Built:
    """A model that runs, and what is known of how it was made: nothing, where it was compiled before."""

    model: Any
    """A `Model`, or one of which another runtime runs a part."""
    tasks: int | None = None
    stored: int | None = None
    seconds: float | None = None
    is_open: bool = False
    """It is compiled for each size when it is run."""

    @property
    def told(self) -> str:
        """Where its schedules come from."""
        if self.is_open:
            return "compiled for each size"
        if self.tasks is None:
            return "compiled before"
        if self.stored == self.tasks:
            return "all kernels as the store knows them"
        known = f"{self.stored} of {self.tasks} tasks from the store" if self.stored else ""
        reused = f"{self.reused} from related tasks, unmeasured" if self.reused else ""
        if not known and not reused:
            return "all kernels by default, none is in the store"
        return ", ".join(filter(None, (known, reused, "the others by default")))

    @property
    def reused(self) -> int:
        """Tasks that took a related task's schedule unmeasured."""
        return sum(origin in REUSED for origin in getattr(self.model, "origins", {}).values())


def closed_ports(ports: Sequence[Port | ForeignPort]) -> list[Port]:
    """Inputs for arrays from files, or random ones. Raises UserError for one whose type or shape is not known."""
    from stormdrop.runtime.image import Port

    for p in ports:
        if not isinstance(p, Port):
            raise UserError(f"the input {p!r} cannot be given on the command line")
    return [p for p in ports if isinstance(p, Port)]


def built_mixed(source: Source, threads: int | None, taken: str | None, fallback: str) -> Model | MixedModel:
    """A model of which `fallback` may run a part; what runs where is said. Raises UserError."""
    from stormdrop.compare.inputs import read_bound
    from stormdrop.driver.compile import compile as compile_any
    from stormdrop.driver.mixed import MixedModel, OpenMixedModel

    if source.is_compiled:
        raise click.UsageError("a compiled model has no other runtime in it: leave out --fallback")
    model = compile_any(
        source.model,
        schedules=(lambda task: None) if taken == "defaults" else None,
        shapes=source.shapes,
        constants=read_bound(source.bound),
        threads=threads,
        winograd=source.winograd,
        rules=source.rules,
        unproved=taken == "trials",
        reuse="off" if taken == "verdicts" else "predicted",
        operators=options.operators_of(source.own_operators),
        fallback=fallback,
    )
    if isinstance(model, OpenMixedModel):
        raise UserError(
            f"{source.model} leaves dimensions open, which --fallback cannot guess: settle them by --shapes"
        )
    told = str(model) if isinstance(model, MixedModel) else f"nothing of it needs {fallback}"
    for line in told.splitlines():
        say(notes(), line)
    return model


def built(
    source: Source,
    opened: Opened | None,
    compiled: str | None,
    target_name: str | None,
    threads: int | None,
    taken: str | None,
) -> Built:
    """Compile a model, or read what was compiled: `compiled`, or the source itself where it is that."""
    if compiled is not None:
        if not compiled.endswith(COMPILED):
            raise click.UsageError(f"--compiled takes a file that ends in {COMPILED}")
        return Built(Source(compiled, {}, ()).open_compiled(threads, target_name))
    if opened is None and source.is_compiled:
        return Built(source.open_compiled(threads, target_name))
    target = options.machine(target_name, threads)
    return compile_model(source.open() if opened is None else opened, target, taken, source.rules)


def compile_model(opened: Opened, target: Target, taken: str | None, rules: tuple[Rule, ...]) -> Built:
    """With a line on the terminal that says how far it is."""
    from rich.text import Text

    from stormdrop.driver.model_build import build_model, suited

    console = notes()
    began = time.perf_counter()
    with console.status("compiling") as status:
        parts = opened.parts

        def tell(text: str) -> None:
            status.update(Text(f"compiling, {one_line(text)}"))

        chosen = chosen_for(parts, suited(target, parts), taken, rules, tell)
        model = build_model(parts, target, chosen, rules)
    return Built(model, chosen.asked, len(chosen.known), time.perf_counter() - began)
