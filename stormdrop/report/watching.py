"""Progress of the Python functions, shown in terminals and notebooks.

    tune = watched(tune)                    # `progress=` None: shown there; True, False: shown, not shown

A view never breaks the work: its first error ends the view, not the work. Without a view rich is not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from stormdrop.base.environment import in_notebook
from stormdrop.base.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from stormdrop.report.live import StatusLine
    from stormdrop.tuning.events import Event

NOTEBOOK_COLUMNS = 120
P = ParamSpec("P")
R = TypeVar("R")


@cache
def watched(work: Callable[P, R]) -> Callable[P, R]:
    """Returns the function with a watcher in place of its option `progress`."""

    @wraps(work)
    def shown(*args: Any, progress: Any = None, **options: Any) -> R:
        if progress is not None and not isinstance(progress, (bool, Watching)):
            raise UserError(f"progress={progress!r:.60}: it takes True, False or None, not {type(progress).__name__}")
        if isinstance(progress, Watching):
            return work(*args, progress=progress, **options)  # pyright: ignore[reportCallIssue]
        with Watching(is_watched() if progress is None else progress) as watching:
            return work(*args, progress=watching, **options)  # pyright: ignore[reportCallIssue]

    return shown


def is_watched() -> bool:
    """Returns whether stderr is a terminal, or this process the kernel of a notebook."""
    with suppress(Exception):  # a stream that is closed, or no stream at all
        return in_notebook() or sys.stderr.isatty()
    return False


class Watching:
    """The view of one call, a context manager: a board for tuning, and a line about the present step."""

    def __init__(self, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._open = ExitStack()
        self._console: Console | None = None
        self._board: Callable[[Any], None] | None = None
        self._line: StatusLine | None = None

    @property
    def is_shown(self) -> bool:
        return self._is_shown

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._is_shown = False
        with suppress(Exception):
            self._open.close()

    def hear(self, event: Event) -> None:
        self._safely(self._hear, event)

    def tell(self, text: str) -> None:
        self._safely(self._tell, text)

    def _safely(self, show: Callable[[Any], None], subject: object) -> None:
        if not self._is_shown:
            return
        try:
            show(subject)
        except Exception:
            self.__exit__()

    def _hear(self, event: Event) -> None:
        from stormdrop.report.console import say
        from stormdrop.report.text import one_line
        from stormdrop.tuning.events import Started, Warned  # not at the top: `sd.compile` loads no tuning

        if self._board is None and isinstance(event, Started):
            from stormdrop.report.progress import TuningProgress

            self._board = self._open.enter_context(TuningProgress(self._notes()))
        if self._board is not None:
            self._board(event)
        elif isinstance(event, Warned):
            say(self._notes(), one_line(event.message, 500))

    def _tell(self, text: str) -> None:
        from stormdrop.report.live import StatusLine

        if self._line is None:
            self._line = self._open.enter_context(StatusLine(self._notes()))
        self._line.tell(text)

    def _notes(self) -> Console:
        """Returns the console of board and line: rich writes remarks above both."""
        from stormdrop.report.console import notes

        if self._console is None:
            self._console = notes()
            if in_notebook():
                self._console.width = NOTEBOOK_COLUMNS
        return self._console
