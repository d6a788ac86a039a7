"""Tuning with options as keyword arguments, without timing models and without the user's store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from stormdrop.device.host import detect
from stormdrop.graph.partition import Partition
from stormdrop.ir.tensor import Task
from stormdrop.store.store import Store
from stormdrop.target.machine import Target
from stormdrop.tuning.events import Listener, ignore
from stormdrop.tuning.subject import Subject
from stormdrop.tuning.tune import TuneOptions
from stormdrop.tuning.tune import tune as tune_subjects
from stormdrop.tuning.tuned import Tuned


def tune(
    task: Task, target: Target | None = None, *, store: Store | None = None, listen: Listener = ignore, **options: Any
) -> Tuned:
    """Tunes a single task."""
    subjects = [Subject.of_task(task)]
    return tune_subjects(subjects, target or detect(), TuneOptions(**options), store=store, listen=listen)[0]


def tune_models(
    models: Sequence[Partition],
    target: Target | None = None,
    *,
    store: Store | None = None,
    listen: Listener = ignore,
    clock: Callable[[], float] = time.monotonic,
    **options: Any,
) -> tuple[Tuned, ...]:
    """Tunes models together; the models themselves are not timed."""
    subjects = [Subject.of_model(parts, is_timed=False) for parts in models]
    target = target or detect()
    return tune_subjects(subjects, target, TuneOptions(**options), store=store, listen=listen, clock=clock)
