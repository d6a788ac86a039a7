"""Options that several commands share, and the types of their values.

Modules of commands import nothing but click until a command runs: `--help` is quick.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stormdrop.errors import UserError
from stormdrop.report.text import clean

if TYPE_CHECKING:
    from stormdrop.space.rules import Rule

    _Number = click.ParamType[float]
else:
    _Number = click.ParamType  # older versions of click take no parameter

_QUANTITY = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-z]*)")
SEARCHES = ("random", "storm", "droplet", "storm+droplet")
"""As in `stormdrop.search.strategies`, which is not imported for the sake of `--help`."""
REUSES = ("seed", "only", "off")
"""As in `stormdrop.search.reuse`."""


class Quantity(_Number):
    """A number with a unit; `units` has the factor of each."""

    def __init__(self, name: str, units: Mapping[str, float], usage: str) -> None:
        self.name, self._units, self._usage = name, units, usage

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _QUANTITY.fullmatch(str(value).strip().lower())
        if found is None or found[2] not in self._units:
            self.fail(f"{value!r} is not {self.name}; write {self._usage}", param, ctx)
        return float(found[1]) * self._units[found[2]]


class Duration(Quantity):
    """Seconds: 10, 30s, 1.5m, 2h."""

    def __init__(self) -> None:
        units = {"ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
        super().__init__("a time", units, "10, 30s, 5m or 1h")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = super().convert(value, param, ctx)
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is no time to search in; give more than 0 seconds", param, ctx)
        return seconds


def count(name: str, told: str, least: int = 1, **more: Any) -> Callable[[Any], Any]:
    return click.option(name, type=click.IntRange(min=least), metavar="N", help=told, **more)


def duration(*names: str, told: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(*names, type=Duration(), metavar="T", help=told, **more)


def seed(of: str) -> Callable[[Any], Any]:
    kind = click.IntRange(min=0)
    return click.option("--seed", type=kind, default=0, show_default=True, metavar="S", help=f"Of {of}.")


def output(*names: str, metavar: str, told: str) -> Callable[[Any], Any]:
    return click.option(*names, type=click.Path(path_type=Path), metavar=metavar, help=told)


_told = "Where measurements are kept and found again; 'none': nowhere.  [default: in the user's cache directory]"
kept = click.option("--store", "store_path", metavar="PATH", help=_told)
_told = "Threads to run kernels with.  [default: STORMDROP_THREADS, else the CPUs this process may use]"
threads = count("--threads", _told)
_told = "A derivation rule of your own, beside the built-in ones; found from here too; may be repeated."
rule = click.option("--rule", "own_rules", multiple=True, metavar="package.module:Class", help=_told)
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")


def rules_with(own_rules: tuple[str, ...]) -> tuple[Rule, ...]:
    """The built-in rules and those of `--rule`, whose modules may be in the current directory."""
    from stormdrop.space.rule_names import checked, imported
    from stormdrop.space.rules import RULES

    if not own_rules:
        return RULES
    sys.path.append(os.getcwd())
    with wrong_usage():
        return checked((*RULES, *imported(own_rules)))


@contextmanager
def wrong_usage() -> Generator[None]:
    """What the user got wrong here is the command line."""
    try:
        yield
    except UserError as error:
        raise click.UsageError(clean(str(error))) from error


def refuse_unwritable(path: Path) -> None:
    """Asked before the work is done. Raises click.UsageError or UserError."""
    try:
        is_taken = path.exists() and not path.is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or holds a NUL
        raise UserError(f"cannot write {path}: {getattr(error, 'strerror', None) or error}") from error
    if is_taken:
        raise click.UsageError(f"{clean(str(path))} is not an ordinary file: name another one")
    if not path.absolute().parent.is_dir():
        raise UserError(f"cannot write {path}: there is no directory {path.parent}")


def print_json(tree: object) -> None:
    click.echo(json.dumps(tree, allow_nan=False))


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How much of the log is shown, and the file that gets all of it."""

    verbosity: int = 0
    file: Path | None = None

    def joined(self, other: LogOptions) -> LogOptions:
        """With what was said behind the command's name; its file is the one that counts."""
        return LogOptions(self.verbosity + other.verbosity, other.file or self.file)


def log(command: Any) -> Any:
    """`--verbose` and `--log-file`, which may stand before or behind the command's name; given to it as nothing."""
    path = click.Path(dir_okay=False, path_type=Path)
    set_up: Any = {"expose_value": False, "callback": _log}
    file = click.option("--log-file", type=path, metavar="PATH", help="Append everything to this file.", **set_up)
    told = "Log rounds and new bests instead of showing them live; twice: every trial."
    return file(click.option("-v", "--verbose", "verbosity", count=True, help=told, **set_up)(command))


def _log(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Set logging up again with what is known by now."""
    if not value:
        return
    from stormdrop.report.logs import configure

    given = LogOptions(value) if param.name == "verbosity" else LogOptions(0, value)
    root = ctx.find_root()
    root.obj = verbosity_of(ctx).joined(given)
    try:
        configure(root.obj.verbosity, root.obj.file)
    except UserError as error:  # not a matter of usage, and raised before any command runs
        raise click.ClickException(clean(str(error))) from error


def verbosity_of(ctx: click.Context) -> LogOptions:
    """What has been said about logging so far."""
    found = ctx.find_root().obj
    return found if isinstance(found, LogOptions) else LogOptions()
