"""Tuning as it happens, on stderr: a small live board on a terminal, about one line a second elsewhere.

Candidates are timed in another process meanwhile, so this one must stay quiet: nothing is drawn unless an event
arrives, never more than four times a second, and no thread refreshes anything.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import assert_never

from rich.console import Console
from rich.live import Live
from rich.text import Text

from stormdrop.measure.result import Failure
from stormdrop.report.console import say
from stormdrop.report.schedule import change_text
from stormdrop.report.text import clean, counted, one_line, seconds_text, span_text, speed_text
from stormdrop.search.events import (
    Event,
    Measured,
    NewBest,
    Retiming,
    RoundEnded,
    TaskEnded,
    TaskFailed,
    TaskStarted,
    Warned,
)
from stormdrop.space.schedule import Schedule

DRAW_SECONDS = 0.25
LINE_SECONDS = 1.0
SHOWN_IMPROVEMENTS = 5
BAR = 24


class Board:
    """What the events of one search have said so far."""

    def __init__(self, started: TaskStarted, peak_gflops: float) -> None:
        self.started, self.peak_gflops = started, peak_gflops
        self.name, self.strategy, self.phase = clean(started.task.name), clean(started.strategy), ""
        self.flops, self.trials, self.seconds = started.task.flops, started.trials, started.seconds
        self.measured = self.failed = 0
        self.best: float | None = None
        self.elapsed = 0.0
        self.improvements: deque[tuple[int, float, str]] = deque(maxlen=SHOWN_IMPROVEMENTS)
        self._fastest: Schedule | None = None

    def take(self, event: Event) -> None:
        match event:
            case Measured(trial):
                self.measured, self.elapsed, self.phase = trial.number, trial.elapsed, clean(trial.phase)
                self.failed += isinstance(trial.result, Failure)
            case NewBest(trial, seconds):
                self.improvements.append((trial.number, seconds, clean(change_text(self._fastest, trial.schedule))))
                self.best, self._fastest = seconds, trial.schedule
            case RoundEnded(phase, measured, failed, best, elapsed):
                self.phase, self.measured, self.failed, self.best, self.elapsed = (
                    clean(phase),
                    measured,
                    failed,
                    best,
                    elapsed,
                )
            case Retiming():
                self.phase = "timing the best again"
            case TaskStarted() | Warned() | TaskEnded() | TaskFailed():
                pass
            case _:
                assert_never(event)

    @property
    def speed(self) -> str:
        """The best so far."""
        return speed_text(self.best, self.flops, self.peak_gflops) if self.best is not None else "nothing ran yet"

    @property
    def rate(self) -> float:
        return self.measured / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def opening(self) -> str:
        limits = [counted(self.trials, "trial")] if self.trials is not None else []
        limits += [span_text(self.seconds)] if self.seconds is not None else []
        budget = "at most " + " or ".join(limits) if limits else "until nothing is gained"
        known = f"; {counted(self.started.known, 'trial')} of it known" if self.started.known else ""
        return (
            f"tuning {self.name}: {self.strategy} over "
            f"{counted(self.started.sketches, 'sketch', 'sketches')}, {budget}{known}"
        )

    @property
    def line(self) -> str:
        """One round for a log."""
        trials = f"{self.measured}/{self.trials}" if self.trials is not None else str(self.measured)
        phase = f", {self.phase}" if self.phase else ""
        return (
            f"  {trials} measured{phase}, {self.failed} failed, best {self.speed}; "
            f"{self.rate:.1f} candidates/s, {self._spent}"
        )

    def drawn(self) -> Text:
        """The board: what is tuned, how far it is, the best so far, and how it came to that.

        A line too long is cut off.
        """
        trials = f"{self.measured} of {self.trials}" if self.trials is not None else str(self.measured)
        lines = [
            _row("tuning", self.name),
            _row("search", f"{self.strategy}: {self.phase}" if self.phase else self.strategy),
            _row("best", self.speed, "green" if self.best is not None else ""),
            _row(
                "trials",
                f"{_bar(self.measured, self.trials)}{trials}, {self.failed} failed, {self.rate:.1f} candidates/s",
            ),
            _row("time", f"{_bar(self.elapsed, self.seconds)}{self._spent}"),
        ]
        if self.improvements:
            share = "of peak  " if self.flops and self.peak_gflops else ""
            lines.append(Text(f"{'trial':>6}  {'time':>8}  {share}improvement", "bold"))
            lines += [Text(self._improved(*each)) for each in self.improvements]
        return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)

    @property
    def _spent(self) -> str:
        return span_text(self.elapsed) + (f" of {span_text(self.seconds)}" if self.seconds is not None else "")

    def _improved(self, number: int, seconds: float, change: str) -> str:
        share = f"{self.flops / seconds / 1e9 / self.peak_gflops:>7.1%}  " if self.flops and self.peak_gflops else ""
        return f"{number:>6}  {seconds_text(seconds):>8}  {share}{change}"


def _row(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name:>6}  ", "bold"), (value, style))


def _bar(done: float, budget: float | None) -> str:
    """How much of a budget is spent; nothing where there is none."""
    if not budget:
        return ""
    full = round(BAR * min(1.0, done / budget))
    return f"{'━' * full}{'╌' * (BAR - full)}  "


class TuningProgress:
    """Listens to tuning events and shows them; a context manager.

    One after the other, several searches may be shown.
    """

    def __init__(self, console: Console, peak_gflops: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._peak_gflops, self._clock = console, peak_gflops, clock
        self._board: Board | None = None
        self._is_live = console.is_terminal and not console.is_dumb_terminal
        self._live: Live | None = None
        self._shown_at = float("-inf")
        self._is_stale = False

    def __enter__(self) -> TuningProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, (Retiming, TaskEnded, TaskFailed)):
            self._line(at_once=True)  # the rounds that have not been told yet
        if self._board is not None:
            self._board.take(event)
        match event:
            case TaskStarted():
                self._start(Board(event, self._peak_gflops))
            case Measured() | NewBest():
                self._draw()
            case RoundEnded():
                self._is_stale = True
                self._draw()
                self._line()
            case Retiming(candidates):
                self._draw(at_once=True)
                if self._live is None:
                    self._say(
                        f"timing the best {candidates} again, in turns" if candidates > 1 else "timing the best again"
                    )
            case Warned(message):
                self._say(one_line(message, 500))
            case TaskEnded(tuned):
                self._draw(at_once=True)
                self._stop()
                if tuned.interrupted:
                    self._say(f"interrupted after {counted(tuned.trials, 'trial')}; the best of them follows")
            case TaskFailed(first):
                self._stop()
                self._say(f"every candidate failed; the first: {one_line(str(first), 500)}")
            case _:
                assert_never(event)

    def _start(self, board: Board) -> None:
        self._stop()
        self._board, self._shown_at = board, float("-inf")
        if self._is_live:
            self._live = Live(board.drawn(), console=self._console, auto_refresh=False)
            self._live.start(refresh=True)
        else:
            self._say(board.opening)

    def _is_due(self, interval: float, at_once: bool) -> bool:
        now = self._clock()
        if not at_once and now - self._shown_at < interval:
            return False
        self._shown_at = now
        return True

    def _draw(self, at_once: bool = False) -> None:
        if self._board is not None and self._live is not None and self._is_due(DRAW_SECONDS, at_once):
            self._live.update(self._board.drawn(), refresh=True)

    def _line(self, at_once: bool = False) -> None:
        if self._board is not None and self._live is None and self._is_stale and self._is_due(LINE_SECONDS, at_once):
            self._is_stale = False
            self._say(self._board.line)

    def _say(self, text: str) -> None:
        """Above the board, where there is one."""
        say(self._console, text)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
