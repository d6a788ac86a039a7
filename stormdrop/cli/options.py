"""Options that several commands share, and the types of their values. Imports nothing but click: `--help` is quick."""

from __future__ import annotations

import math
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stormdrop.errors import UserError

if TYPE_CHECKING:
    from stormdrop.space.rules import Rule

    _Seconds = click.ParamType[float]
else:
    _Seconds = click.ParamType  # older versions of click take no parameter

_UNITS = {"ms": 1e-3, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-z]*)")


class Duration(_Seconds):
    """Seconds: 10, 30s, 1.5m, 2h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = _DURATION.fullmatch(str(value).strip().lower())
        if found is None or found[2] not in _UNITS:
            self.fail(f"{value!r} is not a time; write 10, 30s, 5m or 1h", param, ctx)
        seconds = float(found[1]) * _UNITS[found[2]]
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is no time to search in; give more than 0 seconds", param, ctx)
        return seconds


def threads_option(command: Any) -> Any:
    told = "Threads to run kernels with.  [default: STORMDROP_THREADS, else the CPUs this process may use]"
    return click.option("--threads", type=click.IntRange(min=1), metavar="N", help=told)(command)


def rule_option(command: Any) -> Any:
    told = "A derivation rule of your own, beside the built-in ones; found from here too; may be repeated."
    return click.option("--rule", "own_rules", multiple=True, metavar="package.module:Class", help=told)(command)


def rules_with(own_rules: tuple[str, ...]) -> tuple[Rule, ...]:
    """The built-in rules and those of `--rule`, whose modules may be in the current directory."""
    from stormdrop.report.text import clean
    from stormdrop.space.rule_names import checked, imported
    from stormdrop.space.rules import RULES

    if not own_rules:
        return RULES
    sys.path.append(os.getcwd())
    try:
        return checked((*RULES, *imported(own_rules)))
    except UserError as error:
        raise click.UsageError(clean(str(error))) from error


def json_option(command: Any) -> Any:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")(command)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How much of the log is shown, and the file that gets all of it."""

    verbosity: int = 0
    file: Path | None = None

    def joined(self, other: LogOptions) -> LogOptions:
        """With what was said behind the command's name; its file is the one that counts."""
        return LogOptions(self.verbosity + other.verbosity, other.file or self.file)


def log_options(command: Any) -> Any:
    """`--verbose` and `--log-file`, which may stand before or behind the command's name; given to it as nothing."""
    path = click.Path(dir_okay=False, path_type=Path)
    file = click.option(
        "--log-file",
        type=path,
        metavar="PATH",
        expose_value=False,
        callback=_log,
        help="Append everything to this file.",
    )
    told = "Log rounds and new bests instead of showing them live; twice: every trial."
    verbose = click.option("-v", "--verbose", "verbosity", count=True, expose_value=False, callback=_log, help=told)
    return file(verbose(command))


def _log(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Set logging up again with what is known by now."""
    if not value:
        return
    from stormdrop.report.logs import configure
    from stormdrop.report.text import clean

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
