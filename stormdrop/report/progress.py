"""Tuning as it happens: on a terminal a live board of a single task or a table of a model's tasks, elsewhere a line now
and then.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import assert_never

from rich.console import Console
from rich.text import Text

from stormdrop.report.console import print_table, table_lines
from stormdrop.report.live import LiveView, StatusLine, elapsed_text, lines_drawn
from stormdrop.report.text import (
    budget_text,
    change_text,
    clean,
    counted,
    expected_text,
    node_text,
    one_line,
    seconds_text,
    share_text,
    speed_text,
)
from stormdrop.space.schedule import Schedule
from stormdrop.tuning.events import Ended, Event, Measured, Moved, Proving, StageStarted, Started, Warned
from stormdrop.tuning.tuned import TaskRow, Tuned

SHOWN_IMPROVEMENTS = 5
BAR = 24
LABEL = 32
BESIDE = 6
"""Lines of the terminal that are not the table's rows."""
HEADINGS = (
    *("task", "what", "count", "GFLOP", "best ms", "GFLOP/s", "of peak"),
    *("trials", "failed", "next min", "from", "state", "node", "shapes"),
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


class TuningProgress(LiveView):
    """The view of the events of tuning, of a single task or of models."""

    line_seconds = 5.0

    def __init__(self, console: Console, peak_gflops: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, peak_gflops, clock)
        self._stage = StatusLine(console, clock=clock)
        self._reset(Started("", (), "", None, None, cold=False))

    def __exit__(self, *error: object) -> None:
        self._stage.__exit__()
        super().__exit__(*error)

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._begin(event)
            case Measured(row, trial, is_best, elapsed, expected):
                if is_best and row.seconds is not None:
                    change = clean(change_text(self._fastest, trial.schedule))
                    self._improvements.append((trial.number, row.seconds, change))
                    self._fastest = trial.schedule
                self._update(row, elapsed, expected)
                if self._live is not None or self._is_model:  # a log of a single task has a line for each round
                    self._renew()
            case Moved(row, elapsed, expected):
                self._update(row, elapsed, expected)
                if self._live is not None or self._is_model or not self._is_proving:
                    self._renew()
            case Proving(tasks, elapsed):
                self._show(at_once=True)
                self._is_proving, self._elapsed = True, elapsed
                if self._live is None:
                    best = f"the best of {counted(tasks, 'task')}" if self._is_model else "the best few"
                    self._say(f"timing {best} again in turns, and proving the {'winners' if tasks > 1 else 'winner'}")
            case StageStarted(text):
                self._end()
                self._stage.tell(text)
            case Warned(message):
                self._say(one_line(message, 500))
            case Ended(tuned):
                self._stage.__exit__()
                self._end()
                if tuned.interrupted:
                    self._say(f"interrupted after {counted(tuned.trials, 'trial')}; the results so far follow")
            case _:
                assert_never(event)

    def _reset(self, started: Started) -> None:
        self._started, self._is_model = started, started.is_model
        self._trials, self._seconds = started.trials, started.seconds
        self._rows = {row.id: row for row in started.rows}
        self._last: TaskRow | None = None
        self._elapsed, self._is_proving = 0.0, False
        self._expected: float | None = None
        self._improvements: deque[tuple[int, float, str]] = deque(maxlen=SHOWN_IMPROVEMENTS)
        self._fastest: Schedule | None = None

    def _begin(self, started: Started) -> None:
        self._reset(started)
        self.line_seconds = 5.0 if started.is_model else 1.0
        strategy, budget = clean(started.strategy), budget_text(started.trials, started.seconds)
        name = one_line(started.name) or "a model"
        if started.is_model:
            tasks = counted(len(started.rows), "task")
            known = f"continuing: {counted(started.known, 'trial')} of {started.known_tasks} of {tasks} known"
            weights = ", weights out of cache" if started.cold else ""
            self._say(known if started.known else f"starting: none of {tasks} known")
            self._say(f"tuning {name}: {strategy} over {tasks}{f', {budget}' if budget else ''}{weights}")
            self._start()
            return
        self._start()
        if self._live is None:
            known = f"; {counted(started.known, 'trial')} of it known" if started.known else ""
            sketches = counted(sum(row.sketches for row in started.rows), "sketch", "sketches")
            self._say(f"tuning {name}: {strategy} over {sketches}, {budget or 'until nothing is gained'}{known}")

    def _update(self, row: TaskRow, elapsed: float, expected: float | None) -> None:
        self._rows[row.id] = self._last = row
        self._elapsed, self._expected = elapsed, expected

    def _end(self) -> None:
        self._show(at_once=True)
        self._stop()

    @property
    def _line(self) -> str:
        """The progress, and the task that changed last."""
        row = self._last
        if row is None:
            return f"  {self._spent}"
        speed = speed_text(row.seconds, row.flops, self._peak_gflops)
        phase = clean(row.phase)
        if self._is_model:
            state = f"{phase}, {speed}" if phase else speed
            return f"  {self._spent}; {self._estimate}; {row.id} {one_line(row.label, LABEL)}: {state}"
        trials = f"{row.trials}/{self._trials}" if self._trials is not None else str(row.trials)
        done = f"{trials} measured{f', {phase}' if phase else ''}, {row.failed} failed"
        return f"  {done}, best {speed}; {self._rate}, {elapsed_text(self._elapsed, self._seconds)}"

    def _drawn(self) -> Text:
        return lines_drawn(self._table() if self._is_model else self._board())

    # ---- a single task ---------------------------------------------------------------------------------------------

    @property
    def _rate(self) -> str:
        measured = self._last.trials if self._last is not None else 0
        return f"{measured / self._elapsed if self._elapsed > 0 else 0.0:.1f} candidates/s"

    def _board(self) -> list[Text]:
        """Returns the subject, the progress, the best so far, and the improvements that led to it."""
        (row,) = self._rows.values()
        trials = f"{row.trials} of {self._trials}" if self._trials is not None else str(row.trials)
        phase = "timing the best again" if self._is_proving else clean(row.phase)
        strategy = clean(self._started.strategy)
        lines = [
            _row("tuning", one_line(self._started.name)),
            _row("search", f"{strategy}: {phase}" if phase else strategy),
            _row("best", speed_text(row.seconds, row.flops, self._peak_gflops), "green" if row.seconds else ""),
            _row("trials", f"{_bar(row.trials, self._trials)}{trials}, {row.failed} failed, {self._rate}"),
            _row("time", f"{_bar(self._elapsed, self._seconds)}{elapsed_text(self._elapsed, self._seconds)}"),
        ]
        peak = self._peak_gflops if row.flops else 0.0
        if self._improvements:
            lines.append(Text(f"{'trial':>6}  {'time':>8}  {'of peak  ' if peak else ''}improvement", "bold"))
        for number, seconds, change in self._improvements:
            share = f"{share_text(row.flops / seconds / 1e9, peak):>7}  " if peak else ""
            lines.append(Text(f"{number:>6}  {seconds_text(seconds):>8}  {share}{change}"))
        return lines

    # ---- models ----------------------------------------------------------------------------------------------------

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

    def _table(self) -> list[Text]:
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
        return texts


def _row(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name:>6}  ", "bold"), (value, style))


def _bar(done: float, budget: float | None) -> str:
    """Returns a bar for the spent share of a budget; empty without a budget."""
    if not budget:
        return ""
    full = round(BAR * min(1.0, done / budget))
    return f"{'━' * full}{'╌' * (BAR - full)}  "


def print_tuned(console: Console, tuned: Tuned, peak_gflops: float) -> None:
    """Prints the result for every task, the tasks that take longest first."""
    headings = (*HEADINGS[:4], "default ms", *HEADINGS[4:7], "share", *HEADINGS[7:])
    rows: list[list[str]] = []
    for t in sorted(tuned.tasks, key=lambda t: t.total, reverse=True):
        name, task, count, work, best, rate, share, *rest = cells(t, peak_gflops)
        before = f"{t.default_seconds * 1e3:.3f}" if t.default_seconds is not None else ""
        part = f"{t.total / tuned.seconds:.1%}" if tuned.seconds else ""
        rows.append([name, task, count, work, before, best, rate, share, part, *rest])
    print_table(console, headings, rows, words=(0, 1, 12, 13, 14, 15), spare=(10, 3, 9, 6, 7, 2, 11, 12, 15, 14))
