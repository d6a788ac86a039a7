"""Options that several commands share, and the types of their values.

Modules of commands import nothing but click until a command runs: `--help` is quick.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stormdrop.base.arguments import FALLBACKS
from stormdrop.base.errors import StormdropError, UserError
from stormdrop.report.console import notes, results, say
from stormdrop.report.text import clean, one_line
from stormdrop.target.microkernels import PRECISIONS

if TYPE_CHECKING:
    from rich.console import Console

    from stormdrop.frontend.custom import CustomOperator
    from stormdrop.space.rules import Rule
    from stormdrop.store.store import Store
    from stormdrop.target.machine import Target
    from stormdrop.tuning.objectives import Objective

_QUANTITY = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-z]*)")
SEARCHES = ("random", "storm", "droplet", "storm+droplet")
"""The strategies of `stormdrop.tuning.strategies`, which is not imported for the sake of `--help`."""
REUSES = ("seed", "only", "off")
"""The modes of `stormdrop.tuning.reuse`."""


def quantity(name: str, units: Mapping[str, float], usage: str) -> Callable[[object], float]:
    """Returns the type of an option that takes a number with a unit; `units` has the factor of each."""

    def convert(value: object) -> float:
        match = _QUANTITY.fullmatch(str(value).strip().lower())
        if match is None or match[2] not in units:
            raise click.BadParameter(f"{value!r} is not {name}; write {usage}")
        return float(match[1]) * units[match[2]]

    return convert


def seconds_of(value: object) -> float:
    """Parses a time: 10, 30s, 1.5m, 2h."""
    units = {"ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
    seconds = quantity("a time", units, "10, 30s, 5m or 1h")(value)
    if not 0 < seconds < math.inf:
        raise click.BadParameter(f"{value!r} is no time to search in; give more than 0 seconds")
    return seconds


def objective_of(value: str) -> Objective:
    """Parses an objective: latency, speedup, or a target for each model such as 5ms,12ms."""
    from stormdrop.tuning.objectives import NAMED, LatencyTargets

    if value in NAMED:
        return NAMED[value]
    try:
        return LatencyTargets(tuple(seconds_of(part) for part in value.split(",")))
    except click.BadParameter as error:
        usage = "latency, speedup, or a time for each model: 5ms,12ms"
        raise click.BadParameter(f"{value!r} is no objective; give {usage}") from error


def weights_of(value: str) -> tuple[float, ...]:
    """Parses a positive number for each model or size: 1,3."""
    try:
        weights = tuple(float(part) for part in value.split(","))
    except ValueError:
        weights = ()
    if not weights or not all(0 < w < math.inf for w in weights):
        raise click.BadParameter(f"{value!r} is no list of weights; give a positive number for each: 1,3")
    return weights


def count(name: str, text: str, least: int = 1, **more: Any) -> Callable[[Any], Any]:
    return click.option(name, type=click.IntRange(min=least), metavar="N", help=text, **more)


def duration(*names: str, help_text: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(*names, type=seconds_of, metavar="T", help=help_text, **more)


def seed(of: str) -> Callable[[Any], Any]:
    kind = click.IntRange(min=0)
    return click.option("--seed", type=kind, default=0, show_default=True, metavar="S", help=f"Of {of}.")


def output(*names: str, metavar: str, help_text: str) -> Callable[[Any], Any]:
    return click.option(*names, type=click.Path(path_type=Path), metavar=metavar, help=help_text)


@dataclass(frozen=True, slots=True)
class StoreFile:
    """The argument of `--store` (None: the usual file), with a method for each mode of opening: view, write, tune."""

    given: str | None

    @property
    def place(self) -> Path:
        from stormdrop.store.store import default_path

        return default_path() if self.given is None else Path(self.given).absolute()

    def is_absent(self) -> bool:
        """Returns True for the usual file before anything is stored. Raises UserError for an unreadable directory."""
        try:
            return self.given is None and not self.place.exists()
        except OSError as error:
            raise UserError(f"{self.place} cannot be read: {error.strerror or error}") from error

    def view(self) -> Store:
        """Opens the store for reading. An absent usual store counts as empty."""
        from stormdrop.store.store import Store

        return Store.in_memory() if self.is_absent() else Store.view(self.place)

    def write(self) -> Store:
        """Opens the store for changes. Raises UserError for a file that cannot be written."""
        from stormdrop.store.store import Store

        store = Store.open(self.place)
        if store.is_memory:
            raise UserError(f"{self.place} cannot be written")
        return store

    def tune(self) -> Store | None:
        """Opens the store for tuning, which continues without the usual store if that cannot be opened; None: no store.

        Raises StormdropError if a store that was asked for cannot be opened.
        """
        from stormdrop.store.store import Store

        if self.given == "none":
            return None
        try:
            return Store.open(self.place)
        except StormdropError as error:
            if self.given is not None:
                raise
            say(notes(), f"measurements are not kept: {one_line(str(error))}")
            return None


def _store_file(_ctx: click.Context, _param: click.Parameter, value: str | None) -> StoreFile:
    return StoreFile(value)


_store = partial(click.option, "--store", metavar="PATH", callback=_store_file)
_text = "Where measurements are kept and found again; 'none': nowhere.  [default: in the user's cache directory]"
kept = _store(help=_text)
_text = "The store's file.  [default: reservoir.sqlite in STORMDROP_CACHE_DIR, else in the user's cache directory]"
stored = _store(help=_text)
_text = "Threads to run kernels with.  [default: STORMDROP_THREADS, else the CPUs this process may use]"
threads = count("--threads", _text)
_text = "Microseconds that a waiting thread spins before it sleeps.  [default: STORMDROP_SPIN, else 30]"
spin = click.option("--spin", type=click.FloatRange(0), metavar="N", help=_text)
_text = "Where threads run: none, compact, spread, or CPUs such as 0-3,8.  [default: STORMDROP_AFFINITY, else none]"
affinity = click.option("--affinity", metavar="CPUS", help=_text)
_text = "A derivation rule of your own, beside the built-in ones; found from here too; may be repeated."
rule = click.option("--rule", "own_rules", multiple=True, metavar="package.module:Class", help=_text)
_text = "An operator of your own (sd.CustomOperator); found from here too; may be repeated."
operator = click.option("--operator", "own_operators", multiple=True, metavar="package.module:NAME", help=_text)
_text = "Where operators run that are not supported here; none: refuse them; auto: onnxruntime if installed."
fallback = click.option("--fallback", type=click.Choice(FALLBACKS), default="auto", show_default=True, help=_text)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


_TARGET = re.compile(rf"host|cuda(:\d+|:sm_\d+)?(/({'|'.join(PRECISIONS)}))?")


def _target_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Returns the name of a target. A precision may follow it in commands that have `--precision`."""
    has_precision = any(other.name == "precision" for other in ctx.command.params)
    if value is not None and (not _TARGET.fullmatch(value) or ("/" in value and not has_precision)):
        remedy = "write host, cuda, cuda:1 or cuda:sm_80" + (", or with a precision cuda/bf16" if has_precision else "")
        raise click.BadParameter(f"{value!r} is no target; {remedy}", ctx, param)
    return value


