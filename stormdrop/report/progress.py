"""Tuning of one task as it happens: a small live board on a terminal, about one line a second elsewhere."""

from __future__ import annotations

from collections import deque
from typing import assert_never

from rich.console import Console
from rich.text import Text

from stormdrop.measure.result import Failure
from stormdrop.report.live import LiveView
from stormdrop.report.schedule import change_text
from stormdrop.report.text import budget_text, clean, counted, one_line, seconds_text, span_text, speed_text
from stormdrop.search import events
from stormdrop.search.events import Event
from stormdrop.space.schedule import Schedule

SHOWN_IMPROVEMENTS = 5
BAR = 24


class TaskBoard:
    """What the events of one search have said so far."""

    def __init__(self, started: events.TaskStarted, peak_gflops: float) -> None:
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
            case events.Measured(trial):
                self.measured, self.elapsed, self.phase = trial.number, trial.elapsed, clean(trial.phase)
                self.failed += isinstance(trial.result, Failure)
            case events.NewBest(trial, seconds):
                self.improvements.append((trial.number, seconds, clean(change_text(self._fastest, trial.schedule))))
                self.best, self._fastest = seconds, trial.schedule
            case events.RoundEnded(phase, measured, failed, best, elapsed):
                self.phase, self.measured, self.failed = clean(phase), measured, failed
                self.best, self.elapsed = best, elapsed
            case events.Retiming():
                self.phase = "timing the best again"
            case events.TaskStarted() | events.Warned() | events.TaskEnded() | events.TaskFailed():
                pass
            case _:
                assert_never(event)

    @property
    def speed(self) -> str:
        """The best so far."""
        return speed_text(self.best, self.flops, self.peak_gflops)

    @property
    def rate(self) -> float:
        return self.measured / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def opening(self) -> str:
        budget = budget_text(self.trials, self.seconds) or "until nothing is gained"
        known = f"; {counted(self.started.known, 'trial')} of it known" if self.started.known else ""
        sketches = counted(self.started.sketches, "sketch", "sketches")
        return f"tuning {self.name}: {self.strategy} over {sketches}, {budget}{known}"

    @property
    def line(self) -> str:
        """One round for a log."""
        trials = f"{self.measured}/{self.trials}" if self.trials is not None else str(self.measured)
        phase = f", {self.phase}" if self.phase else ""
        done = f"{trials} measured{phase}, {self.failed} failed"
        return f"  {done}, best {self.speed}; {self.rate:.1f} candidates/s, {self._spent}"

    def drawn(self, console: Console) -> Text:
        """The board: what is tuned, how far it is, the best so far, and how it came to that.

        A line too long is cut off.
        """
        trials = f"{self.measured} of {self.trials}" if self.trials is not None else str(self.measured)
        rate = f"{self.rate:.1f} candidates/s"
        lines = [
            _row("tuning", self.name),
            _row("search", f"{self.strategy}: {self.phase}" if self.phase else self.strategy),
            _row("best", self.speed, "green" if self.best is not None else ""),
            _row("trials", f"{_bar(self.measured, self.trials)}{trials}, {self.failed} failed, {rate}"),
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


class TuningProgress(LiveView[TaskBoard]):
    """Listens to tuning events and shows them."""

    line_seconds = 1.0

    def __call__(self, event: Event) -> None:
        if self._live is None and isinstance(event, (events.Retiming, events.TaskEnded, events.TaskFailed)):
            self._show(at_once=True)  # the rounds that have not been told yet
        if self._board is not None:
            self._board.take(event)
        match event:
            case events.TaskStarted():
                board = TaskBoard(event, self._peak_gflops)
                if not self._is_live:
                    self._say(board.opening)
                self._start(board)
            case events.Measured() | events.NewBest():
                if self._live is not None:
                    self._renew()
            case events.RoundEnded():
                self._renew()
            case events.Retiming(candidates):
                if self._live is not None:
                    self._renew(at_once=True)
                else:
                    some = f" {candidates} again, in turns" if candidates > 1 else " again"
                    self._say(f"timing the best{some}")
            case events.Warned(message):
                self._say(one_line(message, 500))
            case events.TaskEnded(tuned):
                if self._live is not None:
                    self._renew(at_once=True)
                self._stop()
                if tuned.interrupted:
                    self._say(f"interrupted after {counted(tuned.trials, 'trial')}; the best of them follows")
            case events.TaskFailed(first):
                self._stop()
                self._say(f"every candidate failed; the first: {one_line(str(first), 500)}")
            case _:
                assert_never(event)
