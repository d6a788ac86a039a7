"""Tuning of one task as it happens: a small live board on a terminal, about one line a second elsewhere."""

from __future__ import annotations

from collections import deque
from typing import assert_never

from rich.text import Text

from stormdrop.measure.result import Failure
from stormdrop.report.live import LiveView, elapsed_text, lines_drawn
from stormdrop.report.schedule import change_text
from stormdrop.report.text import budget_text, clean, counted, one_line, seconds_text, share_text, speed_text
from stormdrop.space.schedule import Schedule
from stormdrop.tuning import events
from stormdrop.tuning.events import Event

SHOWN_IMPROVEMENTS = 5
BAR = 24


class TuningProgress(LiveView):
    """Listens to tuning events and shows them."""

    line_seconds = 1.0

    def __call__(self, event: Event) -> None:
        match event:
            case events.TaskStarted():
                self._begin(event)
            case events.Measured(trial):
                self._measured, self._elapsed, self._phase = trial.number, trial.elapsed, clean(trial.phase)
                self._failed += isinstance(trial.result, Failure)
                self._redraw()
            case events.NewBest(trial, seconds):
                self._improvements.append((trial.number, seconds, clean(change_text(self._fastest, trial.schedule))))
                self._best, self._fastest = seconds, trial.schedule
                self._redraw()
            case events.RoundEnded(phase, measured, failed, best, elapsed):
                self._phase, self._measured, self._failed = clean(phase), measured, failed
                self._best, self._elapsed = best, elapsed
                self._renew()
            case events.Retiming(candidates):
                self._show(at_once=True)  # the rounds that were not shown yet
                self._phase = "timing the best again"
                if self._live is None:
                    some = f" {candidates} again, in turns" if candidates > 1 else " again"
                    self._say(f"timing the best{some}")
                self._redraw()
            case events.Warned(message):
                self._say(one_line(message, 500))
            case events.TaskEnded(tuned):
                self._end()
                if tuned.interrupted:
                    self._say(f"interrupted after {counted(tuned.trials, 'trial')}; the best of them follows")
            case events.TaskFailed(first):
                self._end()
                self._say(f"every candidate failed; the first: {one_line(str(first), 500)}")
            case _:
                assert_never(event)

    def _begin(self, started: events.TaskStarted) -> None:
        self._name, self._strategy, self._phase = clean(started.task.name), clean(started.strategy), ""
        self._flops, self._trials, self._seconds = started.task.flops, started.trials, started.seconds
        self._measured = self._failed = 0
        self._best: float | None = None
        self._elapsed = 0.0
        self._improvements: deque[tuple[int, float, str]] = deque(maxlen=SHOWN_IMPROVEMENTS)
        self._fastest: Schedule | None = None
        self._start()
        if self._live is None:
            budget = budget_text(self._trials, self._seconds) or "until nothing is gained"
            known = f"; {counted(started.known, 'trial')} of it known" if started.known else ""
            sketches = counted(started.sketches, "sketch", "sketches")
            self._say(f"tuning {self._name}: {self._strategy} over {sketches}, {budget}{known}")

    def _redraw(self) -> None:
        """Updates the board: a board changes with every event, while a log has a line for each round."""
        if self._live is not None:
            self._renew()

    def _end(self) -> None:
        self._show(at_once=True)
        self._stop()

    @property
    def _speed(self) -> str:
        """The best so far."""
        return speed_text(self._best, self._flops, self._peak_gflops)

    @property
    def _rate(self) -> str:
        return f"{self._measured / self._elapsed if self._elapsed > 0 else 0.0:.1f} candidates/s"

    @property
    def _line(self) -> str:
        """One round."""
        trials = f"{self._measured}/{self._trials}" if self._trials is not None else str(self._measured)
        phase = f", {self._phase}" if self._phase else ""
        spent = elapsed_text(self._elapsed, self._seconds)
        return f"  {trials} measured{phase}, {self._failed} failed, best {self._speed}; {self._rate}, {spent}"

    def _drawn(self) -> Text:
        """Returns the subject, the progress, the best so far, and the improvements that led to it."""
        trials = f"{self._measured} of {self._trials}" if self._trials is not None else str(self._measured)
        lines = [
            _row("tuning", self._name),
            _row("search", f"{self._strategy}: {self._phase}" if self._phase else self._strategy),
            _row("best", self._speed, "green" if self._best is not None else ""),
            _row("trials", f"{_bar(self._measured, self._trials)}{trials}, {self._failed} failed, {self._rate}"),
            _row("time", f"{_bar(self._elapsed, self._seconds)}{elapsed_text(self._elapsed, self._seconds)}"),
        ]
        peak = self._peak_gflops if self._flops else 0.0
        if self._improvements:
            lines.append(Text(f"{'trial':>6}  {'time':>8}  {'of peak  ' if peak else ''}improvement", "bold"))
        for number, seconds, change in self._improvements:
            share = f"{share_text(self._flops / seconds / 1e9, peak):>7}  " if peak else ""
            lines.append(Text(f"{number:>6}  {seconds_text(seconds):>8}  {share}{change}"))
        return lines_drawn(lines)


def _row(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name:>6}  ", "bold"), (value, style))


def _bar(done: float, budget: float | None) -> str:
    """Returns a bar for the spent share of a budget; empty without a budget."""
    if not budget:
        return ""
    full = round(BAR * min(1.0, done / budget))
    return f"{'━' * full}{'╌' * (BAR - full)}  "