_text = "Where to run: host, cuda, cuda:1 (a GPU by its number); cuda:sm_80: compile for that.  [default: host]"
target = click.option("--target", "target_name", metavar="TARGET", callback=_target_name, help=_text)


def machine(target_name: str | None, threads: int | None) -> Target:
    """Returns the target of `--target` and `--threads`. Raises UserError."""
    from stormdrop.device.targets import target_for

    return target_for(target_name, threads)


def rules_with(references: tuple[str, ...]) -> tuple[Rule, ...]:
    """Returns the built-in rules and the rules of `--rule`, whose modules may be in the current directory."""
    from stormdrop.space.derive import checked, imported
    from stormdrop.space.rules import RULES

    with _found_here(references):
        return checked((*RULES, *imported(references)))


def operators_of(references: tuple[str, ...]) -> tuple[CustomOperator, ...]:
    """Returns the operators of `--operator`, whose modules may be in the current directory."""
    from stormdrop.frontend.custom import imported

    with _found_here(references):
        return imported(references)


@contextmanager
def _found_here(references: Sequence[str]) -> Generator[None]:
    """Imports modules from the current directory too; an error is wrong usage."""
    if references:
        sys.path.append(os.getcwd())
    with wrong_usage():
        yield


ARGUMENTS = "stormdrop.base.arguments"
"""The key of the arguments that the command line was made of, in the context of a command."""


