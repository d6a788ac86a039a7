"""Where reports go: results to stdout, progress to stderr, plain text whenever nobody watches.

Names and messages come from users and files: they are printed as text, never as rich markup, and without control
characters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from io import TextIOWrapper
from typing import TextIO

from rich.console import Console
from rich.text import Text

from stormdrop.report.text import clean


def results() -> Console:
    """For what the command was asked for. Colour and wrapping only on a terminal; NO_COLOR is respected."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a µ where only ASCII goes
    return Console(highlight=False, markup=False, emoji=False, width=None if _is_watched(sys.stdout) else _wide())


def notes() -> Console:
    """For progress and remarks."""
    return Console(
        stderr=True, highlight=False, markup=False, emoji=False, width=None if _is_watched(sys.stderr) else _wide()
    )


def _is_watched(stream: TextIO | None) -> bool:
    """Whether it is a terminal. A stream that the shell closed is None."""
    return stream is not None and stream.isatty()


def _wide() -> int:
    """Files and pipes are not folded at eighty columns, unless COLUMNS says so."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else 1000


def print_table(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: Collection[int] = (0,),
    spare: Sequence[int] = (),
) -> None:
    """Columns two spaces apart; those numbered in `words` are aligned left, the others right, `spare` ones left out if
    it is too narrow.
    """
    for number, text in enumerate(table_lines(headings, rows, words, spare, console.width)):
        if text:
            console.print(Text(text, style="" if number else "bold"), soft_wrap=True)


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[int], spare: Sequence[int], width: int
) -> list[str]:
    """A table as text, without trailing blanks.

    Where it is wider than `width`, columns go in the order of `spare` until it is not.
    """
    lines = [[clean(cell) for cell in line] for line in (headings, *rows)]
    kept = {k: max(len(line[k]) for line in lines) for k in range(len(headings))}
    for k in spare:
        if table_width(kept.values()) <= width:
            break
        del kept[k]
    return [
        "  ".join(f"{line[k]:<{w}}" if k in words else f"{line[k]:>{w}}" for k, w in kept.items()).rstrip()
        for line in lines
    ]


def table_width(columns: Iterable[int]) -> int:
    return sum(w + 2 for w in columns) - 2


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
