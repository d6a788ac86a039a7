"""Tuning as it happens, on stderr: a bar on a terminal, one line for each batch elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import assert_never

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from stormdrop.report.console import notes, seconds_text
from stormdrop.search.tune import Event, Measured, NewBest, Retiming, RoundEnded, TaskEnded, TaskFailed, TaskStarted


class TuningProgress:
    """Listens to tuning events; a context manager."""

    def __init__(self, flops: float) -> None:
        self._flops, self._console = flops, notes()
        self._trials = 0
        self._bar: _Bar | None = _Bar(self._console) if self._console.is_terminal else None

    def __enter__(self) -> TuningProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case TaskStarted(task, sketches, trials):
                self._trials = trials
                plural = "es" if sketches != 1 else ""
                self._say(f"tuning {task.name}: {trials} trials over {sketches} sketch{plural}")
                if self._bar is not None:
                    self._bar.start(trials)
            case Measured(number, _):
                if self._bar is not None:
                    self._bar.move(number)
            case NewBest(_, _, seconds):
                if self._bar is not None:
                    self._bar.note(self._rate(seconds))
            case RoundEnded(measured, failed, best):
                if self._bar is None:
                    what = f"best {self._rate(best)}" if best is not None else "nothing ran yet"
                    self._say(f"  {measured}/{self._trials} measured, {failed} failed, {what}")
            case Retiming(candidates):
                if self._bar is not None:
                    self._bar.stop()
                self._say(f"timing the best {candidates} again, in turns" if candidates > 1 else "timing the best again")
            case TaskEnded(tuned):
                if tuned.interrupted:
                    self._say(f"interrupted after {tuned.trials} trials; the best of them follows")
            case TaskFailed(first):
                self._say(f"every candidate failed; the first: {first}")
            case _:
                assert_never(event)

    def _rate(self, seconds: float) -> str:
        rate = f", {self._flops / seconds / 1e9:.1f} GFLOP/s" if self._flops else ""
        return seconds_text(seconds) + rate

    def _say(self, text: str) -> None:
        self._console.print(text)


class _Bar:
    """A rich progress bar that leaves its last state behind."""

    def __init__(self, console: Console) -> None:
        columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[best]}", markup=False))
        self._progress = Progress(*columns, console=console)
        self._task: TaskID | None = None

    def start(self, trials: int) -> None:
        self._task = self._progress.add_task("", total=trials, best="")
        self._progress.start()

    def move(self, number: int) -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=number)

    def note(self, best: str) -> None:
        if self._task is not None:
            self._progress.update(self._task, best=f"best {best}")

    def stop(self) -> None:
        self._progress.stop()