def shape_arguments(shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Returns shapes by input as words of a command line."""
    return [word for name, shape in shapes.items() for word in ("--shapes", f"{name}={'x'.join(map(str, shape))}")]


def command_with(more: Sequence[str], model: str) -> str:
    """Returns the present command with more arguments, as a shell takes it; outside a command, `info` of a model."""
    context = click.get_current_context(silent=True)
    given = ("info", model) if context is None else context.meta.get(ARGUMENTS, ("info", model))
    return shlex.join(["stormdrop", *given, *more])


@contextmanager
def wrong_usage() -> Generator[None]:
    """Raises click.UsageError for a UserError, since its cause is the command line."""
    try:
        yield
    except UserError as error:
        raise click.UsageError(clean(str(error))) from error


def refuse_unwritable(path: Path) -> None:
    """Raises click.UsageError or UserError for a path that cannot be written, before the work is done."""
    try:
        is_taken = path.exists() and not path.is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise UserError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    if is_taken:
        raise click.UsageError(f"{clean(str(path))} is not an ordinary file: give another name")
    if not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: there is no directory {path.parent}")


Shown = tuple[Any, Callable[["Console"], None]]
"""The result of a command: its JSON tree, and the printer of its text."""


def show(as_json: bool, tree: object, print_text: Callable[[Console], None]) -> None:
    """Prints one JSON object, or a text for people."""
    show_each(as_json, [(tree, print_text)])


def show_each(
    as_json: bool, shown: Iterable[Shown], print_end: Callable[[Console], None] = lambda console: None
) -> list[Any]:
    """Prints the text of each size as soon as it is there, or at the end one JSON object. Returns the JSON trees."""
    console = None if as_json else results()
    trees: list[Any] = []
    for tree, print_text in shown:
        trees.append(tree)
        if console is not None:
            print_text(console)
    if console is not None:
        print_end(console)
    elif trees:
        click.echo(json.dumps(trees[0] if len(trees) == 1 else {"sizes": trees}, allow_nan=False))
    return trees


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The verbosity of the log on the terminal, and the file for the whole log."""

    verbosity: int = 0
    file: Path | None = None


def log(command: Any) -> Any:
    """Adds `--verbose` and `--log-file`, which may precede or follow the command's name; the command gets no
    argument.
    """
    path = click.Path(dir_okay=False, path_type=Path)
    set_up: Any = {"expose_value": False, "callback": _log}
    file = click.option("--log-file", type=path, metavar="PATH", help="Append everything to this file.", **set_up)
    text = "Log rounds and new bests instead of showing them live; twice: every trial."
    return file(click.option("-v", "--verbose", "verbosity", count=True, help=text, **set_up)(command))


def _log(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Sets logging up again with the options parsed so far."""
    if not value:
        return
    from stormdrop.report.logs import configure

    said = log_options(ctx)
    # Flags before and behind the command's name add up; of two files the last counts.
    said = replace(said, file=value) if param.name == "log_file" else replace(said, verbosity=said.verbosity + value)
    ctx.find_root().obj = said
    try:
        configure(said.verbosity, said.file)
    except UserError as error:  # not a matter of usage, and raised before any command runs
        raise click.ClickException(clean(str(error))) from error


def on_models(command: Any) -> Any:
    """Adds the options of every command that compiles or tunes: `--target`, `--precision`, `--threads`, `--json`, the
    log's.

    The precision becomes a part of the target's name.
    """

    @wraps(command)
    def run(*args: Any, target_name: str | None, precision: str | None, **options: Any) -> Any:
        if precision is not None:
            if (target_name or "host") == "host":
                raise click.UsageError("--precision is for GPUs: give --target cuda with it")
            if "/" in (target_name or ""):
                raise click.UsageError(f"--target {target_name} has a precision already: leave out --precision")
            target_name = f"{target_name}/{precision}"
        return command(*args, target_name=target_name, **options)

    text = "Of the factors of f32 products on a GPU; all but f32 use matrix instructions.  [default: f32]"
    chosen = click.option("--precision", type=click.Choice(PRECISIONS), help=text)
    return target(chosen(threads(as_json(log(run)))))


def log_options(ctx: click.Context) -> LogOptions:
    """Returns the logging options parsed so far."""
    options = ctx.find_root().obj
    return options if isinstance(options, LogOptions) else LogOptions()
