"""Where reports go: results to stdout, progress to stderr, plain text whenever nobody watches.

Names and messages come from users and files: they are printed as text, never as rich markup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence

from rich.console import Console
from rich.text import Text


def results() -> Console:
    """For what the command was asked for. Colour and wrapping only on a terminal; NO_COLOR is respected."""
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
    lines = [headings, *rows]
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
        console.print(Text.assemble((f"{name:<{width}}", "bold"), "  ", value), soft_wrap=True)


def heading(console: Console, title: str) -> None:
    console.print(Text(title, style="bold"))


def block(console: Console, text: str) -> None:
    """Code and schedules: as they are, never folded."""
    console.print(Text(text), soft_wrap=True)


def threads_text(threads: int) -> str:
    return f"{threads} thread{'s' if threads != 1 else ''}"


def seconds_text(seconds: float) -> str:
    """Three digits or more, with a fitting unit: 1.04 ms, 34.7 ms, 125 s."""
    unit, scale = next((u for u in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if seconds >= u[1]), ("ns", 1e-9))
    value = seconds / scale
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def bytes_text(count: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} bytes"
