"""Tuning of a whole model: a live table of its tasks on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from typing import assert_never

from rich.console import Console
from rich.text import Text

from stormdrop.report.console import print_table, table_lines
from stormdrop.report.live import LiveView
from stormdrop.report.text import (
    budget_text,
    clean,
    counted,
    expected_text,
    one_line,
    seconds_text,
    span_text,
    speed_text,
)
from stormdrop.search.events import Warned
from stormdrop.search.model_events import ModelEnded, ModelEvent, ModelStarted, Proving, TaskMoved, TaskRow, TunedModel

LABEL = 32
BESIDE = 6
"""Lines of the terminal that are not the table's rows."""
HEADINGS = ("", "task", "count", "GFLOP", "best ms", "GFLOP/s", "of peak", "trials", "failed", "next min", "from", "")
WORDS = (0, 1, 10, 11)
SPARE = (8, 3, 5, 7, 6, 9, 10)
"""Columns that a narrow terminal does without, the first of these first."""


def cells(row: TaskRow, peak_gflops: float) -> list[str]:
    """One line of the table."""
    best, rate = row.seconds, row.gflops
    return [
        row.id,
        one_line(row.label, LABEL),
        str(row.count),
        f"{row.flops / 1e9:.3f}" if row.flops else "",
        f"{best * 1e3:.3f}" if best is not None else "",
        f"{rate:.1f}" if rate is not None else "",
        f"{rate / peak_gflops:.1%}" if rate is not None and peak_gflops else "",
        str(row.trials),
        str(row.failed),
        f"{row.expected_gain:.2%}" if row.expected_gain else "",
        clean(row.origin),
        clean(row.phase),
    ]


class ModelBoard:
    """What the events of one model's tuning have said so far."""

    def __init__(self, started: ModelStarted, peak_gflops: float) -> None:
        self.started, self.peak_gflops = started, peak_gflops
        self.rows = {row.id: row for row in started.rows}
        self.last: TaskRow | None = None
        self.elapsed = 0.0
        self.is_proving = False

    def take(self, event: ModelEvent) -> None:
        match event:
            case TaskMoved(row, elapsed):
                self.rows[row.id] = self.last = row
                self.elapsed = elapsed
            case Proving(_, elapsed):
                self.is_proving, self.elapsed = True, elapsed
            case ModelStarted() | Warned() | ModelEnded():
                pass
            case _:
                assert_never(event)

    @property
    def opening(self) -> list[str]:
        """Whether it continues; what is done, and for how long."""
        s, tasks = self.started, counted(len(self.started.rows), "task")
        known = f"continuing: {counted(s.known, 'trial')} of {s.known_tasks} of {tasks} known"
        budget = f", {limits}" if (limits := budget_text(s.trials, s.seconds)) else ""
        weights = ", weights out of cache" if s.cold else ""
        return [
            known if s.known else f"starting: none of {tasks} known",
            f"tuning {one_line(s.name) or 'a model'}: {clean(s.strategy)} over {tasks}{budget}{weights}",
        ]

    @property
    def trials(self) -> int:
        return sum(row.trials for row in self.rows.values())

    @property
    def failed(self) -> int:
        return sum(row.failed for row in self.rows.values())

    @property
    def estimate(self) -> str:
        """The model's latency by what is measured, and with default schedules."""
        timed = [row for row in self.rows.values() if row.seconds is not None]
        if not timed:
            return "nothing ran yet"
        now = sum(row.total for row in timed)
        before = sum(row.count * (row.default_seconds or row.seconds or 0.0) for row in timed)
        part = "" if len(timed) == len(self.rows) else f", {len(timed)} of {len(self.rows)} tasks"
        return f"estimated {seconds_text(now)} (defaults {seconds_text(before)}{part})"

    @property
    def spent(self) -> str:
        s = self.started
        trials = counted(self.trials, "trial") if s.trials is None else f"{self.trials} of {counted(s.trials, 'trial')}"
        time = span_text(self.elapsed) + (f" of {span_text(s.seconds)}" if s.seconds is not None else "")
        expected = sum(row.expected_gain for row in self.rows.values())
        return f"{trials}, {self.failed} failed, {time}" + (f", {expected_text(expected)}" if expected else "")

    @property
    def line(self) -> str:
        """How far it is, for a log, and the task that moved last."""
        row = self.last
        if row is None:
            return f"  {self.spent}"
        speed = speed_text(row.seconds, row.flops, self.peak_gflops)
        phase = f"{clean(row.phase)}, " if row.phase else ""
        return f"  {self.spent}; {self.estimate}; {row.id} {one_line(row.label, LABEL)}: {phase}{speed}"

    def drawn(self, console: Console) -> Text:
        """The table, the tasks that take longest first, as far as they fit."""
        order = sorted(self.rows.values(), key=lambda row: row.total, reverse=True)
        shown = order[: max(1, console.height - BESIDE)]
        lines = table_lines(HEADINGS, [cells(row, self.peak_gflops) for row in shown], WORDS, SPARE, console.width)
        texts = [
            Text(line, "bold" if n == 0 else "green" if self.last and n and shown[n - 1].id == self.last.id else "")
            for n, line in enumerate(lines)
        ]
        if len(shown) < len(order):
            rest = seconds_text(sum(r.total for r in order[len(shown) :]))
            texts.append(Text(f"and {len(order) - len(shown)} more, {rest} together"))
        texts.append(Text(self.estimate, "bold"))
        texts.append(Text(f"{self.spent}{'; proving the winners' if self.is_proving else ''}"))
        return Text("\n", no_wrap=True, overflow="ellipsis").join(texts)


class ModelProgress(LiveView[ModelBoard]):
    """Listens to the tuning of a model and shows it."""

    line_seconds = 5.0

    def __call__(self, event: ModelEvent) -> None:
        if self._board is not None:
            self._board.take(event)
        match event:
            case ModelStarted():
                board = ModelBoard(event, self._peak_gflops)
                for line in board.opening:
                    self._say(line)
                self._start(board)
            case TaskMoved():
                self._renew()
            case Proving(tasks):
                self._show(at_once=True)
                if self._live is None:
                    self._say(f"timing the best of {counted(tasks, 'task')} again in turns, and proving the winners")
            case Warned(message):
                self._say(one_line(message, 500))
            case ModelEnded(tuned):
                self._show(at_once=True)
                self._stop()
                if tuned.interrupted:
                    self._say(f"interrupted after {counted(tuned.trials, 'trial')}; what was found follows")
            case _:
                assert_never(event)


def print_tuned(console: Console, tuned: TunedModel, peak_gflops: float) -> None:
    """What was found for every task, those that take longest first."""
    headings = (*HEADINGS[:4], "default ms", *HEADINGS[4:7], "share", *HEADINGS[7:])
    rows: list[list[str]] = []
    for t in sorted(tuned.tasks, key=lambda t: t.total, reverse=True):
        name, task, count, work, best, rate, share, *rest = cells(t, peak_gflops)
        before = f"{t.default_seconds * 1e3:.3f}" if t.default_seconds is not None else ""
        part = f"{t.total / tuned.seconds:.1%}" if tuned.seconds else ""
        rows.append([name, task, count, work, before, best, rate, share, part, *rest])
    print_table(console, headings, rows, words=(0, 1, 12, 13), spare=(10, 3, 9, 6, 7, 2, 11, 12))
