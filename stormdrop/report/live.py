"""A board of what happens, on stderr: drawn in place on a terminal, elsewhere a line now and then.

Kernels are timed in another process meanwhile, so this one must stay quiet: nothing is drawn unless an event arrives,
never more than four times a second, and no thread refreshes anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar, Generic, Protocol, Self, TypeVar

from rich.console import Console
from rich.live import Live
from rich.text import Text

from stormdrop.report.console import say

DRAW_SECONDS = 0.25


class Board(Protocol):
    """What events have said so far."""

    @property
    def line(self) -> str:
        """For a log."""
        ...

    def drawn(self, console: Console) -> Text: ...


B = TypeVar("B", bound=Board)


class LiveView(Generic[B]):
    """Shows a board; a context manager. One after the other, several boards may be shown."""

    line_seconds: ClassVar[float]

    def __init__(self, console: Console, peak_gflops: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._peak_gflops, self._clock = console, peak_gflops, clock
        self._board: B | None = None
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._live: Live | None = None
        self._shown_at = 0.0
        self._is_stale = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _start(self, board: B) -> None:
        self._stop()
        self._board, self._shown_at = board, self._clock()
        if self._is_live:
            self._live = Live(board.drawn(self._console), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)

    def _renew(self, at_once: bool = False) -> None:
        """The board has changed."""
        self._is_stale = True
        self._show(at_once)

    def _show(self, at_once: bool = False) -> None:
        """Draw the board again, or write a line, if it has changed and it is time."""
        if self._board is None or not self._is_stale:
            return
        now = self._clock()
        if not at_once and now - self._shown_at < (self.line_seconds if self._live is None else DRAW_SECONDS):
            return
        self._shown_at, self._is_stale = now, False
        if self._live is not None:
            self._live.update(self._board.drawn(self._console), refresh=True)
        else:
            self._say(self._board.line)

    def _say(self, text: str) -> None:
        """Above the board, where there is one."""
        say(self._console, text)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
