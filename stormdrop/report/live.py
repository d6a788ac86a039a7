"""A board of what happens, on stderr: drawn in place on a terminal, elsewhere a line now and then.

Kernels are timed in another process meanwhile, so this one must stay quiet: nothing is drawn unless an event arrives,
never more than four times a second, and no thread refreshes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from stormdrop.report.console import say
from stormdrop.report.text import span_text

DRAW_SECONDS = 0.25


class LiveView:
    """What events have said so far, and a view of it; a context manager. It may begin again with another subject."""

    line_seconds: ClassVar[float]

    def __init__(self, console: Console, peak_gflops: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._peak_gflops, self._clock = console, peak_gflops, clock
        self._live: Live | None = None
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
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(self._drawn(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)

    def _renew(self) -> None:
        """Something has changed."""
        self._is_stale = True
        self._show()

    def _show(self, at_once: bool = False) -> None:
        """Draw the board again, or write a line, if something has changed and it is time."""
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
        """Above the board, where there is one."""
        say(self._console, text)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def lines_drawn(lines: list[Text]) -> Text:
    """A line too long is cut off."""
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def elapsed_text(elapsed: float, budget: float | None) -> str:
    return span_text(elapsed) + (f" of {span_text(budget)}" if budget is not None else "")
