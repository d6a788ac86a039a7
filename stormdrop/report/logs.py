"""Logging of events: Stormdrop logs under `stormdrop`, and the program decides about the destination.

    logging.getLogger("stormdrop").setLevel(logging.INFO)          # in a program that has handlers of its own
    sd.tune(task, listen=LogListener())                            # rounds and new bests at INFO, every trial at DEBUG
    configure(verbosity=1, file="tune.log")                        # the setup of the command line

A record is always one line, whatever a task's name or a failure's message holds.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, assert_never

from stormdrop.base.errors import StormdropWarning
from stormdrop.base.files import cannot_write
from stormdrop.measure.result import Failure
from stormdrop.report.text import change_text, clean, counted, one_line, seconds_text, span_text, speed_text
from stormdrop.space.schedule import Schedule
from stormdrop.tuning.events import Ended, Event, Measured, Moved, Proving, StageStarted, Started, Warned
from stormdrop.tuning.tuned import TaskRow, Trial

_log = logging.getLogger("stormdrop.tune")
_OURS = "stormdrop"  # the name of handlers that `silence` removes
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class LogListener:
    """A listener that turns the events of tuning into records of the logger `stormdrop.tune`."""

    def __init__(self, peak_gflops: float = 0.0) -> None:
        self._peak_gflops = peak_gflops
        self._is_model = True
        self._fastest: dict[str, Schedule] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case Started(name, rows, strategy, trials, seconds, cold, is_model):
                self._is_model = is_model
                self._fastest.clear()
                sketches = counted(sum(row.sketches for row in rows), "sketch", "sketches")
                over = counted(len(rows), "task") if is_model else sketches
                about = f"{_budget(trials, seconds)}; {'cold' if cold else 'warm'}; {event.known} trials known"
                _log.info("%s: %s over %s; %s", name, strategy, over, about)
            case Measured(row, trial, is_best):
                if _log.isEnabledFor(logging.DEBUG):
                    text = _trial_text(trial)
                    _log.debug("%strial %d (%s): %s", self._subject(row), trial.number, trial.phase, text)
                if is_best:
                    change = change_text(self._fastest.get(row.id), trial.schedule)
                    speed = self._speed(row)
                    best = f"new best at trial {trial.number} ({trial.phase}): {speed}; {change}"
                    _log.info("%s%s", self._subject(row), best)
                    self._fastest[row.id] = trial.schedule
            case Moved(row, elapsed):
                counts = f"{row.trials} measured, {row.failed} failed, best {self._speed(row)}, {span_text(elapsed)}"
                _log.info("%s%s: %s", self._subject(row), row.phase, counts)
            case Proving(tasks, elapsed):
                _log.info("proving the winners of %s, %s", counted(tasks, "task"), span_text(elapsed))
            case StageStarted(text):
                _log.info("%s", text)
            case Warned(message):
                _log.warning("%s", message)
            case Ended(tuned):
                times = f"{seconds_text(tuned.seconds)} (defaults {seconds_text(tuned.default_seconds)})"
                spent = f"{counted(tuned.trials, 'trial')}, {tuned.failed} failed, {span_text(tuned.tuning_seconds)}"
                _log.info("%s ended (%s): %s; %s", tuned.name, tuned.stopped, times, spent)
            case _:
                assert_never(event)

    def _subject(self, row: TaskRow) -> str:
        """Returns the beginning of a record: the task, if there are several."""
        return f"{row.id} {row.label}: " if self._is_model else ""

    def _speed(self, row: TaskRow) -> str:
        return speed_text(row.seconds, row.flops, self._peak_gflops)


def _budget(trials: int | None, seconds: float | None) -> str:
    return f"trials {'any' if trials is None else trials}, seconds {'any' if seconds is None else seconds}"


def _trial_text(trial: Trial) -> str:
    if isinstance(trial.result, Failure):
        return f"failed: {one_line(str(trial.result), 500)}"
    cut = ", cut short" if trial.result.stopped_early else ""
    values = " ".join(f"{name}={value}" for name, value in trial.schedule.values)
    return f"{seconds_text(trial.result.seconds)}, spread {trial.result.spread:.1%}{cut}; {values}"


class _OneLine(logging.Formatter):
    """A formatter that escapes control characters of messages; a traceback, if any, keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is the standard library's
        record.message = clean(record.message)
        return super().formatMessage(record)


class _Stderr(logging.Handler):
    """A handler that writes to the current stderr: above the live view, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


class _LogFile(logging.FileHandler):
    """A handler for a file. A file that cannot be written any more is closed with one warning; the logged work
    continues.
    """

    is_given_up = False

    def emit(self, record: logging.LogRecord) -> None:
        if not self.is_given_up:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802, the name is the standard library's
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self.is_given_up = True
        reason = error.strerror or error
        logging.getLogger("stormdrop.log").warning("nothing more is logged in %s: %s", self.baseFilename, reason)

    def close(self) -> None:
        with suppress(OSError):  # the rest of its buffer
            super().close()


def configure(verbosity: int = 0, file: Path | str | None = None) -> None:
    """Logs warnings (0), rounds and new bests (1) or everything (2) to stderr, and everything to `file`, appended.

    Below 1, the live view displays the progress of tuning. A second call replaces the setup of the first, and nothing
    else.

    Raises UserError if the file cannot be written.
    """
    silence()
    root = logging.getLogger("stormdrop")
    screen = _Stderr(_LEVELS[min(verbosity, 2)])
    shape = "%(asctime)s %(levelname)s %(name)s: %(message)s" if verbosity else "%(levelname)s: %(message)s"
    screen.setFormatter(_OneLine(shape, "%H:%M:%S"))
    if verbosity == 0:
        screen.addFilter(lambda record: record.name != _log.name)
    handlers: list[logging.Handler] = [screen]
    if file is not None:
        with cannot_write(file):
            whole = _LogFile(file, encoding="utf-8", errors="backslashreplace")
        form = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"
        whole.setFormatter(_OneLine(form, "%Y-%m-%d %H:%M:%S"))
        handlers.append(whole)
    for handler in handlers:
        handler.set_name(_OURS)
        root.addHandler(handler)
    root.setLevel(logging.DEBUG if file is not None else screen.level)


@contextmanager
def warnings_as_notes() -> Generator[None]:
    """Logs each warning of Stormdrop once, as one line. Warnings of other packages stay Python warnings."""
    shown: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", StormdropWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            text = str(message)
            if not issubclass(category, StormdropWarning):
                usual(message, category, *place, **more)
            elif text not in shown:
                shown.add(text)
                logging.getLogger(_OURS).warning("%s", one_line(text, 500))

        warnings.showwarning = show
        yield


def silence() -> None:
    """Reverts `configure`."""
    root = logging.getLogger("stormdrop")
    for handler in [h for h in root.handlers if h.get_name() == _OURS]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.NOTSET)
