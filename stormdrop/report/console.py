"""Where reports go: results to stdout, progress to stderr, plain text whenever nobody watches.

Names and messages come from users and files: they are printed as text, never as rich markup, and without control characters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from io import TextIOWrapper

from rich.console import Console
from rich.text import Text

from stormdrop.report.text import clean


def results() -> Console:
    """For what the command was asked for. Colour and wrapping only on a terminal; NO_COLOR is respected."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a µ where only ASCII goes
    return Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _wide())


def notes() -> Console:
    """For progress and remarks."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False, width=None if sys.stderr.isatty() else _wide())


def _wide() -> int:
    """Files and pipes are not folded at eighty columns, unless COLUMNS says so."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else 1000


def print_table(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[int] = (0,)) -> None:
    """Columns two spaces apart, without trailing blanks; those numbered in `words` are aligned left, the others right."""
    lines = [[clean(cell) for cell in line] for line in (headings, *rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(headings))]
    for number, line in enumerate(lines):
        cells = (f"{c:<{w}}" if k in words else f"{c:>{w}}" for k, (c, w) in enumerate(zip(line, widths)))
        text = "  ".join(cells).rstrip()
        if text:
            console.print(Text(text, style="" if number else "bold"), soft_wrap=True)


def print_pairs(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Names and values in two columns."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        console.print(Text.assemble((f"{name:<{width}}", "bold"), "  ", clean(value)), soft_wrap=True)


def heading(console: Console, title: str) -> None:
    console.print(Text(clean(title), style="bold"), soft_wrap=True)


def say(console: Console, text: str) -> None:
    """One remark, one line."""
    console.print(Text(clean(text)), soft_wrap=True)


def block(console: Console, text: str) -> None:
    """Code and schedules: as they are, never folded."""
    console.print(Text(clean(text, keep="\n\t")), soft_wrap=True)
