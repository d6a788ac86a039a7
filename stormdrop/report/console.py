"""Output of reports: results to stdout, progress to stderr, plain text unless the stream is a terminal.

In a Jupyter notebook, progress is a board below the cell.

Names and messages come from users and files: they are printed as text, never as rich markup, and without control
characters. The package rich is imported when something is printed, so that `--help` is quick.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Collection, Sequence
from html import escape
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

from stormdrop.report.text import clean

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


_SIMILAR = str.maketrans("µ×…–—→←▶─│━╌²³≤≥", "ux.--><>-|=.23<>")
"""One ASCII character for each special character of our own texts, so that columns stay aligned."""


def _similar(error: UnicodeError) -> tuple[str, int]:
    """Returns the replacement for a character that a stream cannot encode: a similar character, else an escape."""
    assert isinstance(error, UnicodeEncodeError)
    similar = error.object[error.start : error.end].translate(_SIMILAR)
    return similar.encode("ascii", "backslashreplace").decode("ascii"), error.end


codecs.register_error("stormdrop.similar", _similar)


def results() -> Console:
    """Returns the console for results. Colour and wrapping only on a terminal; NO_COLOR is respected."""
    return _console(sys.stdout, stderr=False)


def notes() -> Console:
    """Returns the console for progress and remarks."""
    return _console(sys.stderr, stderr=True)


def _console(stream: TextIO | None, stderr: bool) -> Console:
    """Returns a console for a stream; a stream that the shell closed is None.

    For files and pipes, COLUMNS sets the width of lines.
    """
    from rich.console import Console

    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(errors="stormdrop.similar")
    columns = os.environ.get("COLUMNS", "")
    wide = int(columns) if columns.isdecimal() and int(columns) else 1000
    width = None if stream is not None and stream.isatty() else wide
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def print_table(
    console: Console,
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    words: Collection[int] = (0,),
    spare: Sequence[int] = (),
) -> None:
    """Prints columns two spaces apart; columns in `words` are aligned left, columns in `spare` are dropped for lack of
    width.
    """
    for number, text in enumerate(table_lines(headings, rows, words, spare, console.width)):
        if text:
            _line(console, text, "" if number else "bold")


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], words: Collection[int], spare: Sequence[int], width: int
) -> list[str]:
    """Returns a table as text without trailing blanks; `spare` columns are dropped, in order, while it is wider than
    `width`.
    """
    lines = [[clean(cell) for cell in line] for line in (headings, *rows)]
    kept = {k: max(len(line[k]) for line in lines) for k in range(len(headings))}
    for k in spare:
        if sum(w + 2 for w in kept.values()) - 2 <= width:
            break
        del kept[k]
    return [
        "  ".join(f"{line[k]:<{w}}" if k in words else f"{line[k]:>{w}}" for k, w in kept.items()).rstrip()
        for line in lines
    ]


def print_pairs(console: Console, rows: Sequence[tuple[str, str]]) -> None:
    """Prints names and values in two columns."""
    from rich.text import Text

    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        console.print(Text.assemble((f"{name:<{width}}", "bold"), "  ", clean(value)), soft_wrap=True)


def heading(console: Console, title: str) -> None:
    _line(console, clean(title), "bold")


def say(console: Console, text: str) -> None:
    """Prints one remark on one line."""
    _line(console, clean(text))


def block(console: Console, text: str) -> None:
    """Prints code and schedules unchanged, never folded."""
    _line(console, clean(text, keep="\n\t"))


def _line(console: Console, text: str, style: str = "") -> None:
    from rich.text import Text

    console.print(Text(text, style=style), soft_wrap=True)


# ---- notebooks -----------------------------------------------------------------------------------------------------


class NotebookBoard:
    """A board below a cell, as `rich.live.Live` is one in a terminal."""

    def __init__(self, text: Text, is_transient: bool) -> None:
        display = import_module("IPython.display").display
        self._handle, self._is_transient = display(_bundle(text), raw=True, display_id=True), is_transient

    def update(self, text: Text, *, refresh: bool = True) -> None:
        self._handle.update(_bundle(text), raw=True)

    def stop(self) -> None:
        if self._is_transient:
            self._handle.update({"text/plain": ""}, raw=True)


def _bundle(text: Text) -> dict[str, str]:
    """Returns a text for notebooks with and without HTML."""
    return {"text/plain": text.plain, "text/html": f"<pre>{escape(text.plain)}</pre>"}
