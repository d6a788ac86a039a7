"""Searches that never happened: trials and events written by hand, for whatever reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stormdrop.device.host import detect
from stormdrop.ir.tensor import Task
from stormdrop.measure.result import Failure, Result, Timing
from stormdrop.operators.catalogue import build
from stormdrop.space.schedule import Schedule
from stormdrop.space.structure import DerivationStep
from stormdrop.target.machine import Target
from stormdrop.tuning.events import Ended, Event, Measured, Moved, Started
from stormdrop.tuning.tuned import TaskRow, Trial, Tuned, TunedTask

HOSTILE = "[red]x[/] \x1b[31m<b>&\n\u202ebad"
"""What a name or a message may hold at worst: markup of two kinds, an escape sequence, a new line, text turned round.
"""


def tiny() -> Task:
    return build("GMM", (1, 13, 17, 11))


def one_thread() -> Target:
    return detect(1)


def schedule(number: int, rule: str = "tile") -> Schedule:
    return Schedule(
        "class", 0, (DerivationStep(rule, 1, "s0", ("SSRSRS", "a2")),), (("s0.a0.1", number), ("s0.unroll", 1))
    )


def result(value: float | Failure) -> Result:
    return value if isinstance(value, Failure) else Timing(value, 0.02, 10, 0.015)


def tuned(
    values: Sequence[float | Failure],
    strategy: str = "storm+droplet",
    droplet_from: int = 10**9,
    stopped: str = "trials",
    task: Task | None = None,
    verified: bool = True,
) -> Tuned:
    """A search whose trials took these seconds, half a second apart; from number `droplet_from` on it was a
    droplet's.
    """
    history = [
        Trial(schedule(n), result(value), n, n / 2, "droplet" if n >= droplet_from else "storm")
        for n, value in enumerate(values, 1)
    ]
    timed = [(t.result.seconds, t.number) for t in history if isinstance(t.result, Timing)]
    seconds, number = min(timed, default=(1.0, 1))
    task = task or tiny()
    tuned_task = TunedTask(
        "t0",
        task.name,
        1,
        task.flops,
        seconds=seconds,
        trials=len(history),
        failed=len(history) - len(timed),
        task=task,
        schedule=schedule(number),
        default=None,
        verified=verified,
        history=tuple(history),
    )
    about = task.name, one_thread(), strategy, 3, (tuned_task,), len(history) / 2 + 1, stopped
    return Tuned(*about, is_model=False)


def events(
    search: Tuned, trials: int | None = None, seconds: float | None = None, batch: int = 2, known: int = 0
) -> Iterator[Event]:
    """The events of a search."""
    (task,) = search.tasks
    row = TaskRow("t0", search.name, 1, task.flops, known=known, sketches=3)
    yield Started(search.name, (row,), search.strategy, trials, seconds, cold=False, is_model=False)
    for trial in search.history:
        is_failure, elapsed = isinstance(trial.result, Failure), trial.elapsed
        is_best = isinstance(trial.result, Timing) and (row.seconds is None or trial.result.seconds < row.seconds)
        if isinstance(trial.result, Timing) and is_best:
            row = replace(row, seconds=trial.result.seconds)
        row = replace(row, trials=trial.number, failed=row.failed + is_failure, phase=trial.phase)
        yield Measured(row, trial, is_best, elapsed)
        if trial.number % batch == 0:
            yield Moved(row, elapsed)
    yield Ended(search)
