"""Tuning of a whole model: a live table of its tasks on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from typing import assert_never

from rich.console import Console
from rich.text import Text

from stormdrop.report.console import print_table, table_lines
from stormdrop.report.live import LiveView, elapsed_text, lines_drawn
from stormdrop.report.text import (
    budget_text,
    clean,
    counted,
    expected_text,
    node_text,
    one_line,
    seconds_text,
    share_text,
    speed_text,
)
from stormdrop.tuning.events import Warned
from stormdrop.tuning.model_events import ModelEnded, ModelEvent, ModelStarted, Proving, TaskMoved, TaskRow, TunedModel

LABEL = 32
BESIDE = 6
"""Lines of the terminal that are not the table's rows."""
HEADINGS = (
    "task",
    "what",
    "count",
    "GFLOP",
    "best ms",
    "GFLOP/s",
    "of peak",
    "trials",
    "failed",
    "next min",
    "from",
    "state",
    "node",
    "shapes",
)
WORDS = (0, 1, 10, 11, 12, 13)
SPARE = (8, 3, 5, 7, 6, 9, 10, 13, 12)
"""Columns that a narrow terminal does without, the first of these first."""


def cells(row: TaskRow, peak_gflops: float) -> list[str]:
    """Returns one line of the table. Origins are default, verdict, stored, donor, storm, droplet, or another phase."""
    best, rate = row.seconds, row.gflops
    return [
        row.id,
        one_line(row.label, LABEL),
        str(row.count),
        f"{row.flops / 1e9:.3f}" if row.flops else "",
        f"{best * 1e3:.3f}" if best is not None else "",
        f"{rate:.1f}" if rate is not None else "",
        share_text(rate, peak_gflops),
        str(row.trials),
        str(row.failed),
        f"{row.expected_gain:.2%}" if row.expected_gain else "",
        clean(row.origin),
        clean(row.phase),
        node_text(row.node),
        row.shapes,
    ]


class ModelProgress(LiveView):
    """Listens to the tuning of a model and shows it."""

    line_seconds = 5.0

    def __call__(self, event: ModelEvent) -> None:
        match event:
            case ModelStarted():
                self._begin(event)
            case TaskMoved(row, elapsed, _, expected):
                self._rows[row.id] = self._last = row
                self._elapsed, self._expected = elapsed, expected
                self._renew()
            case Proving(tasks, elapsed):
                self._is_proving, self._elapsed = True, elapsed
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

    def _begin(self, started: ModelStarted) -> None:
        self._trials, self._seconds = started.trials, started.seconds
        self._rows = {row.id: row for row in started.rows}
        self._last: TaskRow | None = None
        self._elapsed, self._is_proving = 0.0, False
        self._expected: float | None = None
        tasks = counted(len(started.rows), "task")
        known = f"continuing: {counted(started.known, 'trial')} of {started.known_tasks} of {tasks} known"
        budget = f", {limits}" if (limits := budget_text(started.trials, started.seconds)) else ""
        weights = ", weights out of cache" if started.cold else ""
        self._say(known if started.known else f"starting: none of {tasks} known")
        name = one_line(started.name) or "a model"
        self._say(f"tuning {name}: {clean(started.strategy)} over {tasks}{budget}{weights}")
        self._start()

    @property
    def _estimate(self) -> str:
        """The model's latency by the measurements so far, and with default schedules."""
        timed = [row for row in self._rows.values() if row.seconds is not None]
        if not timed:
            return "nothing ran yet"
        now = sum(row.total for row in timed)
        before = sum(row.count * (row.default_seconds or row.seconds or 0.0) for row in timed)
        part = "" if len(timed) == len(self._rows) else f", {len(timed)} of {len(self._rows)} tasks"
        return f"estimated {seconds_text(now)} (defaults {seconds_text(before)}{part})"

    @property
    def _spent(self) -> str:
        rows = self._rows.values()
        done, failed = sum(row.trials for row in rows), sum(row.failed for row in rows)
        trials = counted(done, "trial") if self._trials is None else f"{done} of {counted(self._trials, 'trial')}"
        more = "" if self._expected is None else f", {expected_text(self._expected)}"
        return f"{trials}, {failed} failed, {elapsed_text(self._elapsed, self._seconds)}{more}"

    @property
    def _line(self) -> str:
        """The progress, and the task that changed last."""
        row = self._last
        if row is None:
            return f"  {self._spent}"
        speed = speed_text(row.seconds, row.flops, self._peak_gflops)
        phase = f"{clean(row.phase)}, " if row.phase else ""
        return f"  {self._spent}; {self._estimate}; {row.id} {one_line(row.label, LABEL)}: {phase}{speed}"

    def _drawn(self) -> Text:
        """Returns the table, the tasks that take longest first, as many as fit."""
        order = sorted(self._rows.values(), key=lambda row: row.total, reverse=True)
        shown = order[: max(1, self._console.height - BESIDE)]
        rows = [cells(row, self._peak_gflops) for row in shown]
        heading, *lines = table_lines(HEADINGS, rows, WORDS, SPARE, self._console.width)
        texts = [Text(heading, "bold")]
        texts += [Text(line, "green" if row is self._last else "") for line, row in zip(lines, shown)]
        if len(shown) < len(order):
            rest = seconds_text(sum(r.total for r in order[len(shown) :]))
            texts.append(Text(f"and {len(order) - len(shown)} more, {rest} together"))
        texts.append(Text(self._estimate, "bold"))
        texts.append(Text(f"{self._spent}{'; proving the winners' if self._is_proving else ''}"))
        return lines_drawn(texts)


def print_tuned(console: Console, tuned: TunedModel, peak_gflops: float) -> None:
    """Prints the result for every task, the tasks that take longest first."""
    headings = (*HEADINGS[:4], "default ms", *HEADINGS[4:7], "share", *HEADINGS[7:])
    rows: list[list[str]] = []
    for t in sorted(tuned.tasks, key=lambda t: t.total, reverse=True):
        name, task, count, work, best, rate, share, *rest = cells(t, peak_gflops)
        before = f"{t.default_seconds * 1e3:.3f}" if t.default_seconds is not None else ""
        part = f"{t.total / tuned.seconds:.1%}" if tuned.seconds else ""
        rows.append([name, task, count, work, before, best, rate, share, part, *rest])
    print_table(console, headings, rows, words=(0, 1, 12, 13, 14, 15), spare=(10, 3, 9, 6, 7, 2, 11, 12, 15, 14))
