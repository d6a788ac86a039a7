"""What happens, for a log: Stormdrop logs under `stormdrop` and leaves it to the program where that goes.

    logging.getLogger("stormdrop").setLevel(logging.INFO)          # in a program that has handlers of its own
    sd.tune(task, listen=LogListener())                            # rounds and new bests at INFO, every trial at DEBUG
    configure(verbosity=1, file="tune.log")                        # what the command line does

A record is always one line, whatever a task's name or a failure's message holds.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import assert_never

from stormdrop.errors import UserError
from stormdrop.measure.result import Failure
from stormdrop.report.schedule import change_text
from stormdrop.report.text import clean, counted, one_line, seconds_text, span_text, speed_text
from stormdrop.search import events
from stormdrop.search.events import Event, Trial, Tuned
from stormdrop.search.model_events import ModelEnded, ModelEvent, ModelStarted, Proving, TaskMoved, TaskRow, TunedModel
from stormdrop.space.schedule import Schedule

_log = logging.getLogger("stormdrop.tune")
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class LogListener:
    """Turns tuning events into records of `stormdrop.tune`."""

    def __init__(self, logger: logging.Logger = _log, peak_gflops: float = 0.0) -> None:
        self._logger, self._peak_gflops = logger, peak_gflops
        self._flops = 0.0
        self._fastest: Schedule | None = None

    def __call__(self, event: Event) -> None:
        log = self._logger
        match event:
            case events.TaskStarted(task, sketches, strategy, trials, seconds, known):
                self._flops, self._fastest = task.flops, None
                told = (task.name, strategy, counted(sketches, "sketch", "sketches"), _budget(trials, seconds), known)
                log.info("%s: %s over %s; %s; %d known", *told)
            case events.Measured(trial):
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("trial %d (%s): %s", trial.number, trial.phase, _told(trial))
            case events.NewBest(trial, seconds):
                if log.isEnabledFor(logging.INFO):
                    change = change_text(self._fastest, trial.schedule)
                    told = (trial.number, trial.phase, self._speed(seconds), change)
                    log.info("new best at trial %d (%s): %s; %s", *told)
                self._fastest = trial.schedule
            case events.RoundEnded(phase, measured, failed, best, elapsed):
                told = (phase, measured, failed, self._speed(best), span_text(elapsed))
                log.info("round ended (%s): %d measured, %d failed, best %s, %s", *told)
            case events.Retiming(candidates):
                log.info("timing the best %d again, in turns", candidates)
            case events.Warned(message):
                log.warning("%s", message)
            case events.TaskEnded(tuned):
                log.info("ended (%s): best %s; %s", tuned.stopped, self._speed(tuned.seconds), _spent(tuned))
            case events.TaskFailed(first):
                log.error("every candidate failed; the first: %s", one_line(str(first), 500))
            case _:
                assert_never(event)

    def _speed(self, seconds: float | None) -> str:
        return speed_text(seconds, self._flops, self._peak_gflops)


class ModelLogListener:
    """Turns the events of a whole model's tuning into records of `stormdrop.tune`: each names its task."""

    def __init__(self, logger: logging.Logger = _log, peak_gflops: float = 0.0) -> None:
        self._logger, self._peak_gflops = logger, peak_gflops

    def __call__(self, event: ModelEvent) -> None:
        log = self._logger
        match event:
            case ModelStarted(name, rows, strategy, trials, seconds, cold):
                told = (name, strategy, counted(len(rows), "task"), _budget(trials, seconds))
                log.info("%s: %s over %s; %s; %s; %d trials known", *told, "cold" if cold else "warm", event.known)
            case TaskMoved(row, elapsed, happened):
                self._moved(row, elapsed, happened)
            case Proving(tasks, elapsed):
                log.info("proving the winners of %s, %s", counted(tasks, "task"), span_text(elapsed))
            case events.Warned(message):
                log.warning("%s", message)
            case ModelEnded(tuned):
                times = seconds_text(tuned.seconds), seconds_text(tuned.default_seconds)
                log.info("ended (%s): estimated %s (defaults %s); %s", tuned.stopped, *times, _spent(tuned))
            case _:
                assert_never(event)

    def _moved(self, row: TaskRow, elapsed: float, happened: Event | None) -> None:
        log, name = self._logger, f"{row.id} {row.label}"
        speed = speed_text(row.seconds, row.flops, self._peak_gflops)
        match happened:
            case events.Measured(trial):
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("%s: trial %d (%s): %s", name, trial.number, trial.phase, _told(trial))
            case events.NewBest(trial):
                log.info("%s: new best at trial %d (%s): %s", name, trial.number, trial.phase, speed)
            case events.RoundEnded():
                told = (name, row.phase, row.trials, speed, span_text(elapsed))
                log.info("%s: round ended (%s): %d measured, best %s, %s", *told)
            case None:
                log.info("%s: %s, %s", name, row.phase, speed)
            case _:
                pass


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
    """Escapes what a message may hold; a traceback, if any, keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802, the name is the standard library's
        record.message = clean(record.message)
        return super().formatMessage(record)


class _Stderr(logging.Handler):
    """Writes to whatever stderr is at that moment: above the live view, where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


class _File(logging.FileHandler):
    """Our handler for a file."""


def configure(verbosity: int = 0, file: Path | str | None = None) -> None:
    """Say warnings (0), rounds and new bests (1) or everything (2) on stderr; append everything to `file`.

    Below 1 the live view says what tuning has to say. Called again, it replaces what it set up before, and nothing
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
    root.addHandler(screen)
    if file is not None:
        root.addHandler(_opened(file))
    root.setLevel(logging.DEBUG if file is not None else screen.level)


def silence() -> None:
    """Undo `configure`."""
    root = logging.getLogger("stormdrop")
    for handler in [h for h in root.handlers if isinstance(h, (_Stderr, _File))]:
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.NOTSET)


def _opened(file: Path | str) -> _File:
    try:
        written = _File(file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UserError(f"the log file {file} cannot be written: {error.strerror or error}") from error
    written.setLevel(logging.DEBUG)
    written.setFormatter(_OneLine("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"))
    return written
