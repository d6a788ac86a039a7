"""A board of the progress, on stderr: drawn in place on a terminal or in a notebook, elsewhere a line now and then.

Meanwhile kernels are timed in another process, so this process must stay idle. The board is drawn only when an event
arrives, never more than four times a second, and no thread refreshes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from stormdrop.base.environment import in_notebook
from stormdrop.report.console import NotebookBoard, say
from stormdrop.report.text import clean, span_text

DRAW_SECONDS = 0.25


class LiveView:
    """A view of the events so far; a context manager. It may begin again with another subject."""

    line_seconds: float
    """The least time between two lines of a log."""
    is_transient: ClassVar[bool] = False
    """The board goes when it stops."""

    def __init__(self, console: Console, peak_gflops: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._peak_gflops, self._clock = console, peak_gflops, clock
        self._live: Live | NotebookBoard | None = None
        self._shown_at = 0.0
        self._is_stale = False

    @property
    def _line(self) -> str:
        """For a log."""
        raise NotImplementedError

    def _drawn(self) -> Text:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _start(self) -> None:
        self._stop()
        self._shown_at = self._clock()
        if in_notebook():
            self._live = NotebookBoard(self._drawn(), self.is_transient)
        elif self._console.is_terminal and not self._console.is_dumb_terminal:
            live = Live(self._drawn(), console=self._console, auto_refresh=False, transient=self.is_transient)
            live.start(refresh=True)
            self._live = live

    def _renew(self) -> None:
        """Marks the view as stale and draws it if it is time."""
        self._is_stale = True
        self._show()

    def _show(self, at_once: bool = False) -> None:
        """Draws the board again, or writes a line, if something has changed and it is time."""
        now = self._clock()
        is_soon = now - self._shown_at < (self.line_seconds if self._live is None else DRAW_SECONDS)
        if not self._is_stale or (is_soon and not at_once):
            return
        self._shown_at, self._is_stale = now, False
        if self._live is not None:
            self._live.update(self._drawn(), refresh=True)
        else:
            self._say(self._line)

    def _say(self, text: str) -> None:
        """Prints a line, above the board if there is a board."""
        say(self._console, text)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class StatusLine(LiveView):
    """A line about the present step. Outside terminals and notebooks, a step of some seconds gives a line of a log."""

    line_seconds = 5.0
    is_transient = True
    _text = ""

    def tell(self, text: str) -> None:
        is_first, self._text = not self._text, clean(text)
        if is_first:
            self._start()
        self._renew()

    @property
    def _line(self) -> str:
        return self._text

    def _drawn(self) -> Text:
        return lines_drawn([Text(self._text)])


def lines_drawn(lines: list[Text]) -> Text:
    """Returns lines as one text; a line too long is cut off."""
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def elapsed_text(elapsed: float, budget: float | None) -> str:
    return span_text(elapsed) + (f" of {span_text(budget)}" if budget is not None else "")
