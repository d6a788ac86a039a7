"""The line under a table of tasks that leads from a row to `stormdrop show`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stormdrop.cli import options
from stormdrop.report.console import say

if TYPE_CHECKING:
    from rich.console import Console

    from stormdrop.cli.source import Source


def print_show_hint(
    console: Console, source: Source, task_id: str, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> None:
    """Prints the command that shows a task, for an id that is not empty; `shapes` are the sizes of an open model."""
    if task_id:
        say(console, f"{show_command(source, task_id, shapes)} shows how a task is computed")


def show_command(source: Source, task_id: str, shapes: Mapping[str, tuple[int, ...]] | None = None) -> str:
    """Returns the `stormdrop show` command of a task, with the options that its model needs. A compiled file does not
    name its model: the command has MODEL.
    """
    if source.is_compiled:
        return f"stormdrop show MODEL {task_id}"
    given = source.shapes if shapes is None else shapes
    words = ["stormdrop", "show", source.model, task_id, *options.shape_arguments(given)]
    for option, values in (
        ("--bind", source.bound),
        ("--rule", source.own_rules),
        ("--operator", source.own_operators),
    ):
        words += [word for value in values for word in (option, value)]
    return shlex.join(words if source.winograd else [*words, "--no-winograd"])
