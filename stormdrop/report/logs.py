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
from stormdrop.report.schedule import change_text
from stormdrop.report.text import clean, counted, one_line, seconds_text, span_text, speed_text
from stormdrop.space.schedule import Schedule
from stormdrop.tuning import events
from stormdrop.tuning.events import Event, Trial, Tuned
from stormdrop.tuning.model_events import ModelEnded, ModelEvent, ModelStarted, Proving, TaskMoved, TunedModel

_log = logging.getLogger("stormdrop.tune")
_OURS = "stormdrop"  # the name of handlers that `silence` removes
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class LogListener:
    """A listener that turns the events of tuning, of one task or of a model, into records of `stormdrop.tune`."""

    def __init__(self, peak_gflops: float = 0.0, subject: str = "", flops: float = 0.0) -> None:
        """Creates a listener; `subject` begins every record: the task of a model, and its operations."""
        self._peak_gflops = peak_gflops
        self._subject, self._flops = f"{subject}: " if subject else "", flops
        self._fastest: Schedule | None = None
        self._by_task: dict[str, LogListener] = {}

    def __call__(self, event: Event | ModelEvent) -> None:
        match event:
            case events.TaskStarted(task, sketches, strategy, trials, seconds, known):
                self._flops, self._fastest = task.flops, None
                over = counted(sketches, "sketch", "sketches")
                self._info(f"{task.name}: {strategy} over {over}; {_budget(trials, seconds)}; {known} known")
            case events.Measured(trial):
                if _log.isEnabledFor(logging.DEBUG):
                    _log.debug("%strial %d (%s): %s", self._subject, trial.number, trial.phase, _told(trial))
            case events.NewBest(trial, seconds):
                told = f"{self._speed(seconds)}; {change_text(self._fastest, trial.schedule)}"
                self._info(f"new best at trial {trial.number} ({trial.phase}): {told}")
                self._fastest = trial.schedule
            case events.RoundEnded(phase, measured, failed, best, elapsed):
                told = f"{measured} measured, {failed} failed, best {self._speed(best)}, {span_text(elapsed)}"
                self._info(f"round ended ({phase}): {told}")
            case events.Retiming(candidates):
                self._info(f"timing the best {candidates} again, in turns")
            case events.Warned(message):
                _log.warning("%s", message)
            case events.TaskEnded(tuned):
                self._info(f"ended ({tuned.stopped}): best {self._speed(tuned.seconds)}; {_spent(tuned)}")
            case events.TaskFailed(first):
                _log.error("every candidate failed; the first: %s", one_line(str(first), 500))
            case ModelStarted(name, rows, strategy, trials, seconds, cold):
                told = f"{_budget(trials, seconds)}; {'cold' if cold else 'warm'}; {event.known} trials known"
                self._info(f"{name}: {strategy} over {counted(len(rows), 'task')}; {told}")
            case TaskMoved(row, _, happened):
                of_task = LogListener(self._peak_gflops, f"{row.id} {row.label}", row.flops)
                of_task = self._by_task.setdefault(row.id, of_task)
                if happened is not None:
                    of_task(happened)
                else:
                    of_task._info(f"{row.phase}, {of_task._speed(row.seconds)}")
            case Proving(tasks, elapsed):
                self._info(f"proving the winners of {counted(tasks, 'task')}, {span_text(elapsed)}")
            case ModelEnded(tuned):
                times = f"estimated {seconds_text(tuned.seconds)} (defaults {seconds_text(tuned.default_seconds)})"
                self._info(f"ended ({tuned.stopped}): {times}; {_spent(tuned)}")
            case _:
                assert_never(event)

    def _info(self, text: str) -> None:
        _log.info("%s%s", self._subject, text)

    def _speed(self, seconds: float | None) -> str:
        return speed_text(seconds, self._flops, self._peak_gflops)


def _budget(trials: int | None, seconds: float | None) -> str:
    return f"trials {'any' if trials is None else trials}, seconds {'any' if seconds is None else seconds}"


def _spent(tuned: Tuned | TunedModel) -> str:
    return f"{counted(tuned.trials, 'trial')}, {tuned.failed} failed, {span_text(tuned.tuning_seconds)}"


def _told(trial: Trial) -> str:
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
    told: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", StormdropWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            text = str(message)
            if not issubclass(category, StormdropWarning):
                usual(message, category, *place, **more)
            elif text not in told:
                told.add(text)
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
